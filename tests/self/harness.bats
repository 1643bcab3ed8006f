# What runs the tests: its verdict must be right, or everything else here is worth nothing.

bats_require_minimum_version 1.5.0
# bats file_tags=plain
load ../support/common

setup() { dlock_setup; }
teardown() { dlock_teardown; }

@test "unit tests by name: CONTRIBUTING's example runs one; a name that is none fails" {
    example=$(grep -oE 'build/unit/[a-z]+/test_[a-z]+ [a-z0-9_]+' "$ROOT/CONTRIBUTING.md" | sed -n 1p)
    [ -n "$example" ] || fail "no example"
    program=${example% *}
    run "$BUILD/${program#build/}" "${example#* }"
    assert_rc 0
    [[ $output == "ok 1 "*"${example#* }"* ]] || fail "$output"
    run "$BUILD/unit/lib/test_uri" no-such-test
    assert_rc 1
    assert_out "no-such-test"
}

# runs [ENV...] FILE...: tests/run as from a shell (bats has put a folder of its own in front of PATH), in $T.
runs() {
    local path
    local -a env=()
    while [[ $1 == *=* ]]; do
        env+=("$1")
        shift
    done
    path=$(tr : '\n' <<<"$PATH" | grep -v /libexec/ | paste -sd :)
    # The process that measures a test's time sometimes outlives it (bats 1.8), and the pipe waits for it: let that be short.
    run run_t 60 env -i PATH="$path" BUILD="$T/build" TEST_JOBS=1 BATS_TEST_TIMEOUT=8 ${env[@]+"${env[@]}"} "$ROOT/tests/run" "$@"
}

@test "tests/run: the last line is what passed and what failed, and so is the exit code" {
    printf '%s\n' '@test "good" { :; }' '@test "left out" { skip why; }' >some.bats
    runs "$T/some.bats"
    assert_rc 0
    [ "${lines[-1]}" = "1 passed, 0 failed" ]
    [ "${lines[-2]}" = "1 skipped" ]
    runs DLOCK_STRICT=1 "$T/some.bats"
    assert_rc 1
    [ "${lines[-1]}" = "1 passed, 1 failed" ]
    refute_out "1 skipped"
    assert_out "skipped in strict mode"
    echo '@test "bad" { false; }' >>some.bats
    runs "$T/some.bats"
    assert_rc 1
    [ "${lines[-1]}" = "1 passed, 1 failed" ]
    echo '@test "broken {' >broken.bats
    runs "$T/broken.bats"
    assert_rc 1
    : >empty.bats
    runs "$T/empty.bats"
    assert_rc 1
    assert_out "nothing was tested"
    runs tests/no-such-folder
    assert_rc 66
    # A folder, and a file in it once more: each test once.
    mkdir folder
    echo '@test "good" { :; }' >folder/some.bats
    runs "$T/folder" "$T/folder/some.bats"
    assert_rc 0
    [ "${lines[-1]}" = "1 passed, 0 failed" ]
}

# ---------------------------------------------------------- unsteady tests ---

# fails NAME RUN...: a test in some.bats (which the first call begins) that fails in these of its runs.
fails() {
    local name=$1 file
    shift
    file=runs.$(cksum <<<"$name" | cut -d' ' -f1)
    printf '@test "%s" {\n    cd "$BATS_TEST_DIRNAME"\n    echo >>"%s"\n' "$name" "$file"
    printf '    [[ " %s " != *" $(wc -l <"%s") "* ]] || { echo "words of run $(wc -l <"%s")"; false; }\n}\n' "$*" "$file" "$file"
}
# ran N NAME
ran() {
    local n
    n=$(wc -l <"runs.$(cksum <<<"$2" | cut -d' ' -f1)")
    [ "$n" -eq "$1" ] || fail "$2: ran $n times, not $1: $output"
}

