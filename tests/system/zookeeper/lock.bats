#!/usr/bin/env bats
# lock.bats - locks in a real ZooKeeper server: the line, what waiting costs, who excludes whom,
# --status. Whom it lets in, names, sessions and servers that are not there are in server.bats,
# faults in faults.bats.

# bats file_tags=long,thread
load ../../support/zkline

setup_file() {
    export BATS_NO_PARALLELIZE_WITHIN_FILE=true
    curator_build
    zk_start
}

# ------------------------------------------------------------------- line ---

@test "the fence is the node's transaction, the token is in its name" {
    run -0 run_t 5 "$DLOCK" "$L" bash -c '
        ROOT=$1; . "$ROOT/tests/support/zookeeper.bash"
        n=$(zk_ls "/$DLOCK_NAME")
        echo "$n $DLOCK_TOKEN"
        [ "$(zk_stat "/$DLOCK_NAME/$n" czxid)" = "$DLOCK_FENCE" ]' - "$ROOT"
    read -r name token <<<"$output"
    [[ $name =~ ^_c_([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})-lock-0000000000$ ]]
    [ "$token" = "${BASH_REMATCH[1]//-/}" ]
}

# bats test_tags=slow,soak
# watches_fired KIND: those that the server has reported since its start, of nodes deleted or
# changed.
watches_fired() { zk_mntr "sum_node_$1_watch_count"; }

@test "a hand-off wakes three of many waiters at most, in order" {
    local i n pids=() deleted changed
    n=$(amount zk_waiters)
    # No heartbeat while it lasts: it fires a watch, too.
    own_server maxSessionTimeout=400000
    hold --ttl 300
    for ((i = 1; i <= n; i++)); do
        start_log "w$i.log" "$DLOCK" --ttl 300 "$L" sh -c "echo $i >>order"
        pids+=("$STARTED")
        # No process for each look, and nobody is let in unless the one before it stands in line.
        wait_for 5 watches_are $i
    done
    deleted=$(watches_fired deleted) changed=$(watches_fired changed)
    let_go
    for i in "${pids[@]}"; do wait_exit 20 "$i"; done
    [ "$(paste -sd' ' order)" = "$(seq -s' ' $n)" ]
    deleted=$(($(watches_fired deleted) - deleted))
    changed=$(($(watches_fired changed) - changed))
    # The next one; the one behind that by the new holder's record, and one more by the record of
    # the new next one.
    assert_between 0 "$deleted" "$n" "watches of deleted nodes"
    assert_between $((n - deleted)) "$changed" $((2 * n)) "watches of changed nodes"
    watches_are 0
    no_session
}

# The server need not notice by itself that a client was killed: that takes a ttl.
kill_waiter() { # PID NODE
    kill -KILL "$1"
    zk_kill_session "$(owner_of "$2")"
}

@test "waiters that are killed disturb nobody, and the one behind them is not let in" {
    local pids=() i
    hold
    for i in 1 2 3; do
        wait_in_line $((i + 1)) sh -c "echo $i >>order"
        pids+=("$WAITER")
    done
    kill_waiter "${pids[1]}" "$(node 3)"
    wait_for 5 watches_are 2
    wait_for 5 watched "$(node 2)"
    kill_waiter "${pids[0]}" "$(node 2)"
    wait_for 5 line_is 2
    # It watches the holder now.
    wait_for 5 watched "$(node 1)"
    pid_alive "$WAITER"
    [ ! -e order ]
    let_go
    wait_exit 5 "$WAITER"
    [ "$(cat order)" = 3 ]
}

@test "the fence grows over containers that were reaped and made again" {
    last=0
    for i in 1 2 3; do
        fence=$(run_t 5 "$DLOCK" "$L" sh -c 'echo $DLOCK_FENCE')
        [ "$fence" -gt "$last" ] || final "$fence is not more than $last"
        last=$fence
        zk_gone "/$NAME" 5
    done
    hold
    # The sequence has begun anew.
    [[ $(node 1) == *-lock-0000000000 ]]
    let_go
}

# in_turn: "NUMBER VERSION" of each node in the queue. The number counts them.
in_turn() {
    local n=0 path
    for path in $(line); do echo "$((++n)) $(version "$path")"; done
}
# All that has ever been written to the server, as a number.
zxid() { local x; x=$(zk_cmd srvr | sed -n 's/^Zxid: //p') && echo $((x)); }

# bats test_tags=slow
@test "only the holder and the two waiters behind it write heartbeats" {
    local i z0 z1 t0 t1 was n version beats pids=()
    hold --ttl 3
    for i in 2 3 4 5; do
        OPTS="--ttl 3" wait_in_line $i true
        pids+=("$WAITER")
    done
    foreign_hold foreign.log -s "/$NAME/x-"
    FOREIGN=$STARTED
    # Behind another program's node a waiter cannot know whether it is next.
    OPTS="--ttl 3" wait_in_line 6 true
    pids+=("$WAITER")
    wait_for 5 words_are held next waits waits waits '' next
    was=$(in_turn) t0=$(now_ms) z0=$(zxid)
    wait_for 6 beyond $((t0 + 2000))
    z1=$(zxid) t1=$(now_ms)
    beats=$(((t1 - t0) / 500))
    # Four of the six waiters write, and nothing else is written. (All did: 7 in a sixth of the
    # ttl.)
    assert_between $((4 * (beats - 1))) $((z1 - z0)) $((4 * (beats + 1))) "writes"
    while read -r n version; do
        version=$((version - $(sed -n "${n}s/^$n \([0-9]*\).*/\1/p" <<<"$was")))
        case $n in
        1 | 2 | 3 | 7) [ $version -gt 0 ] || fail "number $n wrote no heartbeat" ;;
        *) [ $version = 0 ] || fail "number $n wrote $version heartbeats" ;;
        esac
    done < <(in_turn)
    kill "$FOREIGN"
    let_go
    for i in "${pids[@]}"; do wait_exit 5 "$i"; done
}

