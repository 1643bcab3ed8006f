#!/usr/bin/env bats
# cluster.bats - locks in a Redis Cluster: redirections, a slot that is moved, a master that fails.

# bats file_tags=long
load ../../support/common
load ../../support/redis
load ../../support/cluster

setup_file() { cluster_start 2 && cluster_export; }
teardown_file() { cluster_stop; }

setup() {
    dlock_setup
    cluster_import
}

# ---------------------------------------------------------------- helpers ---

# use N [ENTRY]: a lock on master N, entered by another one.
use() {
    N=$(name_on "$1")
    at "${2:-$((($1 + 1) % 3))}"
    SLOT=$(slot_of "$N")
    Q="{$N}:dlock:queue" W="{$N}:dlock:waiters" F="{$N}:dlock:fence"
}
at() { L="redis://127.0.0.1:${CPORT[$1]}#$N"; }

# wait_in_line NODE COUNT ID: a waiter that writes ID to the file order; returns when COUNT are in
# the queue on NODE.
wait_in_line() {
    start_log "wait$3.log" "$DLOCK" --ttl "${TTL:-3}" "$L" sh -c "echo $3 >>order"
    WAITERS+=("$STARTED")
    wait_for 5 queue_is "$1" "$2"
}
queue_is() { [ "$(ccli "$1" zcard "$Q" 2>/dev/null)" = "$2" ]; }
# heard_of NODE COUNT: COUNT waiters have said within their ttl that they wait. The queue may have
# more entries: one that gave up while the node was away stays until its turn comes.
heard_of() {
    [ "$(ccli "$1" --raw hvals "$W" | awk -v now="$(date +%s%3N)" '$1 > now' | grep -c .)" = "$2" ]
}
# Waiters are called on the node that has the lock: COUNT of them can be.
callable() { [ "$(ccli "$1" pubsub channels "{$N}*" | grep -c .)" = "$2" ]; }
has() { [ "$(ccli "$1" exists "$2")" = 1 ]; }
moved_to() { [[ $(ccli "$1" exists "$2") == MOVED*:${CPORT[$3]} ]]; }
# EVALs that the server has served (a renewal is one); with "rejected_": redirected.
evals() { ccli "$1" info commandstats | count_evals "${2:-}"; }
evals_over() { [ "$(evals "$1" "${3:-}")" -ge "$2" ]; }
# renewed NODE [TIMES]
renewed() { wait_for 5 evals_over "$1" $(($(evals "$1") + ${2:-1} + 1)); }
redirected() { wait_for 5 evals_over "$1" $(($(evals "$1" rejected_) + 2)) rejected_; }
# Nothing but the fence, wherever the slot is now, and for a second a claim that a node could not
# delete in a move.
clean() {
    local i keys=''
    for i in 0 1 2; do keys+=$(ccli $i --raw keys "*$N*" | grep -v ':dlock:claim$' || :); done
    [ "$keys" = "$F" ] || [ -z "$keys" ] || fail "left in the store: $keys"
}
let_go_quietly() {
    let_go || return
    [ ! -s hold.log ] || fail "$(cat hold.log)"
}
# all_served: the waiters end with 0. on_each ARG...: redis-cli to each node.
all_served() {
    local i
    for i in "${WAITERS[@]}"; do exits 0 5 "$i" || return; done
}
on_each() {
    local i
    for i in 0 1 2 3; do ccli $i "$@" || return; done >/dev/null
}
next_fence() {
    local f
    f=$(run_t 5 "$DLOCK" "$L" sh -c 'echo $DLOCK_FENCE')
    [ "$f" -gt "$(cat held)" ] || fail "fence $f after $(cat held)"
}

# ----------------------------------------------------------- redirections ---

@test "any member leads to the lock" {
    local owner entry
    for owner in 0 1 2; do
        use $owner
        hold --ttl 1
        [ $owner -ne 0 ] || renewed 0
        for entry in 0 1 2 3; do
            at $entry
            says 75 ", pid $HOLDER (" -vn "$L" true
            says 75 "$HOLDER" --status "$L"
        done
        let_go
        clean
        next_fence
        [ ! -s hold.log ] || fail "$(cat hold.log)"
    done
    CI=1 says 0 "a password was sent, but this server has none" "${L/:\/\//://:c4nary@}" true
}

@test "waiters at another node are served in order" {
    local i
    use 1
    hold
    for i in 1 2 3 4; do
        at $((i % 3))
        wait_in_line 1 $i $i
    done
    start_log "last.log" "$DLOCK" -w 0.3 "$L" true
    exits 75 5 "$STARTED"
    queue_is 1 4
    let_go
    wait_for 5 queue_is 1 0
    all_served
    [ "$(tr -d '\n' <order)" = 1234 ]
    clean
}

