#!/usr/bin/env bats
# faults.bats - faults around an advisory lock in PostgreSQL: processes killed and stopped, sessions ended,
# servers restarted and stopped, a network that loses packets.

# bats file_tags=long
load ../../support/common
load ../../support/fake
load ../../support/netns
load ../../support/postgres
load ../../support/pglock
load ../../support/pgnet

setup_file() {
    export BATS_NO_PARALLELIZE_WITHIN_FILE=true
    pg_start
}
teardown_file() { pg_stop_all; }

setup() {
    dlock_setup
    fake_setup # the command that tells what happens to it
    at_server
}
teardown() { dlock_teardown; }

# ---------------------------------------------------------------- helpers ---

# stop_server [own]: all of its processes; go_on: they continue.
stop_server() {
    kill -STOP "${PG_PIDS[own]}"
    wait_for 5 pid_stopped "${PG_PIDS[own]}"
    # shellcheck disable=SC2046
    kill -STOP $(children "${PG_PIDS[own]}")
}
go_on() {
    # shellcheck disable=SC2046
    kill -CONT $(children "${PG_PIDS[own]}") "${PG_PIDS[own]}" 2>/dev/null || :
}

# The server's process of the holder; those of the waiters.
holder_pid() {
    pgsql -c "select l.pid from pg_locks l join pg_stat_activity a using (pid) where l.locktype = 'advisory'
        and l.granted and a.application_name = '$(app_of "$NAME")'"
}
waiter_pids() {
    pgsql -c "select pid from pg_stat_activity where application_name = '$(app_of "$NAME")' and query like '/* dlock1 % wait=%'"
}
another_waiter() { local p; p=$(waiter_pids 2>/dev/null) && [ -n "$p" ] && [ "$p" != "$1" ]; }
in_chunk() { pgsql -c "select pid from pg_locks where locktype = 'advisory' and not granted" | grep -qx "$1"; }
is_free() { "$DLOCK" --status "$L"; }
# The server has said TEXT about its process PID.
log_has() { grep -F "[$1] " "$PG_LOG" | grep -qF "$2"; }

# waiter FILE [OPTION...]: see start_waiter.
waiter() {
    start_waiter "$@"
    wait_for 5 waiting_is 1
}

# --- the client's processes ----------------------------------------------------------------------------

@test "pgfaults: a stopped keeper: the server itself frees the lock at the ttl, and the tree is gone before that" {
    background --ttl 2 "$L" $SUBJECT -t -k
    wait_for 5 running 4
    waiter got
    pid=$(holder_pid)
    kill -STOP "$K"
    t0=$(now_ms)
    wait_exit 10 "$WAITER"
    # A renewal had begun the lease at most a third of it before; its idle time began with the answer.
    assert_between 1000 $(($(now_ms) - t0)) $((2400 + SLOW)) "take-over (ms)"
    no_violations
    [ "$(last_beat)" -lt "$(cat got)" ]
    log_has "$pid" "idle-session timeout"
    kill -CONT "$K"
    ended
    assert_rc 79
    [ "$(grep -c '^dlock:' "$T/out")" = 1 ]
}

# A tree of 300: all of them keep the witness.
CROWD='exec 9>"$1/witness"; flock -n 9 || echo overlap >>violations
    i=0; while [ $i -lt 300 ]; do i=$((i + 1)); sleep 60 & done; echo >held; wait'

@test "pgfaults: a killed keeper with a tree of 300: the next one never overlaps, and does not wait for the ttl" {
    for round in 1 2 3 4; do
        rm -f held got
        start_log "$T/out" "$DLOCK" "$L" sh -c "$CROWD" - "$C"
        K=$STARTED
        wait_for 20 test -e held
        waiter got
        t0=$(now_ms)
        kill -KILL "$K"
        wait_exit 10 "$WAITER"
        no_violations
        assert_between 0 $(($(now_ms) - t0)) $((2000 + SLOW)) "take-over (ms)"
        settle 5
    done
}

