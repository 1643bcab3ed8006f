#!/usr/bin/env bats
# queue.bats - waiting for a lock in a real redis-server: who is served when, waiters that are
# killed or stopped, what it costs the server.

load ../../support/redisfile

# ---------------------------------------------------------------- waiting ---

@test "a server that closes idle connections disturbs no waiter" {
    own_server
    local w1 w2 i
    own set "$NAME" other px 60000
    start_log w1.log "$DLOCK" -v --ttl 30 "$L" true
    w1=$STARTED
    own_tracks
    start_log w2.log "$DLOCK" -v --ttl 30 "$L" true
    w2=$STARTED
    own_waits_for 2
    for i in 1 2; do
        # As its `timeout` does: not those that have subscribed.
        [ "$(own client kill type normal)" -ge 1 ]
        own_tracks
    done
    own del "$NAME"
    exits 0 5 "$w1"
    exits 0 5 "$w2"
    run cat w1.log w2.log
    refute_out "closed the connection"
    own_gone
}

@test "--status tells when the lock was granted, and of a waiter when it came" {
    local came freed granted
    rcli set "$NAME" x px 60000
    TTL=1 wait_in_line 1 'echo >held; "$HELPERS/await" go'
    came=$(since waiters)
    # It has tried again since: the queue has another record of it.
    wait_for 3 eval '[ "$(wall_ms)" -gt $((came + 900)) ]'
    assert_between -400 $(($(since waiters) - came)) 400 "ms between two answers"
    freed=$(wall_ms)
    rcli del "$NAME"
    wait_for 5 test -e held
    granted=$(since holders)
    assert_between -1 $((granted - freed)) 5000 "ms from free to granted"
    local waited
    waited=$(rcli get "$NAME" | sed -n 's/.* waited=\([0-9]*\) .*/\1/p')
    assert_between -400 $((granted - waited - came)) 400 "ms between begin and grant, less the wait"
    echo >go
    wait_exit 5 "$WAITER"
}
# since holders|waiters: of the first of them.
since() {
    "$DLOCK" --status --json "$L" | /usr/bin/python3 -c \
        'import json, sys; print(json.load(sys.stdin)[sys.argv[1]][0]["since_ms"])' "$1"
}

@test "--status tells a waiter that has been silent for its ttl" {
    local silent='silent: stopped or cut off'
    rcli set "$NAME" x px 60000
    TTL=1 wait_in_line 1 true
    kill -STOP "$WAITER"
    is_silent() { "$DLOCK" --status "$L" | grep -q "$silent"; }
    wait_for 5 is_silent
    run run_t 5 "$DLOCK" --status --json "$L"
    assert_out '"waiters":[{"place":0,"silent":true,'
    kill -CONT "$WAITER"
    wait_for 5 eval '! is_silent'
    rcli del "$NAME"
    wait_exit 5 "$WAITER"
}

@test "--status of a foreign lock does not show its value" {
    rcli set "$NAME" s3cret px 10000
    run run_t 5 "$DLOCK" --status "$L"
    refute_out s3cret
    assert_out "held by a program that is not dlock"
    refute_out never
}

@test "says that a key without expiry never ends the wait" {
    local never="held by a program that is not dlock, in a key that never expires"
    rcli set "$NAME" s3cret
    run -75 run_t 5 "$DLOCK" --status "$L"
    assert_out "$never"
    run -75 run_t 5 "$DLOCK" -v -n "$L" true
    assert_out "$never"
    start_log w.log "$DLOCK" -v "$L" true
    wait_for 5 grep -q "$never" w.log
    rcli pexpire "$NAME" 100
    wait_exit 5 "$STARTED"
}

@test "a newcomer finds a dead first waiter" {
    rcli set "$NAME" x px 60000
    TTL=60 wait_in_line 1 true
    local dead=$WAITER
    kill -KILL "$dead"
    wait_for 5 pid_gone "$dead"
    start_log w.log "$DLOCK" --ttl 60 "$L" sh -c "$(stamp got)"
    wait_for 5 eval '[ "$(rcli hvals "{$NAME}:dlock:waiters" | grep -c "pid='"$STARTED"' ")" = 1 ]'
    queue_is 1
    wait_for 5 tracked
    wakes 300 "$STARTED" rcli del "$NAME"
}

