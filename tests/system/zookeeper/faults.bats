#!/usr/bin/env bats
# faults.bats - faults around a lock in ZooKeeper: sessions and nodes that are gone, connections that break around one
# request, processes and servers killed and stopped. An ensemble's are in ensemble.bats.

# bats file_tags=long,thread
bats_require_minimum_version 1.5.0

load ../../support/common
load ../../support/fake
load ../../support/zookeeper
load ../../support/zkline

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

# ---------------------------------------------------------------- helpers ---

# end_session PID NODE: behind the back of that process, which cannot come back to its session meanwhile.
end_session() {
    kill -STOP "$1"
    zk_kill_session "$(owner_of "$2")"
    kill -CONT "$1"
}

another_second() { local n; n=$(node 2) && [ -n "$n" ] && [ "$n" != "$1" ]; }
another_last() { local n; n=$(node 4) && [ -n "$n" ] && [ "$n" != "$1" ]; }

# --- the session, the node -----------------------------------------------------------------------------

# bats test_tags=thread
@test "the end of the holder's session ends its tree" {
    # Long enough for the command that ends the session, meanwhile the holder is stopped.
    background --ttl 6 "$L" $SUBJECT -t -k
    wait_for 5 running 4
    touch stay
    waiter got
    next=$(node 2)
    end_session "$K" "$(node 1)"
    t0=$(now_ms)
    ended
    assert_between 0 $(($(now_ms) - t0)) $((1200 + SLOW)) "time until the end (ms)"
    assert_rc 79
    assert_out "is lost"
    [ "$(grep -c '^dlock:' "$T/out")" = 1 ]
    # Killed, not asked.
    [ "$(count_seen main sig 15)" = 0 ]
    # (The next one had the lock before anybody could be told.)
    tree_gone
    wait_for 5 test -s got
    [ "$(line)" = "$next" ]
    rm stay
    wait_exit 5 "$WAITER"
}

@test "the next heartbeat notices a deleted node" {
    background --ttl 3 "$L" $SUBJECT -t -k
    wait_for 5 running 4
    touch stay
    waiter got
    next=$(node 2)
    t0=$(now_ms)
    zk_rm "$(node 1)"
    ended
    assert_between 0 $(($(now_ms) - t0)) $((1700 + SLOW)) "time until the end (ms)"
    assert_rc 79
    assert_out "is lost"
    [ "$(grep -c '^dlock:' "$T/out")" = 1 ]
    [ "$(count_seen main sig 15)" = 0 ]
    wait_for 5 test -s got
    [ "$(line)" = "$next" ]
    rm stay
    wait_exit 5 "$WAITER"
}

@test "the release reports a deleted node" {
    background --ttl 30 "$L" $SUBJECT -u "$T/end"
    wait_for 5 running
    zk_rm "$(node 1)"
    touch end
    ended
    assert_rc 79
    [ "$(grep -c '^dlock:' "$T/out")" = 1 ]
}

@test "a waiter that lost its node queues again" {
    background --ttl 30 "$L" $SUBJECT -u "$T/end"
    wait_for 5 running
    waiter got --ttl 2
    n=$(node 2)
    zk_rm "$n"
    wait_for 5 another_second "$n"
    n=$(node 2)
    end_session "$WAITER" "$n"
    wait_for 5 another_second "$n"
    line_is 2
    [ ! -e got ]
    # One that writes no heartbeats, too.
    first=$WAITER
    OPTS="--ttl 2" wait_in_line 3 true
    second=$WAITER
    OPTS="--ttl 2" wait_in_line 4 true
    n=$(node 4)
    zk_rm "$n"
    wait_for 5 another_last "$n"
    touch end
    ended
    assert_rc 0
    for p in "$first" "$second" "$WAITER"; do wait_exit 5 "$p"; done
    no_violations
    line_is 0
}

