#!/usr/bin/env bats
# manual.bats - ten questions to the manual: below a heading with the question's word, on one
# screen, stands the answer.

# bats file_tags=plain
load ../../support/common

# The answer is a pattern for what nothing but an answer has.
QUESTIONS='
exit code when the lock is held|dlock.1|exit code|75 +held
Redis fails over|dlock-redis.7|fails over|lacks the key, the lock is lost
behind PgBouncer|dlock-postgres.7|pgbouncer|Use mode=lease
which ttl|dlock-stores.7|which ttl|ttl >= 2 x
a fence in SQL|dlock-guarantees.7|fence in sql|fence <= :fence
can two commands overlap|dlock-guarantees.7|overlap|No, as long as
Kubernetes|dlock-recipes.7|kubernetes|terminationGracePeriodSeconds
which store|dlock-stores.7|which store|run already
coming from flock|dlock-migrating.7|flock|--also
a lock from one step to the next|dlock-migrating.7|across steps|nobody would renew
all locks|dlock-locks.7|all locks|--list STORE
all locks|dlock.1|all locks|--list +Show all locks
rights of the role|dlock-postgres.7|rights of the role|GRANT SELECT
rights of the role|dlock-redis.7|rights of the role|ACL SETUSER
rights of the account|dlock-mysql.7|rights of the account|dlock --schema
rights of the role|dlock-zookeeper.7|rights of the user|setAcl'
SCREEN=24

setup() {
    dlock_setup
    command -v mandoc >/dev/null || skip "no mandoc"
}

# rendered PAGE: as a reader sees it, without what is struck over for bold.
rendered() { mandoc -T ascii -O width=80 "$ROOT/man/$1" | sed 's/.\x08//g'; }
# below HEADING ANSWER: both as patterns; the line of the answer, a colon, and its text.
below() {
    awk -v heading="$1" -v answer="$2" -v screen=$SCREEN '
        NR > 1 && /^(   )?[^ ]/ && tolower($0) ~ heading { from = NR }
        from && NR > from && NR <= from + screen && $0 ~ answer { print NR ":" $0; exit }'
}

@test "the manual answers each of ten questions within a screen of a heading" {
    local question page heading answer line
    [ "$(grep -c '|' <<<"$QUESTIONS")" -ge 10 ]
    while IFS='|' read -r question page heading answer; do
        [ -n "$question" ] || continue
        line=$(rendered "$page" | below "$heading" "$answer")
        [ -n "$line" ] || fail "$question: no '$answer' below a heading '$heading' in $page"
        echo "# $question: $page, line $line"
    done <<<"$QUESTIONS"
}

@test "an answer counts only below its heading, and on one screen" {
    { printf 'X(1)\nA WORD HERE\n'; seq 23; echo yes; } >page
    [ "$(below word yes <page)" = 26:yes ]
    for lines in 'A WORD HERE' '   A word'; do
        { printf 'X(1)\n%s\n' "$lines"; seq 24; echo yes; } >page
        [ -z "$(below word yes <page)" ]
    done
    printf 'WORD(1)\nyes\n     a word in a text\nyes\n' >page
    [ -z "$(below word yes <page)" ]
}

@test "what users search for stands in a heading" {
    grep -h '^\.S[hs] ' "$ROOT"/man/dlock*.[1-8] | sed 's/\\&//g' >headings
    for word in 'exit code' overlap failover 'fails over' break list 'all locks' Kubernetes \
        PgBouncer cron systemd CI 'which store' 'which ttl' 'rights of the role' fence; do
        grep -qiwF -- "$word" headings || fail "no heading has '$word'"
    done
}

# links FOLDER: each link of the pages there that leads nowhere.
links() {
    /usr/bin/python3 - "$1" <<'PY'
import os, re, sys, urllib.parse
os.chdir(sys.argv[1])
pages = {p: open(p).read() for p in sorted(os.listdir('.'))}
ids = {p: set(re.findall(r'\bid="([^"]*)"', text)) for p, text in pages.items()}
for p, text in pages.items():
    for link in re.findall(r'\bhref="([^"]*)"', text):
        page, _, at = link.partition('#')
        if page.startswith('https://'):
            if re.match(r'https://[^/]*/(lib)?dlock', page):
                print(p + ': a page of ours is sought elsewhere: ' + link)
        elif page and page not in pages or at and urllib.parse.unquote(at) not in ids[page or p]:
            print(p + ': dead link: ' + link)
PY
}
@test "make html: linked pages with an index, and no dead link" {
    local page
    run -0 env BUILD="$T" "$ROOT/packaging/html" 1.2.3
    cd dlock-html-1.2.3
    for page in "$ROOT"/man/*.[1-8]; do
        page=${page##*/}
        [ "$(grep -c "href=\"$page.html\"" index.html)" = 1 ] || fail "$page: not in the index"
        grep -q 'href="index.html"' "$page.html" || fail "$page: no way back to the index"
        [ "$page" = dlock.1 ] || grep -q "href=\"$page.html\"" dlock.1.html ||
            fail "dlock(1) does not name $page"
    done
    cd ..
    run -0 links dlock-html-1.2.3
    [ -z "$output" ] || fail "$output"
    grep -q 'href="https://manpages.debian.org/flock.1"' dlock-html-1.2.3/dlock.1.html
    sed -i 's/dlock-file.7.html/dlock-nowhere.7.html/; s/id="NAME"/id="NOM"/' \
        dlock-html-1.2.3/dlock.1.html
    run -0 links dlock-html-1.2.3
    assert_out 'dlock.1.html: dead link: dlock-nowhere.7.html' 'dlock.1.html: dead link: #NAME'
}
@test "make html makes the same archive again" {
    export SOURCE_DATE_EPOCH=1 BUILD=$T
    run -0 "$ROOT/packaging/html" 1.2.3
    mv dlock-html-1.2.3.tar.xz first
    rm -r dlock-html-1.2.3
    run -0 "$ROOT/packaging/html" 1.2.3
    cmp first dlock-html-1.2.3.tar.xz
}

@test "man(1) has no warning about a page" {
    command -v man >/dev/null && command -v troff >/dev/null || skip "no man, or no groff"
    local page
    for page in "$ROOT"/man/*.[1-8]; do
        output=$(MANWIDTH=80 man --warnings -E UTF-8 -l -Tutf8 -Z "$page" 2>&1 >troff)
        [ -s troff ] || fail "${page##*/}: nothing was set"
        [ -z "$output" ] || fail "${page##*/}: $output"
    done
}
