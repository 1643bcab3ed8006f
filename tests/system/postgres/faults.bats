#!/usr/bin/env bats
# faults.bats - faults around an advisory lock in PostgreSQL: processes killed and stopped, sessions
# ended, servers restarted and stopped, a network that loses packets.

# bats file_tags=long
load ../../support/pgtests

waiter_pids() {
    pgsql -c "select pid from pg_stat_activity where application_name = '$(app_of "$NAME")'
        and query like '/* dlock1 % wait=%'"
}
another_waiter() { local p; p=$(waiter_pids 2>/dev/null) && [ -n "$p" ] && [ "$p" != "$1" ]; }
in_chunk() { locks_are "not granted and pid = $1" 1; }
is_free() { "$DLOCK" --status "$L"; }

# waiter FILE [OPTION...]: see start_waiter.
waiter() {
    start_waiter "$@"
    wait_for 5 waiting_is 1
}

# --- the client's processes -----------------------------------------------------------------------

# All of them keep the witness.
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

@test "the lock is free at once when keeper and guard are killed" {
    job 0 "$L"
    find_guard
    waiter got
    t0=$(now_ms)
    kill -KILL "$K" "$G"
    wait_exit 5 "$WAITER"
    assert_between 0 $(($(now_ms) - t0)) $((1500 + SLOW)) "take-over (ms)"
}

# --- the session ----------------------------------------------------------------------------------

@test "pg_terminate_backend on the holder ends the tree at once" {
    tree "$L"
    waiter got
    pid=$(holder_pid)
    t0=$(now_ns)
    pgsql -c "select pg_terminate_backend($pid)"
    killed 1 "administrator command"
    assert_between 0 $(ms $(($(now_ns) - t0))) $((1200 + SLOW)) "time until the end (ms)"
    gone_by $((200 + BUSY)) "$t0"
    # The server frees the lock before it says so: no exclusion is promised here, but that the tree
    # ends within moments.
    wait_exit 5 "$WAITER"
    assert_between 0 $(($(last_beat) > $(cat got) ? $(last_beat) - $(cat got) : 0)) $((BUSY * NS)) \
        "both were inside (ns)"
    settle 2
}

@test "a waiter survives pg_terminate_backend" {
    job 0 "$L"
    waiter got
    for i in 1 2; do
        pid=$(waiter_pids)
        pgsql -c "select pg_terminate_backend($pid)"
        wait_for 5 another_waiter "$pid"
    done
    pid_alive "$WAITER"
    [ ! -e got ]
    job_ends_silently
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
    own_server -c debug_print_parse=on -c debug_print_rewritten=on -c debug_print_plan=on \
        -c log_parser_stats=on -c log_planner_stats=on -c log_executor_stats=on
    L="$U?renew=write#$NAME"
    job 3 --ttl 3 "$L"
    pid=$(holder_pid)
    struck() {
        cancel_all_the_time "$pid" 300
        log_has "$pid" "canceling statement due to user request"
    }
    wait_for 40 struck
    # Longer than what was left of the lease: it was renewed after that.
    lasts 3100
    [ "$(holder_pid)" = "$pid" ]
    job_ends_silently
}

@test "pg_cancel_backend on a waiter's statement does no harm" {
    job 0 "$L"
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
    job_ends
    wait_exit 5 "$WAITER"
    no_violations
}

# --- the server -----------------------------------------------------------------------------------

@test "a restart of the server ends a hold, not a wait" {
    own_server
    for how in fast immediate; do
        rm -f got
        tree --ttl 30 "$L"
        waiter got
        pg_restart own $how
        lost 1 "is lost"
        follows got
    done
}

@test "the fence grows over restarts and crashes" {
    own_server
    pgsql -c "alter role postgres set synchronous_commit = off"
    last=0
    for how in fast immediate kill immediate kill; do
        for i in 1 2 3; do
            fence=$(fence)
            [ "$fence" -gt "$last" ] || final "after $how: $fence is not more than $last"
            last=$fence
        done
        case $how in
        kill)
            pg_kill own 2>/dev/null
            pg_restart own immediate ;;
        *) pg_restart own $how ;;
        esac
    done
    [ "$(fence)" -gt "$last" ]
}

# --- the network: more is in network.bats ---------------------------------------------------------

proxy() {
    listener proxy "$PG_PORT" "$@"
    PROXY=$LISTENER
    P="postgres://postgres@127.0.0.1:$LISTENS/postgres#$NAME"
}

@test "answers may come one byte at a time" {
    proxy drip
    WITHIN=10 job 9 --ttl 3 "$P"
    # Renewed, too.
    lasts 3100
    job_ends_silently
}

@test "a cut or changed answer grants nothing" {
    cut=0 whole=0
    for fault in 'cut 0' 'cut 1' 'cut 14' 'cut 200' 'cut 330' 'cut 400' 'cut 450' 'cut 550' \
        'cut 650' 'cut 690' \
        'cut 5000' 'always-cut 14' 'flip 0' 'flip 1' 'flip 2' 'flip 4' 'flip 9' 'flip 10' \
        'flip 14'; do
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
