#!/usr/bin/env bats
# python.bats - libdlock from another language: the example in Python, on a Redis.

# The library is loaded into a foreign program, which no sanitizer has built.
# bats file_tags=plain
load ../../support/common
load ../../support/redis

setup_file() { redis_start; }
teardown_file() { redis_stop; }
setup() {
    dlock_setup
    L=redis://127.0.0.1:$REDIS_PORT#$NAME
    export LD_LIBRARY_PATH=$BUILD
}

# leader LOG OPTION...: start the example; LEADER is its pid.
leader() {
    local log=$1
    shift
    start_log "$log" /usr/bin/python3 "$ROOT/lib/examples/leader.py" "$@"
    LEADER=$STARTED
}
lines_are() { [ "$(grep -c "^$2" "$1")" -ge "$3" ]; }
fence() { sed -n 's/^leading, fence //p' "$1" | tail -1; }

@test "two leaders: when one is killed the other leads, and Ctrl-C releases" {
    local first second
    leader one.log --ttl=3s "$L"
    first=$LEADER
    wait_for 10 file_has one.log 'leading, fence'
    leader two.log --ttl=3s --note=second "$L"
    second=$LEADER
    wait_for 10 file_has two.log waiting
    ! file_has two.log leading || final "both lead"
    kill -KILL "$first"
    wait_for 10 file_has two.log 'leading, fence'
    [ "$(fence two.log)" -gt "$(fence one.log)" ] || final "the fence has not grown"
    # The lease outlasts its ttl: the descriptor has the loop renew it.
    leader three.log --wait=3500ms "$L"
    exits 75 10 "$LEADER"
    file_has three.log 'another process leads'
    kill -INT "$second"
    exits 0 5 "$second"
    [ "$(tail -1 two.log)" = released ] || fail "$(cat two.log)"
    [ "$(rcli exists "$NAME")" = 0 ]
}

@test "a leader that waits is interrupted, and a lost lock is acquired again" {
    local holder
    leader one.log --ttl=3s "$L"
    holder=$LEADER
    wait_for 10 file_has one.log 'leading, fence'
    leader two.log --retry "$L"
    wait_for 10 file_has two.log waiting
    kill -INT "$LEADER"
    exits 0 5 "$LEADER"
    rcli del "$NAME"
    wait_for 10 lines_are one.log 'leading, fence' 2
    file_has one.log 'lost: '
    kill -TERM "$holder"
    exits 0 5 "$holder"
}

@test "what is refused is told by the name of the option" {
    leader out.log --ttl=soon "$L"
    exits 1 5 "$LEADER"
    file_has out.log 'leader.py: ttl: "soon" is not a duration'
    leader out.log --tll=5s "$L"
    exits 1 5 "$LEADER"
    file_has out.log 'leader.py: there is no option "tll"'
    leader out.log --ttl=5s nothing://x
    exits 1 5 "$LEADER"
    [ "$(cut -c1-11 out.log)" = 'leader.py: ' ] || fail "$(cat out.log)"
}
