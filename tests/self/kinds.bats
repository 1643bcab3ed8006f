#!/usr/bin/env bats
# Tests of the test of all kinds (support/helpers/kinds.py): its model refuses histories that no
# lock may have, and it finds bugs planted in a stand-in for dlock.

# bats file_tags=plain

load ../support/common

# history EVENT...: as lines, one every 10 ms. An event that begins with a time in ms comes then.
history() {
    local event ms=0
    for event; do
        ms=$((ms + 10))
        case $event in [0-9]*) ms=${event%% *} event=${event#* } ;; esac
        echo "${ms}000000 $event"
    done
}
# model HISTORY...: what is said about it; slots have numbers, and all have fences. MODEL: one more
# FACT.
model() {
    history "$@" >lines
    run run_t 5 "$ROOT/tests/support/helpers/kinds_model.py" fence numbers linger=2 bound=10 \
        ${MODEL:-} <lines
}
legal() {
    model "$@"
    assert_rc 0
    [ "$output" = "0 problems" ] || fail "$output"
}
# illegal PROBLEM EVENT...: that one, and no other.
illegal() {
    model "${@:2}"
    assert_rc 1
    [[ ${lines[0]} == $1 ]] || fail "not '$1': $output"
    [ "${lines[1]}" = "1 problems" ] || fail "$output"
}

@test "the model of all kinds allows what a lock may do" {
    # In turn, readers and slots together, a refusal for a reason, fences that stand or grow.
    legal 'start 1 x 0 wait' 'start 2 s 0 wait' 'start 3 n 2 wait' 'start 4 n 2 wait' \
        'enter 1 - 5' 'start 5 s 0 try' 'end 5 75' 'exit 1' 'end 1 0' 'enter 3 1 5' 'enter 2 - 5' \
        'enter 4 0 6' 'start 6 n 3 wait' 'end 6 65' 'start 7 n 2 try' 'end 7 75' 'exit 3' \
        'end 3 0' 'start 8 n 2 wait' 'enter 8 1 6' 'start 9 x 0 100' '400 end 9 75' 'exit 8' \
        'exit 2' 'exit 4' 'end 2 0' 'end 8 0' 'end 4 0' 'start 10 x 0 try' 'enter 10 - 7' \
        'exit 10' 'end 10 0'
    # A crash: the next one enters later, is refused meanwhile, and the kernel has seen no overlap.
    legal 'start 1 x 0 wait' 'enter 1 - 1' 'hit 1 kill keeper' 'end 1 -9' 'start 2 s 0 try' \
        'end 2 75' 'start 3 s 0 wait' '2000 enter 3 - 1' 'exit 3' 'end 3 0'
    # A stop: the lock is lost, and the next one has entered before dlock says so.
    legal 'start 1 n 1 wait' 'enter 1 0 1' 'hit 1 stop keeper' 'start 2 n 1 wait' \
        '2000 enter 2 0 1' 'end 1 79' 'exit 2' 'end 2 0'
    # A holder that got no time on a busy machine.
    legal 'start 1 x 0 wait' 'enter 1 - 1' 'start 2 x 0 wait' 'enter 2 - 2' 'end 1 79' 'exit 2' \
        'end 2 0'
}

