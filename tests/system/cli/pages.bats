#!/usr/bin/env bats
# pages.bats - ten questions to the manual: below a heading with the question's word, on one screen,
# stands the answer.

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
all locks|dlock-locks.7|all locks|--list STORE
all locks|dlock.1|all locks|--list +Show all locks
rights of the role|dlock-postgres.7|rights of the role|GRANT SELECT
rights of the role|dlock-redis.7|rights of the role|ACL SETUSER
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