@test "pgfaults: a killed guard with a tree of 300: 71, and the lock is given back after the tree's end" {
    start_log "$T/out" "$DLOCK" "$L" sh -c "$CROWD" - "$C"
    K=$STARTED
    wait_for 20 test -e held
    waiter got
    find_guard
    kill -KILL "$G"
    ended
    assert_rc 71
    tree_gone
    wait_exit 5 "$WAITER"
    no_violations
    is_free
}

@test "pgfaults: keeper and guard killed: nobody holds the session any more, the lock is free at once" {
    background "$L" $SUBJECT
    wait_for 5 running
    find_guard
    waiter got
    t0=$(now_ms)
    kill -KILL "$K" "$G"
    wait_exit 5 "$WAITER"
    assert_between 0 $(($(now_ms) - t0)) $((1500 + SLOW)) "take-over (ms)"
}

# --- the session ---------------------------------------------------------------------------------------

@test "pgfaults: pg_terminate_backend on the holder: the tree is ended at once, 79, and the message says why" {
    background "$L" $SUBJECT -t -k
    wait_for 5 running 4
    waiter got
    pid=$(holder_pid)
    t0=$(now_ns)
    pgsql -c "select pg_terminate_backend($pid)"
    ended
    assert_between 0 $(ms $(($(now_ns) - t0))) $((1200 + SLOW)) "time until the end (ms)"
    assert_rc 79
    assert_out "administrator command"
    [ "$(grep -c '^dlock:' "$T/out")" = 1 ]
    # Killed, not asked.
    [ "$(count_seen main sig 15)" = 0 ]
    gone_by $((200 + BUSY)) "$t0"
    # The server frees the lock before it says so: no exclusion is promised here, but that the tree ends within moments.
    wait_exit 5 "$WAITER"
    assert_between 0 $(($(last_beat) > $(cat got) ? $(last_beat) - $(cat got) : 0)) $((BUSY * NS)) "both were inside (ns)"
    settle 2
}

@test "pgfaults: pg_terminate_backend on a waiter: it comes back and gets the lock later" {
    background "$L" $SUBJECT -u "$T/end"
    wait_for 5 running
    waiter got
    for i in 1 2; do
        pid=$(waiter_pids)
        pgsql -c "select pg_terminate_backend($pid)"
        wait_for 5 another_waiter "$pid"
    done
    pid_alive "$WAITER"
    [ ! -e got ]
    touch "$T/end"
    ended
    assert_rc 0
    [ "$output" = "" ]
    wait_exit 5 "$WAITER"
    no_violations
}

# Without a pause, so that it strikes whatever that process does.
cancel_all_the_time() { # PID MILLISECONDS
    pgsql -c "do \$\$ declare until timestamptz := clock_timestamp() + interval '$2 ms'; begin
        while clock_timestamp() < until loop perform pg_cancel_backend($1); end loop; end \$\$"
}

@test "pgfaults: pg_cancel_backend on the holder's heartbeat does no harm" {
    # A statement that takes long, for what it is, is easier to strike.
    own_server -c debug_print_parse=on -c debug_print_rewritten=on -c debug_print_plan=on -c log_parser_stats=on \
        -c log_planner_stats=on -c log_executor_stats=on
    L="$U?renew=write#$NAME"
    background --ttl 3 "$L" $SUBJECT -u "$T/end" -r 3
    wait_for 5 running
    pid=$(holder_pid)
    struck() {
        cancel_all_the_time "$pid" 300
        log_has "$pid" "canceling statement due to user request"
    }
    wait_for 12 struck
    # Longer than what was left of the lease: it was renewed after that.
    t0=$(now_ms)
    wait_for 5 beyond $((t0 + 3100))
    pid_alive "$K"
    [ "$(holder_pid)" = "$pid" ]
    touch "$T/end"
    ended
    assert_rc 3
    [ "$output" = "" ]
}

