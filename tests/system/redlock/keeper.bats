#!/usr/bin/env bats
# keeper.bats - what happens to this machine's side of a Redlock: the keeper killed at each
# of its system calls, a suspend. A killed guard is in contract/suite.bats.

load ../../support/common
load ../../support/fake
load ../../support/redis
load ../../support/redlock
load ../../support/clock

setup_file() { rl_start 5; }
teardown_file() { rl_stop_file; }
setup() {
    dlock_setup
    fake_setup # the command that tells what happens to it
    L=$(rl_uri "$NAME")
}

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

# one_point NAME K: the keeper is killed at the K-th call of that name, with a lock of its own.
# Complaints go to $T/bad.
one_point() {
    local point=$1:$2 rc=0 i dir
    dir=$T/point.$point
    mkdir -p "$dir"
    # In braces: bash tells about everybody who is killed.
    {
        ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0 timeout -k 2 15 \
            strace -o /dev/null -e trace="$1" -e inject="$1":signal=SIGKILL:when="$2" \
            "$DLOCK" --ttl 1 "$(rl_uri "$NAME.$point")" "$HELPERS/subject" "$dir" -t -k -m 1500 \
            >"$dir/out" 2>&1 </dev/null 3>&- || rc=$?
    } 2>/dev/null
    echo "$rc" >"$dir/rc"
    # The guard does not wait for the end of the lease, nor of the command.
    for ((i = 0; i < 20; i++)); do
        [ -e "$dir/witness" ] || break
        flock -sn "$dir/witness" true && break
        sleep 0.025
    done
    [ $i -lt 20 ] || echo "$point: the tree lives on" >>"$T/bad"
    # Free within the ttl and a second.
    for ((i = 0; i < 80; i++)); do
        rl_gone "$NAME.$point" 2>/dev/null && break
        sleep 0.025
    done
    [ $i -lt 80 ] || echo "$point: the lock is still held" >>"$T/bad"
    [ $rc -eq 0 ] || [ $rc -eq 137 ] ||
        echo "$point: exit code $rc: $(tail -n 1 "$dir/out")" >>"$T/bad"
    return 0
}
export -f one_point rl_uri rl_hosts rl_gone rl_count rl_all rl_ask

# A process that is killed makes no report: nothing for a sanitizer.
# bats test_tags=plain,soak
@test "no tree survives a keeper killed at any system call" {
    strace -o /dev/null true 2>/dev/null || skip "strace does not work here"
    ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0 strace -o trace "$DLOCK" --ttl 1 "$L" \
        "$HELPERS/subject" "$C" -t -k -m 1500
    # From the guard's fork on, the first few of each name.
    awk 'match($0, /^[a-z_0-9]+\(/) {
             name = substr($0, 1, RLENGTH - 1); n[name]++
             if (name ~ /^(clone|clone3|fork|vfork)$/) forked = 1
             if (!forked || name ~ /^exit/) next
             if (++points[name] <= 4) print name, n[name]
         }' trace >all
    local n killed
    [ "$(wc -l <all)" -ge 25 ]
    sample call_points <all >points
    n=$(wc -l <points)
    echo "$n points"
    export T NAME
    timeout 150 xargs -P 8 -L 1 bash -c 'one_point "$1" "$2"' - <points
    killed=$(cat "$T"/point.*/rc | grep -c 137)
    echo "$killed killed"
    [ "$killed" -ge $((n / 2)) ]
    settle 2
    [ ! -e bad ] || fail "$(cat bad)"
}
