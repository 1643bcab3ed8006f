# Tests of the test runner: all other tests rely on its verdict.

# bats file_tags=plain,long
load ../support/common

@test "a unit test runs by its name; an unknown name fails" {
    example=$(grep -oE 'build/unit/[a-z]+/test_[a-z]+ [a-z0-9_]+' "$ROOT/CONTRIBUTING.md" |
        sed -n 1p)
    [ -n "$example" ] || fail "no example"
    program=${example% *}
    run -0 "$BUILD/${program#build/}" "${example#* }"
    [[ $output == "ok 1 "*"${example#* }"* ]] || fail "$output"
    run -1 "$BUILD/unit/lib/test_uri" no-such-test
    assert_out "no-such-test"
}

# runs [ENV...] FILE...: tests/run as from a shell, in $T: without bats' own folder in PATH.
runs() {
    local path
    local -a env=()
    while [[ $1 == *=* ]]; do
        env+=("$1")
        shift
    done
    path=$(tr : '\n' <<<"$PATH" | grep -v /libexec/ | paste -sd :)
    # A timer process of bats 1.8 may outlive its test, and the pipe waits for it: a short time-out.
    run run_t 60 env -i PATH="$path" BUILD="$T/build" TEST_JOBS=1 BATS_TEST_TIMEOUT=8 \
        DLOCK_SLOW= ${env[@]+"${env[@]}"} "$ROOT/tests/run" "$@"
}

# gives RC LAST-LINE ...: runs with that result; LAST-LINE: "" for any.
gives() {
    runs "${@:3}"
    assert_rc "$1" || return
    [ "${lines[-1]}" = "${2:-${lines[-1]}}" ] || fail "$output"
}

@test "tests/run reports what passed and failed" {
    printf '%s\n' '@test "good" { :; }' '@test "left out" { skip why; }' >some.bats
    gives 0 "1 passed, 0 failed" "$T/some.bats"
    [ "${lines[-2]}" = "1 skipped" ]
    gives 1 "1 passed, 1 failed" DLOCK_STRICT=1 "$T/some.bats"
    refute_out "1 skipped"
    assert_out "skipped in strict mode"
    echo '@test "bad" { false; }' >>some.bats
    gives 1 "1 passed, 1 failed" "$T/some.bats"
    echo '@test "broken {' >broken.bats
    gives 1 "" "$T/broken.bats"
    : >empty.bats
    gives 1 "" "$T/empty.bats"
    assert_out "nothing was tested"
    runs tests/no-such-folder
    assert_rc 66
    # A folder and a file in it: each test runs once.
    mkdir folder
    echo '@test "good" { :; }' >folder/some.bats
    gives 0 "1 passed, 0 failed" "$T/folder" "$T/folder/some.bats"
}

@test "in strict mode an ordinary user may skip what needs root" {
    need_root
    local open
    open=$(mktemp -d /tmp/dlock-test.XXXXXX)
    printf '%s\n' '@test "good" { :; }' '@test "root" { skip "needs root"; }' \
        '@test "mount" { skip "needs the right to mount"; }' >"$open/some.bats"
    gives 1 "1 passed, 2 failed" DLOCK_STRICT=1 "$open/some.bats"
    # The tree may be in a folder of root's alone.
    install -D -m 755 "$ROOT/tests/run" "$open/tests/run"
    chown -R nobody "$open"
    run run_t 60 setpriv --reuid=nobody --regid=nogroup --clear-groups env -i \
        PATH="${PATH//"$BATS_LIBEXEC:"/}" TMPDIR="$open" BUILD="$open/build" DLOCK_STRICT=1 \
        "$open/tests/run" "$open/some.bats"
    rm -rf "$open"
    assert_rc 0
    [ "${lines[-2]} ${lines[-1]}" = "2 skipped 1 passed, 0 failed" ] || fail "$output"
}

@test "tests/run fails when a test leaves a file in the tree" {
    mkdir -p tree/tests
    cp "$ROOT/tests/run" tree/tests
    git init -q tree
    : >tree/mine
    echo '@test "litters" { : >counter; }' >some.bats
    ROOT=$T/tree gives 1 "1 passed, 1 failed" "$T/some.bats"
    assert_out "a test left counter in the tree"
    refute_out "mine"
}

# ---------------------------------------------------------- unsteady tests ---

# fails NAME RUN...: prints a test that fails in the runs with these numbers.
fails() {
    local name=$1 file
    shift
    file=runs.$(cksum <<<"$name" | cut -d' ' -f1)
    printf '@test "%s" {\n    cd "$BATS_TEST_DIRNAME"\n    echo >>"%s"\n' "$name" "$file"
    printf '    n=$(wc -l <"%s")\n' "$file"
    printf '    [[ " %s " != *" $n "* ]] || { echo "words of run $n"; false; }\n}\n' "$*"
}
# ran N NAME
ran() {
    local n
    n=$(wc -l <"runs.$(cksum <<<"$2" | cut -d' ' -f1)")
    [ "$n" -eq "$1" ] || fail "$2: ran $n times, not $1: $output"
}

@test "tests/run lists a test that fails once as unsteady" {
    local name='once (a.b) [c] \"q\" 1+1? {x}|y^ $ it\\s 100%' \
        shown='once (a.b) [c] "q" 1+1? {x}|y^ $ it\s 100%'
    for jobs in 1 4; do
        rm -f runs.*
        { fails "$name" 1; fails "more: $name, and more"; fails 'once (aXb) c' 9; } >some.bats
        : >lists
        gives 0 "3 passed, 0 failed" TEST_JOBS=$jobs DLOCK_LISTS="$T/lists" "$T/some.bats"
        assert_out "Unsteady"
        refute_out "Failed:"
        assert_out "some.bats: $shown"
        [ "$(grep -c 'words of run 1$' lists)" = 1 ] || fail "$(cat lists)"
        [ "$(grep -cE '^  [^ ]' lists)" = 1 ] || fail "$(cat lists)"
        ran 3 "$name"
        ran 1 "more: $name, and more"
        ran 1 'once (aXb) c'
    done
}