@test "pgfaults: pg_cancel_backend on a waiter's statement does no harm" {
    background "$L" $SUBJECT -u "$T/end"
    wait_for 5 running
    waiter got
    pid=$(waiter_pids)
    for i in 1 2 3; do
        wait_for 5 in_chunk "$pid"
        pgsql -c "select pg_cancel_backend($pid)"
    done
    wait_for 5 in_chunk "$pid" # the same session
    # And in the moments between.
    cancel_all_the_time "$pid" 500
    pid_alive "$WAITER"
    wait_for 5 waiting_is 1
    touch "$T/end"
    ended
    wait_exit 5 "$WAITER"
    no_violations
}

# --- the server ----------------------------------------------------------------------------------------

restarted() {
    own_server
    background "$L" $SUBJECT -t -k
    wait_for 5 running 4
    waiter got
    pg_restart own "$1"
    ended 5
    assert_rc 79
    [ "$(grep -c '^dlock:' "$T/out")" = 1 ]
    assert_out "is lost"
    wait_exit 10 "$WAITER"
    no_violations
    [ "$(last_beat)" -lt "$(cat got)" ]
}
@test "pgfaults: a restart of the server (fast) during a hold: 79, and the waiter survives it" { restarted fast; }
@test "pgfaults: a restart of the server (immediate) during a hold: 79, and the waiter survives it" { restarted immediate; }

@test "pgfaults: the fence grows over restarts and crashes of the server, whatever synchronous_commit says" {
    own_server
    pgsql -c "alter role postgres set synchronous_commit = off"
    last=0
    for how in fast immediate kill immediate kill; do
        for i in 1 2 3; do
            fence=$(run_t 5 "$DLOCK" "$L" sh -c 'echo $DLOCK_FENCE')
            [ "$fence" -gt "$last" ] || fail "after $how: $fence is not more than $last"
            last=$fence
        done
        case $how in
        kill)
            pg_kill own 2>/dev/null
            pg_restart own immediate
            ;;
        *) pg_restart own $how ;;
        esac
    done
    fence=$(run_t 5 "$DLOCK" "$L" sh -c 'echo $DLOCK_FENCE')
    [ "$fence" -gt "$last" ]
}

@test "pgfaults: a server that is stopped for a third of the ttl is ridden out" {
    own_server
    background --ttl 3 "$L" $SUBJECT -u "$T/end" -r 3
    wait_for 5 running
    pid=$(holder_pid)
    stop_server
    run sleep 1 # the fault itself
    go_on
    t0=$(now_ms)
    wait_for 6 beyond $((t0 + 3100))
    pid_alive "$K"
    [ "$(count_seen main sig 15)" = 0 ]
    [ "$(holder_pid)" = "$pid" ]
    touch "$T/end"
    ended
    assert_rc 3
    [ "$output" = "" ]
}

@test "pgfaults: a server that is stopped for longer: TERM, the tree is gone in time, 79" {
    own_server
    background --ttl 3 "$L" $SUBJECT -t -k
    wait_for 5 running 4
    started=$(seen main start '')
    waiter got --ttl 30
    stop_server
    lost=$(now_ns)
    ended
    assert_rc 79
    assert_out "could not be renewed in time"
    [ "$(grep -c '^dlock:' "$T/out")" = 1 ]
    # Nothing was confirmed after that: so long after the last renewal at most.
    lease_times 3000 "$lost"
    for who in main child session daemon; do
        assert_between "$started" "$(seen $who sig 15)" $((TERM_AT + 250 * NS)) "TERM for $who"
    done
    [ "$(last_beat)" -lt "$DEADLINE" ]
    go_on
    wait_exit 10 "$WAITER"
    no_violations
}

