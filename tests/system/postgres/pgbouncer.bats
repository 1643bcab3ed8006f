#!/usr/bin/env bats
# pgbouncer.bats - PostgreSQL behind PgBouncer: advisory locks are refused without a trace, the
# lease table works.

# bats file_tags=long
load ../../support/pgtable

setup_file() {
    export BATS_NO_PARALLELIZE_WITHIN_FILE=true
    [ -x /usr/sbin/pgbouncer ] || skip "pgbouncer is not installed"
    pgtable_start
}

# pooler MODE [KEY=VALUE...]: A and L are locks through it, D the same as L but directly.
pooler() {
    LOG_FROM=$(($(wc -c <"$PG_LOG") + 1))
    pgb_start "$@"
    A="postgres://postgres@127.0.0.1:$PGB_PORT/postgres#$NAME"
    L="postgres://postgres@127.0.0.1:$PGB_PORT/postgres?mode=lease#$NAME"
    D="postgres://postgres@127.0.0.1:$PG_PORT/postgres?mode=lease#$NAME"
}
# pooled ARG...: psql through it.
pooled() { PG_PORT=$PGB_PORT pgsql "$@"; }

# settings: what a client of the pool finds in its session.
settings() {
    pooled -c "select pg_backend_pid()" \
        -c "select name, setting from pg_settings where source in ('session', 'client')
        and name <> 'application_name' order by name"
}

# tries [NAME]: how many times dlock has asked for this lock.
tries() { grep -cF "\$1 = '$NAME', " "$PG_LOG"; }
tries_are() { [ "$(tries)" -ge "$1" ]; }

# no_trace: nothing of ours stays with the sessions of the pool: no lock, no channel, no name that
# calls us.
no_trace() {
    local n
    locks_are true 0 || fail "an advisory lock is left"
    called_are 0 || fail "a waiter's name is left"
    n=$(pooled -c 'select count(*) from pg_listening_channels()')
    [ "$n" = 0 ] || fail "$n channels are listened to"
    ! tail -c "+$LOG_FROM" "$PG_LOG" | grep -v '\[pgsql\]' | grep 'LISTEN "' ||
        fail "LISTEN was sent"
}

# --------------------------------------------------------------- advisory ---

# refused MODE: an advisory lock is not taken, whichever way it is asked for, and leaves no trace.
refused() {
    local before i
    pooler "$1" default_pool_size=1
    before=$(settings)
    for i in "" "-n" "-w 3" "--ttl 7"; do
        run -64 run_t 8 "$DLOCK" $i "$A" touch ran
        assert_out "?mode=lease before the '#' (of @NAME: in DLOCK_STORE)"
        [ "${#lines[@]}" -eq 1 ]
        no_trace
        # The same session as before, if the pooler kept it, and its settings.
        [ "$(settings)" = "$before" ] || fail "$(settings), not $before"
    done
    # To look does no harm.
    run -0 run_t 5 "$DLOCK" --status "$A"
    run -64 run_t 5 "$DLOCK" "${A/\#/?fair=1#}" touch ran
    run -64 run_t 5 "$DLOCK" "${A/\#/?key=42#}" touch ran
    no_trace
    [ "$(settings)" = "$before" ]
    pgb_stop
    # Two at once, with sessions enough for both: none of them runs.
    pooler "$1" default_pool_size=4
    local pids=()
    for i in 1 2 3 4; do
        start_log "w$i.log" "$DLOCK" "$A" touch ran
        pids+=("$STARTED")
    done
    for i in "${pids[@]}"; do exits 64 5 "$i"; done
    no_trace
    [ ! -e ran ]
    # Directly it works, at once.
    run -0 run_t 5 "$DLOCK" -n "postgres://postgres@127.0.0.1:$PG_PORT/postgres#$NAME" true
}

@test "advisory locks through a pooler are refused in each mode, without a trace" {
    for mode in transaction session statement; do refused $mode; done
}

