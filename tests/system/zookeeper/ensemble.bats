#!/usr/bin/env bats
# ensemble.bats - a lock in an ensemble of ZooKeeper servers: members frozen and killed, no leader,
# no quorum.

# bats file_tags=long,thread
load ../../support/zkline

setup_file() {
    export BATS_NO_PARALLELIZE_WITHIN_FILE=true
    # Its sessions are shorter than the default ttl. Tests that kill members start an ensemble of
    # their own.
    zk_ensemble maxSessionTimeout=10000
    export MEMBERS="${ZK_PIDS[1]} ${ZK_PIDS[2]} ${ZK_PIDS[3]}"
    # bash is to say nothing of those that the last test kills.
    disown "${ZK_PIDS[@]}"
}
setup() {
    dlock_setup
    fake_setup # the command that tells what happens to it
    at_server "$ZK_PORT"
    wait_for 15 zk_ensemble_up
    mapfile -t followers < <(zk_followers)
}
teardown() {
    kill -CONT $MEMBERS 2>/dev/null || :
    dlock_teardown
}

port() { zk_port_of "$1"; }
# In order, as after a sync: a follower may lag behind.
line() { zk_ls "/$NAME" 2>/dev/null | sed "s|^|/$NAME/|"; }
# Members of the ensemble of setup_file.
member() { cut -d' ' -f"$1" <<<"$MEMBERS"; }
freeze() { local p; for p; do kill -STOP "$(member "$p")"; done; }
thaw() { local p; for p; do kill -CONT "$(member "$p")"; done; }

# at_ensemble [NAME...]: L names these members, all of them without any.
at_ensemble() {
    local hosts='' i
    for i; do hosts+=,127.0.0.1:$(port "$i"); done
    [ $# -gt 0 ] || hosts=,$ZK_HOSTS
    at_server "$(port "${1:-1}")" "${hosts:1}"
}
# is_connected_to NAME...: M is the member of these that the holder's session has its connection
# with.
is_connected_to() {
    local session
    session=$(owner_of "$(node 1)")
    for M; do ! zk_connected "$M" | grep -qx "$session" || return 0; done
    return 1
}

# lives FAULT...: a hold, the fault right behind a heartbeat, and the command lives for another
# session's time.
lives() {
    after_beat "$(node 1)"
    after_beat "$(node 1)"
    "$@"
    # Longer than what was left of the lease.
    lasts 5000
    undisturbed
    job_ends
}

# survives_freeze [OPTION...]: a hold does, of the member that its session has its connection with.
survives_freeze() {
    at_ensemble "${followers[@]}"
    frozen() {
        wait_for 5 is_connected_to "${followers[@]}"
        ZK_PORT=$(port "$(zk_leader)")
        freeze "$M"
    }
    job 6 "$@" "$L"
    lives frozen
}
# bats test_tags=slow
@test "a hold survives the freeze of its member" {
    survives_freeze -q --ttl 10
    [ -z "$output" ]
}
# bats test_tags=slow
@test "a hold with a shortened session survives the freeze of its member" { survives_freeze; }

@test "a member frozen at first contact is passed over" {
    at_ensemble "${followers[@]}"
    freeze "${followers[0]}"
    ZK_PORT=$(port "${followers[1]}")
    for i in 1 2 3 4 5; do takes 0 4900 0 "$DLOCK" "$L" true; done
}

# bats test_tags=slow
@test "a hold survives a short loss of quorum" {
    at_ensemble
    gone() {
        freeze "${followers[@]}"
        run sleep 2 # the fault itself
        thaw "${followers[@]}"
    }
    job 6 -q --ttl 10 "$L"
    lives gone
    [ -z "$output" ]
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
    job 6 -q --ttl 10 "$L-long"
    turns() { [ "$(grep -c exit h/history)" -ge "$1" ]; }
    more() { wait_for 15 turns $(($(grep -cs exit h/history) + $1)); }
    more 5
    for who in leader followers; do
        m=$(zk_$who | head -n 1)
        zk_kill "$m"
        more 8
        zk_restart "$m"
        wait_for 15 zk_ensemble_up
        more 5
    done
    touch h/enough
    wait_exit 30 "$swarm" || fail "$(cat swarm.log)"
    job_ends_silently
    run -0 "$ROOT/tests/support/helpers/check_history.py" "$T/h" "$(grep -c exit h/history)"
}

# The last test: no quorum is left for another one.
# bats test_tags=plain
@test "a long loss of quorum ends the tree and lets nobody in" {
    at_ensemble
    tree --ttl 3 "$L"
    leader=$(zk_leader)
    for i in "${followers[@]}"; do kill -KILL "$(member "$i")"; done
    for i in "${followers[@]}"; do wait_for 5 pid_gone "$(member "$i")"; done
    times_out 3000 "$(now_ns)"
    # A server that has no quorum lets nobody in: within the connect time-out.
    for u in "$L" "zk://127.0.0.1:$(port "$leader")#$NAME"; do
        takes 0 2500 69 "$DLOCK" --connect-timeout 1.5 "$u" touch ran
        [ "${#lines[@]}" = 1 ] || fail "$output"
    done
    [ ! -e ran ]
}