@test "pgfaults: only the holder's server process is stopped: TERM, 79, and it is free when that goes on" {
    background --ttl 2 "$L" $SUBJECT -t -k
    wait_for 5 running 4
    pid=$(holder_pid)
    waiter got
    kill -STOP "$pid"
    lost=$(now_ns)
    ended
    kill -CONT "$pid"
    assert_rc 79
    lease_times 2000 "$lost"
    [ "$(last_beat)" -lt "$DEADLINE" ]
    wait_exit 5 "$WAITER"
    no_violations
}

@test "pgfaults: a server that is stopped while we wait: 69 after a ttl" {
    own_server
    background --ttl 30 "$L" $SUBJECT
    wait_for 5 running
    waiter got --ttl 1.5 --connect-timeout 1
    stop_server
    t0=$(now_ms)
    status=0
    wait_exit 10 "$WAITER" || status=$?
    took=$(($(now_ms) - t0))
    go_on
    assert_rc 69
    assert_between 1400 $took $((4500 + SLOW)) "time (ms)"
    file_has got.log "no answer"
    [ ! -e got ]
}

# bats test_tags=slow
@test "pgfaults: -w keeps its bound, whatever the server does" {
    own_server
    background --ttl 30 "$L" $SUBJECT
    wait_for 5 running
    # Stopped when it has been waiting for a moment. The clock is read by whoever starts it, for `wait_exit` looks
    # only now and then.
    best=99999
    for try in 1 2 3; do
        start_log w.log sh -c '"$0" before; "$1" -w 1.2 "$2" touch ran; echo $? >code; exec "$0" after' \
            "$HELPERS/clock" "$DLOCK" "$L"
        wait_for 5 waiting_is 1
        stop_server
        wait_exit 5 "$STARTED"
        go_on
        [ "$(cat code)" = 75 ]
        took=$((($(cat after) - $(cat before)) / NS))
        [ "$took" -ge 1200 ]
        [ "$took" -ge "$best" ] || best=$took
        wait_for 5 waiting_is 0
    done
    assert_between 1200 "$best" $((1500 + SLOW)) "stopped during the wait (ms)"
    best=99999
    stop_server
    for try in 1 2 3; do
        "$HELPERS/clock" before
        run run_t 5 "$DLOCK" -w 0.4 "$L" touch ran
        "$HELPERS/clock" after
        assert_rc 69
        took=$((($(cat after) - $(cat before)) / NS))
        [ "$took" -ge "$best" ] || best=$took
    done
    go_on
    assert_between 400 "$best" $((700 + SLOW)) "stopped before (ms)"
    [ ! -e ran ]
}

# --- the network ---------------------------------------------------------------------------------------

rival() { L=$LOCAL waiter rival "$@"; }

@test "pgfaults: a silent drop for longer than the ttl: TERM, the tree is gone, and only then can others have it" {
    net_server
    net_hold --ttl 3 "$L" $SUBJECT -t -k
    wait_for 5 running 4
    rival
    pid=$(holder_pid)
    net_cut
    lost=$(now_ns)
    ended
    assert_rc 79
    assert_out "could not be renewed in time"
    [ "$(grep -c '^dlock:' "$T/out")" = 1 ]
    lease_times 3000 "$lost"
    for who in main child session daemon; do
        assert_between $((TERM_AT - 1100 * NS)) "$(seen $who sig 15)" $((TERM_AT + 250 * NS)) "TERM for $who"
    done
    # The server ends the session by itself.
    wait_exit 10 "$WAITER"
    log_has "$pid" "idle-session timeout"
    [ "$(last_beat)" -lt "$(cat rival)" ]
    no_violations
    net_mend
}

# bats test_tags=slow
@test "pgfaults: a silent drop for a third of the ttl is ridden out" {
    net_server
    net_hold --ttl 4 "$L" $SUBJECT -u "$T/end" -r 3
    wait_for 5 running
    pid=$(holder_pid)
    net_cut
    run sleep 1.3 # the fault itself
    net_mend
    t0=$(now_ms)
    wait_for 6 beyond $((t0 + 4100))
    pid_alive "$K"
    [ "$(count_seen main sig 15)" = 0 ]
    [ "$(holder_pid)" = "$pid" ]
    touch "$T/end"
    ended
    assert_rc 3
}

