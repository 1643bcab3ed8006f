#!/usr/bin/env bats
# sentinel_crash.bats - the master behind Sentinel dies or hangs, unasked, while a lock is held that
# its replica has.

# bats file_tags=long
load ../../support/common
load ../../support/fake
load ../../support/redis
load ../../support/sentinel

setup() {
    dlock_setup
    fake_setup # the command that tells what happens to it
    sentinel_start
    L="$(sentinel_uri)#$NAME"
    read -r MASTER REPLICA <<<"$NODE_PORTS"
    read -r PID _ <<<"$NODE_PIDS"
}
teardown() {
    sentinel_stop
    dlock_teardown
}

names_another() { [ "$(sentinel_master)" = "$REPLICA" ]; }

# survives CMD...: a hold with the usual times and a ttl of 8 s, when CMD has happened to the
# master.
survives() {
    local t0 fence
    starts 1 --ttl 8 "$L" $SUBJECT -u "$T/end" -r 3
    wait_for 5 left_over "$REPLICA" 0
    fence=$(ncli "$REPLICA" get "{$NAME}:dlock:fence")
    t0=$(now_ms)
    "$@"
    wait_for 8 names_another
    # Only a renewal there makes it longer than it was.
    wait_for 8 left_over "$REPLICA" 6500
    # The hold lives longer than without renewals.
    lives_for $((t0 + 8300 - $(now_ms)))
    run -75 run_t 5 "$DLOCK" -n "$L" true
    unharmed 3
    [ "$(ncli "$REPLICA" exists "$NAME")" = 0 ]
    [ "$(run_t 5 "$DLOCK" "$L" sh -c 'echo $DLOCK_FENCE')" -gt "$fence" ]
}

# bats test_tags=slow
@test "a hold survives the master's death" {
    survives kill -KILL "$PID"
}

# bats test_tags=slow
@test "a hold survives a hanging master and its return" {
    back() {
        stop_pid "$PID"
        wait_for 8 names_another
        wait_for 8 left_over "$REPLICA" 6500
        # It has a master's word of its own until the sentinels tell it.
        kill -CONT "$PID"
    }
    survives back
}