# Each would go to all nodes.
# bats test_tags=plain
@test "idle waiters send no messages" {
    local i sent
    use 1
    ccli 1 set "$N" x px 60000
    for i in 1 2 3 4 5; do TTL=1 wait_in_line 1 $i $i; done
    published() {
        ccli 1 cluster info | tr -d '\r' | sed -n 's/^cluster_stats_messages_publish_sent://p'
    }
    renewed 1 5 # the last one has heard of its place
    sent=$(published)
    renewed 1 15
    [ "$(published)" = "$sent" ] || fail "$sent messages, then $(published)"
    ccli 1 del "$N"
    all_served
}

@test "who waits hears of a foreign lock's end at once" {
    use 2
    ccli 2 set "$N" x px 60000
    TTL=30 wait_in_line 2 1 a
    tracked() { ccli 2 info clients | grep -q tracking_clients:1; }
    wait_for 5 tracked
    ccli 2 del "$N"
    wait_exit 2 "$STARTED"
}

@test "only database 0, and no name whose keys would be apart" {
    use 1
    says 64 'database 1, only 0' "redis://127.0.0.1:${CPORT[0]}/1#$N" true
    says 64 'only database 0' "redis://127.0.0.1:${CPORT[1]}/1#$N" true
    local name entry
    for name in "$NAME}b" "{}$NAME" "}$NAME{x}"; do
        for entry in 0 1 2; do
            run run_t 5 "$DLOCK" "redis://127.0.0.1:${CPORT[entry]}#$name" true
            [ "$name" = "}$NAME{x}" ] && assert_rc 0 && continue
            assert_rc 64
            assert_out 'cannot be used in a cluster'
        done
    done
    for name in "{a}$NAME" "$NAME{b" "x{$NAME}y" "{{$NAME}"; do
        run -75 run_t 5 "$DLOCK" "redis://127.0.0.1:${CPORT[0]}#$name" "$DLOCK" \
            --status "redis://127.0.0.1:${CPORT[1]}#$name"
    done
}

@test "redirections by host name, and without a host" {
    use 1 0
    on_each config set cluster-announce-hostname localhost
    on_each config set cluster-preferred-endpoint-type hostname
    names_known() { [[ $(ccli 0 get "$N") == *localhost:${CPORT[1]} ]]; }
    wait_for 5 names_known
    run -0 run_t 5 "$DLOCK" --ttl 1 "$L" sleep 1.5
    hold
    wait_in_line 1 1 a
    let_go
    wait_exit 5 "$STARTED"
    on_each config set cluster-preferred-endpoint-type unknown-endpoint
    [[ $(ccli 0 get "$N") == "MOVED $SLOT :${CPORT[1]}" ]]
    run -0 run_t 5 "$DLOCK" "$L" true
    on_each config set cluster-preferred-endpoint-type ip
    clean
}

# lie TEXT: $L is a server that answers TEXT to everything.
lie() {
    listener hostile_server say "$1"
    L="redis://127.0.0.1:$LISTENS#$NAME"
}

@test "redirections that go in circles or nowhere end in time" {
    local begin text
    lie '-MOVED 1 :{PORT}\r\n'
    begin=$(now_ms)
    says 69 'redirect in circles' --connect-timeout 1 "$L" true
    run -69 run_t 5 "$DLOCK" --connect-timeout 1 --status "$L"
    assert_between 2000 $(($(now_ms) - begin)) $((3500 + SLOW)) "milliseconds"
    for text in 'MOVED x y' 'MOVED 1 127.0.0.1:0' 'ASK 1 127.0.0.1:99999' 'MOVED 1' \
        "MOVED 1 $(printf '%0999d' 7):1"; do
        lie "-$text\\r\\n"
        says 76 'malformed redirection' "$L" true
    done
}

# ------------------------------------------------------ a slot that is moved ---

@test "a hold survives the move of its slot" {
    use 0
    at 2
    hold --ttl 2
    slot_open "$SLOT" 0 1
    renewed 0 1
    slot_keys 0 1 "$N"
    renewed 1 4 # longer than the ttl, over the half-moved slot
    says 75 "$HOLDER" --status "$L"
    slot_shut "$SLOT" 0 1
    renewed 1 4
    let_go_quietly
    clean
    next_fence
    moved_to 0 "$N" 1
}