# --- the connection ------------------------------------------------------------------------------------

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
            # shellcheck disable=SC2086
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
        # shellcheck disable=SC2086
        proxy $fault
        start_log w.log "$DLOCK" --ttl 3 "$P" "$HELPERS/witness" "$T/h" 300
        wait_for 10 struck
        # Others come while it is unclear.
        run run_t 10 "$DLOCK" "$L" "$HELPERS/witness" "$T/h" 50
        assert_rc 0
        wait_exit 10 "$STARTED" || fail "$fault: $(cat w.log)"
        line_is 0
        end_proxy
    done
    run -0 "$ROOT/tests/support/helpers/check_history.py" "$T/h" 8
    zk_rm "/$NAME"
}

# bats test_tags=slow
@test "a hold survives a connection loss at a heartbeat" {
    for fault in 'lose set 1' 'swallow set 1' 'after set 2' 'stall set 1' 'error set 2 -4' 'drip set 0'; do
        # shellcheck disable=SC2086
        proxy $fault
        unharmed 'sleep 1.2' || fail "$fault" # the command's own time
        end_proxy
    done
}

@test "a connection loss at the release is no loss of the lock" {
    for fault in 'swallow delete' 'after delete' 'swallow close' 'lose delete' 'error delete -4'; do
        # shellcheck disable=SC2086
        proxy ${fault/ -4/ 1 -4}
        unharmed || fail "$fault"
        end_proxy
    done
}

@test "-n leaves no node after a connection loss" {
    background --ttl 30 "$L" $SUBJECT -u "$T/end"
    wait_for 5 running
    for fault in lose swallow after; do
        for what in connect create ls get delete; do
            # shellcheck disable=SC2086
            proxy $fault $what 1
            run run_t 20 "$DLOCK" --ttl 2 -n "$P" touch "$T/ran"
            assert_rc 75 || fail "$fault $what"
            line_is 1 || fail "$fault $what: left behind: $(line)"
            struck || fail "$fault $what: nothing happened"
            end_proxy
        done
    done
    [ ! -e ran ]
    touch end
    ended
    assert_rc 0
}

