#!/usr/bin/env bats
# promises.bats - each promise of dlock-guarantees(7) has a test in tests/promises that exists.

# bats file_tags=plain
load ../support/common

promised() { sed -n '/^\.Sh PROMISES/,/^\.Sh /s/^\(P[0-9]*\) .*/\1/p' "$1"; }

# faults PAGE LIST: a line for each promise without a test, and for each line that proves nothing.
faults() {
    local promise file title
    promised "$1" | sort >promised
    grep -v '^#' "$2" >list
    cut -f 1 list | sort -u >proved
    comm -23 promised proved | sed 's/$/ names no test/'
    comm -13 promised proved | sed 's/$/ is no promise of the page/'
    while IFS=$'\t' read -r promise file title; do
        grep -sF "@test \"$title\" {" "$ROOT/$file" | grep -q '^@test' ||
            echo "$promise: $file has no test \"$title\""
    done <list
}

@test "each promise of the manual names tests that exist" {
    [ "$(promised "$ROOT/man/dlock-guarantees.7" | tr '\n' ' ')" = "$(printf 'P%d ' {1..21})" ]
    run -0 faults "$ROOT/man/dlock-guarantees.7" "$ROOT/tests/promises"
    [ -z "$output" ] || fail "$output"
}

@test "a promise without a test, one that is gone, and tests that are gone are found" {
    printf '%s\n' '.Sh PROMISES' 'P1  exclusion   all' 'P2  a deadline   clock' '.Sh TIMELINE' >page
    printf '%s\t%s\t%s\n' P1 tests/self/promises.bats "a title that is gone" \
        P1 tests/self/gone.bats "each promise of the manual names tests that exist" \
        P3 tests/self/promises.bats "each promise of the manual names tests that exist" >some
    run -0 faults page some
    [ "$output" = 'P2 names no test
P3 is no promise of the page
P1: tests/self/promises.bats has no test "a title that is gone"
P1: tests/self/gone.bats has no test "each promise of the manual names tests that exist"' ] ||
        fail "$output"
}
