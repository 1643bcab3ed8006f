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

@test "silent DNS delays neither -w, --connect-timeout nor signals" {
    net_up
    net_dns_silent
    net_dns_bounds "zk://zk.test:2181#$NAME" zk.test
}

# bats test_tags=slow
@test "a renewal never waits for DNS" {
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

# zk_moves FROM TO: what a restart in a cluster does: the server has another address, and the name follows.
zk_moves() {
    zk_kill own
    server ip addr del "$1/24" dev link0
    server ip addr add "$2/24" dev link0
    echo "$2 zk.test" >"$T/etc/hosts"
    zk_restart own clientPortAddress=0.0.0.0
}

@test "hold and wait survive a move of the server to another address" {
    local moved="zk://zk.test:"
    net_up
    ZK_VIA=(nsenter -t "$NET_S" -n --)
    own_server clientPortAddress=0.0.0.0
    PORT=$ZK_PORT moved+=$ZK_PORT#$NAME
    echo "$SERVER zk.test" >>"$T/etc/hosts"
    net_hold --ttl 30 --grace 1 "$moved" $SUBJECT -u "$T/end" -r 6
    wait_for 5 running
    start_log "$T/waiter.log" client "$DLOCK" --ttl 30 "$moved" "$HELPERS/clock" "$T/got"
    waiter=$STARTED
    wait_for 5 line_is 2
    # It is away for longer than this one's ttl.
    start_log "$T/short.log" client "$DLOCK" --ttl 1 "$moved" touch "$T/got_short"
    short=$STARTED
    wait_for 5 line_is 3
    before=$(line)
    zk_moves $SERVER 10.77.0.3
    all_are_back() { [ "$(zk_connected own | wc -l)" = 3 ]; }
    wait_for 25 all_are_back
    [ "$(line | head -n 2)" = "$(head -n 2 <<<"$before")" ]
    wait_for 5 line_is 3
    [ ! -e "$T/got" ]
    touch "$T/end"
    ended
    assert_rc 6
    [ "$output" = "" ]
    [ "$(count_seen main sig 15)" = 0 ]
    wait_exit 5 "$waiter"
    [ -e "$T/got" ]
    wait_exit 5 "$short"
    [ -e "$T/got_short" ]
}

# ------------------------------------------------------------------ processes ---

@test "a partition ends the tree before the next holder enters" {
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
        assert_out "has not been renewed for"
        assert_out "could not be renewed in time"
        [ "$(grep -c '^dlock:' "$T/out")" = 2 ]
        wait_exit 10 "$WAITER"
        assert_between 1000 $(($(now_ms) - t0)) $((2000 + 400 + 1000 + SLOW)) "take-over (ms)"
        no_violations
        [ "$(count_seen main sig 15)" = 1 ]
        [ "$(last_beat)" -lt "$(cat got)" ] || fail "$(last_beat) $(cat got)"
        kill -CONT "$PROXY"
        wait_for 5 line_is 0
    done
}

@test "a killed guard ends the tree and releases the lock" {
    background --ttl 20 "$L" $SUBJECT -t -k
    wait_for 5 running 4
    G=$(grep -lx lock-guard $(children "$K" | sed 's,.*,/proc/&/comm,') | cut -d/ -f3)
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

@test "a server stopped at the end does not delay the exit code" {
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
        assert_out "is not confirmed"
        zk_thaw own
        # The delete was on its way, and the connection has ended.
        run run_t 15 "$DLOCK" -w 12 --ttl 20 "$L" true
        assert_rc 0
    done
}

# --------------------------------------------------------------------- clocks ---

@test "no renewal revives a lease that ended during a suspend" {
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

@test "clock jumps of the server do no harm" {
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

@test "parents are persistent on a server without containers" {
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

# bats test_tags=slow
@test "errors of time and session are tried again" {
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

@test "names the server's connection limit" {
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
