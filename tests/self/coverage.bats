#!/usr/bin/env bats
# The check of `make coverage` (tests/coverage/report) on an export of a small program.

load ../support/common

# tree ROW...: $T/lcov of one file. ROW: FUNCTION,LINES,REACHED: lines, and how many of them a test
# reaches; each has a branch for every line, and as many are taken, or TAKEN of all.
tree() {
    local row name lines reached at=1 all=0 hit=0 i
    echo 'SF:./lib/a.c' >lcov
    for row; do
        IFS=, read -r name lines reached <<<"$row"
        printf '%s\n' "FN:$at,lib/a.c:$name" "FNDA:$reached,lib/a.c:$name" >>lcov
        for ((i = 0; i < lines; i++)); do echo "DA:$((at + i)),$((i < reached))" >>lcov; done
        at=$((at + lines)) all=$((all + lines)) hit=$((hit + reached))
    done
    printf '%s\n' "BRF:$all" "BRH:${TAKEN:-$hit}" "LF:$all" "LH:$hit" end_of_record >>lcov
}
report() { # RC: with $T/list
    run "-$1" "$ROOT/tests/coverage/report" lcov list
}

@test "coverage: a new function without a test fails" {
    echo '# nothing' >list
    tree good,300,300
    report 0
    assert_out '100.00 % of 300 lines, 100.00 % of 300 branches'
    tree good,300,300 new,5,0
    report 1
    assert_out '! lib/a.c new: 301-305' 'FAILED: lib/a.c new: no test enters it'
    echo 'lib/a.c new needs a machine without a clock' >list
    report 0
    assert_out '! lib/a.c new: 301-305 - needs a machine without a clock'
}

@test "coverage: a function is entered when a unit test enters its own copy" {
    echo '# nothing' >list
    tree some,100,100
    sed -i 's/^FNDA:.*/FNDA:0,lib\/a.c:some\nFN:1,test_a.c:some\nFNDA:7,test_a.c:some/' lcov
    report 0
    refute_out '! lib/a.c some'
}

@test "coverage: a function with many unreached lines fails, one with few does not" {
    echo '# nothing' >list
    tree good,300,300 most,100,98
    report 0
    assert_out '  lib/a.c most: 399-400'
    tree good,300,300 half,30,15
    report 1
    assert_out 'FAILED: lib/a.c half: 15 lines are not reached, and list gives no reason'
}

@test "coverage: a reason for a function that is gone fails" {
    echo 'lib/a.c gone cannot happen' >list
    tree good,10,10
    report 1
    assert_out 'FAILED: list: lib/a.c has no function gone'
}

@test "coverage: totals below the thresholds fail, whatever the list says" {
    echo 'lib/a.c new cannot happen' >list
    tree good,94,94 new,6,0
    report 1
    assert_out 'FAILED: 94.00 % of the lines: less than 95 %'
    TAKEN=84 tree good,100,100
    report 1
    assert_out 'FAILED: 84.00 % of the branches: less than 85 %'
    refute_out 'of the lines:'
}

@test "coverage: each row of the list names a function, and gives a reason" {
    local file function reason
    while read -r file function reason; do
        [[ $file != '#'* ]] || continue
        grep -qE "\<$function\(" "$ROOT/$file" && [ -n "$reason" ] || fail "$file $function $reason"
    done <"$ROOT/tests/coverage/list"
}

@test "coverage: without a compiler that counts it is not run, which is no failure" {
    COVER_CC=false run -77 "$ROOT/tests/coverage/run"
    assert_out "not run: "
}