@test "the model of all kinds refuses what a lock may not do" {
    local writer=('start 1 x 0 wait' 'enter 1 - 5') reader=('start 1 s 0 wait'
        'enter 1 - 5') slot=('start 1 n 2 wait' 'enter 1 0 5')
    local done=('exit 1' 'end 1 0') done2=('exit 2' 'end 2 0')
    illegal 'FINAL: operation 2 (shared) enters while operation 1 (a writer) is inside*' \
        "${writer[@]}" 'start 2 s 0 wait' 'enter 2 - 5' "${done[@]}" "${done2[@]}"
    illegal 'FINAL: operation 2 (a writer) enters while operation 1 (shared) is inside*' \
        "${reader[@]}" 'start 2 x 0 wait' 'enter 2 - 6' "${done[@]}" "${done2[@]}"
    illegal 'FINAL: operation 2 (a writer) enters while operation 1 (one of 2 slots) is inside*' \
        "${slot[@]}" 'start 2 x 0 wait' 'enter 2 - 6' "${done[@]}" "${done2[@]}"
    illegal 'FINAL: operation 3 (one of 2 slots) enters while 2 others have slots*' "${slot[@]}" \
        'start 2 n 2 wait' 'enter 2 1 5' 'start 3 n 2 wait' 'enter 3 1 5' "${done[@]}" \
        "${done2[@]}" 'exit 3' 'end 3 0'
    illegal 'FINAL: operation 2 (one of 3 slots) enters while slots of another number are held*' \
        "${slot[@]}" 'start 2 n 3 wait' 'enter 2 1 5' "${done[@]}" "${done2[@]}"
    illegal 'FINAL: operation 2 (one of 2 slots) has slot 0, as has operation 1*' "${slot[@]}" \
        'start 2 n 2 wait' 'enter 2 0 5' "${done[@]}" "${done2[@]}"
    illegal 'FINAL: operation 1 (one of 2 slots) has the slot number 2*' 'start 1 n 2 wait' \
        'enter 1 2 5' "${done[@]}"
    illegal 'FINAL: operation 1 (one of 2 slots) has the slot number -*' 'start 1 n 2 wait' \
        'enter 1 - 5' "${done[@]}"
    illegal 'FINAL: operation 1 (shared) has the slot number 0*' 'start 1 s 0 wait' 'enter 1 0 5' \
        "${done[@]}"
    # The kernel's word about one that was hit.
    illegal 'FINAL: operation 2 (a writer) enters while the command of another one still runs*' \
        "${reader[@]}" 'hit 1 kill keeper' 'end 1 -9' 'start 2 x 0 wait' '2000 enter 2 - 6' \
        'refused 2 together' 'end 2 97'
    illegal 'FINAL: operation 2 (one of 1 slots) is one too many*' 'start 1 n 1 wait' \
        'enter 1 0 5' 'hit 1 stop keeper' 'start 2 n 1 wait' '2000 enter 2 0 5' 'refused 2 seat' \
        'refused 2 number' 'end 2 97' 'end 1 79'
}

@test "the model of all kinds holds fences to their order" {
    local first=('start 1 x 0 wait' 'enter 1 - 5' 'exit 1' 'end 1 0')
    illegal 'FINAL: operation 2 (a writer) has fence 5, which is not above 5*' "${first[@]}" \
        'start 2 x 0 wait' 'enter 2 - 5' 'exit 2' 'end 2 0'
    illegal 'FINAL: operation 2 (shared) has fence 4, which is below *' "${first[@]}" \
        'start 2 s 0 wait' 'enter 2 - 4' 'exit 2' 'end 2 0'
    illegal 'FINAL: operation 3 (a writer) has fence 6, which is not above 6*' "${first[@]}" \
        'start 2 s 0 wait' 'enter 2 - 6' \
        'exit 2' 'end 2 0' 'start 3 x 0 wait' 'enter 3 - 6' 'exit 3' 'end 3 0'
    illegal 'FINAL: operation 2 (shared) has no fence*' "${first[@]}" 'start 2 s 0 wait' \
        'enter 2 - 0' 'exit 2' 'end 2 0'
}

