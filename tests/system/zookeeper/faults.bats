#!/usr/bin/env bats
# faults.bats - faults around a lock in ZooKeeper: sessions and nodes that are gone, connections
# that break around one request, processes and servers killed and stopped. An ensemble's are in
# ensemble.bats.

# bats file_tags=long,thread
load ../../support/zkline

# end_session PID NODE: behind the back of that process, which cannot come back to its session
# meanwhile.
end_session() {
    kill -STOP "$1"
    zk_kill_session "$(owner_of "$2")"
    kill -CONT "$1"
}

# renewed_node NUMBER WAS: another node has come in that place.
renewed_node() { local n; n=$(node "$1") && [ -n "$n" ] && [ "$n" != "$2" ]; }

# succeeded_at_once MS: the holder ends within MS, killed, with one line; the next node is the only
# one.
succeeded_at_once() {
    local t0
    t0=$(now_ms)
    killed 1 "is lost"
    assert_between 0 $(($(now_ms) - t0)) $(($1 + SLOW)) "time until the end (ms)"
    wait_for 5 test -s got
    [ "$(line)" = "$next" ]
    rm stay
    wait_exit 5 "$WAITER"
}

# --- the session, the node ------------------------------------------------------------------------

# bats test_tags=thread
@test "the end of the holder's session ends its tree" {
    # Long enough for the command that ends the session, meanwhile the holder is stopped.
    tree --ttl 6 "$L"
    touch stay
    waiter got
    next=$(node 2)
    end_session "$K" "$(node 1)"
    # (The next one had the lock before anybody could be told.)
    succeeded_at_once 1200
    tree_gone
}

@test "the next heartbeat notices a deleted node" {
    tree --ttl 3 "$L"
    touch stay
    waiter got
    next=$(node 2)
    zk_rm "$(node 1)"
    succeeded_at_once 1700
}

@test "the release reports a deleted node" {
    job 0 --ttl 30 "$L"
    zk_rm "$(node 1)"
    touch end
    lost 1
}

@test "a waiter that lost its node queues again" {
    job 0 --ttl 30 "$L"
    waiter got --ttl 2
    n=$(node 2)
    zk_rm "$n"
    wait_for 5 renewed_node 2 "$n"
    n=$(node 2)
    end_session "$WAITER" "$n"
    wait_for 5 renewed_node 2 "$n"
    line_is 2
    [ ! -e got ]
    # One that writes no heartbeats, too.
    first=$WAITER
    OPTS="--ttl 2" wait_in_line 3 true
    second=$WAITER
    OPTS="--ttl 2" wait_in_line 4 true
    n=$(node 4)
    zk_rm "$n"
    wait_for 5 renewed_node 4 "$n"
    job_ends
    for p in "$first" "$second" "$WAITER"; do wait_exit 5 "$p"; done
    no_violations
    line_is 0
}

# --- the connection -------------------------------------------------------------------------------

# unharmed OPTION...: dlock by way of the proxy; the command runs once, and nothing is left.
unharmed() {
    rm -f ran
    run run_t 20 "$DLOCK" -q --ttl 2 "$P" sh -c "echo ran >>'$T/ran'; ${1:-:}"
    assert_rc 0 || return
    [ -z "$output" ] || fail "$output" || return
    [ "$(cat ran)" = ran ] || fail "not once: $(cat ran)" || return
    line_is 0 || fail "left behind: $(line)" || return
    struck || fail "nothing happened"
}

# The second create is the parent's, the third one the node's.
@test "a connection loss during the acquisition grants once" {
    for fault in lose swallow after; do
        for what in 'connect 1' 'create 1' 'create 2' 'create 3' 'ls 1' 'ls 2'; do
            wait_for 5 eval '! zk_stat "/$NAME" version'
            proxy $fault $what
            unharmed || fail "$fault $what"
            end_proxy
        done
    done
}

# bats test_tags=thread
@test "repeated connection loss at the create leaves one node" {
    mkdir h
    zk_create "/$NAME"
    for fault in 'lose create 1' 'swallow create 1' 'error create 1 -4' 'drip any 0'; do
        proxy $fault
        start_log w.log "$DLOCK" --ttl 3 "$P" "$HELPERS/witness" "$T/h" 300
        wait_for 10 struck
        # Others come while it is unclear.
        run -0 run_t 10 "$DLOCK" "$L" "$HELPERS/witness" "$T/h" 50
        wait_exit 10 "$STARTED" || fail "$fault: $(cat w.log)"
        line_is 0
        end_proxy
    done
    run -0 "$ROOT/tests/support/helpers/check_history.py" "$T/h" 8
    zk_rm "/$NAME"
}

# bats test_tags=slow
@test "a hold survives a connection loss at a heartbeat" {
    for fault in 'lose set 1' 'swallow set 1' 'after set 2' 'stall set 1' 'error set 2 -4' \
        'drip set 0'; do
        proxy $fault
        unharmed "cd '$T'; $UNTIL_STRUCK" || fail "$fault"
        end_proxy
    done
}

@test "a connection loss at the release is no loss of the lock" {
    for fault in 'swallow delete' 'after delete' 'swallow close' 'lose delete' 'error delete -4'; do
        proxy ${fault/ -4/ 1 -4}
        unharmed || fail "$fault"
        end_proxy
    done
}

