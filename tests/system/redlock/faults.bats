#!/usr/bin/env bats
# faults.bats - nodes of a Redlock that are dead, hang, lie, refuse or forget, and holds that they
# hit.

# bats file_tags=long
load ../../support/redlockfile

# --------------------------------------------------- nodes that do not vote ---

@test "two dead nodes are harmless, three refuse the lock" {
    own_nodes
    rl_die 5
    quick "$L" true
    rl_die 2
    quick "$L" true
    run -75 run_t 5 "$DLOCK" -n "$L" "$DLOCK" -q -n "redis://127.0.0.1:$(rl_port 1)#$NAME" true
    rl_die 1
    unusable 2
    unusable 2 -n
    unusable 2 -w 3
    assert_out refused
    nothing_left 3 4
}

@test "two hung nodes are harmless, three refuse the lock" {
    own_nodes
    rl_freeze 1
    quick "$L" true
    rl_freeze 4
    quick "$L" true
    quick -n "$L" true
    run -75 run_t 5 "$DLOCK" "$L" "$DLOCK" --no-reentrant -q -n "$L" true
    rl_freeze 2
    unusable 2
    unusable 2 -n
    nothing_left 3 5
    # What the hung ones were sent is undone in the same breath.
    rl_thaw 1 2 4
    on_all ping
    wait_for 2 rl_gone "$NAME"
    nothing_left
}

@test "two nodes with garbage are harmless, three refuse the lock" {
    harmless 3 hostile_server say 'HTTP/1.0 400 Bad request\r\n\r\n'
    harmless "3 4" hostile_server say ':1\r\n'
    quick -n "$L" true
    # What is no answer to what was asked is no vote either.
    instead "1 3 4" hostile_server say '*5\r\n$7\r\ngranted\r\n$2\r\nxx\r\n:1\r\n:1\r\n$0\r\n\r\n'
    limited
    nothing_left
}

@test "two refusing nodes are harmless, three refuse the lock" {
    own_nodes
    rl 2 config set maxmemory 1
    rl 2 config set maxmemory-policy noeviction
    # It does refuse.
    rl 2 set x y | grep OOM
    quick "$L" true
    rl 3 replicaof 127.0.0.1 1
    rl 3 set x y | grep READONLY
    quick "$L" true
    quick -n "$L" true
    rl 1 config set maxmemory 1
    unusable '[25]' -n
    [[ $output =~ replica|READONLY|OOM|memory ]] || fail "no reason: $output"
    nothing_left 4 5
}

# harmless "K..." HOW...: with these in the place of these nodes the command runs at once.
harmless() {
    instead "$@"
    quick "$L" true
}

# A connection that breaks while a vote is on its way may cost that node's vote for the others until
# the ttl is over.
@test "slow, broken and endless replies of two nodes are harmless" {
    local n fault
    for fault in "drip" "late 1" "always-cut 3" "always-cut 30" "flip 0" "flip 4" "flip 9" \
        "flip 25"; do
        instead "1 4" proxy $fault
        quick --ttl 1 "$L" true
        wait_for 3 rl_gone "$NAME"
    done
    for fault in '$5\r\nhello\r\n' '$900000000\r\n'; do
        harmless "2 5" hostile_server for-ever "$fault"
        harmless "2 5" hostile_server greet "$fault"
    done
    harmless "1 2" hostile_server nothing
    harmless "1 2" hostile_server reset
}

# limited ARG...: 69 within a second, in little memory.
limited() {
    local t0
    t0=$(now_ms)
    run run_t 20 /usr/bin/python3 -c '
import resource, subprocess, sys
rc = subprocess.call(sys.argv[2:])
kb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print("memory:", kb, "KB")
sys.exit(rc if kb < int(sys.argv[1]) else 1)' "$([ -n "${SAN:-}" ] && echo 400000 || echo 60000)" \
        "$DLOCK" --connect-timeout 1 "$@" "$L" touch "$T/ran"
    took=$(($(now_ms) - t0))
    [ "$status" -eq 69 ] || fail "exit code $status: $output" || return
    [ ! -e "$T/ran" ] || fail "it ran" || return
    assert_between 0 "$took" $((2500 + SLOW)) "ms: $output"
}

