#!/usr/bin/env bats
# network.bats - what is around a lock in ZooKeeper: names that nobody answers for, a partition, the guard, clocks,
# servers that refuse. faults.bats has what happens to the session, hostile.bats what no server says.

# bats file_tags=long
bats_require_minimum_version 1.5.0

load ../../support/common
load ../../support/fake
load ../../support/netns
load ../../support/redis
load ../../support/zookeeper
load ../../support/zkline
load ../../support/clock

setup_file() {
    export BATS_NO_PARALLELIZE_WITHIN_FILE=true
    zk_start
}
teardown_file() { zk_stop_all; }
setup() {
    dlock_setup
    fake_setup # the command that tells what happens to it
    at_server "$ZK_PORT"
}
teardown() { dlock_teardown; }

# ---------------------------------------------------------------------- names ---

@test "zknetwork: silent DNS: -w, --connect-timeout and --status hold, 69, the name is said; a signal ends it at once" {
    net_up
    net_dns_silent
    U="zk://zk.test:2181#$NAME"
    client_timed -w 0.3 "$U" touch "$T/ran"
    assert_rc 69
    assert_out "zk.test"
    assert_between 300 "$took" $((450 + SLOW)) "-w 0.3 (ms)"
    client_timed --connect-timeout 1 "$U" touch "$T/ran"
    assert_rc 69
    assert_out "zk.test"
    assert_out "name look-up"
    assert_between 1000 "$took" $((1250 + SLOW)) "--connect-timeout 1 (ms)"
    client_timed --status --connect-timeout 0.5 "$U"
    assert_rc 69
    assert_between 500 "$took" $((750 + SLOW)) "--status (ms)"
    asked=$(net_dns_asked)
    [ "$asked" -ge 3 ]
    net_hold --connect-timeout 20 "$U" $SUBJECT
    wait_for 5 eval '[ "$(net_dns_asked)" -gt "$asked" ]'
    t0=$(now_ms)
    kill -TERM "$K"
    ended
    assert_rc 143
    assert_between 0 $(($(now_ms) - t0)) $((300 + SLOW)) "time to die (ms)"
    [ ! -e "$T/ran" ] && [ ! -e "$C/events" ]
}

# bats test_tags=slow
@test "zknetwork: silent DNS during a hold: a renewal never waits for it" {
    net_up
    ZK_VIA=(nsenter -t "$NET_S" -n --)
    own_server clientPortAddress=0.0.0.0
    PORT=$ZK_PORT
    echo "$SERVER zk.test" >>"$T/etc/hosts"
    net_dns_silent
    net_hold --ttl 3 "zk://zk.test:$PORT#$NAME" $SUBJECT -u "$T/end" -r 6
    wait_for 5 running
    echo "127.0.0.1 localhost" >"$T/etc/hosts"
    # For the first ten seconds the addresses count as fresh.
    t0=$(now_ms)
    wait_for 12 beyond $((t0 + 10300))
    for round in 1 2; do
        net_reset
        wait_for 3 net_was_reset
        server iptables -D INPUT 1
        v=$(version "$(node 1)")
        wait_for 3 newer "$(node 1)" "$v"
    done
    touch "$T/end"
    ended
    assert_rc 6
    [ "$output" = "" ]
    [ "$(count_seen main sig 15)" = 0 ]
}

# ------------------------------------------------------------------ processes ---

