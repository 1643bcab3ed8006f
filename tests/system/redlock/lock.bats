#!/usr/bin/env bats
# lock.bats - a lock that a majority of independent redis-servers grants: votes, rights, other
# clients, waiting. What redis/*.bats show of one server is not shown again; faults: faults.bats,
# fences: shared.bats.

load ../../support/redlockfile
load ../../support/outage

# ----------------------------------------------------------------- basics ---

@test "the lock is the same key on every node" {
    hold --ttl 20
    [ "$(rl_holds "$NAME")" = 5 ]
    local k value raised=''
    value=$(rl 1 get "$NAME")
    [[ $value =~ ^[0-9a-f]{32}\ .*pid=$HOLDER ]]
    for k in 1 2 3 4 5; do
        [ "$(rl $k get "$NAME")" = "$value" ]
        assert_between 5000 "$(rl $k pttl "$NAME")" 20000 "ms left"
        [ "$(rl $k get "{$NAME}:dlock:fence")" -lt "$(cat held)" ] || raised+=$k
    done
    # The next grant's majority has at least one of them.
    [ ${#raised} -ge 3 ] || fail "the fence is known only on nodes $raised"
    says 75 "pid $HOLDER" -vn "$L" true
    # On each of them it is what a client of that one node would have set.
    run -75 run_t 5 "$DLOCK" -n "redis://127.0.0.1:$(rl_port 3)#$NAME" true
    let_go
    rl_gone "$NAME"
    for k in 1 2 3 4 5; do
        [ "$(rl $k --scan --pattern "*$NAME*")" = "{$NAME}:dlock:fence" ]
        assert_between 86000 "$(rl $k ttl "{$NAME}:dlock:fence")" 86400
    done
}

@test "the database of the URI is used on every node" {
    run -0 run_t 5 "$DLOCK" "redlock://$(rl_hosts)/5?restart-grace=0#$NAME" sh -c '
        for p; do
            redis-cli -p $p -n 5 exists $DLOCK_NAME
            redis-cli -p $p exists $DLOCK_NAME
        done' - $RL_PORTS
    [ "$(tr -d '\n' <<<"$output")" = 1010101010 ]
}

@test "refuses what cannot be" {
    local hosts uri
    hosts=$(rl_hosts)
    says 64 "3 holders fit 2 slots on 3 servers" --slots 2 "$L" touch ran
    for uri in "redlock://$hosts?wait-replicas=1#x" "redlock://$hosts?restart-grace=soon#x" \
        "redlock://$hosts?slots=2#x" "redlock://$hosts/x#x" \
        "redlock://$(seq -s, -f 'h%g' 16)#x" "redlock://$hosts"; do
        run -64 run_t 5 "$DLOCK" "$uri" touch ran
        [ "${#lines[@]}" -eq 1 ] || fail "not one line: $output"
    done
    [ ! -e ran ]
}

@test "refuses one server under two addresses" {
    own_nodes 2 --bind '127.0.0.1 127.0.0.2 ::1'
    local p other try
    p=$(rl_port 1)
    for other in localhost:$p 127.0.0.2:$p "[::1]:$p"; do
        L="redlock://127.0.0.1:$p,$other,127.0.0.1:$(rl_port 2)?restart-grace=0#$NAME"
        # The two servers are a majority of three: on a busy machine they may have granted the lock
        # before the second address of one is asked.
        for try in 1 2 3 4 5; do
            run run_t 5 "$DLOCK" "$L" touch ran
            [ "$status" -eq 0 ] || break
            rm ran
        done
        assert_rc 64
        [ ! -e ran ]
        assert_out "127.0.0.1:$p"
        assert_out "$other"
        nothing_left
    done
}

# Ports 1, 2, ... are nobody's.
@test "a majority of 1, 2, 3, 4 or 5 servers is enough, one less is not" {
    local n dead hosts live need
    for n in 1 2 3 4 5; do
        need=$((n / 2 + 1))
        for live in $need $((need - 1)); do
            hosts="$(tr ' ' '\n' <<<"$RL_PORTS" | head -n "$live") $(seq $((n - live)))"
            hosts=$(printf ',127.0.0.1:%s' $hosts)
            takes 0 1500 $([ "$live" -eq "$need" ] && echo 0 || echo 69) "$DLOCK" \
                --connect-timeout 0.5 "redlock://${hosts#,}?restart-grace=0#$NAME" true
            rl_gone "$NAME"
        done
    done
}

@test "--status tells free, held and split votes" {
    own_nodes
    says 0 ": free" --status "$L"
    hold
    says 75 "pid $HOLDER" --status "$L"
    rl_freeze 4 5
    takes 0 1500 75 "$DLOCK" --status "$L"
    assert_out "pid $HOLDER"
    rl_freeze 3
    takes 0 2000 69 "$DLOCK" --connect-timeout 0.5 --status "$L"
    [[ $output =~ 2\ of\ (the\ |its\ )?5 ]]
    rl_thaw 3 4 5
    let_go
    on "1 2" set "$NAME" one
    on "4 5" set "$NAME" two
    run -0 run_t 5 "$DLOCK" --status "$L"
    rl 3 set "$NAME" s3cret-two
    on "4 5" set "$NAME" s3cret-two
    run -75 run_t 5 "$DLOCK" --status "$L"
    refute_out s3cret
    rl_die 1 2
    run -75 run_t 5 "$DLOCK" --status "$L"
    rl_die 3
    run -69 run_t 5 "$DLOCK" --connect-timeout 1 --status "$L"
}

# A node that misses some of a waiter's tries has an older record of it.
@test "--status lists a waiter once" {
    own_nodes 3
    local queue="{$NAME}:dlock:queue" waiters="{$NAME}:dlock:waiters" id entry
    on_all set "$NAME" theirs px 60000
    waiter got --ttl 60
    wait_for 5 in_line 1
    id=$(rl 3 zrange "$queue" 0 0)
    entry=$(rl 3 hget "$waiters" "$id")
    rl 3 hset "$waiters" "$id" "${entry/ since=/ since=1}"
    run -75 run_t 5 "$DLOCK" --status "$L"
    [ "$(grep -c "pid $WAITER" <<<"$output")" = 1 ]
    on_all del "$NAME"
    wait_exit 5 "$WAITER"
}

@test "--status tells waiters that have been silent for their ttl" {
    own_nodes 3
    local text='silent: stopped or cut off' silent
    on_all set "$NAME" theirs px 60000
    waiter got --ttl 1
    wait_for 5 in_line 1
    kill -STOP "$WAITER"
    is_silent() { "$DLOCK" --status "$L" >said; grep -q "$text" said; }
    wait_for 5 is_silent
    silent=$(grep -c "$text" said)
    [ "$silent" = 1 ]
    kill -CONT "$WAITER"
    wait_for 5 eval '! is_silent'
    on_all del "$NAME"
    exits 0 5 "$WAITER"
}

# ------------------------------------------------------ rights, foreign data ---

@test "a wrong password costs one vote, three refuse the lock" {
    own_nodes
    local k hosts=''
    for k in 1 2 3 4 5; do
        rl $k config set requirepass "c4nary$k"
        hosts+=",:c4nary$k@127.0.0.1:$(rl_port $k)"
    done
    hosts=${hosts#,}
    at() { echo "redlock://$1?restart-grace=0#$NAME"; }
    run -0 run_t 5 "$DLOCK" -v "$(at "$hosts")" sh -c '
        for p; do
            REDISCLI_AUTH=c4nary$((n += 1)) redis-cli -p $p exists $DLOCK_NAME
        done' - $RL_PORTS
    [ "$(grep -x 1 <<<"$output" | tr -d '\n')" = 11111 ]
    quick -n "$(at "${hosts/c4nary2/c4nary-no}")" true
    for k in 1 3 4; do hosts=${hosts/c4nary$k/c4nary-no}; done
    takes 0 1500 77 "$DLOCK" --connect-timeout 1 -v "$(at "$hosts")" touch ran
    refute_out c4nary
    run -77 run_t 5 "$DLOCK" -v --connect-timeout 1 --status "$(at "$hosts")"
    refute_out c4nary
    run -77 run_t 5 "$DLOCK" --connect-timeout 1 "$L" touch ran
    [ ! -e ran ]
    for k in 1 2 3 4 5; do
        [ "$(REDISCLI_AUTH=c4nary$k rl $k exists "$NAME")" = 0 ]
        REDISCLI_AUTH=c4nary$k rl $k config set requirepass same
    done
    # Given once, before the first host; by file; by environment.
    run -0 run_t 5 "$DLOCK" "$(at ":same@$(rl_hosts)")" true
    REDISCLI_AUTH=same run -0 run_t 5 "$DLOCK" "$L" true
    (umask 077 && echo same >pw)
    run -0 run_t 5 "$DLOCK" "$(rl_uri "$NAME" "restart-grace=0&password-file=$T/pw")" true
}

@test "warns once of a password that the servers do not have" {
    CI=1 says 0 "a password was sent, but this server has none" \
        "$(rl_uri "$NAME" | sed 's,//,//:c4nary@,')" true
    [ "${#lines[@]}" = 1 ] || fail "$output"
    refute_out c4nary
}

@test "a key of another type costs one vote and is left alone" {
    rl 2 hset "$NAME" f v
    quick -n "$L" true
    on "3 5" hset "$NAME" f v
    local mode
    for mode in -n '-w 2' '-n -s' '-n --once' --status '--forget --yes'; do
        # shellcheck disable=SC2086
        says 65 "the key '$NAME' is a hash, not a lock of dlock or SET NX; use another name" \
            --connect-timeout 1 $mode "$L" $([[ $mode == --* ]] || echo touch ran)
    done
    [ ! -e ran ]
    for k in 2 3 5; do [ "$(rl $k hget "$NAME" f)" = v ]; done
    [ "$(rl_count "exists $NAME" 0)" = 2 ]
    on_all del "$NAME"
}

# next_fence: of a grant now; greater than the last one, and of this century.
next_fence() {
    local f
    f=$(run_t 9 "$DLOCK" --connect-timeout 2 "$L" sh -c 'echo $DLOCK_FENCE') || fail "$f" || return
    assert_between $((LAST + 1)) "$f" 2500000000000000 "the fence" || return
    LAST=$f
}

@test "a foreign fence counter costs its node the vote, and fences go on growing" {
    rl_start 3
    L=$(rl_uri "$NAME")
    local key="{$NAME}:dlock:fence" value node down i LAST=0
    next_fence
    for value in 4000000000000000 nan; do
        for node in 1 2 3; do
            rl $node set "$key" "$value"
            # Both others must vote.
            for i in 1 2 3; do next_fence; done
            down=$((node % 3 + 1))
            rl_freeze $down
            says 65 "127.0.0.1:$(rl_port $node): the key '$key' holds ${value:0:9}" -w 3 \
                --connect-timeout 1 "$L" touch ran
            rl_thaw $down
            [[ $(rl $node get "$key") == "${value:0:9}"* ]]
            rl $node del "$key"
            for i in 1 2; do next_fence; done
        done
    done
    [ ! -e ran ]
    rl 2 set "$key" 4000000000000000
    # Where its vote is one of the first two.
    told() { CI=1 run_t 5 "$DLOCK" "$L" true 2>&1 | grep "ten years ahead of the other servers"; }
    wait_for 5 told
}

@test "a foreign lock on two nodes does not block, on three it does" {
    on "1 2" set "$NAME" theirs nx px 60000
    hold --ttl 1
    [ "$(rl_count "get $NAME" theirs)" = 2 ]
    # More than one renewal later, too.
    wait_for 4 rl_renewals 3 2
    [ "$(rl_count "get $NAME" theirs)" = 2 ]
    let_go
    [ "$(rl_count "get $NAME" theirs)" = 2 ]
    [ "$(rl_holds "$NAME")" = 2 ]
    rl 5 set "$NAME" theirs nx px 60000
    run -75 run_t 5 "$DLOCK" -n "$L" touch ran
    run -75 run_t 5 "$DLOCK" -w 0.3 "$L" touch ran
    [ ! -e ran ]
    [ "$(rl_holds "$NAME")" = 3 ]
    on_all del "$NAME"
}
@test "a split vote is a busy lock, not an error" {
    on "1 2" set "$NAME" one px 60000
    on "3 4" set "$NAME" two px 60000
    # A few more rounds: the others might be about to give up, too.
    takes 0 2500 75 "$DLOCK" -n "$L" touch ran
    [ ! -e ran ]
    [ "$(rl 5 exists "$NAME")" = 0 ]
    on_all del "$NAME"
}

# ---------------------------------------------------------------- waiting ---

@test "a waiter is woken by the holder's release, and by any client's DEL" {
    own_nodes
    local i t0 ms
    for i in 1 2 3; do
        hold --ttl 60
        waiter got --ttl 60
        t0=$(clock)
        let_go
        wait_exit 5 "$WAITER"
        ms=$((($(cat got) - t0) / NS))
        [ $ms -ge $((500 + SLOW)) ] || break
    done
    assert_between 0 $ms $((500 + SLOW)) "ms after the release"
    promptly on_all del "$NAME"
    promptly on_all flushall
    # A majority is enough, also if the others never let go.
    promptly on "2 3 5" del "$NAME"
}

# bats test_tags=plain
@test "three stopped waiters delay the next by 1.6 s at most, and each once" {
    own_nodes
    local i w stopped=() live=()
    hold --ttl 30
    for i in 1 2 3 4 5 6 7; do
        start_log w.log "$DLOCK" --ttl 30 "$L" "$HELPERS/clock" "$T/got$i"
        [ "$i" -gt 3 ] && live+=("$STARTED") || stopped+=("$STARTED")
        wait_for 5 in_line "$i"
    done
    for w in "${stopped[@]}"; do stop_pid "$w"; done
    clock >t0
    let_go
    for w in "${live[@]}"; do wait_exit 10 "$w"; done
    cat got[4-7] | sort -n >got
    w=$(($(head -n 1 got) - $(cat t0)))
    assert_between 0 $((w / NS)) $((1700 + SLOW)) "ms behind three stopped waiters"
    w=$(($(tail -n 1 got) - $(sed -n 3p got)))
    assert_between 0 $((w / NS)) $((500 + SLOW)) "ms after each of them was called"
    for w in "${stopped[@]}"; do kill -CONT "$w"; done
    for w in "${stopped[@]}"; do wait_exit 10 "$w"; done
    nothing_left
}

@test "a waiter notices that the keys expire" {
    local i t0 t1
    for i in 1 2 3; do
        t0=$(clock)
        on_all set "$NAME" theirs px 900
        t1=$(clock)
        run -0 run_t 5 "$DLOCK" "$L" "$HELPERS/clock" "$T/got"
        [ $((($(cat got) - t0) / NS)) -ge 900 ]
        t1=$((($(cat got) - t1) / NS))
        [ $t1 -ge $((1200 + SLOW)) ] || break
    done
    assert_between 0 $t1 $((1200 + SLOW)) "ms"
}

@test "a waiter that dies or is cancelled leaves nothing on the nodes" {
    own_nodes
    local rc
    on_all set "$NAME" theirs px 60000
    waiter got --ttl 60
    kill -KILL "$WAITER"
    wait_for 5 pid_gone "$WAITER"
    wait_for 2 watched 0
    [ "$(rl_count "get $NAME" theirs)" = 5 ]
    # Also with a node that hangs and one that is dead.
    rl_freeze 2
    rl_die 4
    local sig t0 took best=9999
    for sig in TERM HUP INT; do
        rc=0
        start_log got.log "$HELPERS/launch" -d "$DLOCK" --ttl 60 "$L" "$HELPERS/clock" "$T/got"
        WAITER=$STARTED
        wait_for 5 tracked 1 1 3 5
        t0=$(now_ms)
        kill -$sig "$WAITER"
        wait_exit 5 "$WAITER" || rc=$?
        [ "$rc" -eq $((128 + $(kill -l $sig))) ]
        took=$(($(now_ms) - t0))
        [ "$took" -ge "$best" ] || best=$took
        wait_for 2 tracked 0 1 3 5
    done
    assert_between 0 "$best" $((500 + SLOW)) "ms until it left"
    rl_thaw 2
    on "1 2 3 5" del "$NAME"
    run -0 run_t 5 "$DLOCK" -n "$L" true
    [ ! -e got ]
    nothing_left 1 2 3 5
}
# tracked N K...: as many track the lock on each of these nodes.
tracked() {
    local k
    for k in "${@:2}"; do rl_tracks "$k" "$1" || return; done
}

@test "-w ends in time with hung nodes" {
    own_nodes
    on_all set "$NAME" theirs px 60000
    rl_freeze 3
    waits 75 400
    rl_freeze 1 5
    waits 69 300
    [ ! -e ran ]
    rl_thaw 1 3 5
}
# waits RC LEAST: -w 0.4 ends with that; at most 100 ms late, the best of six, less what the program
# itself takes now.
waits() {
    local i begin best=9999
    for i in 1 2 3 4 5 6; do
        begin=$(now_ms)
        run -64 run_t 5 "$DLOCK" -n "$(rl_uri "$NAME" nonsense=1)" touch ran
        begin=$(($(now_ms) - begin))
        timed -w 0.4 "$L" touch ran
        assert_rc "$1" || return
        [ "$took" -ge "$2" ] || fail "$took ms" || return
        took=$((took - begin))
        [ "$took" -ge "$best" ] || best=$took
        [ "$best" -gt 510 ] || return 0
    done
    assert_between 0 "$best" $((510 + SLOW)) "ms, less that of a refusal"
}

@test "waiters ride out an outage of a majority for as long as they may wait" {
    own_nodes
    ride_out
    last_line short.log "only 2 of 5 servers"
}
store_out() { rl_freeze 1 2 3; }
store_back() { rl_thaw 1 2 3; }

@test "a waiter rides out nodes that come and go" {
    own_nodes
    on_all set "$NAME" theirs px 60000
    waiter got --ttl 10
    rl_die 1 2
    rl_revive 1 2
    on "1 2" set "$NAME" theirs px 60000
    # At its next try, which is after ttl/3 or a back-off.
    wait_for 10 tracked 1 1 2
    rl_freeze 3
    rl_die 4
    local t0
    t0=$(clock)
    on "1 2 5" del "$NAME"
    wait_exit 5 "$WAITER"
    assert_between 0 $((($(cat got) - t0) / NS)) $((2000 + SLOW)) "ms"
    rl_thaw 3
}

# Without anybody else one of them gets it, however the votes split at first.
# bats test_tags=plain
@test "of eight simultaneous tries exactly one runs" {
    local round
    for round in 1 2 3 4 5; do
        rm -f go ran
        run -0 run_t 20 "$ROOT/tests/support/helpers/burst.py" 8 "$T/go" "$DLOCK" -q -n "$L" \
            sh -c 'echo >>ran; n=0; until [ -e go ] || [ $((n += 1)) -gt 200 ]; do sleep .02; done'
        [ "$output" = "0 75 75 75 75 75 75 75" ] || fail "round $round: $output"
        [ "$(wc -l <ran)" -eq 1 ]
        rl_gone "$NAME"
    done
}
