#!/usr/bin/env bats
# ensemble.bats - a lock in an ensemble of ZooKeeper servers: members frozen and killed, no leader, no quorum.

# bats file_tags=long,thread
bats_require_minimum_version 1.5.0

load ../../support/common
load ../../support/fake
load ../../support/zookeeper
load ../../support/zkline

setup_file() {
    export BATS_NO_PARALLELIZE_WITHIN_FILE=true
    # Its sessions are shorter than the default ttl. Tests that kill members start an ensemble of their own.
    zk_ensemble maxSessionTimeout=10000
    export MEMBERS="${ZK_PIDS[1]} ${ZK_PIDS[2]} ${ZK_PIDS[3]}"
}
teardown_file() { zk_stop_all; }

setup() {
    dlock_setup
    fake_setup # the command that tells what happens to it
    at_server "$ZK_PORT"
}
teardown() {
    # shellcheck disable=SC2086
    kill -CONT $MEMBERS 2>/dev/null || :
    dlock_teardown
}

# ---------------------------------------------------------------- helpers ---

port() { zk_port_of "$1"; }
# Members of the ensemble of setup_file.
freeze() { local p; for p; do kill -STOP "$(cut -d' ' -f"$p" <<<"$MEMBERS")"; done; }
thaw() { local p; for p; do kill -CONT "$(cut -d' ' -f"$p" <<<"$MEMBERS")"; done; }