@test "-n leaves no node after a connection loss" {
    job 0 --ttl 30 "$L"
    for fault in lose swallow after; do
        for what in connect create ls get delete; do
            proxy $fault $what 1
            run run_t 20 "$DLOCK" --ttl 2 -n "$P" touch "$T/ran"
            assert_rc 75 || fail "$fault $what"
            line_is 1 || fail "$fault $what: left behind: $(line)"
            struck || fail "$fault $what: nothing happened"
            end_proxy
        done
    done
    [ ! -e ran ]
    job_ends
}

# bats test_tags=thread
@test "a waiter with connection losses is granted once" {
    for fault in 'lose create' 'swallow create' 'lose ls' 'swallow ls' 'lose get' 'swallow get' \
        'after get' 'lose set' 'swallow set' 'stall set' 'lose event'; do
        rm -f got
        job 0 --ttl 30 "$L"
        proxy $fault 1
        start_log w.log "$DLOCK" --ttl 2 "$P" "$HELPERS/clock" "$T/got"
        if [ "$fault" != 'lose event' ]; then wait_for 10 struck || fail "$fault"; fi
        wait_for 10 line_is 2
        # Its session has a connection again, and it watches the holder.
        wait_for 5 watched "$(node 1)"
        line_is 2 || fail "$fault: $(line)"
        [ ! -e got ]
        job_ends
        wait_exit 10 "$STARTED" || fail "$fault: $(cat w.log)"
        [ -e got ] && struck
        line_is 0 || fail "$fault: left behind: $(line)"
        end_proxy
    done
}

# It writes one heartbeat to say that it waits, and the next one when it has come to the front: that
# proves its lease.
@test "a waiter whose proof of the lease is lost proves it again" {
    local -a front
    for fault in 'lose set 2' 'swallow set 2'; do
        rm -f got
        job 0 --ttl 30 "$L"
        for i in 2 3; do
            OPTS="--ttl 2" wait_in_line $i true
            front[i]=$WAITER
        done
        proxy $fault
        L=$P start_waiter got --ttl 2
        wait_for 5 watches_are 3
        # The begin of its session is too old to be the lease's by then.
        lasts 1150
        touch end
        # They end at once, one way or the other: the lock may be free before they get the signal.
        kill -TERM "${front[2]}" "${front[3]}" || :
        ends 0
        wait_exit 10 "$WAITER" || fail "$fault: $(cat got.log)"
        struck && [ -s got ]
        line_is 0 || fail "$fault: left behind: $(line)"
        end_proxy
        for i in 2 3; do wait_exit 5 "${front[i]}" || :; done
    done
    no_violations
}

# The sessions end side by side; the last one, behind four, has written no heartbeat until it comes
# to the front.
# bats test_tags=plain
@test "several silent waiters delay the next one by the ttl and two ticks together" {
    local n i t0 stopped
    local -a silent
    for n in 1 4; do
        rm -f got
        silent=()
        job 0 --ttl 30 "$L"
        for ((i = 2; i < n + 2; i++)); do
            OPTS="--ttl 1" wait_in_line $i touch "$T/ran"
            silent+=("$WAITER")
        done
        start_waiter got --ttl 2
        wait_for 5 watches_are $((n + 1))
        stopped=$(now_ms)
        kill -STOP "${silent[@]}"
        job_ends
        t0=$(now_ms)
        wait_exit 10 "$WAITER" || fail "$n: $(cat got.log)"
        # (One after the other: four sessions take 4 s.)
        assert_between -5000 $(($(cat got) / NS - t0)) $((1400 + SLOW + BUSY)) "delay by $n (ms)"
        # Their sessions were alive at the release, or would have been: a slow test may release
        # later.
        assert_between 600 $(($(cat got) / NS - stopped)) 15000 "ms since they fell silent"
        kill -KILL "${silent[@]}"
        for i in "${silent[@]}"; do wait_exit 5 "$i" || :; done
        [ ! -e ran ]
    done
    no_violations
    line_is 0
}

# --- one server -----------------------------------------------------------------------------------

# bats test_tags=slow
@test "hold and wait survive a restart of the server; if it loses its data the hold ends in time" {
    own_server
    job 4 --ttl 20 "$L"
    waiter got --ttl 20
    before=$(line)
    after_beat "$(node 1)"
    zk_restart own
    # The same sessions, the same places; renewed.
    wait_for 12 newer "$(node 1)" "$(version "$(node 1)")"
    [ "$(line)" = "$before" ]
    [ ! -e got ]
    job_ends_silently
    wait_exit 5 "$WAITER"
    # That it waits for the server, too, is all that it says.
    [ "$(grep -vc '^dlock: .*: the connection is lost' got.log)" = 0 ] || fail "$(cat got.log)"
    no_violations
    tree --ttl 3 "$L"
    zk_kill own
    lost=$(now_ns)
    zk_wipe own
    zk_restart own
    ends 79
    lease_times 3000 "$lost"
    [ "$(last_beat)" -lt "$DEADLINE" ]
    run -0 run_t 10 "$DLOCK" -n "$L" true
}