@test "pgfaults: only the replies are lost: TERM in time, 79" {
    net_server
    net_hold --ttl 3 "$L" $SUBJECT -t -k
    wait_for 5 running 4
    rival
    net_lose_replies
    lost=$(now_ns)
    ended
    assert_rc 79
    lease_times 3000 "$lost"
    [ "$(last_beat)" -lt "$DEADLINE" ]
    # Its last renewals did get there; the end of the connection does, too.
    wait_exit 10 "$WAITER"
    [ "$(last_beat)" -lt "$(cat rival)" ]
    no_violations
}

@test "pgfaults: only the replies are lost while the lock is taken: 69, nothing runs, and it is free in time" {
    net_server
    net_lose_replies
    t0=$(now_ms)
    run run_t 20 nsenter -t "$NET_C" -n -m -w -- "$DLOCK" --ttl 3 --connect-timeout 1 "$L" touch "$T/ran"
    assert_rc 69
    assert_between 1000 $(($(now_ms) - t0)) $((1900 + SLOW)) "time (ms)"
    assert_out "$SERVER:$PG_PORT"
    [ ! -e ran ]
    wait_for 2 "$DLOCK" -q -n "$LOCAL" true
}

@test "pgfaults: the connection is reset: 79 at once" {
    net_server
    # The next renewal meets it.
    net_hold --ttl 3 "$L" $SUBJECT -t -k
    wait_for 5 running 4
    net_reset
    t0=$(now_ms)
    ended
    assert_rc 79
    assert_between 0 $(($(now_ms) - t0)) $((1200 + SLOW)) "time until the end (ms)"
    [ "$(count_seen main sig 15)" = 0 ]
    net_was_reset
    wait_for 2 tree_gone
}

proxy() {
    start "$ROOT/tests/support/helpers/proxy.py" "$PG_PORT" "$@" >"$T/port.proxy"
    wait_for 5 test -s "$T/port.proxy"
    PROXY=$STARTED
    P="postgres://postgres@127.0.0.1:$(cat "$T/port.proxy")/postgres#$NAME"
}

@test "pgfaults: answers one byte at a time: all is well" {
    proxy drip
    background --ttl 3 "$P" $SUBJECT -u "$T/end" -r 9
    wait_for 10 running
    # Renewed, too.
    t0=$(now_ms)
    wait_for 6 beyond $((t0 + 3100))
    touch "$T/end"
    ended
    assert_rc 9
    [ "$output" = "" ]
}

@test "pgfaults: answers cut after n bytes, or with a wrong byte: no start without proof, and nothing is left" {
    cut=0 whole=0
    for fault in 'cut 0' 'cut 1' 'cut 14' 'cut 200' 'cut 330' 'cut 400' 'cut 450' 'cut 550' 'cut 650' 'cut 690' \
        'cut 5000' 'always-cut 14' 'flip 0' 'flip 1' 'flip 2' 'flip 4' 'flip 9' 'flip 10' 'flip 14'; do
        rm -f ran
        proxy $fault
        run run_t 10 "$DLOCK" --ttl 30 --connect-timeout 0.5 "$P" touch ran
        case $status in
        0) [ -e ran ] && whole=$((whole + 1)) ;;
        64 | 69 | 76 | 77) [ ! -e ran ] && cut=$((cut + 1)) ;;
        79) ;;
        *) false ;;
        esac || fail "$fault: exit code $status: $output"
        [ "${#lines[@]}" -le 1 ] || fail "$fault: $output"
        wait_for 2 is_free || fail "$fault: the lock is left behind"
        kill "$PROXY"
        wait_for 5 pid_gone "$PROXY"
    done
    [ $cut -ge 14 ]
    [ $whole -ge 1 ]
}