@test "broken and endless replies of three nodes cost bounded time and memory" {
    local fault
    for fault in '$5\r\nhello\r\n' 'x' '*1\r\n' '$900000000\r\n'; do
        instead "1 3 5" hostile_server for-ever "$fault"
        limited
        rl_gone "$NAME"
    done
    # The votes were given, and nobody heard of it: undone over another connection.
    for fault in 3 30; do
        instead "1 2 3" proxy always-cut $fault
        limited
        wait_for 2 rl_gone "$NAME"
    done
}

# ---------------------------------------------------------------- holding ---

@test "a hold heals two nodes that come back empty" {
    own_nodes
    hold --ttl 2
    local value
    value=$(rl 1 get "$NAME")
    rl_die 1 4
    rl_revive 1 4
    wait_for 4 rl_same "$value"
    # The other minority.
    rl_die 2 5
    rl_revive 2 5
    wait_for 4 rl_same "$value"
    let_go
    [ ! -s hold.log ] || cat hold.log
    rl_gone "$NAME"
}
rl_same() { [ "$(rl_count "get $NAME" "$1")" = 5 ]; }

@test "a hold ends at once when three nodes come back empty" {
    own_nodes
    subject --ttl 60
    rl_die 1 2 3
    rl_revive 1 2 3
    loses 4 0 "$(now_ns)" $((300 + BUSY))
}

@test "a hold hears of lost keys: it heals two, and ends when three are lost" {
    subject --ttl 60
    wait_for 4 rl_told
    on "2 5" del "$NAME"
    wait_for 4 rl_on "$NAME" 5
    local gone
    # At one instant, for the keeper: one by one it would set them again.
    kill -STOP "$K"
    on "1 3 5" del "$NAME"
    gone=$(now_ns)
    kill -CONT "$K"
    # By the servers' word, not by the next renewal; and without TERM.
    loses 4 0 "$gone" $((100 + BUSY)) 0
    wait_for 1 rl_gone "$NAME"
}
rl_told() {
    local k
    for k in $(rl_all); do
        rl "$k" info clients | grep -q '^tracking_clients:1' || return
    done
}

@test "a key that was taken over is left to its new owner" {
    subject --ttl 2
    on "2 5" set "$NAME" thief px 60000
    wait_for 4 rl_renewals 1 2
    pid_alive "$K"
    [ "$(rl_count "get $NAME" thief)" = 2 ]
    rl 4 set "$NAME" thief px 60000
    ended 3
    assert_rc 79
    [ "$(count_seen main sig 15)" = 0 ]
    [ "$(rl_count "get $NAME" thief)" = 3 ]
    [ "$(rl_holds "$NAME")" = 3 ]
    on_all del "$NAME"
}

@test "the release reports a loss although the command succeeded" {
    run -79 run_t 5 "$DLOCK" "$L" sh -c 'for p; do redis-cli -p $p del $DLOCK_NAME; done' - \
        $(cut -d' ' -f1-3 <<<"$RL_PORTS")
    rl_gone "$NAME"
    # A minority that lost it is nobody's business.
    run -0 run_t 5 "$DLOCK" "$L" sh -c 'for p; do redis-cli -p $p del $DLOCK_NAME; done' - \
        $(cut -d' ' -f4-5 <<<"$RL_PORTS")
    rl_gone "$NAME"
}

