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
        and l.granted and a.application_name = '$(app_of "$NAME")' and classid::bigint << 32 | objid::bigint = ('x' ||
        substr(a.application_name, 7))::bit(64)::bigint" # not a waiter's turnstile
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

@test "the server frees a stopped keeper's lock after its tree is gone" {
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

@test "the next holder never overlaps a killed keeper's 300 processes" {
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

@test "a killed guard's 300 processes end before the release" {
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

@test "the lock is free at once when keeper and guard are killed" {
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

@test "pg_terminate_backend on the holder ends the tree at once" {
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

@test "a waiter survives pg_terminate_backend" {
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

@test "pg_cancel_backend on the holder's heartbeat does no harm" {
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
    wait_for 40 struck
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

@test "pg_cancel_backend on a waiter's statement does no harm" {
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
@test "a fast restart ends a hold, not a wait" { restarted fast; }
@test "an immediate restart ends a hold, not a wait" { restarted immediate; }

@test "the fence grows over restarts and crashes" {
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

@test "a hold rides out a server stopped for a third of the ttl" {
    own_server
    background -q --ttl 3 "$L" $SUBJECT -u "$T/end" -r 3
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

@test "a server stopped for longer ends the tree in time" {
    own_server
    background --ttl 3 "$L" $SUBJECT -t -k
    wait_for 5 running 4
    started=$(seen main start '')
    waiter got --ttl 30
    stop_server
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
    go_on
    wait_exit 10 "$WAITER"
    no_violations
}

@test "a stopped server process ends the hold in time" {
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

@test "a stopped server ends no wait, unless -w does" {
    own_server
    background --ttl 30 "$L" $SUBJECT -u "$T/end"
    wait_for 5 running
    waiter got --ttl 1 --connect-timeout 1
    start_log w.log "$DLOCK" --ttl 1 --connect-timeout 1 -w 3.5 "$L" touch ran
    wait_for 3 waiting_is 2
    stop_server
    exits 69 5 "$STARTED"
    file_has w.log "no answer"
    pid_alive "$WAITER" || fail "$(cat got.log)"
    go_on
    wait_for 5 waiting_is 1
    [ ! -e got ]
    [ ! -e ran ]
    touch "$T/end"
    ended
    assert_rc 0
    wait_exit 5 "$WAITER" || fail "$(cat got.log)"
    no_violations
}

# bats test_tags=slow
@test "-w keeps its bound, whatever the server does" {
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

@test "a long silent drop ends the tree before others can hold the lock" {
    net_server
    net_hold --ttl 3 "$L" $SUBJECT -t -k
    wait_for 5 running 4
    rival
    pid=$(holder_pid)
    net_cut
    lost=$(now_ns)
    ended
    assert_rc 79
    assert_out "has not been renewed for"
    assert_out "could not be renewed in time"
    [ "$(grep -c '^dlock:' "$T/out")" = 2 ]
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
@test "keepalives alone end a cut-off session between ttl and ttl + 2 s" {
    LD_PRELOAD=$HELPERS/notimeout.so net_server
    net_hold --ttl 9 "$L" $SUBJECT
    wait_for 5 running
    rival
    pid=$(holder_pid)
    age() { pgsql -c "select (extract(epoch from clock_timestamp() - state_change) * 1000)::int from pg_stat_activity where pid = $pid"; }
    # Not while an answer is on its way: keepalives begin when it has arrived.
    between_renewals() { local ms; ms=$(age) && [ "$ms" -gt 200 ] && [ "$ms" -lt 1000 ]; }
    wait_for 10 between_renewals
    net_cut
    last=$(($(now_ns) - $(age) * NS))
    ended
    assert_rc 79
    wait_exit 15 "$WAITER"
    [ "$(last_beat)" -lt "$(cat rival)" ]
    assert_between $((last + 9000 * NS)) "$(cat rival)" $((last + (11000 + BUSY) * NS)) "the rival's entry (ns)"
    no_violations
}

# bats test_tags=slow
@test "a hold rides out a silent drop for a third of the ttl" {
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

@test "lost replies end the hold in time" {
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

@test "lost replies to the acquisition run nothing" {
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

@test "a connection reset ends the hold at once" {
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
    listener proxy "$PG_PORT" "$@"
    PROXY=$LISTENER
    P="postgres://postgres@127.0.0.1:$LISTENS/postgres#$NAME"
}

@test "answers may come one byte at a time" {
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

@test "a cut or changed answer grants nothing" {
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