@test "an advisory lock is listed through a pooler, and broken by no means" {
    local before option
    pooler transaction default_pool_size=1
    D="postgres://postgres@127.0.0.1:$PG_PORT/postgres#$NAME"
    L=$D hold --ttl 5
    run -0 run_t 5 "$DLOCK" --list "$A"
    assert_out "$NAME  held: "
    assert_out "pid $HOLDER"
    before=$(settings)
    for option in "" --force; do
        run -64 --separate-stderr run_t 5 "$DLOCK" --break --yes $option "$A"
        [ "${#stderr_lines[@]}" = 1 ] || fail "$stderr"
        [[ $stderr == *"is a connection pooler"*"connect to the server itself"* ]] || fail "$stderr"
        [ "$(settings)" = "$before" ] || fail "$(settings), not $before"
    done
    locks_are true 1 # the holder's
    run -0 run_t 10 "$DLOCK" --break --yes "$D"
    exits 79 8 "$HOLDER"
}

# ------------------------------------------------------------- lease table ---

# exclude N TURNS: N processes, each TURNS times.
exclude() {
    mkdir -p h
    "$ROOT/tests/support/helpers/swarm.py" "$1" 100 bash -c 'for ((n = 0; n < $3; n++)); do
            "$DLOCK" --ttl 5 "$1" "$HELPERS/witness" "$2" $((n % 5)) || exit
        done' - "$L" "$T/h" "$2"
    run -0 "$ROOT/tests/support/helpers/check_history.py" "$T/h" $(($1 * $2))
    row_is_free
    rm -r h
}

# bats test_tags=slow,soak
@test "failed tries do not disturb grants with transaction pooling" {
    pooler transaction default_pool_size=4
    mkdir h
    # Those that do not wait try again and again.
    "$ROOT/tests/support/helpers/swarm.py" 8 100 bash -c 'n=0; while [ $n -lt $3 ]; do
            "$DLOCK" -q -n --ttl 5 "$1" "$HELPERS/witness" "$2" $((n % 3))
            case $? in 0) n=$((n + 1)) ;; 75) ;; *) exit 1 ;; esac
        done' - "$L" "$T/h" "$(amount pooled_turns)"
    run -0 "$ROOT/tests/support/helpers/check_history.py" "$T/h" $((8 * $(amount pooled_turns)))
    row_is_free
    no_trace
}

# turns PORT FILE MS: the lock goes through what counts the requests without an answer; see
# pgturns.py.
turns() {
    listener pgturns "$@"
    L="postgres://postgres@127.0.0.1:$LISTENS/postgres?mode=lease#$NAME"
}

# PgBouncer before 1.21 takes a session for free at the first answer: the second one goes to another
# client.
# bats test_tags=soak,plain
@test "dlock sends one request at a time through a pooler" {
    pooler transaction
    turns $PGB_PORT pooled 3
    for ((i = $(amount pooled_runs); i > 0; i--)); do
        run_t 5 "$DLOCK" "$L" true
        always run_t 5 "$DLOCK" "$L" true # tidies up, too
    done
    grep -q "DELETE FROM .*dlock_locks" "$PG_LOG"
    hold --ttl 6
    before=$(row "$EXPIRES")
    run -75 run_t 5 "$DLOCK" -n "$L" true
    run -75 run_t 5 "$DLOCK" -w 1.2 "$L" true
    start_log w.log "$DLOCK" "$L" true
    waiter=$STARTED
    # What is said while something is unanswered: the row is locked by somebody else.
    block_row
    kill -TERM "$waiter"
    wait_exit 5 "$waiter" || [ $? = 143 ]
    unblock_row
    wait_for 5 row_is_renewed "$before"
    let_go
    wait_for 5 row_is_free
    [ "$(tr -d 1 <pooled)" = '' ] ||
        fail "at a time: $(fold -w1 pooled | sort | uniq -c | tr '\n' ' ')"
    [ "$(wc -c <pooled)" -gt $((4 * $(amount pooled_runs))) ]
    # The same proxy does see it where it may be.
    turns "$PG_PORT" direct 40
    hold
    run -75 run_t 5 "$DLOCK" -w 0.5 "$L" true
    let_go
    [ "$(tr -d 1 <direct)" != '' ]
}

