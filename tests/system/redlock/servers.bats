#!/usr/bin/env bats
# servers.bats - servers of a Redlock whose clocks jump, that are full of clients or are restarted
# in a hold; what those that are out of order cost; what a waiter costs them.

# bats file_tags=long
load ../../support/holders
load ../../support/redis
load ../../support/redlock

# ------------------------------------------------------------------ clocks ---

# Five nodes, each with a clock that `jump SECONDS K...` sets ahead.
clock_nodes() {
    local k
    RL_PORTS=''
    for k in 1 2 3 4 5; do
        head -c 8 /dev/zero >"$T/offset.$k"
        LD_PRELOAD=$HELPERS/wallclock.so WALLCLOCK=$T/offset.$k \
            ASAN_OPTIONS=${ASAN_OPTIONS:-}:verify_asan_link_order=0 \
            redis_start_in n$k
        RL_PORTS+="${RL_PORTS:+ }${REDIS_PORTS[n$k]}"
    done
    L=$(rl_uri "$NAME")
}
jump() {
    /usr/bin/python3 -c 'import struct, sys
for k in sys.argv[2:]:
    with open("offset." + k, "r+b") as f: f.write(struct.pack("<q", int(sys.argv[1]) * 10**9))' "$@"
}

# bats test_tags=slow
@test "a hold survives clock jumps on two servers" {
    clock_nodes
    local nodes by
    starts 1 --ttl 2 "$L" $SUBJECT -u "$T/end" -r 4
    for nodes in 3 "1 4"; do
        for by in 60 0 -60 0; do
            jump $by $nodes
            # Nobody gets in by those whose leases have ended.
            run -75 run_t 5 "$DLOCK" -n "$L" true
            lives_for 700
            # A renewal, half a second after the last one, has mended it.
            wait_for 2 rl_on "$NAME" 5
        done
    done
    unharmed 4
    # On the nodes with a clock that was set back in between it lasts longer, but for the release.
    wait_for 1 rl_gone "$NAME"
}

# bats test_tags=slow
@test "three clocks that jump forward end the hold, backward not" {
    clock_nodes
    subject --ttl 3
    jump -60 1 2 5
    lives_for 3200
    rl_on "$NAME" 5
    local t0
    t0=$(now_ns)
    jump 0 1 2 5
    # Renewals are 0.77 s apart.
    loses 5 0 "$t0" $((1100 + SLOW))
    assert_out "gone on 3 of 5 servers"
    wait_for 1 rl_gone "$NAME"
}

# bats test_tags=plain
@test "the fence grows although the servers' clocks differ" {
    clock_nodes
    local by nodes fence last=0
    for nodes in 2 "2 3" "2 3 5"; do
        for by in 60 -60; do
            jump $by $nodes
            run -75 run_t 5 "$DLOCK" "$L" "$DLOCK" --no-reentrant -q -n "$L" true
            fence=$(run_t 5 "$DLOCK" "$L" sh -c 'echo $DLOCK_FENCE')
            [ "$fence" -gt "$last" ] || fail "$by s on $nodes: $fence after $last"
            last=$fence
            wait_for 2 rl_gone "$NAME"
            jump 0 $nodes
        done
    done
}

# ------------------------------------------------------------- full servers ---

# full K...: no connection more than those there are, one of ours among them. again K...: as before.
declare -A DOOR
full() {
    local k fd line
    for k; do
        { exec {fd}<>"/dev/tcp/127.0.0.1/$(rl_port "$k")"; } 2>/dev/null
        DOOR[$k]=$fd
        printf 'CONFIG SET maxclients 1\r\n' >&"$fd"
        read -r -t 5 line <&"$fd"
        [[ $line == +OK* ]] || fail "node $k: $line" || return
        rl "$k" ping 2>&1 | grep -q 'max number of clients' || fail "node $k is not full" || return
    done
}
again() {
    local k line
    for k; do
        printf 'CONFIG SET maxclients 1000\r\n' >&"${DOOR[$k]}"
        read -r -t 5 line <&"${DOOR[$k]}"
        exec {DOOR[$k]}>&-
    done
}