@test "a grant after a wait is told to the waiter behind at once" {
    hold
    OPTS="--ttl 30" wait_in_line 2 "$HELPERS/await" told
    first=$WAITER
    OPTS="--ttl 30" wait_in_line 3 true
    let_go
    # Long before the heartbeats that would tell it, too.
    wait_for 2 words_are held next
    touch told
    wait_exit 5 "$first"
    wait_exit 5 "$WAITER"
}

@test "a waiter that never wrote a heartbeat is granted at once when it comes to the front" {
    local i t0 pids=()
    hold --ttl 4
    for i in 2 3 4; do
        OPTS="--ttl 4" wait_in_line $i "$HELPERS/clock" "$T/granted$i"
        pids+=("$WAITER")
    done
    n=$(node 4)
    v=$(version "$n")
    # The begin of its session is too old to be the lease's by then.
    lasts 2300
    [ "$(version "$n")" = "$v" ]
    kill -TERM "${pids[0]}" "${pids[1]}" "$HOLDER"
    t0=$(now_ms)
    wait_exit 5 "${pids[2]}"
    # (With two writes, a third of the ttl apart, it were 1333.)
    assert_between 0 $(($(cat granted4) / NS - t0)) $((1000 + SLOW)) "time until the grant (ms)"
    for i in "$HOLDER" "${pids[0]}" "${pids[1]}"; do wait_exit 5 "$i" || :; done
}

# --------------------------------------------------------------- interplay ---

# interplay LOCK PROGRAM KIND [TRY-ARGUMENT]
interplay() {
    L=$1
    # It is excluded: without waiting, and waiting.
    hold
    run -75 run_t 20 bash -c '. "$ROOT/tests/support/zookeeper.bash"; "$@"' - "$2" "/$NAME" "$3" \
        "$T/none" "$4"
    assert_out refused
    line_is 1
    start_log other.log "$2" "/$NAME" "$3" "$T/other-go"
    OTHER=$STARTED
    wait_for 10 line_is 2
    wait_for 5 watched "$(node 1)"
    run -1 is_held other.log
    says 75 "pid $HOLDER" --status "$L"
    assert_out "waiting 1: "
    assert_out "$5"
    let_go
    wait_for 5 is_held other.log
    # It excludes.
    says 75 "$5" -vn "$L" touch ran
    line_is 1
    run -75 run_t 5 "$DLOCK" --status --json "$L"
    [[ $output == *'"kind":"foreign"'*"$5"* ]] || fail "$output"
    start_log w.log "$DLOCK" "$L" touch "$T/ran"
    wait_for 5 watched "$(node 1)"
    [ ! -e ran ]
    : >other-go
    wait_exit 10 "$OTHER"
    wait_exit 5 "$STARTED"
    [ -e ran ]
}

@test "kazoo's Lock excludes ?layout=kazoo and is excluded by it" {
    interplay "zk://$H?layout=kazoo#$NAME" kazoo_lock lock --try kazoo
}
# bats test_tags=plain
@test "Curator's InterProcessMutex excludes dlock and is excluded by it" {
    interplay "zk://$H#$NAME" curator_lock mutex try Curator
}

# ------------------------------------------------------------------ status ---

@test "--status of a free lock makes no node" {
    run -0 run_t 5 "$DLOCK" --status "$L"
    not_there "/$NAME"
}

@test "--status shows foreign nodes safely" {
    foreign_hold f1.log -s "/$NAME/x-" $'red \033[31m text'
    foreign_hold f2.log -s "/$NAME/_c_0f8fad5b-d9cb-469f-a165-70867728950e-lock-" "10.0.0.1"
    says 75 "another program" --status "$L"
    assert_out "waiting 1: "
    assert_out "Curator"
    refute_out $'\033'
    run run_t 5 "$DLOCK" --status --json "$L"
    /usr/bin/python3 -c '
import json, sys
s = json.loads(sys.argv[1])
assert s["holders"][0]["kind"] == "foreign" and "red" in s["holders"][0]["note"], s
assert s["waiters"][0]["kind"] == "foreign" and s["waiters"][0]["note"] == "10.0.0.1", s' "$output"
}

@test "reaches a server at an IPv6 address" {
    local p6
    LISTEN=::1 start_log p6 "$ROOT/tests/support/helpers/zkproxy.py" "$ZK_PORT" pass
    wait_for 5 test -s p6
    p6=[::1]:$(sed -n 1p p6)
    run -75 run_t 5 "$DLOCK" "zk://$p6#$NAME" "$DLOCK" --status "$L"
    # One that is dead before it, one at an IPv4 address behind it.
    run -0 run_t 10 "$DLOCK" "zk://[::1]:1,$p6,127.0.0.1:1#$NAME" true
    says 69 '[::1]:1' "zk://[::1]:1#$NAME" true
}