# Where NAME is without its holders, a renewal is unclear and nothing is lost.
# bats test_tags=slow
@test "shared holders and slots survive a move, whichever key goes first" {
    local first keys pid half
    for first in name holders; do
        use 0
        rm -f in
        hold -s --ttl 3
        start_log slot.log "$DLOCK" --ttl 3 --slots 2 "$L" sh -c 'echo >in; "$HELPERS/await" go'
        pid=$STARTED
        wait_for 5 test -e in
        keys=("$N" "$(ccli 0 --raw keys "{$N}:dlock:holders:*")") half=1
        [ $first = name ] || keys=("${keys[1]}" "${keys[0]}") half=0
        slot_open "$SLOT" 0 1
        slot_keys 0 1 "${keys[0]}"
        renewed $half 1
        slot_keys 0 1 "${keys[1]}"
        slot_shut "$SLOT" 0 1
        renewed 1 4
        for kind in -x '--slots 1'; do
            # shellcheck disable=SC2086
            run run_t 5 "$DLOCK" -q -n $kind "$L" touch ran
            [ ! -e ran ] || fail "$first: $kind ran"
        done
        run_t 5 "$DLOCK" -n --slots 2 "$L" true
        let_go
        exits 0 5 "$pid"
        clean
        next_fence
        slot_open "$SLOT" 1 0
        slot_shut "$SLOT" 1 0
    done
}

@test "waiters move with the slot, and get the lock" {
    local pid
    TTL=2 use 0
    hold --ttl 1
    TTL=2 wait_in_line 0 1 a
    TTL=2 wait_in_line 0 2 b
    slot_open "$SLOT" 0 2
    slot_keys 0 2 "$N"
    renewed 2 1
    slot_shut "$SLOT" 0 2
    # The first was told that NAME had gone, the second looks by itself: then both are in line
    # there.
    wait_for 5 callable 2 2
    wait_for 5 queue_is 2 2
    let_go
    all_served
    [ "$(tr -d '\n' <order)" = ab ]
    clean
    next_fence
}

@test "a try waits for the end of a slot's move" {
    use 1
    slot_open "$SLOT" 1 0
    says 69 'moving the slot' --connect-timeout 0.3 "$L" touch ran
    [ ! -e ran ]
    start_log try.log "$DLOCK" "$L" touch ran
    redirected 1 # it asks again and again
    slot_shut "$SLOT" 1 0
    wait_exit 5 "$STARTED"
    [ -e ran ]
    clean
    # Held, and the slot is moved on: with -n that is known all the same.
    at 2
    hold
    slot_open "$SLOT" 0 1
    run -75 run_t 5 "$DLOCK" -n "$L" true
    let_go
    slot_shut "$SLOT" 0 1
}

# bats test_tags=slow
@test "a release works in every stage of a move" {
    local stage
    for stage in opened name queue both; do
        use 2
        rm -f order
        hold --ttl 3
        TTL=1 wait_in_line 2 1 $stage
        slot_open "$SLOT" 2 0
        case $stage in name | both) slot_keys 2 0 "$N" ;; esac
        case $stage in queue | both) slot_keys 2 0 "$Q" "$W" ;; esac
        let_go_quietly
        # Unless the waiter has it by now.
        [ $stage = opened ] || ! has 2 "$N" || fail "$stage: left on the old node"
        [ "$(printf 'asking\nexists %s\n' "$N" | ccli 0 | tail -1)" = 0 ] ||
            fail "$stage: left on the new node"
        slot_shut "$SLOT" 2 0
        wait_exit 5 "$STARTED" || fail "$stage: $(cat "wait$stage.log")"
        [ "$(cat order)" = $stage ]
        clean
        slot_open "$SLOT" 0 2
        slot_shut "$SLOT" 0 2
    done
}

# The record is a key of its own. Where it is on the other node, the release waits, and frees
# nothing before it can write.
# bats test_tags=slow
@test "--once and --min-hold in every stage of a move" {
    local stage
    for stage in opened name once both; do
        use 2
        hold --ttl 4 --once
        slot_open "$SLOT" 2 0
        case $stage in name | both) slot_keys 2 0 "$N" ;; esac
        case $stage in once | both) slot_keys 2 0 "{$N}:dlock:once" ;; esac
        case $stage in
        name | once)
            : >go
            redirected_or_refused
            ;;
        *) let_go ;;
        esac
        slot_shut "$SLOT" 2 0
        exits 0 5 "$HOLDER"
        [ ! -s hold.log ] || fail "$stage: $(cat hold.log)"
        [[ $(ccli 0 get "{$N}:dlock:once") == "dlock-run1 succeeded 0 $(cat held) "* ]] ||
            fail "$stage: $(ccli 0 get "{$N}:dlock:once")"
        run_t 5 "$DLOCK" --once "$L" touch ran
        [ ! -e ran ] || final "$stage: ran after a success"
        run_t 5 "$DLOCK" --forget --yes "$L"
        hold --ttl 2 --min-hold 1h
        slot_open "$SLOT" 0 2
        [ "$stage" = opened ] || slot_keys 0 2 "$N"
        let_go
        slot_shut "$SLOT" 0 2
        [[ $(ccli 2 get "$N") == *" over=1" ]] || fail "$stage: $(ccli 2 get "$N")"
        ccli 2 del "$N"
        clean
    done
}