@test "tests/run: a test that fails, and then passes twice, has passed, and is listed with its output" {
    local name='once (a.b) [c] \"q\" 1+1? {x}|y^ $ it\\s 100%' shown='once (a.b) [c] "q" 1+1? {x}|y^ $ it\s 100%'
    for jobs in 1 4; do
        rm -f runs.*
        { fails "$name" 1; fails "more: $name, and more"; fails 'once (aXb) c' 9; } >some.bats
        : >unsteady
        runs TEST_JOBS=$jobs DLOCK_UNSTEADY="$T/unsteady" "$T/some.bats"
        assert_rc 0
        [ "${lines[-1]}" = "3 passed, 0 failed" ]
        assert_out "Unsteady"
        refute_out "Failed:"
        assert_out "some.bats: $shown"
        [ "$(grep -c 'words of run 1$' unsteady)" = 1 ] || fail "$(cat unsteady)"
        [ "$(grep -cvE '^    ' unsteady)" = 1 ] || fail "$(cat unsteady)"
        ran 3 "$name"
        ran 1 "more: $name, and more"
        ran 1 'once (aXb) c'
    done
}

@test "tests/run: a test that fails again has failed, the first or the second time" {
    for again in 2 3; do
        rm -f runs.*
        { fails one 1 $again; fails two; } >some.bats
        runs "$T/some.bats"
        assert_rc 1
        [ "${lines[-1]}" = "1 passed, 1 failed" ]
        refute_out "Unsteady"
        assert_out "some.bats: one"
        ran $again one
        ran 1 two
    done
}

@test "tests/run: three unsteady tests are passed over, four are not, and of nine that fail none is run again" {
    for n in 3 4 9; do
        rm -f runs.*
        for ((i = 1; i <= n; i++)); do fails "test $i" 1; done >some.bats
        runs "$T/some.bats"
        case $n in
        3) assert_rc 0; [ "${lines[-1]}" = "3 passed, 0 failed" ] ;;
        4) assert_rc 1; [ "${lines[-1]}" = "4 passed, 1 failed" ]; assert_out "4 tests are unsteady: more than 3" ;;
        9) assert_rc 1; [ "${lines[-1]}" = "0 passed, 9 failed" ]; refute_out Unsteady; ran 1 "test 1" ;;
        esac
    done
}

@test "tests/run: what failed outside of a test, or did not end, is run again" {
    # setup_file: the file is run again.
    {
        echo 'setup_file() { cd "$BATS_TEST_DIRNAME"; [ -e there ] || { : >there; echo "words of setup_file"; false; }; }'
        fails one
        fails two
    } >some.bats
    runs "$T/some.bats"
    assert_rc 0
    [ "${lines[-1]}" = "2 passed, 0 failed" ] || fail "$output"
    assert_out "some.bats: setup_file failed"
    assert_out "words of setup_file"
    ran 2 one
    # The shell of a test that is killed, and with it those behind it.
    rm -f runs.*
    {
        fails one
        printf '%s\n' '@test "killed" {' '    cd "$BATS_TEST_DIRNAME"' '    [ -e killed ] || { : >killed; kill -9 $PPID $$; }' '}'
        fails two
    } >some.bats
    runs "$T/some.bats"
    assert_rc 0
    [ "${lines[-1]}" = "3 passed, 0 failed" ] || fail "$output"
    assert_out "some.bats: killed: did not end"
}

@test "tests/run: a unit test that fails once is unsteady, too" {
    mkdir -p build/unit/lib
    for fault in 'echo "not ok 1 one"; echo 1..1; exit 1' 'exit 0' 'echo 1..2; exit 0' 'echo 1..1; exit 1'; do
        rm -f n
        printf '%s\n' '#!/bin/sh' "echo >>'$T/n'" 'echo "ok 2 other"' "[ \$(wc -l <'$T/n') -gt 1 ] || { $fault; }" \
            'echo "ok 1 one"; echo 1..2' >build/unit/lib/test_uri
        chmod +x build/unit/lib/test_uri
        runs tests/unit/lib/test_uri.c
        assert_rc 0
        [ "${lines[-1]}" = "2 passed, 0 failed" ] || fail "$fault: $output"
        assert_out "unit/lib/test_uri: "
        [ "$(wc -l <n)" = 3 ]
    done
}

@test "tests/run: what a sanitizer reports is a failure, although the test passes later" {
    printf '%s\n' '@test "one" {' '    [ -z "$(ls "$SAN_REPORTS")" ] || return 0' '    echo "ERROR: words" >"$SAN_REPORTS/report.1"; false' '}' >some.bats
    runs SAN=address "$T/some.bats"
    assert_rc 1
    assert_out "sanitizer report: "
    [ "${lines[-1]}" = "1 passed, 1 failed" ]
}
