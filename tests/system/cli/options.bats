# The option table against everything that repeats it: --help, the manual, the completions; and the
# exit codes and times of the manual against the program's.

# bats file_tags=plain
load ../../support/common

setup() {
    dlock_setup
    MAN=$ROOT/man/dlock.1
    "$DLOCK" --print-options >table
}

# All names of all options, one a line, sorted.
table_names() { cut -f 1,2 table | tr '\t,' '\n\n' | grep . | sort; }
# section TITLE [PAGE]: the lines of that section of the page's source, dlock(1) by default.
# A title may have an empty escape in it.
section() {
    awk -v want=".Sh $1" '/^\.Sh /{ title = $0; gsub(/\\&/, "", title); on = title == want } on' \
        "$ROOT/man/${2:-dlock.1}"
}
# Names in the arguments of Fl macros: "Fl w Ar DUR , Fl -timeout" gives -w and --timeout. Fl alone
# is a single "-".
fl_names() {
    awk '/^\.(It |Op |Nm )?Fl /{
        on = 0
        for (i = 1; i <= NF; i++) {
            if ($i == "Fl" || $i == ".Fl") { on = 1; continue }
            if ($i ~ /^(Ar|Ns|Li|Cm|Oc)$/) { on = 0; continue }
            if ($i == "|" || $i ~ /^[,;:.()]$/) continue
            if (on) print "-" $i
        }
    }' "$@" | sort -u
}

# The codes that were decided on: changing one is a decision, not a slip.
CODES='64 65 69 71 73 75 76 77 79 124 126 127'

@test "the option table is complete and has no name twice" {
    run awk -F '\t' 'NF != 4 || $4 == "" || $1 $2 == ""' table
    [ -z "$output" ] || fail "odd rows: $output"
    output=$(table_names | uniq -d)
    [ -z "$output" ] || fail "twice: $output"
    [ "$(wc -l <table)" -ge 20 ]
}

@test "all options of flock(1) are there, with the same arguments" {
    for pair in -x: -e: --exclusive: -s: --shared: -n: --nb: --nonblock: --nonblocking: --fcntl: \
        -w:y --wait:y --timeout:y -E:y \
        --conflict-exit-code:y -o: --close: -F: --no-fork: -u: --unlock: -c: --command: --verbose: \
        -h: \
        --help: -V: --version:; do
        name=${pair%:*} want=${pair#*:}
        row=$(awk -F '\t' -v n="$name" 'index("," $1 "," $2 ",", "," n ",")' table)
        [ -n "$row" ] || fail "no $name"
        arg=$(cut -f 3 <<<"$row")
        [ -n "$want" ] && [ -n "$arg" ] || [ -z "$want$arg" ] || fail "$name: argument '$arg'"
    done
}

@test "--help shows exactly the table's options" {
    run -0 "$DLOCK" --help
    printf '%s\n' "$output" >help
    # Shorts, and the first long name.
    awk -F '\t' '{ split($2, l, ","); n = split($1 "," l[1], a, ",")
        for (i = 1; i <= n; i++) if (a[i] != "") print a[i] }' table | sort >want
    sed -n 's/^   *\(-[^ ].*\)/\1/p' help | sed 's/  .*//; s/\[=[A-Z]*\]//' | tr -d ',' |
        tr ' ' '\n' | grep '^-' | sort >have
    diff -u want have
    run awk 'length > 80' help
    [ -z "$output" ] || fail "wider than 80 columns: $output"
}

@test "--print-options and --print-names are undocumented" {
    run grep -F print-names <("$DLOCK" --help) "$MAN"
    refute_out "print-names"
    run grep -F print-options <("$DLOCK" --help) "$MAN" "$ROOT/completions/dlock.bash" \
        "$ROOT/completions/_dlock" "$ROOT/completions/dlock.fish"
    refute_out "print-options"
    # The completions' first lines name the tool that made them, nothing else.
    [ "$status" -eq 1 ]
}

@test "the manual's OPTIONS are exactly the table's" {
    section OPTIONS | grep '^\.It Fl ' | fl_names >have
    table_names | sort -u >want
    diff -u want have
}