@test "a stopped first waiter delays the next by 1 s at most" {
    hold
    TTL=10 wait_in_line 1 true
    local stopped=$WAITER t0
    TTL=10 wait_in_line 2 "$(stamp got)"
    TTL=10 wait_in_line 3 "$(stamp got3)"
    stop_pid "$stopped"
    t0=$(wall_ms)
    echo >go
    wait_for 5 test -s got
    assert_between 800 $(($(cat got) - t0)) $((1300 + BUSY)) "milliseconds"
    wait_for 5 test -s got3
    kill -CONT "$stopped"
    wait_exit 5 "$stopped"
}

# on CASE: from now on the lock of that case, in a folder of its own, so that cases can run side by
# side.
on() {
    : "${BASE:=$NAME}"
    CASE=$1 NAME=$BASE.$1
    L="redis://127.0.0.1:$REDIS_PORT#$NAME"
    mkdir -p "$T/$1"
    cd "$T/$1"
}
declare -gA FREED=() STOPPED=() LAST=()
# stop_in_line N: N waiters join the queue of the case, and are stopped (STOPPED: their pids); two
# live ones behind them.
stop_in_line() {
    local i
    STOPPED[$CASE]=''
    for ((i = 1; i <= $1; i++)); do
        TTL=30 wait_in_line "$i" true
        STOPPED[$CASE]+=" $WAITER"
    done
    TTL=30 wait_in_line "$i" "$(stamp "$CASE/got")"
    TTL=30 wait_in_line $((i + 1)) "$(stamp "$CASE/got")"
    LAST[$CASE]=$WAITER
    for i in ${STOPPED[$CASE]}; do
        stop_pid "$i"
    done
}
freed() { FREED[$CASE]=$(($(wall_ms) + ${1:-0})); }
# delay_is CASE MS: the first live one got the lock by then; what was stopped goes on, and is served
# in the end.
delay_is() {
    on "$1"
    wait_for 20 test -s got
    local took=$(($(head -n 1 got) - FREED[$1])) i
    echo "# $1, $(wc -w <<<"${STOPPED[$1]}") stopped in front: $took ms" >&3
    assert_between 0 "$took" $(($2 + BUSY)) "milliseconds behind stopped waiters ($1)"
    wait_exit 5 "${LAST[$1]}"
    for i in ${STOPPED[$1]}; do kill -CONT "$i"; done
    for i in ${STOPPED[$1]}; do wait_exit 10 "$i"; done
}

# bats test_tags=plain
@test "one stopped waiter delays the next by 1.2 s at most, six by 3 s" {
    local w holder waiters
    on crash
    hold --ttl 1
    holder=$HOLDER
    stop_in_line 6
    on release
    hold
    stop_in_line 6
    on del
    rcli set "$NAME" x px 60000
    stop_in_line 1
    # As if the server's clock had been set back by an hour while a claim ran.
    on clock
    waiters="{$NAME}:dlock:waiters"
    rcli set "$NAME" x px 60000
    stop_in_line 1
    w=$(rcli zrange "{$NAME}:dlock:queue" 0 0)
    rcli hset "$waiters" "$w" \
        "$(rcli hget "$waiters" "$w" | sed "s/ 0 / $(($(wall_ms) + 3600000)) /")"
    rcli set "{$NAME}:dlock:claim" '' px 3600000
    freed
    rcli del "$NAME"
    on del
    freed
    rcli del "$NAME"
    on release
    freed
    echo >go
    on crash
    kill -KILL "$holder"
    wait_for 5 pid_gone "$holder"
    freed "$(rcli pttl "$NAME")"
    delay_is clock 1200
    delay_is del 1200
    delay_is release 3000
    delay_is crash 3000
}

