#!/usr/bin/env bats
# break_failover.bats - --break behind Sentinel and in a cluster: the holder's tree is gone before
# the next holder starts when another server becomes the master behind the mark.

# bats file_tags=long,plain
load ../../support/holders
load ../../support/redis
load ../../support/sentinel
load ../../support/cluster

setup() {
    dlock_setup
    fake_setup # the command that tells what happens to it
}
teardown() {
    [ -z "${NODE_PIDS:-}" ] || sentinel_stop
    [ -z "${CPID[*]:-}" ] || cluster_stop
    dlock_teardown
}

with_sentinel() {
    sentinel_start
    L="$(sentinel_uri)#$NAME"
    read -r MASTER REPLICA <<<"$NODE_PORTS"
    read -r MASTER_PID REPLICA_PID <<<"$NODE_PIDS"
}
with_cluster() { # the lock is on node 2, with replica 3; the URI names another node
    cluster_start 2
    NAME=$(name_on 2)
    L="redis://127.0.0.1:${CPORT[0]}#$NAME"
    MASTER=${CPORT[2]} REPLICA=${CPORT[3]}
}
value_at() { # a cluster's replica answers a READONLY client alone
    printf 'readonly\nget "%s"\n' "$NAME" | redis-cli -h 127.0.0.1 -p "$1" 3>&- | tail -n 1
}
held_at() { [ "$(value_at "$1")" ]; }
marked_at() { [[ $(value_at "$1") == *" break=1" ]]; }

# breaks_over FAILOVER...: FAILOVER makes the replica, which has the mark, the master before the
# holder's next renewal.
breaks_over() {
    tree --ttl 20 --grace 2 "$L"
    start_waiter next --ttl 20
    stop_pid "$K"
    start_log break.log "$DLOCK" --break --yes "$L"
    breaking=$STARTED
    wait_for 5 marked_at "$REPLICA"
    "$@"
    kill -CONT "$K"
    exits 0 25 "$breaking"
    ended
    assert_rc 79
    assert_out "was broken by"
    follows next
}

@test "Sentinel: a mark that the new master has ends the hold" {
    with_sentinel
    breaks_over sentinel_fails_over
}
names_replica() { [ "$(sentinel_master)" = "$REPLICA" ]; }
sentinel_fails_over() {
    kill -KILL "$MASTER_PID"
    wait_for 15 names_replica
}

@test "Sentinel: without the mark the new master's hold goes on, and --break says 75" {
    with_sentinel
    tree --ttl 6 --grace 1 "$L"
    wait_for 5 held_at "$REPLICA"
    # Cut off before the mark: what the master had already sent, the replica would read.
    stop_pid "$REPLICA_PID"
    ncli "$MASTER" client kill type replica
    stop_pid "$K"
    start_log break.log "$DLOCK" --break --yes -w 8 "$L"
    breaking=$STARTED
    wait_for 5 marked_at "$MASTER"
    kill -KILL "$MASTER_PID"
    kill -CONT "$REPLICA_PID"
    wait_for 15 names_replica
    kill -CONT "$K"
    start_waiter next
    exits 75 15 "$breaking"
    grep -q "is still held by .*; the mark is gone, as after a failover: break" break.log
    undisturbed
    run -0 run_t 20 "$DLOCK" --break --yes "$L"
    ended
    assert_rc 79
    follows next
}

@test "Cluster: a mark that the new master has ends the hold" {
    with_cluster
    breaks_over cluster_fails_over
}
took_over() { is_master 3 && ccli 3 cluster info | grep -q cluster_state:ok; }
cluster_fails_over() {
    cluster_kill 2
    wait_for 10 took_over
}