@test "a refused release is neither a loss nor unanswered" {
    rl_start 3
    # The next waiter is told by a message that this user may not send.
    on_all acl setuser u on '>pw' '~*' '&*' +@all -publish
    local waiter
    L=$(rl_uri "$NAME")
    L=${L/redlock:\/\//redlock:\/\/u:pw@} hold
    start_log w.log "$DLOCK" "$L" true
    waiter=$STARTED
    wait_for 5 eval '[ "$(rl_count "zcard {$NAME}:dlock:queue" 1)" = 3 ]'
    let_go 0
    file_has hold.log "the release of '$NAME' is not confirmed: 127.0.0.1:"
    file_has hold.log "the ACL user lacks a right: ACL SETUSER USER +publish"
    [ "$(wc -l <hold.log)" = 1 ]
    exits 0 5 "$waiter"
}

@test "an unconfirmed release keeps the last words of a node" {
    own_nodes 3
    hold --connect-timeout 1
    on "1 2" config set min-replicas-to-write 1
    let_go 0
    file_has hold.log "1 of 3 servers have answered the release; 127.0.0.1:"
    file_has hold.log "the server refuses (NOREPLICAS"
    [ "$(wc -l <hold.log)" = 1 ]
}

refused_as() { REDISCLI_AUTH=$2 rl "$1" acl log | grep -qx auth; }

@test "a hold reads its password again, and rides out a wrong one" {
    local k
    own_nodes 3 --requirepass old
    L=$(rl_uri "$NAME" "restart-grace=0&password-file=$T/pw")
    install -m 600 /dev/null pw
    echo old >pw
    hold
    for k in 1 2 3; do
        REDISCLI_AUTH=old rl $k config set requirepass new
        REDISCLI_AUTH=new rl $k client kill type normal
    done
    wait_for 5 refused_as 1 new
    wait_for 5 refused_as 2 new
    : >go
    echo new >pw
    exits 0 8 "$HOLDER"
    REDISCLI_AUTH=new nothing_left
}

@test "three hung or killed nodes end the tree before the deadline" {
    local how least since
    for how in rl_freeze rl_die; do
        rm -f "$C"/*
        own_nodes
        subject --ttl 2 --grace 0.2
        $how 1 2 3
        since=$(now_ns)
        # Hung nodes have confirmed earlier requests; a refused connection is known at once.
        if [ $how = rl_freeze ]; then least=600; else least=0; fi
        loses 5 1 "$since" 1980 $least
        [ $how = rl_freeze ] || continue
        # No request to the hung nodes renews or makes a key.
        rl_thaw 1 2 3
        on_all ping
        wait_for 3 rl_gone "$NAME"
    done
}

@test "a release does not wait for a hung node" {
    own_nodes
    local i t0 took=9999
    for i in 1 2 3; do
        hold --ttl 60
        rl_freeze 4 5
        t0=$(now_ms)
        let_go
        took=$(($(now_ms) - t0))
        rl_thaw 4 5
        wait_for 2 rl_gone "$NAME"
        [ "$took" -ge $((500 + SLOW)) ] || break
    done
    assert_between 0 "$took" $((500 + SLOW)) "ms until it ended"
    nothing_left
}

# The vote, the renewals and the release were sent to them over more than one connection.
@test "nodes that hung during the hold are free soon afterwards" {
    own_nodes
    rl_freeze 2 3
    hold --ttl 2
    wait_for 9 rl_renewals 4 5
    let_go
    nothing_left 1 4 5
    rl_thaw 2 3
    on_all ping
    wait_for 2 rl_gone "$NAME"
    # Nobody is kept out meanwhile.
    run -0 run_t 5 "$DLOCK" -n "$L" true
}

# 1, 2, 3 gave their votes, 4 and 5 were never asked; then 1 is out of order. What four of five say
# is all there is to know.
@test "a release does not wait for one of a bare majority" {
    own_nodes
    local fault i t0 took
    for fault in rl_freeze rl_die; do
        for i in 1 2 3; do
            rl_freeze 4 5
            hold --ttl 60
            kill -STOP "$HOLDER"
            rl_thaw 4 5
            on "4 5 4 5 4 5" ping
            on "4 5" del "$NAME"
            kill -CONT "$HOLDER"
            $fault 1
            t0=$(now_ms)
            let_go
            took=$(($(now_ms) - t0))
            if [ $fault = rl_freeze ]; then rl_thaw 1; else rl_revive 1; fi
            on_all del "$NAME"
            [ "$took" -ge $((500 + SLOW)) ] || break
        done
        assert_between 0 "$took" $((500 + SLOW)) "ms until it ended, after $fault"
    done
}

# ---------------------------------------------------------------- restarts ---

@test "a node that restarted empty does not vote for a ttl" {
    own_nodes
    L=$(rl_uri "$NAME" -)
    local t0 t1
    rl_die 1 3 5
    t0=$(clock)
    rl_revive 1 3 5
    t1=$(clock)
    says 75 restart --ttl 2 -vn "$L" touch ran
    run -75 run_t 5 "$DLOCK" --ttl 2 -w 0.3 "$L" touch ran
    [ ! -e ran ]
    run -0 run_t 5 "$DLOCK" --ttl 2 -n "$(rl_uri "$NAME.other")" true
    run -0 run_t 9 "$DLOCK" --ttl 2 "$L" "$HELPERS/clock" "$T/got"
    # The uptime is known in whole seconds; a node counts only when it has certainly been up for
    # that long.
    [ $((($(cat got) - t0) / NS)) -ge 2000 ] ||
        fail "$((($(cat got) - t0) / NS)) ms after the restart"
    [ $((($(cat got) - t1) / NS)) -le $((3900 + SLOW)) ] ||
        fail "only $((($(cat got) - t1) / NS)) ms after the restart"
    run -0 run_t 9 "$DLOCK" --ttl 2 -n "$L" true
}

# restarted_since SECONDS K...: these have certainly been up for longer, by their own count.
restarted_since() {
    local k up
    for k in "${@:2}"; do
        up=$(rl "$k" info server | sed -n 's/^uptime_in_seconds:\([0-9]*\).*/\1/p')
        [ "$up" -gt "$1" ] || return
    done
}

@test "restarted nodes do not vote while the holder's longer ttl may last" {
    own_nodes 3
    hold --ttl 60
    stop_pid "$HOLDER"
    rl_die 1 2
    rl_revive 1 2
    L=$(rl_uri "$NAME" -)
    wait_for 5 restarted_since 1 1 2
    says 75 "restart-grace: 2 of 3 servers" --ttl 1 -vn "$L" touch ran
    assert_out "pid $HOLDER"
    [ "$(rl_holds "$NAME")" = 1 ]
    [ ! -e ran ]
    # The holder is gone, and so is its ttl.
    kill -CONT "$HOLDER"
    let_go 79
    run -0 run_t 5 "$DLOCK" --ttl 1 -n "$L" true
}

# The keeper learns of both at once when it continues: the command's end, and the closed
# connections.
@test "a release behind restarts without data says that the lock was lost" {
    own_nodes 3
    ends_while_stopped -q --ttl 60
    rl_die 1 2
    rl_revive 1 2
    kill -CONT "$HOLDER"
    exits 79 8 "$HOLDER"
}

# It may have got the lock from other nodes, which have forgotten it.
@test "restarted nodes do not vote while a waiter with a longer ttl is known" {
    own_nodes 3
    on_all set "$NAME" theirs px 60000
    waiter got --ttl 60
    wait_for 5 in_queues
    kill -STOP "$WAITER"
    rl_die 1 2
    rl_revive 1 2
    rl 3 del "$NAME"
    L=$(rl_uri "$NAME" -)
    wait_for 5 restarted_since 1 1 2
    run -75 run_t 5 "$DLOCK" --ttl 1 -n "$L" touch ran
    [ ! -e ran ]
    kill -CONT "$WAITER"
    wait_exit 5 "$WAITER"
    run -0 run_t 5 "$DLOCK" --ttl 1 -n "$L" true
}
in_queues() { [ "$(rl_count "zcard {$NAME}:dlock:queue" 1)" = 3 ]; }

# A has nodes 1, 2, 3 and cannot renew. 3 forgets. Without the grace B would have 3, 4, 5.
@test "a node that forgot the lock does not vote for a newcomer" {
    own_nodes
    L=$(rl_uri "$NAME" "${GRACE:--}")
    # All may vote.
    run -0 run_t 9 "$DLOCK" --ttl 2 "$L" true
    rl_freeze 4 5
    background --ttl 2 --grace 0.1 "$L" "$HELPERS/witness" "$T" 60000 tree
    wait_for 5 file_has history enter
    kill -STOP "$K"
    rl_die 3
    # As if what had been sent to 4 and 5 had been lost on its way: after a few round trips they
    # have read it all.
    rl_thaw 4 5
    on "4 5 4 5 4 5" ping
    on "4 5" del "$NAME"
    rl_revive 3
    [ "$(rl_holds "$NAME")" = 2 ]
    run -0 run_t 9 "$DLOCK" --ttl 2 "$L" "$HELPERS/witness" "$T" 10
    [ ! -e violations ]
    kill -CONT "$K"
    ended
    assert_rc 79
}