# fish shows them in completions of its own, made from the manual, and makes "-once" of ".Fl -once".
@test "the first sentences of the manual's OPTIONS keep both dashes in fish" {
    run awk '/^\.Sh/ { within = /OPTIONS/ } /^\.It Fl/ { n = 0; next }
        within && n < 2 && /^\.Fl -/ { print NR ": " $0 } /[.?]$/ { n++ }' "$MAN"
    [ -z "$output" ] || fail "write .Cm --NAME: $output"
}

@test "the manual mentions no unknown option" {
    fl_names "$ROOT"/man/dlock*.[1-8] | grep -vx -e -- -e - >have || :
    table_names | sort -u >want
    run comm -13 want have
    [ -z "$output" ] || fail "not in the table: $output"
}

@test "the manual's option arguments are the table's" {
    section OPTIONS | grep '^\.It Fl ' >its
    while IFS=$'\t' read -r line; do
        has=
        case $line in *' Ar '* | *' Cm '*) has=y ;; esac
        for name in $(fl_names <<<"$line"); do
            # -c is a switch for getopt; its string is the command.
            case $name in -c | --command) continue ;; esac
            arg=$(awk -F '\t' -v n="$name" 'index("," $1 "," $2 ",", "," n ",") { print $3 }' table)
            [ -n "$has" ] && [ -n "$arg" ] || [ -z "$has$arg" ] ||
                fail "$name: '$arg' in the table, manual: $line"
        done
    done <its
}

@test "the manual's exit codes are those of lib/error.c" {
    { sed -n 's/^ *E([A-Z]*, \([0-9]*\), .*/\1/p' "$ROOT/lib/error.c"; printf '124\n126\n127\n'; } |
        sort -nu >want
    # shellcheck disable=SC2086
    printf '%s\n' $CODES | diff -u - want
    section 'EXIT STATUS (EXIT CODE)' >short
    section 'EXIT CODES' dlock-formats.5 >table
    for page in short table; do
        sed -n 's/^\.It \([0-9]*\)$/\1/p' $page | sort -n | diff -u want - || fail "in the $page"
    done
}

@test "the manual has every key of --json" {
    (cd "$ROOT/cli" && grep -hoE 'json_[a-z]+\([^"]*"[a-z_]+"' status.c list.c check.c kind.c) |
        sed 's/.*"\(.*\)"/\1/' | sort -u >keys
    [ "$(wc -l <keys)" -ge 35 ] || fail "found only: $(tr '\n' ' ' <keys)"
    section JSON dlock-formats.5 >json
    while read -r key; do
        grep -qE "^\..*Li ([a-z_]+ , )*$key( |\$)" json || fail "no $key in JSON"
    done <keys
}

@test "the manual's defaults are those of the program" {
    grep -q 'ttl_ns = 30 \* DLOCK_SEC' "$ROOT/lib/options.c"
    grep -q 'connect_timeout_ns = 5 \* DLOCK_SEC' "$ROOT/lib/options.c"
    section OPTIONS >options
    grep -q '^The default is 30 s, the least 1 s\.$' options
    grep -q '^The default is 5 s\.$' options
    # The worked example: the longest grace for the default ttl is accepted, 1 ms more is not.
    mkdir store
    run_t 10 "$DLOCK" --grace 18.198 "fake://$T/store#$NAME" true
    run -64 run_t 10 "$DLOCK" --grace 18.199 "fake://$T/store#$NAME" true
    assert_out "at least 30.1 s"
}

@test "the manual's timeline follows from its formulae" {
    # ttl 30 s, grace 5 s, in microseconds
    ttl=30000000 grace=5000000
    margin=$((ttl / 20)) deadline=$((ttl - ttl / 100 - 2000))
    hard=$((deadline - margin / 2)) kill=$((deadline - margin)) term=$((kill - grace))
    s() { printf '%d.%03d s' $(($1 / 1000000)) $((($1 + 500) / 1000 % 1000)); }
    section TIMELINE dlock-guarantees.7 >timeline
    for want in "margin    $(s $margin)" "renew     $(s $((term / 3)))" "term_at  $(s $term)" \
        "kill_at  $(s $kill)" \
        "hard_at  $(s $hard)" "deadline $(s $deadline)" "$(s $((term - term / 3)))"; do
        grep -qF -- "$want" timeline || fail "not in TIMELINE: $want"
    done
}