# Where the record is on the other node, no node can tell of name and record.
@test "--forget in the middle of a move forgets the record, or says that it cannot" {
    local from
    for from in 2 1; do # the record moves only from node 1
        use $from
        run -0 run_t 5 "$DLOCK" --once "$L" true
        slot_open "$SLOT" $from 0
        [ $from = 2 ] || slot_keys $from 0 "{$N}:dlock:once"
        run run_t 10 "$DLOCK" --forget --yes --connect-timeout 1 "$L"
        if [ "$status" -eq 0 ]; then
            [[ $output == "dlock: forgotten: "* ]] || fail "node $from: $output"
        else
            [[ $status =~ ^(69|75)$ ]] || fail "node $from: exit code $status: $output"
        fi
        slot_shut "$SLOT" $from 0
        [ "$status" -eq 0 ] || run -0 run_t 5 "$DLOCK" --forget --yes "$L"
        [ "$(ccli 0 exists "{$N}:dlock:once")" = 0 ] || fail "node $from: the record stays"
        clean
    done
}

# The first release was answered, by an error, and the lock is still ours.
redirected_or_refused() {
    local n
    n=$(evals_all)
    wait_for 5 eval '[ "$(evals_all)" -ge '$((n + 3))' ]'
    pid_alive "$HOLDER"
}
evals_all() { echo $(($(evals 0) + $(evals 2) + $(evals 0 rejected_) + $(evals 2 rejected_))); }

# ------------------------------------------------------------------ failover ---

took_over() { is_master "$1" && ccli "$1" cluster info | grep -q cluster_state:ok; }
is_replica() { ! is_master "$1" && in_sync "$1"; }

# All the time the other nodes do no more than redirect to it.
@test "waiters ride out the failure of the node with the lock" {
    local i short
    use 1 0
    for i in 0 2; do ccli $i config set cluster-node-timeout 60000; done
    ccli 1 set "$N" x px 60000
    for i in 1 2 3; do TTL=1 wait_in_line 1 $i $i; done
    start_log short.log "$DLOCK" --ttl 1 -w 2 "$L" true
    short=$STARTED
    wait_for 5 queue_is 1 4
    cluster_kill 1
    exits 69 5 "$short"
    cluster_again 1
    for i in 0 2; do ccli $i config set cluster-node-timeout 500; done
    wait_for 10 heard_of 1 3
    ccli 1 del "$N"
    all_served
}

@test "a hold and its waiters survive a failover to a replica with the lock" {
    local i
    use 2 2 # the host in the URI is the one that fails
    hold --ttl 3
    renewed 2 1
    for i in 1 2 3; do wait_in_line 2 $i $i; done
    cluster_kill 2
    wait_for 10 took_over 3
    renewed 3 2
    wait_for 15 callable 3 3
    wait_for 5 queue_is 3 3
    let_go || fail "$(cat hold.log)"
    all_served
    [ "$(tr -d '\n' <order)" = 123 ]
    N=${N}x at 0
    run -0 run_t 5 "$DLOCK" "$L" true
}

# bats test_tags=slow
@test "a failover to a replica without the lock ends the hold" {
    local master=2 replica=3
    if pid_gone "${CPID[2]}"; then # after the test above
        cluster_again 2
        master=3 replica=2
        wait_for 10 is_replica 2
    fi
    use 2 0
    # Stopped and cut off: what the master had already sent, the replica would read.
    kill -STOP "${CPID[replica]}"
    ccli $master client kill type replica
    hold --ttl 3
    cluster_kill $master
    kill -CONT "${CPID[replica]}"
    exits 79 10 "$HOLDER"
    file_has hold.log 'is lost: the key expired'
}

@test "the failure of a node without the lock is harmless" {
    use 1 0
    hold --ttl 1
    cluster_kill 0
    renewed 1 4
    let_go_quietly
}