# Such a client counts as a listener of each channel in the answer of PUBLISH.
@test "killed waiters hold up nobody while a client listens to all channels" {
    local pid dead=() i
    hold
    for i in 1 2 3; do
        TTL=30 wait_in_line $i "$(stamp got)"
        [ $i = 3 ] || dead+=("$WAITER")
    done
    exec {all}<>"/dev/tcp/127.0.0.1/$REDIS_PORT"
    printf 'PSUBSCRIBE *\r\n' >&"$all"
    IFS= read -r -t 5 <&"$all"
    for pid in "${dead[@]}"; do
        kill -KILL "$pid"
        wait_for 5 pid_gone "$pid"
    done
    wakes 500 "$WAITER" touch go
    exec {all}>&-
}

# The messages so far: the waiter's id, and the first word.
messages() {
    tr -d '\r' <heard | grep -v '^[*$]' |
        awk 'sub(/.*:wake:/, "") && !/\*/ { id = $0; getline; print id, $1 }'
}
messages_are() { [ "$(messages)" = "$1" ]; }

# A second looks more often, in case the first is silent.
@test "waiters learn that they are the first or the second" {
    local i ids second
    hold
    for i in 1 2 3 4; do
        TTL=60 wait_in_line $i "'$HELPERS/await' end"
        [ $i != 2 ] || second=$WAITER
    done
    mapfile -t ids < <(rcli zrange "{$NAME}:dlock:queue" 0 -1)
    exec {all}<>"/dev/tcp/127.0.0.1/$REDIS_PORT"
    printf 'PSUBSCRIBE {%s}:dlock:wake:*\r\n' "$NAME" >&"$all"
    timeout 30 cat <&"$all" >heard 3>&- &
    wait_for 5 grep -q ':1' heard
    kill -TERM "$second"
    exits 143 5 "$second"
    let_go
    wait_for 5 messages_are "${ids[2]} second
${ids[0]} go
${ids[2]} head
${ids[3]} second" || fail "$(messages)"
    : >end
    kill $!
    exec {all}>&-
}

@test "a DEL by others wakes a waiter at once that is the first for the second time" {
    local t0 stopped i
    rcli set "$NAME" x px 60000
    for i in 1 2 3; do
        TTL=30 wait_in_line $i "$(stamp got$i); exec '$HELPERS/await' go$i"
        [ $i != 1 ] || stopped=$WAITER
    done
    stop_pid "$stopped"
    rcli del "$NAME"
    wait_for 5 test -s got2
    kill -CONT "$stopped"
    wait_for 5 eval '[ "$(rcli zcount "{$NAME}:dlock:queue" 0 3999999999999999)" = 2 ]'
    echo >go2
    wait_for 5 test -s got3
    # It hears that it is the first, and reads the key.
    wait_for 5 eval '[ "$(rcli zrange "{$NAME}:dlock:queue" 0 -1 | wc -l)" = 1 ]'
    t0=$(wall_ms)
    rcli del "$NAME"
    wait_for 20 test -s got1
    echo >go1
    echo >go3
    wait_exit 5 "$stopped"
    assert_between 0 $(($(cat got1) - t0)) $((200 + BUSY)) "milliseconds"
}

@test "DEL and FLUSHALL by others wake the first waiter at once" {
    own_server
    local how
    for how in "del $NAME" flushall; do
        rm -f got
        own set "$NAME" x px 60000
        start_log w.log "$DLOCK" --ttl 30 "$L" sh -c "$(stamp got)"
        own_waits_for 1
        # shellcheck disable=SC2086
        wakes 200 "$STARTED" own $how
    done
}

@test "an expiry is noticed within 200 ms" {
    local t0
    t0=$(wall_ms)
    rcli set "$NAME" x px 900
    run_t 5 "$DLOCK" "$L" sh -c "$(stamp got)"
    assert_between 880 $(($(cat got) - t0)) $((1100 + BUSY)) "milliseconds"
}

