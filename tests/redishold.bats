#!/usr/bin/env bats
# A hold in one Redis server, by the clock: what loses the key, who is stopped, and what that does to the command's
# tree and to the next holder. Strict bounds: the last sign of life of a whole tree against the server's own time.

bats_require_minimum_version 1.5.0
load lib/common
load lib/fake
load lib/redis

setup_file() { export BATS_NO_PARALLELIZE_WITHIN_FILE=true; }
setup() {
    dlock_setup
    fake_setup
}
teardown() { dlock_teardown; }

own_server() {
    redis_start_in own "$@"
    L="redis://127.0.0.1:${REDIS_PORTS[own]}#$NAME"
}
own() { rcli_in own "$@"; }

# Renewals of a ttl of 3 s are 0.773 s apart.
INTERVAL=773

@test "redis: restarted without its data during a hold: 79, KILL at once; a restart grace keeps others out" {
    own_server --appendonly no
    background -q --ttl 3 "$L" $SUBJECT -t -k
    wait_for 5 running 4
    redis_kill own
    redis_launch own "${REDIS_DIRS[own]}" "${REDIS_PORTS[own]}"
    restart=$(now_ns)
    run -75 run_t 5 "$DLOCK" -n "${L/\#/?restart-grace=3#}" touch ran
    assert_out "restart"
    ended
    assert_rc 79
    assert_out "is lost"
    [ "$(grep -c '^dlock: ' out)" = 1 ]
    assert_between 0 "$(last_beat)" $((restart + 1100 * NS)) "last sign of life"
    [ "$(count_seen main sig 15)" = 0 ]
    # The holder that wants no grace finds a lock that is free: it is the grace that kept it out.
    run -75 run_t 5 "$DLOCK" -n "${L/\#/?restart-grace=3#}" touch ran
    run -0 run_t 5 "$DLOCK" -q -n "$L" true
    [ ! -e ran ]
}
