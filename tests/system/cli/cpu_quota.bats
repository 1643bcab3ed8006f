#!/usr/bin/env bats
# Keeper and guard get next to no processor: a cgroup with 5 %, most of it burnt by a process.

load ../../support/fake
load ../../support/redis

setup() {
    dlock_setup
    fake_setup
    CG=
}
teardown() {
    local rc=0
    dlock_teardown || rc=$?
    [ -z "$CG" ] || wait_for 5 rmdir "$CG" || rc=1
    return $rc
}

# A group of our own, in version 1 or 2.
starving_group() {
    local base
    for base in /sys/fs/cgroup/cpu /sys/fs/cgroup; do
        [ -w "$base/cgroup.procs" ] || continue
        if [ -e "$base/cpu.cfs_quota_us" ]; then
            mkdir "$base/dlock-$NAME" || continue
            CG=$base/dlock-$NAME
            echo 100000 >"$CG/cpu.cfs_period_us" && echo 5000 >"$CG/cpu.cfs_quota_us" && return 0
        elif grep -qw cpu "$base/cgroup.controllers" 2>/dev/null; then
            mkdir "$base/dlock-$NAME" || continue
            CG=$base/dlock-$NAME
            # Refused where the parent has processes of its own.
            echo +cpu >"$base/cgroup.subtree_control" && echo "5000 100000" >"$CG/cpu.max" &&
                return 0
        fi 2>/dev/null
        rmdir "$CG"
        CG=
    done
    return 1
}
enter() { for pid; do echo "$pid" >"$CG/cgroup.procs"; done; }
throttled() { awk '$1 == "nr_throttled" { print $2 }' "$CG/cpu.stat"; }

# bats test_tags=slow
@test "renewals go on with 5 % of a processor" {
    # Nothing that could be installed would change it: no failure of a strict run.
    starving_group || { echo "# no cgroup can be made here: not tested" >&3; return 0; }
    redis_start_in own
    L="redis://127.0.0.1:${REDIS_PORTS[own]}#$NAME"
    starts 4 -q --ttl 4 "$L" $SUBJECT -t -k
    find_guard
    start_log burn sh -c 'while :; do :; done'
    enter "$STARTED" "$K" "$G"
    # Longer than a lease: nothing was lost by being slow.
    lives_for 4500
    [ "$(throttled)" -ge 30 ] || fail "throttled $(throttled) times only: this proves nothing"
    [ "$(count_seen main sig 15)" = 0 ]
    # By the server's own word of when the lease ends, behind a renewal. Clock steps: 10 ms.
    wait_for 8 eval '[ "$(rcli_in own pttl "$NAME")" -gt 3700 ]'
    left=$(rcli_in own pttl "$NAME")
    kill -STOP "${REDIS_PIDS[own]}"
    lease_times 4000 $(($(now_ns) + (left - 4000 + 10) * NS))
    wait_for 8 tree_gone
    echo "# $((($(last_beat) - KILL_AT) / NS)) ms after kill_at;" \
        "$(throttled) times without the processor" >&3
    [ "$(last_beat)" -lt "$DEADLINE" ] ||
        fail "$((($(last_beat) - DEADLINE) / NS)) ms after the deadline"
    [ "$(count_seen main sig 15)" = 1 ]
    ends_with 79
    kill -CONT "${REDIS_PIDS[own]}"
}