# bats test_tags=slow
@test "a pooled waiter polls once a second" {
    local from n
    pooler transaction
    hold --ttl 60
    start_log w.log "$DLOCK" --ttl 60 "$L" "$HELPERS/clock" got
    wait_for 3 tries_are 2
    # The log is long by now: only that of these 4 s is read.
    from=$(wc -c <"$PG_LOG")
    sleep 4 # what is measured
    n=$(tail -c "+$((from + 1))" "$PG_LOG" | head -c $(($(wc -c <"$PG_LOG") - from)) |
        grep -c 'LOG:  execute .* h AS MATERIALIZED')
    assert_between 3 "$n" 5 "messages of a waiter in 4 s"
    hand_over 2000
    no_trace
}

@test "direct and pooled clients exclude each other, and see each other by --status" {
    local u
    pooler transaction
    says 0 ": free" --status "$L"
    hold --ttl 60 --note 'the note'
    says 75 "pid $HOLDER" -vn "$D" true
    start_log w.log "$DLOCK" "$D" "$HELPERS/clock" got
    is_seen() { "$DLOCK" --status "$D" | grep "pid $STARTED"; }
    wait_for 5 is_seen
    for u in "$L" "$D"; do
        run -75 run_t 5 "$DLOCK" --status --json "$u"
        assert_out "\"pid\":$HOLDER"
        assert_out '"note":"the note"'
    done
    hand_over $((400 + BUSY))
}

# breaks_hold URI OTHER [KIND]: a hold and a waiter at URI; OTHER lists and breaks the hold.
breaks_hold() {
    local holder next
    rm -f witness counter history
    start_log a.log "$DLOCK" --ttl 3 --grace 0.5 $3 "$1" "$HELPERS/witness" "$T" 60000 tree
    holder=$STARTED
    wait_for 5 file_has history enter
    start_log next.log "$DLOCK" --ttl 30 "$1" "$HELPERS/witness" "$T" 1
    next=$STARTED
    run -0 run_t 5 "$DLOCK" --list "$2"
    [ "${#lines[@]}" = 1 ]
    assert_out "$NAME  "
    assert_out "pid $holder"
    run -0 run_t 15 "$DLOCK" --break --yes --note why "$2"
    exits 79 8 "$holder"
    file_has a.log 'note "why"'
    exits 0 8 "$next"
    [ ! -e violations ] || fail "$(cat violations)"
}

@test "a hold is listed and broken through a pooler" {
    local kind
    pooler transaction
    for kind in -x -s "--slots 2"; do breaks_hold "$L" "$L" "$kind"; done
    no_trace
    breaks_hold "$D" "$L"
    breaks_hold "$L" "$D"
    run -0 run_t 5 "$DLOCK" --list "$L"
    [ -z "$output" ]
}

@test "a hold survives restarts of the pooler" {
    local before how
    pooler transaction
    hold --ttl 5
    start_log w.log "$DLOCK" --ttl 60 "$L" touch got
    wait_for 3 tries_are 2
    for how in restart restart kill; do
        before=$(row "$EXPIRES")
        case $how in
        restart)
            kill -KILL "$PGB_PID"
            wait_for 5 pid_gone "$PGB_PID"
            pgb_launch ;;
        kill)
            pgsql -c "select pg_terminate_backend(pid) from pg_stat_activity
                where backend_type = 'client backend' and pid <> pg_backend_pid()" ;;
        esac
        wait_for 5 row_is_renewed "$before"
        pid_alive "$HOLDER"
        [ ! -e got ]
    done
    hand_over
    [ -e got ]
    wait_for 2 row_is_free
}

