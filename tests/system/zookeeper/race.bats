#!/usr/bin/env bats
# race.bats - races, odd servers and missing permissions around a lock in ZooKeeper: what a review
# found and proved, once.

# bats file_tags=long,thread
load ../../support/zkline

# parent PERMISSIONS: the node above those that stand in line is there, and that is all that anybody
# may do with it.
parent() { zk_create -p "$1" "/$NAME" >created.log; }

beaten() { [ "$(zk_stat "$1" version)" -ge "$2" ]; }

# --- the session ----------------------------------------------------------------------------------

@test "a restart with a shorter maxSessionTimeout ends the hold" {
    own_server
    # A server that is starting may take a connection and never look at it: nobody comes before it
    # serves.
    proxy pass
    tree --ttl 20 "$P"
    kill -STOP "$PROXY"
    zk_restart own maxSessionTimeout=2000
    kill -CONT "$PROXY"
    start_log w.log "$DLOCK" --ttl 2 "$L" sh -c 'flock -sn "$1" true || echo overlap >violations' \
        - "$C/witness"
    waiter=$STARTED
    killed 1 "shorter sessions now"
    exits 0 5 "$waiter"
    [ ! -e violations ] || fail "overlap"
}

# A server's counter stops at 2147483647 (3.8), or goes on below zero.
@test "refuses the lock when the sequence numbers are used up" {
    for used in 2147483647 -2147483648 -000000001; do
        zk_create "/$NAME/x-$used" >/dev/null
        for opt in -n '-w 3'; do
            says 69 "used up: delete that node while no client waits" $opt "$L" touch "$T/ran"
        done
        line_is 0
        zk_rm "/$NAME/x-$used"
    done
    [ ! -e ran ]
    # The last one that is of use.
    zk_create "/$NAME/x-2147483646" >/dev/null
    run -0 run_t 5 "$DLOCK" -n "$L" touch "$T/ran"
    [ -e ran ]
}

# --- the lease of one who has waited --------------------------------------------------------------

@test "a waiter granted right after a freeze keeps the lock" {
    local -a holders waiters
    for i in 1 2 3; do
        start_log a$i.log "$DLOCK" --ttl 30 "$L-$i" sh -c '"$HELPERS/await" go'
        holders[i]=$STARTED
        wait_for 5 line_is 1 "/$NAME-$i"
        # One after the other: their heartbeats are not sent at the same time.
        start_log b$i.log "$DLOCK" --ttl 3 "$L-$i" sleep 1
        waiters[i]=$STARTED
        wait_for 5 line_is 2 "/$NAME-$i"
    done
    for i in 1 2 3; do
        wait_for 5 beaten "$(line "/$NAME-$i" | tail -n 1)" 3
    done
    freeze
    touch go
    run sleep 1.65 # the fault itself
    thaw
    for i in 1 2 3; do
        exits 0 5 "${holders[i]}"
        exits 0 5 "${waiters[i]}"
    done
}

# in_front create|rm: a node that is first in line for $NAME-1 ... $NAME-8.
in_front() {
    local i
    for i in {1..8}; do zk_py "$1" "/$NAME-$i/lock-0000000000" >/dev/null; done
}

# bats test_tags=plain
@test "a waiter with the longest possible grace keeps the lock" {
    local low=500 high=1500 mid
    local -a pids
    # Nobody listens there: 69, or 64 before that.
    while [ $((high - low)) -gt 1 ]; do
        mid=$(((low + high) / 2))
        run "$DLOCK" -n --ttl 3s --grace ${mid}ms "zk://127.0.0.1:1#$NAME" true
        case $status in 64) high=$mid ;; 69) low=$mid ;; *) fail "$output" ;; esac
    done
    in_front create
    for i in {1..8}; do
        # One after the other: it is their turn at another moment between their heartbeats.
        start_log b$i.log "$DLOCK" --ttl 3s --grace ${low}ms "$L-$i" sleep 4
        pids[i]=$STARTED
        nap
    done
    run sleep 1 # some heartbeats long
    in_front rm
    for i in {1..8}; do exits 0 7 "${pids[i]}"; done
}

