#!/usr/bin/env bats
# keeper.bats - what happens to this machine's side of a Redlock: the keeper killed at each
# of its system calls, a suspend. A killed guard is in contract/suite.bats.

load ../../support/redlockfile
load ../../support/clock
load ../../support/points

# The servers do not sleep with us: their leases have not ended yet when we wake up, and somebody
# else might be next.
@test "no renewal revives a lease that ended during a suspend" {
    export WALLCLOCK_SUSPEND=1
    with_clock background --ttl 3 "$L" $SUBJECT -t -k
    wait_for 5 running 4
    jump 10
    local t0
    t0=$(now_ms)
    ended 5
    assert_rc 79
    assert_out "could not be renewed in time"
    # At the latest when it wakes up for the next renewal: 0.77 s.
    assert_between 0 $(($(now_ms) - t0)) $((1300 + SLOW)) "ms until the end"
    tree_gone
    wait_for 1 rl_gone "$NAME"
    settle 2
}

lock_of() { rl_uri "$NAME.$1${2:+.$2}"; }
export -f rl_uri rl_hosts

# A process that is killed makes no report: nothing for a sanitizer.
# bats test_tags=plain,soak
@test "no tree survives a keeper killed at its system calls" { kill_at_points redlock; }