@test "tests/run fails when a test fails twice" {
    for again in 2 3; do
        rm -f runs.*
        { fails one 1 $again; fails two; } >some.bats
        : >lists
        gives 1 "1 passed, 1 failed" DLOCK_LISTS="$T/lists" "$T/some.bats"
        refute_out "Unsteady"
        assert_out "some.bats: one"
        grep -q 'words of run 1$' lists
        ran $again one
        ran 1 two
    done
}

@test "tests/run tolerates three unsteady tests, and repeats at most eight" {
    for n in 3 4 9; do
        rm -f runs.*
        for ((i = 1; i <= n; i++)); do fails "test $i" 1; done >some.bats
        case $n in
        3) gives 0 "3 passed, 0 failed" "$T/some.bats" ;;
        4)
            gives 1 "4 passed, 1 failed" "$T/some.bats"
            assert_out "4 tests are unsteady: more than 3" ;;
        9)
            gives 1 "0 passed, 9 failed" "$T/some.bats"
            refute_out Unsteady
            ran 1 "test 1" ;;
        esac
    done
}

@test "tests/run repeats a file whose set-up failed or that did not end" {
    # setup_file: the file is run again.
    {
        echo 'setup_file() {
            cd "$BATS_TEST_DIRNAME"
            [ -e there ] || { : >there; echo "words of setup_file"; false; }
        }'
        fails one
        fails two
    } >some.bats
    gives 0 "2 passed, 0 failed" "$T/some.bats"
    assert_out "some.bats: setup_file failed" "words of setup_file"
    ran 2 one
    # The shell of a test is killed, and the tests after it do not run.
    rm -f runs.*
    {
        fails one
        printf '%s\n' '@test "killed" {' '    cd "$BATS_TEST_DIRNAME"' \
            '    [ -e killed ] || { : >killed; kill -9 $PPID $$; }' '}'
        fails two
    } >some.bats
    gives 0 "3 passed, 0 failed" "$T/some.bats"
    assert_out "some.bats: killed: did not end"
}

@test "tests/run fails where bats cannot read a file" {
    echo 'load nowhere' >some.bats
    fails one >>some.bats
    echo '@test "two" { :; }' >other.bats
    runs "$T/some.bats" "$T/other.bats"
    assert_rc 1
    assert_out nowhere
    [[ ${lines[-1]} != *" 0 failed" ]] || fail "${lines[-1]}"
}

@test "tests/run repeats unit tests too" {
    mkdir -p build/unit/lib
    for fault in 'echo "not ok 1 one"; echo 1..1; exit 1' 'exit 0' 'echo 1..2; exit 0' \
        'echo 1..1; exit 1'; do
        rm -f n
        printf '%s\n' '#!/bin/sh' "echo >>'$T/n'" 'echo "ok 2 other"' \
            "[ \$(wc -l <'$T/n') -gt 1 ] || { $fault; }" \
            'echo "ok 1 one"; echo 1..2' >build/unit/lib/test_uri
        chmod +x build/unit/lib/test_uri
        gives 0 "2 passed, 0 failed" tests/unit/lib/test_uri.c
        assert_out "unit/lib/test_uri: "
        [ "$(wc -l <n)" = 3 ]
    done
}

@test "tests/run fails on a sanitizer's report although the test passes later" {
    printf '%s\n' '@test "one" {' '    [ -z "$(ls "$SAN_REPORTS")" ] || return 0' \
        '    echo "ERROR: words" >"$SAN_REPORTS/report.1"; false' '}' >some.bats
    gives 1 "1 passed, 1 failed" SAN=address "$T/some.bats"
    assert_out "sanitizer report: "
}

@test "tests/run does not repeat a test that broke exclusion" {
    local broken=$'echo "enter 1 2 5" >history; echo "enter 2 1 6" >>history; echo 0 >counter'
    for broken in "$broken; '$ROOT/tests/support/helpers/check_history.py' . 2" \
        'echo overlap >"$T/violations"; false' \
        'mkdir command; echo "1 main overlap" >command/events; false' \
        '[ 1 = 2 ] || final "exit code 0 instead of 5"' \
        "'$ROOT/tests/support/helpers/swarm.py' 2 5 sh -c 'exit 42'"; do
        rm -f runs.*
        {
            echo "load $ROOT/tests/support/common"
            printf '%s\n' 'setup() { dlock_setup; }' 'teardown() { dlock_teardown; }'
            printf '@test "broken" {\n    echo >>"%s/runs.broken"\n    %s\n}\n' "$T" "$broken"
            fails unsteady 1
        } >some.bats
        gives 1 "0 passed, 2 failed" HELPERS="$HELPERS" "$T/some.bats"
        [ "$(wc -l <runs.broken)" = 1 ] || fail "tried again: $output"
        assert_out "FINAL: "
    done
    # Failures in another file are repeated as usual, also a history with too few acquisitions.
    rm -f runs.*
    # bats would take a line of this file that begins with its word for a test of this file.
    printf '%s\n' '@test "unsteady" {' "cd '$T'" '[ ! -e there ] || return 0' ': >there' \
        'printf "%s\n" "enter 1 1 5" "exit 1 1 6" >history' 'echo 1 >counter' \
        "'$ROOT/tests/support/helpers/check_history.py' . 2" '}' >other.bats
    gives 1 "1 passed, 2 failed" "$T/other.bats" "$T/some.bats"
    assert_out "other.bats: unsteady"
}