@test "the model of all kinds wants a reason for each exit code, and an end" {
    local code
    illegal 'operation 1 (a writer) did not end' 'start 1 x 0 wait'
    illegal 'operation 1 (a writer) took 20.0 s' 'start 1 x 0 wait' '20000 enter 1 - 1' 'exit 1' \
        '20010 end 1 0'
    illegal 'FINAL: operation 1 (a writer) ends with 0 without its command*' 'start 1 x 0 wait' \
        'end 1 0'
    illegal 'FINAL: operation 1 (a writer) ends with 0 before its command*' 'start 1 x 0 wait' \
        'enter 1 - 1' 'end 1 0' 'exit 1'
    illegal 'FINAL: operation 1 (a writer) ends with 75, but was to wait*' 'start 1 x 0 wait' \
        'end 1 75'
    illegal 'FINAL: operation 1 (a writer) gives up after 0.010 s, and was to wait 500 ms*' \
        'start 1 x 0 500' 'end 1 75'
    illegal 'FINAL: operation 1 (a writer) is refused, and nothing stands in its way*' \
        'start 1 x 0 try' 'end 1 75'
    illegal 'FINAL: operation 2 (shared) is refused, and nothing stands in its way*' \
        'start 1 n 1 try' 'enter 1 0 1' 'start 2 s 0 try' 'end 2 75' 'exit 1' 'end 1 0'
    illegal 'FINAL: operation 2 (a writer) is refused, and nothing stands in its way*' \
        'start 1 x 0 wait' 'enter 1 - 1' \
        'hit 1 kill keeper' 'end 1 -9' '2050 start 2 x 0 try' 'end 2 75'
    illegal 'FINAL: operation 1 (one of 2 slots) ends with 65 although no other number was *' \
        'start 1 n 2 wait' 'end 1 65'
    illegal 'operation 2 (one of 3 slots) ends with 75 and not 65 *' 'start 1 n 2 wait' \
        'enter 1 0 1' 'start 2 n 3 try' 'end 2 75' 'exit 1' 'end 1 0'
    for code in -9 -11 1 64 134; do
        illegal "FINAL: operation 1 (a writer) *" 'start 1 x 0 wait' "end 1 $code"
    done
    illegal "FINAL: operation 1 (a writer, term keeper) ends with 137*" 'start 1 x 0 wait' \
        'enter 1 - 1' 'hit 1 term keeper' 'end 1 137'
    illegal '4 were lost or given up*' 'start 1 x 0 wait' 'end 1 79' 'start 2 x 0 wait' 'end 2 69' \
        'start 3 x 0 wait' 'end 3 71' 'start 4 x 0 wait' 'end 4 79'
}

@test "the model of all kinds knows sets, run records and least times" {
    local once=('start 1 x 0 wait once' 'enter 1 - 1' 'exit 1' 'end 1 0')
    # A set of two readers in turn; a least time that is over.
    legal 'start 1 s 0 wait also' 'enter 1 - 1 7' 'start 2 s 0 wait also' 'exit 1' 'end 1 0' \
        'enter 2 - 1 8' 'exit 2' 'end 2 0' 'start 3 x 0 wait keep=3000' 'enter 3 - 2' 'exit 3' \
        'end 3 0' 'start 4 s 0 wait' '3200 enter 4 - 2' 'exit 4' 'end 4 0'
    # Skipped behind a success, run again behind a --forget, or behind a run that was hit.
    legal "${once[@]}" 'start 2 x 0 wait once' 'end 2 3' 'start 3 f 0 wait' 'end 3 0' \
        'start 4 x 0 wait once' 'enter 4 - 2' 'hit 4 kill command' 'end 4 137' \
        'start 5 x 0 wait once' '2000 enter 5 - 3' 'exit 5' 'end 5 0'
    illegal 'FINAL: operation 2 (shared, with a second lock) has the second lock, as has *' \
        'start 1 s 0 wait also' 'enter 1 - 1 7' 'start 2 s 0 wait also' 'enter 2 - 1 8' 'exit 1' \
        'end 1 0' 'exit 2' 'end 2 0'
    illegal 'FINAL: operation 2 * has fence 7 of the second lock, which is not above 7*' \
        'start 1 s 0 wait also' 'enter 1 - 1 7' 'exit 1' 'end 1 0' 'start 2 s 0 wait also' \
        'enter 2 - 1 7' 'exit 2' 'end 2 0'
    illegal 'FINAL: operation 2 (shared) enters before the least time of operation 1 *' \
        'start 1 x 0 wait keep=3000' 'enter 1 - 1' 'exit 1' 'end 1 0' 'start 2 s 0 wait' \
        '1900 enter 2 - 1' 'exit 2' 'end 2 0'
    illegal 'FINAL: operation 2 (a writer, once) runs again after the success of operation 1 *' \
        "${once[@]}" 'start 2 x 0 wait once' 'enter 2 - 2' 'exit 2' 'end 2 0'
    illegal 'FINAL: operation 1 (a writer, once) is skipped, and none has succeeded *' \
        'start 1 x 0 wait once' 'end 1 3'
    illegal 'FINAL: operation 3 (a writer, once) is skipped, and none has succeeded *' \
        "${once[@]}" 'start 2 f 0 wait' 'end 2 0' 'start 3 x 0 wait once' 'end 3 3'
    illegal 'FINAL: operation 1 (which forgets) ends with 1 *' 'start 1 f 0 wait' 'end 1 1'
}