# bats test_tags=thread
@test "a waiter with connection losses is granted once" {
    for fault in 'lose create' 'swallow create' 'lose ls' 'swallow ls' 'lose get' 'swallow get' 'after get' \
        'lose set' 'swallow set' 'stall set' 'lose event'; do
        rm -f end got stay command/*
        background --ttl 30 "$L" $SUBJECT -u "$T/end"
        wait_for 5 running
        # shellcheck disable=SC2086
        proxy $fault 1
        start_log w.log "$DLOCK" --ttl 2 "$P" "$HELPERS/clock" "$T/got"
        if [ "$fault" != 'lose event' ]; then wait_for 10 struck || fail "$fault"; fi
        wait_for 10 line_is 2
        # Its session has a connection again, and it watches the holder.
        wait_for 5 watched "$(node 1)"
        line_is 2 || fail "$fault: $(line)"
        [ ! -e got ]
        touch end
        ended
        assert_rc 0
        wait_exit 10 "$STARTED" || fail "$fault: $(cat w.log)"
        [ -e got ] && struck
        line_is 0 || fail "$fault: left behind: $(line)"
        end_proxy
    done
}

# It writes one heartbeat to say that it waits, and the next one when it has come to the front: that proves its lease.
@test "a waiter whose proof of the lease is lost proves it again" {
    local -a front
    for fault in 'lose set 2' 'swallow set 2'; do
        rm -f end got stay command/*
        background --ttl 30 "$L" $SUBJECT -u "$T/end"
        wait_for 5 running
        for i in 2 3; do
            OPTS="--ttl 2" wait_in_line $i true
            front[i]=$WAITER
        done
        # shellcheck disable=SC2086
        proxy $fault
        L=$P start_waiter got --ttl 2
        wait_for 5 watches_are 3
        # The begin of its session is too old to be the lease's by then.
        t0=$(now_ms)
        wait_for 5 beyond $((t0 + 1150))
        touch end
        # They end at once, one way or the other: the lock may be free before they get the signal.
        kill -TERM "${front[2]}" "${front[3]}"
        ended
        assert_rc 0
        wait_exit 10 "$WAITER" || fail "$fault: $(cat got.log)"
        struck && [ -s got ]
        line_is 0 || fail "$fault: left behind: $(line)"
        end_proxy
        for i in 2 3; do wait_exit 5 "${front[i]}" || :; done
    done
    no_violations
}

# The sessions end side by side; the last one, behind four, has written no heartbeat until it comes to the front.
@test "several silent waiters delay the next one by the ttl and two ticks together" {
    local n i t0 stopped
    local -a silent
    for n in 1 4; do
        rm -f end got command/*
        silent=()
        background --ttl 30 "$L" $SUBJECT -u "$T/end"
        wait_for 5 running
        for ((i = 2; i < n + 2; i++)); do
            OPTS="--ttl 1" wait_in_line $i touch "$T/ran"
            silent+=("$WAITER")
        done
        start_waiter got --ttl 2
        wait_for 5 watches_are $((n + 1))
        stopped=$(now_ms)
        kill -STOP "${silent[@]}"
        touch end
        ended
        assert_rc 0
        t0=$(now_ms)
        wait_exit 10 "$WAITER" || fail "$n: $(cat got.log)"
        # (One after the other: four sessions take 4 s.)
        assert_between -5000 $(($(cat got) / NS - t0)) $((1400 + SLOW + BUSY)) "delay by $n (ms)"
        # Their sessions were alive at the release, or would have been: a slow test may release later.
        assert_between 600 $(($(cat got) / NS - stopped)) 15000 "ms since they fell silent"
        kill -KILL "${silent[@]}"
        for i in "${silent[@]}"; do wait_exit 5 "$i" || :; done
        [ ! -e ran ]
    done
    no_violations
    line_is 0
}

# --- the client's processes ----------------------------------------------------------------------------

@test "a stopped keeper's tree is gone before the next holder enters" {
    background --ttl 2 "$L" $SUBJECT -t -k
    wait_for 5 running 4
    waiter got
    kill -STOP "$K"
    t0=$(now_ms)
    wait_exit 10 "$WAITER"
    assert_between 1000 $(($(now_ms) - t0)) $((2000 + 400 + 1000 + SLOW)) "take-over (ms)"
    no_violations
    [ "$(last_beat)" -lt "$(cat got)" ]
    kill -CONT "$K"
    ended
    assert_rc 79
    [ "$(grep -c '^dlock:' "$T/out")" = 1 ]
}

@test "a killed keeper's lock is free within ttl + 2 ticks + 1 s" {
    background --ttl 2 "$L" $SUBJECT -t -k
    wait_for 5 running 4
    waiter got
    kill -KILL "$K"
    t0=$(now_ms)
    wait_for 1 tree_gone
    wait_exit 10 "$WAITER"
    assert_between 0 $(($(now_ms) - t0)) $((2000 + 400 + 1000 + SLOW)) "take-over (ms)"
    no_violations
    [ "$(last_beat)" -lt "$(cat got)" ]
}

# --- one server ----------------------------------------------------------------------------------------

# bats test_tags=slow
@test "a hold rides out a server stopped for a third of the ttl" {
    own_server
    background -q --ttl 6 "$L" $SUBJECT -u "$T/end" -r 3
    wait_for 5 running
    after_beat "$(node 1)"
    after_beat "$(node 1)"
    zk_freeze own
    run sleep 2 # the fault itself
    zk_thaw own
    n=$(node 1)
    t0=$(now_ms)
    wait_for 9 beyond $((t0 + 4100))
    pid_alive "$K"
    [ "$(count_seen main sig 15)" = 0 ]
    [ "$(node 1)" = "$n" ]
    touch end
    ended
    assert_rc 3
    [ "$output" = "" ]
}

@test "a server stopped for longer ends the tree in time" {
    own_server
    background --ttl 3 "$L" $SUBJECT -t -k
    wait_for 5 running 4
    started=$(seen main start '')
    waiter got --ttl 30
    zk_freeze own
    lost=$(now_ns)
    ended
    assert_rc 79
    assert_out "has not been renewed for"
    assert_out "could not be renewed in time"
    [ "$(grep -c '^dlock:' "$T/out")" = 2 ]
    # Nothing was confirmed after that: so long after the last renewal at most.
    lease_times 3000 "$lost"
    for who in main child session daemon; do
        assert_between "$started" "$(seen $who sig 15)" $((TERM_AT + 250 * NS)) "TERM for $who"
    done
    [ "$(last_beat)" -lt "$DEADLINE" ]
    zk_thaw own
    wait_exit 10 "$WAITER"
    no_violations
}

# bats test_tags=slow
@test "hold and wait survive a restart of the server" {
    own_server
    background --ttl 20 "$L" $SUBJECT -u "$T/end" -r 4
    wait_for 5 running
    waiter got --ttl 20
    before=$(line)
    after_beat "$(node 1)"
    zk_restart own
    # The same sessions, the same places; renewed.
    wait_for 12 newer "$(node 1)" "$(version "$(node 1)")"
    pid_alive "$K"
    [ "$(line)" = "$before" ]
    [ "$(count_seen main sig 15)" = 0 ]
    [ ! -e got ]
    touch end
    ended
    assert_rc 4
    [ "$output" = "" ]
    wait_exit 5 "$WAITER"
    # That it waits for the server, too, is all that it says.
    [ "$(grep -vc '^dlock: .*: the connection is lost' got.log)" = 0 ] || fail "$(cat got.log)"
    no_violations
}

@test "a stopped server delays no -w, and the wait ends by that alone" {
    own_server
    background --ttl 30 "$L" $SUBJECT
    wait_for 5 running
    waiter got --ttl 1 --connect-timeout 1 -w 5
    pids=()
    for i in 1 2 3; do
        start_log w$i.log sh -c '"$0" before$3; "$1" --ttl 30 -w 1.5 "$2" touch ran; echo $? >code$3; exec "$0" after$3' \
            "$HELPERS/clock" "$DLOCK" "$L" $i
        pids+=("$STARTED")
    done
    wait_for 5 line_is 5
    # Who has not heard yet that the lock is held cannot say that it is: they watch now, so they have.
    wait_for 5 watches_are 4 own
    zk_freeze own
    # It has noticed by then.
    exits 69 8 "$WAITER"
    file_has got.log "no answer"
    [ "$(grep -vc '^dlock: ' got.log)" = 0 ] || fail "$(cat got.log)"
    for i in "${pids[@]}"; do wait_exit 5 "$i"; done
    zk_thaw own
    # What a busy machine adds to the end of a process is not dlock's: the best of three.
    best=99999
    for i in 1 2 3; do
        [ "$(cat code$i)" = 75 ]
        took=$((($(cat after$i) - $(cat before$i)) / NS))
        [ "$took" -ge 1500 ]
        [ "$took" -ge "$best" ] || best=$took
    done
    assert_between 1500 "$best" $((1600 + SLOW)) "-w 1.5 (ms)"
    [ ! -e got ] && [ ! -e ran ]
}

@test "a server that loses its data ends the hold in time" {
    own_server
    background --ttl 3 "$L" $SUBJECT -t -k
    wait_for 5 running 4
    zk_kill own
    lost=$(now_ns)
    zk_wipe own
    zk_restart own
    ended
    assert_rc 79
    lease_times 3000 "$lost"
    [ "$(last_beat)" -lt "$DEADLINE" ]
    run run_t 10 "$DLOCK" -n "$L" true
    assert_rc 0
}
