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

# runs [ENV...] FILE: tests/run as from a shell (bats has put a folder of its own in front of PATH), in $T.
runs() {
    local path
    path=$(tr : '\n' <<<"$PATH" | grep -v /libexec/ | paste -sd :)
    # The process that measures a test's time sometimes outlives it (bats 1.8), and the pipe waits for it: let that be short.
    run run_t 60 env -i PATH="$path" BUILD="$T/build" TEST_JOBS=1 BATS_TEST_TIMEOUT=8 "${@:1:$#-1}" "$ROOT/tests/run" "${!#}"
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
}