# bats test_tags=plain
@test "a pooler that is away for longer ends the hold, not the wait" {
    local now t0 short waiter
    pooler transaction
    start_log hold.log "$DLOCK" --ttl 2 --grace 0.2 "$L" "$HELPERS/witness" "$T" 60000 tree
    HOLDER=$STARTED
    wait_for 5 file_has history enter
    start_log w.log "$DLOCK" --ttl 1 "$L" "$HELPERS/clock" got
    wait_for 3 tries_are 2
    start_log short.log "$DLOCK" --ttl 1 -w 2.5 "$L" touch ran
    short=$STARTED waiter=${STARTED_PIDS[-2]}
    wait_for 3 tries_are 4
    kill -KILL "$PGB_PID"
    wait_for 5 pid_gone "$PGB_PID"
    t0=$(now_ms)
    # The lease has not ended yet.
    now=$(timeout 4 flock -s witness date +%s%3N)
    [ "$(row "$EXPIRES")" -gt "$now" ]
    exits 79 8 "$HOLDER"
    exits 69 5 "$short"
    wait_for 8 beyond $((t0 + 5200))
    pid_alive "$waiter" && [ ! -e got ] || fail "$(cat w.log)"
    pgb_launch
    exits 0 5 "$waiter"
    [ -s got ] && [ ! -e ran ]
}

# bats test_tags=plain
@test "a pool of one session serves twelve waiters" {
    local i pids=()
    pooler transaction default_pool_size=1 max_client_conn=40
    hold --ttl 5
    for i in $(seq 12); do
        start_log "w$i.log" "$DLOCK" --ttl 30 "$L" "$HELPERS/witness" "$T" 5
        pids+=("$STARTED")
    done
    # All of them wait; the holder is renewed meanwhile.
    wait_for 5 tries_are 24
    renewed
    run -75 run_t 5 "$DLOCK" --status "$L"
    let_go
    for i in "${pids[@]}"; do exits 0 30 "$i"; done
    run -0 "$ROOT/tests/support/helpers/check_history.py" "$T" 12
    row_is_free
    no_trace
}

# bats test_tags=plain
@test "session pooling works, and is polled like the others" {
    pooler session default_pool_size=12
    hold --ttl 5
    run -75 run_t 5 "$DLOCK" -n "$L" true
    start_log w.log "$DLOCK" "$L" true
    wait_for 3 tries_are 3
    hand_over
    exclude 4 4
    no_trace
}

@test "a waiter does not take the holder's only session" {
    pooler session default_pool_size=1 query_wait_timeout=2
    # The holder has the only one.
    hold --ttl 4
    run -69 run_t 8 "$DLOCK" -n --connect-timeout 0.5 "$L" touch ran
    pid_alive "$HOLDER"
    let_go
    [ ! -e ran ]
    wait_for 5 row_is_free
}

@test "statement pooling works" {
    pooler statement
    hold --ttl 3
    run -75 run_t 5 "$DLOCK" -n "$L" true
    renewed 4
    let_go
    exclude 4 4
    no_trace
    # The table is made through it, too.
    pgsql -c 'drop table dlock_locks'
    run -0 run_t 5 "$DLOCK" "$L" true
    row_is_free
}

@test "says why a pooler cannot serve" {
    pooler transaction max_client_conn=1
    PG_PORT=$PGB_PORT start_log psql.log pg_session -c 'select pg_sleep(20)'
    wait_for 5 is_sql "count(*) = 1 from pg_stat_activity where query like 'select pg_sleep%'"
    run -69 run_t 8 "$DLOCK" --connect-timeout 1 "$L" touch ran
    assert_out 'no more connections allowed'
    kill "$STARTED"
    pooler transaction
    run -77 run_t 8 "$DLOCK" --retry "${L/postgres@/nouser@}" touch ran
    assert_out 'no such user'
    own_server
    pooler transaction server_connect_timeout=1 server_login_retry=1
    pg_stop own
    run -69 run_t 8 "$DLOCK" --connect-timeout 3 "$L" touch ran
    [ ! -e ran ]
    start_log retry.log "$DLOCK" --retry --connect-timeout 1 -w 30 "$L" touch got
    has_tried() {
        [ "$(grep -c "closing because: .*login\|closing because: .*connect" "$PGB_LOG")" -ge 3 ]
    }
    wait_for 10 has_tried
    pg_restart own fast
    exits 0 10 "$STARTED"
    [ -e got ]
}