# at_ensemble [NAME...]: L names these members, all of them without any.
at_ensemble() {
    local hosts='' i
    for i in "${@:-1 2 3}"; do hosts+=,127.0.0.1:$(port $i); done
    [ $# -gt 0 ] || hosts=,$ZK_HOSTS
    at_server "$(port "${1:-1}")" "${hosts:1}"
}
# connected_to: the member that the holder's session has its connection with, of those that are asked.
connected_to() {
    local session i
    session=$(owner_of "$(node 1)")
    for i; do zk_connected "$i" | grep -qx "$session" && echo "$i" && return; done
    return 1
}
is_connected_to() { M=$(connected_to "$@"); }
is_up() { zk_ensemble_up; }

# lives FAULT...: a hold, the fault right behind a heartbeat, and the command lives for another session's time.
# M: who it is connected to.
lives() {
    wait_for 5 running
    after_beat "$(node 1)"
    after_beat "$(node 1)"
    "$@"
    t0=$(now_ms)
    # Longer than what was left of the lease.
    wait_for 12 beyond $((t0 + 5000))
    pid_alive "$K" || fail "$(cat "$T/out")"
    [ "$(count_seen main sig 15)" = 0 ]
    touch end
    ended
    assert_rc 6
}

# bats test_tags=slow
@test "a hold survives the freeze of its member" {
    wait_for 15 is_up
    mapfile -t followers < <(zk_followers)
    at_ensemble "${followers[@]}"
    frozen() {
        wait_for 5 is_connected_to "${followers[@]}"
        ZK_PORT=$(port "$(zk_leader)")
        freeze "$M"
    }
    background -q --ttl 10 "$L" $SUBJECT -u "$T/end" -r 6
    lives frozen
    [ "$output" = "" ]
    thaw "$M"
    wait_for 15 is_up
}

# bats test_tags=slow
@test "a hold with a shortened session survives the freeze of its member" {
    wait_for 15 is_up
    mapfile -t followers < <(zk_followers)
    at_ensemble "${followers[@]}"
    frozen() {
        wait_for 5 is_connected_to "${followers[@]}"
        ZK_PORT=$(port "$(zk_leader)")
        freeze "$M"
    }
    background "$L" $SUBJECT -u "$T/end" -r 6
    lives frozen
    thaw "$M"
    wait_for 15 is_up
}

@test "a member frozen at first contact is passed over" {
    wait_for 15 is_up
    mapfile -t followers < <(zk_followers)
    at_ensemble "${followers[@]}"
    freeze "${followers[0]}"
    ZK_PORT=$(port "${followers[1]}")
    for i in 1 2 3 4 5; do
        t0=$(now_ms)
        run run_t 10 "$DLOCK" "$L" true
        assert_rc 0
        assert_between 0 $(($(now_ms) - t0)) 4900 "time (ms)"
    done
    thaw "${followers[0]}"
    wait_for 15 is_up
}

# bats test_tags=slow
@test "a hold survives a short loss of quorum" {
    wait_for 15 is_up
    mapfile -t followers < <(zk_followers)
    at_ensemble
    gone() {
        freeze "${followers[@]}"
        run sleep 2 # the fault itself
        thaw "${followers[@]}"
    }
    background -q --ttl 10 "$L" $SUBJECT -u "$T/end" -r 6
    lives gone
    [ "$output" = "" ]
    wait_for 15 is_up
}

@test "a long loss of quorum ends the tree and lets nobody in" {
    zk_ensemble
    at_ensemble
    background --ttl 3 "$L" $SUBJECT -t -k
    wait_for 5 running 4
    leader=$(zk_leader)
    for i in $(zk_followers); do
        zk_kill "$i" &
        dead+=("$i")
    done
    # By pid: the kills are subshells of their own, and their waits of no concern.
    wait_for 5 eval 'pid_gone "${ZK_PIDS[${dead[0]}]}" && pid_gone "${ZK_PIDS[${dead[1]}]}"'
    lost=$(now_ns)
    ended
    assert_rc 79
    assert_out "could not be renewed in time"
    lease_times 3000 "$lost"
    for who in main child session daemon; do
        assert_between 0 "$(seen $who sig 15)" $((TERM_AT + 250 * NS)) "TERM for $who"
    done
    [ "$(last_beat)" -lt "$DEADLINE" ]
    # A server that has no quorum lets nobody in: within the connect time-out.
    t0=$(now_ms)
    run run_t 10 "$DLOCK" --connect-timeout 1.5 "$L" touch ran
    assert_rc 69
    assert_between 0 $(($(now_ms) - t0)) $((2500 + SLOW)) "time (ms)"
    [ "${#lines[@]}" = 1 ] || fail "$output"
    t0=$(now_ms)
    run run_t 10 "$DLOCK" --connect-timeout 1.5 "zk://127.0.0.1:$(port "$leader")#$NAME" touch ran
    assert_rc 69
    assert_between 0 $(($(now_ms) - t0)) $((2500 + SLOW)) "time (ms)"
    [ ! -e ran ]
}

# bats test_tags=thread,slow
@test "holders never overlap while members are killed" {
    zk_ensemble
    at_ensemble
    mkdir h
    start_log swarm.log "$ROOT/tests/support/helpers/swarm.py" 5 100 bash -c '
        while [ ! -e "$2/enough" ]; do
            "$DLOCK" --ttl 10 "$1" "$HELPERS/witness" "$2" 40 || exit
        done' - "$L" "$T/h"
    swarm=$STARTED
    # One who holds a lock of its own all the time.
    background -q --ttl 10 "$L-long" $SUBJECT -m 110000 -u "$T/end" -r 6
    wait_for 5 running
    turns() { [ "$(grep -c exit h/history)" -ge "$1" ]; }
    more() { wait_for 15 turns $(($(grep -cs exit h/history) + $1)); }
    more 5
    for who in leader follower leader; do
        case $who in
        leader) m=$(zk_leader) ;;
        *) m=$(zk_followers | head -n 1) ;;
        esac
        zk_kill "$m"
        more 8
        zk_restart "$m"
        wait_for 15 is_up
        more 5
    done
    touch h/enough
    wait_exit 30 "$swarm" || fail "$(cat swarm.log)"
    [ "$(count_seen main sig 15)" = 0 ]
    pid_alive "$K" || fail "$(cat "$T/out")"
    touch end
    ended
    assert_rc 6
    [ "$output" = "" ]
    run -0 "$ROOT/tests/support/helpers/check_history.py" "$T/h" "$(grep -c exit h/history)"
}