# --- a heartbeat around the end -------------------------------------------------------------------

@test "an unanswered heartbeat at the end does not hide a loss" {
    proxy late set
    L=$P hold --ttl 18
    zk_rm "$(node 1)"
    wait_for 5 struck
    # Its answer comes with that to the delete.
    let_go 79
    file_has hold.log "not ours any more" || fail "$(cat hold.log)"
}

# --- permissions ----------------------------------------------------------------------------------

@test "an unreadable parent ends an unclear create" {
    parent wcd
    for opt in -n '-w 5' ''; do
        proxy lose create 1
        takes 0 1000 77 "$DLOCK" --ttl 3 $opt "$P" touch "$T/ran"
        struck
        end_proxy
    done
    [ ! -e ran ]
}

@test "TERM ends an unanswered create below an unreadable parent" {
    parent wcd
    proxy stall create 1
    start_log w.log "$DLOCK" --ttl 3 "$P" touch ran
    wait_for 5 struck
    dies_by TERM 2000
    [ ! -e ran ]
}

@test "-n fails at once although its node cannot be deleted" {
    parent rwc
    job 0 --ttl 30 "$L"
    takes 0 500 75 "$DLOCK" -n --ttl 30 "$L" touch "$T/ran"
    [ ! -e ran ]
    # It went with its session.
    wait_for 1 line_is 1
    job_ends
}

@test "credentials are sent although the first server is dead" {
    local at="zk://u:p@127.0.0.1:1,127.0.0.1:$ZK_PORT#$NAME" node
    for i in {1..20}; do
        run -0 run_t 5 "$DLOCK" -w 3 "$at" true
    done
    for i in 1 2 3 4; do
        rm -f held
        start_log h.log "$DLOCK" -w 3 "$at" sh -c ': >held; exec sleep 10'
        wait_for 5 test -e held
        node=/$NAME/$(zk_ls -a u:p "/$NAME")
        run -0 zk_acl -a u:p "$node"
        [[ $output == 'cdrwa digest u:'* || $output == 'rwcda digest u:'* ]] || fail "$output"
        [ "${#lines[@]}" = 1 ]
        kill "$STARTED"
        exits 143 5 "$STARTED"
    done
}

# --- no server ------------------------------------------------------------------------------------

@test "three servers that drop connections fail at --connect-timeout" {
    # Their queues are full.
    start_log full /usr/bin/python3 -Ic '
import socket, time
full, rest = [socket.create_server(("127.0.0.1", 0), backlog=0) for _ in range(3)], []
for s in full:
    for _ in range(4):
        rest.append(socket.socket())
        rest[-1].setblocking(False)
        rest[-1].connect_ex(s.getsockname())
print(",".join("127.0.0.1:%d" % s.getsockname()[1] for s in full), flush=True)
time.sleep(60)'
    wait_for 5 test -s full
    for opt in '' '-w 20'; do
        takes 1990 2500 69 "$DLOCK" $opt --connect-timeout 2 "zk://$(cat full)#$NAME" true
        [[ ! $output =~ [Rr]e(set|fused) ]] || fail "$output"
        [ "${#lines[@]}" = 1 ] || fail "$output"
    done
}

# A server that starts may take a connection and never read from it.
# bats test_tags=slow
@test "leaves a server that accepts but does not serve" {
    local t0
    proxy stall connect 2
    start_log hold.log "$DLOCK" --ttl 15 "$P" sh -c 'echo >held; "$HELPERS/await" go'
    local holder=$STARTED
    wait_for 5 test -e held
    t0=$(now_ms)
    kill -STOP "$PROXY"
    sleep 4.8 # the fault itself: until a heartbeat was given up
    kill -CONT "$PROXY"
    wait_for 5 file_has "$T/proxy" "done"
    wait_for 17 eval '[ "$(now_ms)" -gt '$((t0 + 15500))' ]'
    : >go
    wait_exit 5 "$holder" || fail "exit code $?: $(cat hold.log)"
    [ ! -s hold.log ]
}
