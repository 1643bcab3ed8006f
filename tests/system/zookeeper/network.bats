#!/usr/bin/env bats
# network.bats - what is around a lock in ZooKeeper: names that nobody answers for, a partition, the
# guard, clocks, servers that refuse. faults.bats has what happens to the session, hostile.bats what
# no server says.

# bats file_tags=long
load ../../support/netns
load ../../support/zkline
load ../../support/clock

# ---------------------------------------------------------------------- names ---

# far_server: zk.test, on the second machine; FAR is the lock there.
far_server() {
    net_up
    ZK_VIA=(nsenter -t "$NET_S" -n --)
    own_server clientPortAddress=0.0.0.0
    PORT=$ZK_PORT FAR="zk://zk.test:$ZK_PORT#$NAME"
    echo "$SERVER zk.test" >>"$T/etc/hosts"
}

@test "silent DNS delays neither -w, --connect-timeout nor signals" {
    net_up
    net_dns_silent
    net_dns_bounds "zk://zk.test:2181#$NAME" zk.test
}

# bats test_tags=slow
@test "a renewal never waits for DNS" {
    far_server
    net_dns_silent
    RUN=net_hold job 6 --ttl 6 "$FAR"
    echo "127.0.0.1 localhost" >"$T/etc/hosts"
    # For the first ten seconds the addresses count as fresh.
    lasts 10300
    for round in 1 2; do
        net_reset
        wait_for 3 net_was_reset
        server iptables -D INPUT 1
        v=$(version "$(node 1)")
        wait_for 3 newer "$(node 1)" "$v"
    done
    job_ends_silently
}

# zk_moves FROM TO: what a restart in a cluster does: the server has another address, and the name
# follows.
zk_moves() {
    zk_kill own
    server ip addr del "$1/24" dev link0
    server ip addr add "$2/24" dev link0
    echo "$2 zk.test" >"$T/etc/hosts"
    zk_restart own clientPortAddress=0.0.0.0
}

@test "hold and wait survive a move of the server to another address" {
    far_server
    RUN=net_hold job 6 --ttl 30 --grace 1 "$FAR"
    start_log "$T/waiter.log" client "$DLOCK" --ttl 30 "$FAR" "$HELPERS/clock" "$T/got"
    waiter=$STARTED
    wait_for 5 line_is 2
    # It is away for longer than this one's ttl.
    start_log "$T/short.log" client "$DLOCK" --ttl 1 "$FAR" touch "$T/got_short"
    short=$STARTED
    wait_for 5 line_is 3
    before=$(line)
    zk_moves $SERVER 10.77.0.3
    all_are_back() { [ "$(zk_connected | wc -l)" = 3 ]; }
    wait_for 25 all_are_back
    [ "$(line | head -n 2)" = "$(head -n 2 <<<"$before")" ]
    wait_for 5 line_is 3
    [ ! -e "$T/got" ]
    job_ends_silently
    wait_exit 5 "$waiter"
    [ -e "$T/got" ]
    wait_exit 5 "$short"
    [ -e "$T/got_short" ]
}

# ------------------------------------------------------------------ processes ---

@test "a partition ends the tree before the next holder enters" {
    proxy pass
    for i in 1 2; do
        rm -f got
        tree --ttl 2 "$P"
        waiter got --ttl 2
        # At another time between two heartbeats.
        after_beat "$(node 1)"
        nap 0.$((i * 13))
        kill -STOP "$PROXY"
        t0=$(now_ms)
        times_out 2000 $((t0 * NS))
        follows got
        assert_between 1000 $(($(now_ms) - t0)) $((2000 + 400 + 1000 + SLOW)) "take-over (ms)"
        kill -CONT "$PROXY"
        wait_for 5 line_is 0
    done
}

@test "an unconfirmed release keeps the last words of the last server" {
    own_server
    job 3 --ttl 20 --connect-timeout 2 "$L"
    zk_kill own
    job_ends
    assert_out "is not confirmed: 127.0.0.1:$ZK_PORT: Connection refused"
}

# --------------------------------------------------------------------- clocks ---

# bats test_tags=plain
@test "clock jumps of the server do no harm" {
    with_clock own_server
    job 5 --ttl 3 "$L"
    waiter got --ttl 3
    before=$(line)
    for by in 3600 -3600; do
        jump $by
        lasts 2000
        zk_create "/by$by" >/dev/null
        # It did jump.
        at=$(zk_stat "/by$by" ctime)
        [ $((at / 1000 - $(date +%s) - by)) -ge -60 ] &&
            [ $((at / 1000 - $(date +%s) - by)) -le 60 ] || fail "$at"
    done
    [ "$(line)" = "$before" ]
    [ ! -e got ]
    job_ends_silently
    wait_exit 5 "$WAITER"
    no_violations
}

# -------------------------------------------------------------------- refusals ---

@test "parents are persistent on a server without containers" {
    N=$NAME NAME=$NAME/b
    # The first create is the node's, the second one the container's.
    proxy refuse create 2 -6
    run -0 run_t 10 "$DLOCK" "$P" echo ran
    [ "$output" = ran ]
    struck
    [ "$(zk_stat "/$N/b" ephemeralOwner)" = 0x0 ] || fail "$(zk_stat "/$N/b" ephemeralOwner)"
    # Containers would be gone by now: they are reaped every 500 ms.
    lasts 1200
    [ "$(zk_tree "/$N")" = "/$N/b" ] || fail "$(zk_tree /)"
    end_proxy
    # One that does not even know the create that we use.
    proxy refuse create 0 -6
    run -69 run_t 10 "$DLOCK" "$P" touch "$T/ran"
    assert_out "older than 3.5"
    [ "${#lines[@]}" = 1 ]
    [ ! -e ran ]
}

@test "names the server's connection limit" {
    own_server maxClientCnxns=1
    job 3 --ttl 20 "$L"
    takes 1000 1500 69 "$DLOCK" --connect-timeout 1 "$L-other" touch "$T/ran"
    assert_out maxClientCnxns
    [ "${#lines[@]}" = 1 ]
    run -69 run_t 10 "$DLOCK" --connect-timeout 1 --status "$L-other"
    assert_out maxClientCnxns
    start_log other.log "$DLOCK" --connect-timeout 10 "$L-other" true
    lasts 300
    job_ends
    wait_exit 10 "$STARTED" || fail "$(cat other.log)"
    [ ! -e ran ]
}