@test "two full servers are harmless, three are named" {
    own_nodes
    full 5
    quick "$L" true
    full 2
    quick "$L" true
    quick -n "$L" true
    full 1
    unusable 2
    assert_out "max number of clients"
    unusable 2 -n
    nothing_left 3 4
    again 1 2 5
    nothing_left
    quick "$L" true
}

@test "a wait that ends before the first contact says what the servers said" {
    own_nodes 3 --lua-time-limit 50
    local k
    for k in 1 2 3; do
        start_log busy.log redis-cli -p "$(rl_port $k)" eval 'while true do end' 0
        wait_for 5 eval 'rl '"$k"' ping | grep -q BUSY'
    done
    says 69 "only 0 of 3 servers" -w 0.6 "$L" touch ran
    assert_out BUSY
    [ ! -e ran ]
    on_all script kill
}

# bats test_tags=slow
@test "a hold survives servers that become full" {
    own_nodes
    subject --ttl 2 --grace 0.2
    wait_for 2 rl_on "$NAME" 5
    full 1 2 3
    lives_for 2300
    thrown_out() { # K...: whoever is connected, but us
        local k line
        for k; do
            printf 'CLIENT KILL TYPE normal SKIPME yes\r\n' >&"${DOOR[$k]}"
            read -r -t 5 line <&"${DOOR[$k]}"
        done
    }
    thrown_out 1 2
    lives_for 2300
    thrown_out 3
    loses 5 1 "$(now_ns)" 1980 0
    assert_out "max number of clients"
    again 1 2 3
}

# ---------------------------------------------------------------- restarts ---