@test "a waiter that gets TERM leaves the queue" {
    hold
    TTL=30 wait_in_line 1 true
    local first=$WAITER
    TTL=30 wait_in_line 2 "$(stamp got)"
    kill -TERM "$first"
    exits 143 5 "$first"
    queue_is 1
    # The second waiter watches now: a DEL by others reaches it.
    wait_for 5 tracked
    wakes 300 "$WAITER" rcli del "$NAME"
}

# bats test_tags=slow
@test "a stopped lone waiter delays a newcomer by 1 s at most" {
    hold
    TTL=30 wait_in_line 1 "$(stamp got)"
    local t0 i rc=1
    stop_pid "$WAITER"
    echo >go
    wait_exit 5 "$HOLDER"
    t0=$(wall_ms)
    until "$DLOCK" -q -n "$L" true 3>&-; do
        [ $(($(wall_ms) - t0)) -lt 1500 ] || break
    done
    assert_between 0 $(($(wall_ms) - t0)) $((1200 + BUSY)) "milliseconds"
    for i in $(seq 30); do
        "$DLOCK" -q -n "$L" true 3>&-
        sleep .05 # longer than one claim in all
    done
    queue_is 1
    # Whoever waits comes before it, too.
    run_t 5 "$DLOCK" "$L" true
    [ ! -e got ]
    kill -CONT "$WAITER"
    wait_exit 5 "$WAITER"
    test -s got
}

@test "a waiter that was passed over stands behind live ones" {
    hold
    TTL=30 wait_in_line 1 "$(stamp got1)"
    local stopped=$WAITER t0
    stop_pid "$stopped"
    echo >go
    wait_exit 5 "$HOLDER"
    rm go held
    wait_for 5 "$DLOCK" -q -n "$L" true # passed over now
    hold
    TTL=30 wait_in_line 2 'echo >held2; "$HELPERS/await" go2'
    first=$(rcli zrange "{$NAME}:dlock:queue" 0 0)
    [[ $(rcli hget "{$NAME}:dlock:waiters" "$first") == *"pid=$WAITER "* ]]
    stop_pid "$WAITER"
    echo >go
    wait_exit 5 "$HOLDER"
    # It is called, the stopped one is not: a newcomer gets nothing.
    run -75 run_t 5 "$DLOCK" -q -n "$L" true
    t0=$(wall_ms)
    kill -CONT "$WAITER"
    wait_for 5 test -e held2
    assert_between 0 $(($(wall_ms) - t0)) $((1200 + BUSY)) "milliseconds"
    # The stopped one goes on: back in line while the lock is held, then served.
    kill -CONT "$stopped"
    ticket() { rcli zrange "{$NAME}:dlock:queue" 0 0 withscores | sed -n 2p; }
    wait_for 5 eval '[ "$(ticket)" -lt 4000000000000000 ]'
    [ ! -e got1 ]
    echo >go2
    wait_exit 5 "$WAITER"
    wait_exit 5 "$stopped"
    test -s got1
}

@test "a newcomer does not pass the queue" {
    rcli set "$NAME" x px 60000
    TTL=30 wait_in_line 1 'echo >held; "$HELPERS/await" go'
    kill -STOP "$WAITER"
    rcli del "$NAME"
    run -75 run_t 5 "$DLOCK" -q -n "$L" true
    kill -CONT "$WAITER"
    wait_for 5 test -e held
    echo >go
    wait_exit 5 "$WAITER"
}

# ------------------------------------------------------------- coming back ---

# in_line_at_own N: N waiters behind a foreign lock; each writes its number to the file order.
in_line_at_own() {
    local i
    own set "$NAME" other px 60000
    for ((i = 1; i <= $1; i++)); do
        start_log "w$i.log" "$DLOCK" -q --ttl 30 "$L" sh -c "echo $i >>order"
        WAITERS+=("$STARTED")
        wait_for 5 own_queue_is "$i"
    done
}
served() { # ORDER
    local w
    for w in "${WAITERS[@]}"; do exits 0 8 "$w"; done
    [ "$(tr -d '\n' <order)" = "$1" ] || fail "served in the order $(tr '\n' ' ' <order)"
}