@test "the manual shows no prose as options" {
    # "Fl" takes all words behind it for options: three in a row are a sentence that lost its "No".
    for page in "$ROOT"/man/dlock*.[1-8]; do
        mandoc -T ascii "$page" | sed 's/.\x08//g' >page # without what is struck over for bold
        file_nonempty page
        ! grep -nE -e '-[a-z]+ -[a-z]+ -[a-z]+' page || fail "$page: that is prose"
    done
}

# All schemes that a backend serves, one a line.
schemes() {
    sed -nE 's/.*schemes( = .*|\[\] = )\{("[a-z+", ]*"), NULL\}.*/\2/p' "$ROOT"/lib/backends/*/*.c \
        "$ROOT/lib/registry.c" |
        tr -d '" ' | tr ',' '\n' | sort -u
}

@test "manual and --help list the program's schemes" {
    "$DLOCK" --help >help
    schemes >known
    [ "$(wc -l <known)" -ge 11 ] || fail "found only: $(tr '\n' ' ' <known)"
    while read -r scheme; do
        grep -qE "^\.(It Li $(sed 's/+/\\+/' <<<"$scheme")://|Li $scheme\$)" <(section LOCK) ||
            fail "$scheme is not in the manual"
        # Of two names for one store the short one.
        case $scheme in
        postgresql | mariadb | zookeeper) ;;
        *) grep -qF " $scheme://" help || fail "$scheme is not in --help"
            for f in dlock.bash _dlock dlock.fish; do
                grep -qE "[ '](${scheme/+/\\+})://" "$ROOT/completions/$f" ||
                    fail "$scheme is not in $f"
            done ;;
        esac
        run -64 "$DLOCK" -n "$scheme://" true
        refute_out "unknown store"
    done <known
}

@test "manual and --help show the same synopsis" {
    "$DLOCK" --help | sed -n '/^Run /q; p' | grep -oE -- '(^|[ [])--?[a-z]+' | tr -d ' [' |
        sort -u >usage
    section SYNOPSIS | sed 's/^\.Op //; s/^Fl/.Fl/' | fl_names >synopsis
    for name in -c -u --status --json --schema; do
        grep -qxe "$name" usage || fail "$name is not in the usage lines"
        grep -qxe "$name" synopsis || fail "$name is not in SYNOPSIS"
    done
    run comm -23 usage synopsis
    [ -z "$output" ] || fail "not in SYNOPSIS: $output"
}

@test "the completions are up to date" {
    "$ROOT/completions/generate" "$DLOCK" "$T"
    for f in dlock.bash _dlock dlock.fish; do
        diff -u "$ROOT/completions/$f" "$T/$f" || fail "run: completions/generate build/dlock"
    done
}

@test "all three completions know every option" {
    table_names | sort -u >names
    while read -r name; do
        for f in dlock.bash _dlock; do
            grep -qE -- "(^|[^[:alnum:]-])$name([^[:alnum:]-]|\$)" "$ROOT/completions/$f" ||
                fail "$name is not in $f"
        done
        case $name in --*) opt="-l ${name#--}" ;; *) opt="-s ${name#-}" ;; esac
        grep -qE -- " $opt( |\$)" "$ROOT/completions/dlock.fish" ||
            grep -qE -- "'.*$name( .*)?'" "$ROOT/completions/dlock.fish" ||
                fail "$name is not in dlock.fish"
    done <names
}

# complete LINE WORD...: what bash offers for the last of WORDs, as bash splits LINE.
complete_words() {
    bash -c '
        source "$ROOT/completions/dlock.bash"
        COMP_LINE=$1 COMP_POINT=${#1}
        shift
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
        _dlock 2>/dev/null
        printf "%s\n" "${COMPREPLY[@]}"' bash "$@"
}

@test "bash completes before and behind LOCK" {
    touch file.lock
    run complete_words "dlock --on-lost " dlock --on-lost ""
    assert_out $'kill\nterm\nwarn'
    run complete_words "dlock --conn" dlock --conn
    [ "$output" = --connect-timeout ]
    run complete_words "dlock -nw 5 fil" dlock -nw 5 fil
    [ "$output" = $'file.lock\nfile://' ]
    run complete_words "dlock -- fil" dlock -- fil
    [ "$output" = $'file.lock\nfile://' ]
    # How a URI begins, while no colon has split it; beside files, not for an option's value.
    run complete_words "dlock -n redis+s" dlock -n redis+s
    [ "$output" = redis+sentinel:// ]
    touch zk.conf
    run complete_words "dlock zk" dlock zk
    [ "$output" = $'zk.conf\nzk://' ]
    run complete_words "dlock -w zk" dlock -w zk
    refute_out zk
    run complete_words "dlock --" dlock --
    refute_out ://
    # Behind LOCK, whose URI bash has split: a command, and only there -c.
    run complete_words "dlock redis://h#x -" dlock redis : //h#x -
    [ "$output" = $'-c\n--command\n--' ]
    run complete_words "dlock redis://h#x mkfif" dlock redis : //h#x mkfif
    assert_out mkfifo
    run complete_words "dlock -" dlock -
    refute_out "--command"
}

@test "@ is completed with the names in the default folder" {
    mkdir store
    export DLOCK_STORE=$T/store
    for name in nightly 'web deploy' web:db x/y '50%25' 'a%23b'; do "$DLOCK" "@$name" true; done
    touch store/other store/.lock store/a%zz.lock store/$'x\ny.lock'
    mkdir store/folder.lock
    run "$DLOCK" --print-names
    [ "$output" = $'@50%25\n@a%23b\n@nightly\n@web deploy\n@web:db\n@x/y' ]
    # What is printed is LOCK.
    while read -r lock; do "$DLOCK" --status "$lock" | grep -v "no such file"; done <<<"$output"
    # Nothing in a networked store, and nothing is made.
    DLOCK_STORE=redis://127.0.0.1:1 run "$DLOCK" --print-names
    [ "$status$output" = 0 ]
    DLOCK_STORE=$T/none run "$DLOCK" --print-names
    [ "$status$output" = 0 ]
    [ ! -e none ]

    # As bash splits the line, with or without '@' as a break, and what it replaces.
    bash_names() {
        bash -c '
            source "$ROOT/completions/dlock.bash"
            COMP_LINE=$1 COMP_POINT=${#1} replaced=$2
            shift 2
            COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
            _dlock "$DLOCK" "$replaced"
            printf "%s\n" "${COMPREPLY[@]}"' bash "$@"
    }
    run bash_names "dlock @" @ dlock @
    [ "$output" = $'@50%25\n@a%23b\n@nightly\n@web\\ deploy\n@web:db\n@x/y' ]
    run bash_names "dlock -n @web" @web dlock -n @ web
    [ "$output" = $'@web\\ deploy\n@web:db' ]
    run bash_names "dlock @web:d" d dlock @ web : d
    [ "$output" = db ]
    run bash_names "dlock @nig" @nig dlock @nig
    [ "$output" = @nightly ]
    run bash_names "dlock @nightly @" @ dlock @ nightly @
    refute_out nightly
    mkdir bin
    ln -s "$DLOCK" bin/dlock
    export PATH=$T/bin:$PATH
    if command -v zsh >/dev/null; then
        run zsh -fc '_arguments() { :; }; _call_program() { shift; "$@"; }
            compadd() { print -l "${(P)2}"; print -l "${(@P)2}"; }
            . "$ROOT/completions/_dlock"; words=(dlock @) PREFIX=@; _dlock_lock | sort -u'
        assert_out $'@nightly\n@web deploy\n'
    fi
    if command -v fish >/dev/null; then
        run env HOME="$T" fish --no-config -c \
            'source $ROOT/completions/dlock.fish
            complete -C "dlock -n @w"; complete -C "dlock x @w"'
        [ "$output" = $'@web deploy\n@web:db' ]
    fi
}

@test "every lock in the examples of README and manual is valid" {
    # Without the forms of a URI, and what is written for systemd.
    cat "$ROOT/README.md" "$ROOT"/man/dlock*.[1-8] |
        grep -oE '[a-z]+(\+[a-z]+)?://[^ "#]+#[a-z-]+' | grep -vF -e '[' -e '%%' | sort -u >locks
    [ "$(wc -l <locks)" -ge 9 ] || fail "found only: $(cat locks)"
    while read -r lock; do
        # It looks at the URI, and connects to nothing.
        run "$DLOCK" --schema "$lock"
        [[ $output =~ "nothing has to be made"|"need no table"|"CREATE TABLE"|"No such file" ]] ||
            fail "$lock: $output"
    done <locks
}