@test "the model of all kinds times a lock that is free beside a waiter" {
    MODEL=handoff=1
    local first=('start 1 x 0 wait' 'enter 1 - 1' 'start 2 x 0 wait') last=('exit 2' 'end 2 0')
    legal "${first[@]}" 'exit 1' '1000 enter 2 - 2' 'end 1 0' "${last[@]}"
    illegal 'operation 2 (a writer) enters 1.1 s after the lock was free' "${first[@]}" 'exit 1' \
        'end 1 0' '1150 enter 2 - 2' "${last[@]}"
    # Behind a crash, or an outage of the store: linger and 3 s more.
    legal "${first[@]}" 'hit 1 kill keeper' 'end 1 -9' '5900 enter 2 - 2' "${last[@]}"
    illegal 'operation 2 (a writer) enters 6.1 s after the lock was free and a fault' \
        "${first[@]}" 'hit 1 kill keeper' 'end 1 -9' '6150 enter 2 - 2' "${last[@]}"
    legal "${first[@]}" 'fault - stop' 'exit 1' '4000 back - stop' 'end 1 0' '9000 enter 2 - 2' \
        "${last[@]}"
}

# random BUG OPERATIONS FACT...: with the stand-in, whose locks outlive a keeper; faults in a fifth.
random() {
    rm -rf h lock
    mkdir h
    BUG=$1 run_t 100 "$ROOT/tests/support/helpers/kinds.py" \
        "$ROOT/tests/support/helpers/kinds_store.py" "$T/lock" \
        "$HELPERS/kinds" h "$2" lease shared slots=2 ttl=0.4 every=5 "${@:3}"
}
# finds BUG PROBLEM FACT...: at the first broken exclusion, or after MOST operations. How soon is
# chance: a test for each bug.
finds() {
    run -1 random "$1" "${MOST:-2000}" "${@:3}"
    # tests/run must not take these words for a failure of dlock.
    grep -Eq "^(FINAL: |operation ).*($2)" <<<"$output" || fail "${output//FINAL:/final:}"
    sed -n "s/^\([0-9]* operations in [0-9.]* s\).*/# $1: \1/p" <<<"$output" >&3
}

@test "random operations find no bug where there is none" {
    random '' 50 numbers fence
}

@test "random operations find a planted bug: a writer beside shared holders" {
    finds beside 'is inside|still runs' numbers
}

@test "random operations find a planted bug: one slot too many" {
    finds many 'others have slots|one too many'
}

@test "random operations find a planted bug: a command without the lock" {
    finds gone 'the command of another one still runs' numbers
}

@test "random operations find a planted bug: slots counted before the wait" {
    finds stale 'others have slots|one too many'
}

# storm: random operations of all that dlock has, half of them no plain ones, under faults each
# second.
storm() { "$@" numbers fence "also=$T/second" once keep more=0.5 storm=1; }

@test "random operations under a storm of faults find no bug where there is none" {
    storm random '' 60
}

@test "random operations find a planted bug: half a set" {
    storm finds half 'second lock'
}

@test "random operations find a planted bug: a success that runs again" {
    MOST=60 storm finds again 'runs again after the success'
}

@test "random operations find a planted bug: a least time that is none" {
    MOST=40 finds short 'before the least time' numbers keep=20 more=0.5 ttl=2 storm=1
}

@test "random operations find a planted bug: waiters that poll" {
    MOST=40 finds late 'after the lock was free' numbers storm=5 workers=2
}
