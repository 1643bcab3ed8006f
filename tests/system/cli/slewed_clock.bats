#!/usr/bin/env bats
# slewed_clock.bats - a time service slews the clock of this machine: the command's whole tree is
# gone before the lease ends by the other clock. Without a fault of the clock the same is in
# lease.bats and guard.bats.

# bats file_tags=long
load ../../support/fake
load ../../support/clock

# The keeper and the guard are told nine tenths of the time that passes, the command all of it.
slewed_run() {
    with_slew background --ttl 1.5 "$L" env -u LD_PRELOAD $SUBJECT "$@"
    wait_for 5 running "$([ "${1:-}" = -t ] && echo 4)"
    wait_for 5 store_did ok
}

# The tree was killed in time. What the keeper calls a renewal's time is not the true one.
dead_in_time() {
    lease_times 1500 "$(true_time "$(confirmed)")"
    assert_between $((KILL_AT - 300 * NS)) "$(last_beat)" $((DEADLINE - 1)) "last sign of life"
}

@test "a slewed clock does not let the command outlive the lease" {
    slewed_run -t -k
    tell renew unclear
    ends_with 79
    assert_out "could not be renewed in time"
    dead_in_time
    assert_between $((TERM_AT - 250 * NS)) "$(seen main sig 15)" $((TERM_AT + 250 * NS)) TERM
}

@test "a slewed clock does not let the command of a stopped keeper outlive the lease" {
    slewed_run -t -k
    tell renew unclear
    wait_for 5 store_did unclear
    kill -STOP "$K"
    wait_for 5 tree_gone
    kill -CONT "$K"
    ends_with 79
    dead_in_time
}