# restart kept|lost K...: killed, and started again, with or without their data.
restart() {
    local k how=$1
    shift
    rl_die "$@"
    for k; do
        [ "$how" = kept ] || rm -rf "${REDIS_DIRS[n$k]}"/*dir "${REDIS_DIRS[n$k]}"/*.aof
        redis_launch "n$k" "${REDIS_DIRS[n$k]}" "${REDIS_PORTS[n$k]}" --appendonly yes \
            --appendfsync always || return
    done
    for k; do
        rl_ask "$k" exists "$NAME" || return
        [ "$how" != kept ] || [ "$ANSWER" = 1 ] || fail "node $k has lost it" || return
    done
}

# bats test_tags=slow
@test "a hold survives restarts of two servers at a time" {
    own_nodes 5 --appendonly yes --appendfsync always
    local value step fence
    starts 1 --ttl 3 "$L" $SUBJECT -u "$T/end" -r 4
    wait_for 2 rl_on "$NAME" 5
    value=$(rl 1 get "$NAME")
    for step in "kept 1" "kept 2 3" "lost 4" "lost 5 1" "kept 4 5" "lost 2 3"; do
        restart $step || fail "$step"
        # Whoever has forgotten it is no majority.
        run -75 run_t 5 "$DLOCK" -n "$L" true
        wait_for 4 eval '[ "$(rl_count "get $NAME" "$value")" = 5 ]' || fail "$step: $(cat out)"
        pid_alive "$K" || fail "$step: $(cat out)"
    done
    # What has been told is that servers were gone, and nothing else.
    ! grep -v "one of 5 servers" out || fail "said"
    unharmed 4
    wait_for 1 rl_gone "$NAME"
    nothing_left
}

# bats test_tags=slow
@test "a hold survives the restart of three servers that keep their data" {
    own_nodes 5 --appendonly yes --appendfsync always
    subject --ttl 3
    wait_for 2 rl_on "$NAME" 5
    restart kept 1 2 3
    lives_for 3300
    rl_on "$NAME" 5
    local t0
    # At one instant, for the keeper: one by one it would set them again.
    kill -STOP "$K"
    t0=$(now_ns)
    restart lost 1 2 3
    kill -CONT "$K"
    loses 5 '' "$t0" $((2900 + SLOW))
}

# ---------------------------------------------------------------- replicas ---

@test "a replica of a server in the list has no vote, even if it may write" {
    own_nodes 3
    rl 1 config set repl-diskless-sync-delay 0
    rl 3 config set replica-read-only no
    rl 3 replicaof 127.0.0.1 "$(rl_port 1)"
    wait_for 5 eval 'rl 3 info replication | grep -q master_link_status:up'
    run -0 run_t 5 "$DLOCK" -q -n "$L" true
    rl_die 2
    says 69 "only 1 of 3 servers" --connect-timeout 1 -n "$L" touch ran
    [ ! -e ran ]
}

# ------------------------------------------------------- what it costs us ---

# us_longer NODES WHAT: ... than $healthy; a node's time-out is 50 ms.
us_longer() {
    entering
    [ "$took" -le "${worst:-0}" ] || worst=$took
    assert_between -999999 $((took - healthy)) $((80000 + 1000 * SLOW)) "us longer, with $1 $2"
}

# bats test_tags=slow
@test "two bad nodes delay the start by their time-out at most" {
    own_nodes
    local healthy worst='' what k all=$L ports=$RL_PORTS port=()
    entering
    healthy=$took
    rl_freeze 2
    us_longer 1 hung
    rl_freeze 3
    us_longer 2 hung
    rl_thaw 2 3
    rl_die 2
    us_longer 1 dead
    rl_die 3
    us_longer 2 dead
    for what in "say :1\\r\\n" "for-ever x" "nothing" "greet SSH-2.0-x\\r\\n"; do
        RL_PORTS=$ports
        for k in 2 3; do
            listener hostile_server $what
            port[k]=$LISTENS
        done
        rl_put 2 "${port[2]}"
        L=$(rl_uri "$NAME")
        # Node 3 is dead.
        us_longer 1 "dead and one that does: $what"
        rl_put 3 "${port[3]}"
        L=$(rl_uri "$NAME")
        us_longer 2 "that do: $what"
    done
    echo "# until the command runs: $healthy us with five good nodes, $worst us with three" >&3
    L=$all RL_PORTS=$ports
    rl_revive 2 3
    wait_for 2 rl_gone "$NAME"
}

# -------------------------------------------------- what a waiter costs them ---

evals() { rl "$1" info commandstats | count_evals; }

# bats test_tags=slow
@test "a waiter that is notified does not poll" {
    own_nodes
    local k n said=''
    hold --ttl 60
    waiter got --ttl 60
    # A majority watches the key for it; who was late in that round comes with the next one, in a
    # third of the ttl. The holder renews 1 s after the grant, which is a change of the key.
    K=$WAITER lives_for 1500
    on_all config resetstat
    K=$WAITER lives_for 3000
    for k in 1 2 3 4 5; do
        n=$(evals $k)
        said+=" ${n:-0}"
        [ "${n:-0}" -le 4 ] || fail "node $k was asked $n times in 3 s"
    done
    echo "# EVALs in 3 s of waiting:$said" >&3
    # And it is told.
    hand_over $((500 + BUSY))
    [ "$(evals 1)" -ge 1 ] # they are counted
}

# calls: into $CALLS the numbers of scripts that the servers have run; 1: a server has run none.
calls() {
    local k
    CALLS=''
    for k in $(rl_all); do
        rl_ask "$k" info commandstats || return
        CALLS+=$(grep -o 'cmdstat_eval[a-z]*:calls=[0-9]*' <<<"$ANSWER") || return
    done
}
# Each server was asked after its connections were closed, and the waiter is idle: no server is
# asked in 100 ms. (A connection that is closed in a round of votes is not an idle connection.)
asked_anew() {
    local was
    calls && was=$CALLS && nap 0.1 && calls && [ "$CALLS" = "$was" ]
}

@test "servers that close idle connections disturb no waiter" {
    rl_start 3
    local l i
    l=$(rl_uri "$NAME")
    on_all set "$NAME" other px 60000
    start_log wait.log "$DLOCK" -v --ttl 3 "$l" true
    for i in 1 2 3; do
        wait_for 5 asked_anew
        # As their `timeout` does: not the connections that have subscribed.
        on_all client kill type normal
        on_all config resetstat
    done
    wait_for 5 asked_anew
    on_all del "$NAME"
    exits 0 5 "$STARTED"
    run cat wait.log
    refute_out "closed the connection"
}