@test "zknetwork: a partition, nothing is closed: the tree is gone before the next one gets in, 79" {
    proxy pass
    for i in 1 2; do
        rm -rf command/* got
        background --ttl 2 "$P" $SUBJECT -t -k
        wait_for 5 running 4
        waiter got --ttl 2
        # At another time between two heartbeats.
        after_beat "$(node 1)"
        nap 0.$((i * 13))
        kill -STOP "$PROXY"
        t0=$(now_ms)
        ended
        assert_rc 79
        assert_out "could not be renewed in time"
        [ "$(grep -c '^dlock:' "$T/out")" = 1 ]
        wait_exit 10 "$WAITER"
        assert_between 1000 $(($(now_ms) - t0)) $((2000 + 400 + 1000 + SLOW)) "take-over (ms)"
        no_violations
        [ "$(count_seen main sig 15)" = 1 ]
        [ "$(last_beat)" -lt "$(cat got)" ] || fail "$(last_beat) $(cat got)"
        kill -CONT "$PROXY"
        wait_for 5 line_is 0
    done
}

@test "zknetwork: the guard is killed: the tree is gone within a second, the lock is given back; 71" {
    background --ttl 20 "$L" $SUBJECT -t -k
    wait_for 5 running 4
    G=$(grep -lx dlock-guard $(children "$K" | sed 's,.*,/proc/&/comm,') | cut -d/ -f3)
    waiter got --ttl 20
    kill -KILL "$G"
    t0=$(now_ms)
    wait_for 1 tree_gone
    ended
    assert_rc 71
    assert_out "guard process $G was killed"
    # Not by the end of the session.
    wait_exit 5 "$WAITER"
    assert_between 0 $(($(now_ms) - t0)) $((1500 + SLOW)) "take-over (ms)"
    no_violations
    [ "$(last_beat)" -lt "$(cat got)" ]
    line_is 0
}

@test "zknetwork: the server is stopped when the command ends: its status in bounded time, and one line" {
    own_server
    for timeout in 1 2; do
        rm -rf command/* end
        background --ttl 20 --connect-timeout $timeout "$L" $SUBJECT -u "$T/end" -r 3
        wait_for 5 running
        zk_freeze own
        touch end
        t0=$(now_ms)
        ended 20
        assert_between 0 $(($(now_ms) - t0)) $((timeout * 1000 + 700 + SLOW)) "time to the end (ms)"
        assert_rc 3
        [ "$(grep -c '' "$T/out")" = 1 ] || fail "$output"
        assert_out "no answer to the release"
        zk_thaw own
        # The delete was on its way, and the connection has ended.
        run run_t 15 "$DLOCK" -w 12 --ttl 20 "$L" true
        assert_rc 0
    done
}

# --------------------------------------------------------------------- clocks ---

@test "zknetwork: the client's machine has slept past the lease: 79, and no renewal revives it" {
    export WALLCLOCK_SUSPEND=1
    with_clock background --ttl 3 "$L" $SUBJECT -t -k
    wait_for 5 running 4
    jump 10
    t0=$(now_ms)
    ended 5
    assert_rc 79
    [ "$(grep -c '^dlock:' "$T/out")" = 1 ] || fail "$output"
    # At the latest when it wakes up for the next heartbeat.
    assert_between 0 $(($(now_ms) - t0)) $((1300 + SLOW)) "time until the end (ms)"
    settle 2
    wait_for 5 line_is 0
}

@test "zknetwork: the server's clock jumps: no matter, neither for the holder nor for who waits" {
    with_clock own_server
    background --ttl 1.5 "$L" $SUBJECT -u "$T/end" -r 5
    wait_for 5 running
    waiter got --ttl 1.5
    before=$(line)
    for by in 3600 -3600; do
        jump $by
        t0=$(now_ms)
        wait_for 5 beyond $((t0 + 2000))
        zk_create "/by$by" >/dev/null
        # It did jump.
        at=$(zk_stat "/by$by" ctime)
        [ $((at / 1000 - $(date +%s) - by)) -ge -60 ] && [ $((at / 1000 - $(date +%s) - by)) -le 60 ] || fail "$at"
    done
    pid_alive "$K"
    [ "$(line)" = "$before" ]
    [ ! -e got ]
    [ "$(count_seen main sig 15)" = 0 ]
    touch end
    ended
    assert_rc 5
    [ "$output" = "" ]
    wait_exit 5 "$WAITER"
    no_violations
}

# -------------------------------------------------------------------- refusals ---

@test "zknetwork: a server without containers: the parents are persistent nodes" {
    own_server
    N=$NAME NAME=$NAME/b
    # The first create is the node's, the second one the container's.
    proxy refuse create 2 -6
    run run_t 10 "$DLOCK" "$P" echo ran
    assert_rc 0
    [ "$output" = ran ]
    struck
    [ "$(zk_stat "/$N/b" ephemeralOwner)" = 0x0 ] || fail "$(zk_stat "/$N/b" ephemeralOwner)"
    # Containers would be gone by now: they are reaped every 500 ms.
    t0=$(now_ms)
    wait_for 5 beyond $((t0 + 1200))
    [ "$(zk_tree "/$N")" = "/$N/b" ] || fail "$(zk_tree /)"
    end_proxy
    # One that does not even know the create that we use.
    proxy refuse create 0 -6
    run run_t 10 "$DLOCK" "$P" touch "$T/ran"
    assert_rc 69
    assert_out "older than 3.5"
    [ "${#lines[@]}" = 1 ]
    [ ! -e ran ]
}

@test "zknetwork: errors of time and session as answers in the middle: tried again, one node, granted once" {
    zk_create "/$NAME" >/dev/null
    for code in -7 -112 -118; do
        for what in create ls set delete; do
            proxy error $what 1 $code
            rm -f ran
            run run_t 10 "$DLOCK" --ttl 2 "$P" sh -c "echo ran >>'$T/ran'; sleep 0.5" # the command's own time
            assert_rc 0 || fail "$what $code"
            [ -z "$output" ] || fail "$what $code: $output"
            struck || fail "$what $code: nothing happened"
            [ "$(cat ran)" = ran ] || fail "$what $code"
            line_is 0 || fail "$what $code: left behind"
            end_proxy
        done
    done
}

@test "zknetwork: too many connections from here: 69, the reason is said; one that goes makes room" {
    own_server maxClientCnxns=1
    background --ttl 20 "$L" $SUBJECT -u "$T/end" -r 3
    wait_for 5 running
    t0=$(now_ms)
    run run_t 10 "$DLOCK" --connect-timeout 1 "$L-other" touch "$T/ran"
    assert_rc 69
    assert_between 1000 $(($(now_ms) - t0)) $((1500 + SLOW)) "time (ms)"
    assert_out maxClientCnxns
    [ "${#lines[@]}" = 1 ]
    run run_t 10 "$DLOCK" --connect-timeout 1 --status "$L-other"
    assert_rc 69
    assert_out maxClientCnxns
    start_log other.log "$DLOCK" --connect-timeout 10 "$L-other" true
    t0=$(now_ms)
    wait_for 2 beyond $((t0 + 300))
    touch end
    ended
    assert_rc 3
    wait_exit 10 "$STARTED" || fail "$(cat other.log)"
    [ ! -e ran ]
}
