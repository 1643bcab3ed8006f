#!/usr/bin/env bats
# outage.bats - waiting for a lock in ZooKeeper while no server serves, or none can be reached: the
# wait goes on for as long as it may.

# bats file_tags=long,thread
load ../../support/zkline

# after MS T0: a moment that long after T0 (ms) has come.
after() { wait_for 15 beyond $(($2 + $1)); }
hang_ups_are() { [ "$(wc -l <hang-ups)" -ge "$1" ]; }
# The queue is empty, no session and no container is left.
no_trace() {
    wait_for 5 line_is 0
    zk_gone "/$NAME" 8
    wait_for 5 no_session
}

# ------------------------------------------------------------------------------

# bats test_tags=slow
@test "a wait outlasts five ttls without a server, --retry waits for one, places may be kept" {
    local t0 t1 before pids=() i ttls=("" 30 1)
    own_server
    # A quarter of its lease is longer than the outage.
    job 0 --ttl 40 "$L"
    for i in 1 2; do
        OPTS="--ttl ${ttls[i]}" wait_in_line $((i + 1)) sh -c "echo $i >>'$T/order'"
        pids[i]=$WAITER
    done
    # They have no place that matters: their time ends during the outage, after it, or they are told
    # to go.
    OPTS="--ttl 1 -w 6" wait_in_line 4 touch "$T/ran"
    pids[3]=$WAITER
    OPTS="--ttl 1 -w 18" wait_in_line 5 touch "$T/ran"
    pids[4]=$WAITER
    OPTS="--ttl 1" wait_in_line 6 touch "$T/ran"
    pids[5]=$WAITER
    before=$(node 2)
    wait_for 5 watches_are 5
    zk_kill own
    t0=$(now_ms)
    # Without --retry at once: not after the connect time-out.
    takes 0 2000 69 "$DLOCK" "$L" touch "$T/ran"
    start_log retry.log "$DLOCK" --retry -w 40 "${L}2" touch "$T/retried"
    pids[6]=$STARTED
    start_log short.log "$DLOCK" --retry -w 1.2 "$L" touch "$T/ran"
    exits 69 5 "$STARTED"
    file_has short.log "refused"
    exits 69 9 "${pids[3]}"
    [ "$(grep -c '' wait4.log)" -le 2 ] || fail "$(cat wait4.log)"
    kill -TERM "${pids[5]}"
    exits 143 5 "${pids[5]}"
    # What a server does that has no quorum: it hangs up. They do not ask all the time.
    start_log hang-ups /usr/bin/python3 -u -c 'import socket, sys
s = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    s.accept()[0].close()
    print(".")' "$ZK_PORT"
    t1=$(now_ms)
    after 5200 "$t0"
    # Its start may take long.
    wait_for 10 hang_ups_are 4
    kill "$STARTED"
    wait_for 5 pid_gone "$STARTED"
    assert_between 4 "$(wc -l <hang-ups)" $(((1000 + $(now_ms) - t1) / 50)) \
        "connections of four waiters and a holder"
    for i in 1 2 4 6; do pid_alive "${pids[i]}" || fail "$i: $(cat ./*.log)"; done
    zk_restart own
    exits 75 18 "${pids[4]}"
    # A server that starts may accept a connection and never serve it: then the connect time-out
    # counts.
    exits 0 12 "${pids[6]}"
    [ -e retried ]
    # The sessions live on, as no server was there to end them. But one of 1 s may end before its
    # client is back.
    [ "$(node 2)" = "$before" ] || fail "$before, now $(line)"
    [ "$(count_seen main sig 15)" = 0 ]
    [ ! -e order ]
    job_ends
    # Its lease counts again when a heartbeat since the outage is a third of the ttl old: 10 s, and
    # heartbeats are 5 s apart.
    exits 0 16 "${pids[1]}"
    exits 0 5 "${pids[2]}"
    [ "$(tr '\n' ' ' <order)" = "1 2 " ] || fail "order: $(tr '\n' ' ' <order)"
    [ ! -e ran ]
    no_violations
    no_trace
}

# bats test_tags=slow
@test "a waiter whose session has ended meanwhile joins the queue again" {
    local t0 old first
    proxy pass
    job 0 --ttl 30 "$L"
    L=$P OPTS="--ttl 1" wait_in_line 2 sh -c "echo 1 >>'$T/order'"
    first=$WAITER
    old=$(node 2)
    OPTS="--ttl 30" wait_in_line 3 sh -c "echo 2 >>'$T/order'"
    # Only the first one is cut off; no end of a connection comes through.
    kill -STOP "$PROXY"
    t0=$(now_ms)
    zk_gone "$old" 5
    after 2200 "$t0"
    pid_alive "$first" || fail "$(cat wait2.log)"
    line_is 2
    kill -CONT "$PROXY"
    wait_for 8 line_is 3
    wait_for 5 watches_are 2
    # At the end, behind the other one.
    [ ! -e order ]
    job_ends
    exits 0 5 "$WAITER"
    exits 0 5 "$first"
    [ "$(tr '\n' ' ' <order)" = "2 1 " ] || fail "order: $(tr '\n' ' ' <order)"
    no_violations
    end_proxy
    no_trace
}

# bats test_tags=slow
@test "a wait outlasts a stopped server and the loss of its data" {
    local t0
    own_server
    job 0 --ttl 40 "$L"
    waiter got --ttl 1 --connect-timeout 1
    wait_for 5 watches_are 1 # with its node alone its first contact is not over
    freeze
    t0=$(now_ms)
    after 2200 "$t0"
    pid_alive "$WAITER" || fail "$(cat got.log)"
    thaw
    # It has ended the waiter's session, not the holder's.
    wait_for 8 watches_are 1
    # The watch may be the old one, until the server has noticed that its connection is gone.
    wait_for 8 line_is 2
    [ ! -e got ]
    kill -KILL "$K"
    wait_for 5 tree_gone
    # No server knows of the lock any more.
    zk_kill own
    zk_wipe own
    zk_restart own
    wait_exit 8 "$WAITER" || fail "$(cat got.log)"
    [ -s got ]
    no_violations
    no_trace
}