@test "a server that loses its data serves its waiters in the old order" {
    own_server
    in_line_at_own 8
    redis_restart own
    served 12345678
}

@test "waiters keep their order over a restart that keeps the data" {
    own_server
    in_line_at_own 5
    redis_restart own --appendonly yes --appendfsync no
    all_back() { own_queue_is 5 && [ "$(own pubsub channels "{$NAME}*" | grep -c .)" = 5 ]; }
    wait_for 5 all_back
    # Each has tried since.
    wait_for 5 eval '[ "$(own info commandstats | count_evals)" -ge 5 ]'
    own del "$NAME"
    served 12345
}

@test "a waiter whose connections were cut keeps its place" {
    own_server
    in_line_at_own 3
    local cut=${WAITERS[0]}
    stop_pid "$cut"
    own client kill type normal skipme yes
    own client kill type pubsub
    # A newcomer drops the first waiter, which does not come back.
    start_log w4.log "$DLOCK" -q --ttl 30 "$L" sh -c "echo 4 >>order"
    WAITERS+=("$STARTED")
    wait_for 5 eval '[ "$(own hvals "{$NAME}:dlock:waiters" | grep -c "pid=$STARTED ")" = 1 ]'
    wait_for 5 own_queue_is 3 # the second and the third may still be on their way back
    kill -CONT "$cut"
    wait_for 5 own_queue_is 4
    own del "$NAME"
    served 1234
}

@test "a ticket gives no place before its time" {
    local try now queue="{$NAME}:dlock:queue" scripts=$ROOT/lib/backends/redis/scripts
    try=$(awk -v plain=1 -f "$scripts/embed.awk" "$scripts/try.lua")
    # back ID@TICKET: the score that it gets.
    back() {
        rcli eval "$try" 1 "$NAME" 0 "{$NAME}:dlock:" "$(printf %032d 1) dlock1 ttl=9000" "$1" \
            9000 '0 0 0' >answer
        rcli zscore "$queue" "${1%@*}"
    }
    rcli set "$NAME" other px 60000
    now=$(($(wall_ms) * 1000))
    [ "$(back a@$((now - 5000000)))" = $((now - 5000000)) ]
    [ "$(sed -n 9p answer)" = $((now - 5000000)) ]
    # It has an entry: the ticket says nothing.
    [ "$(back a@7)" = $((now - 5000000)) ]
    # From the future, and from among those that are set aside.
    assert_between "$now" "$(back b@$((now + 3600000000)))" $((now + 5000000)) "the ticket of b"
    assert_between "$now" "$(back c@$((now + 4000000000000000)))" $((now + 5000000)) \
        "the ticket of c"
    # Set aside: at the end, whatever it says.
    rcli zadd "$queue" 4000000000000007 d
    assert_between "$now" "$(back d@7)" $((now + 5000000)) "the ticket of d"
}

# ------------------------------------------------------------------- cost ---

# bats test_tags=slow
@test "a stopped first waiter does not make all the others try" {
    own_server
    local n=20 i stopped calls
    own set "$NAME" x px 100000
    for i in $(seq "$n"); do
        start_log "w$i.log" "$DLOCK" --ttl 100 "$L" sh -c \
            "echo $i >>order; exec '$HELPERS/await' go"
        [ "$i" -gt 1 ] || stopped=$STARTED
        own_waits_for "$i"
    done
    stop_pid "$stopped"
    own config resetstat
    own del "$NAME"
    wait_for 5 test -s order
    calls=$(own info commandstats | count_evals)
    echo "# $calls EVAL until the first of $((n - 1)) is served" >&3
    [ "$calls" -le $((n / 2)) ]
    echo >go
    wait_for 20 eval '[ "$(wc -l <order)" -eq '$((n - 1))' ]'
    seq 2 "$n" | diff - order
    kill -CONT "$stopped"
    wait_for 5 eval '[ "$(wc -l <order)" -eq '"$n"' ]'
}
