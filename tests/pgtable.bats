#!/usr/bin/env bats
# pgtable.bats - the lease table of PostgreSQL (?mode=lease): faults of the server, the row, the table, the roles.
# Through PgBouncer: pgbouncer.bats.

bats_require_minimum_version 1.5.0
load lib/common
load lib/fake
load lib/postgres

setup_file() {
    export BATS_NO_PARALLELIZE_WITHIN_FILE=true
    pg_start
    # The table is there; tests of how it is made use a database of their own.
    "$DLOCK" -q "postgres://postgres@127.0.0.1:$PG_PORT/postgres?mode=lease#first" true 3>&-
}
teardown_file() { pg_stop_all; }

setup() {
    dlock_setup
    fake_setup # the command that tells what happens to it
    SERVER=default
    AT=postgres@127.0.0.1:$PG_PORT
    L="postgres://$AT/postgres?mode=lease#$NAME"
}
teardown() {
    thaw
    dlock_teardown
}

# ---------------------------------------------------------------- helpers ---

own_server() {
    pg_start_in own "$@"
    SERVER=own
    AT=postgres@127.0.0.1:${PG_PORTS[own]}
    L="postgres://$AT/postgres?mode=lease#$NAME"
}
sql() { if [ $SERVER = own ]; then pgsql_in own "$@"; else pgsql "$@"; fi; }
# own_database: a new one on the file's server, without the table; $DB.
own_database() {
    DB=$NAME
    pgsql -c "create database \"$DB\" template postgres" -c "\\c \"$DB\"" -c 'drop table public.dlock_locks'
    L="postgres://$AT/$DB?mode=lease#$NAME"
}
in_db() { pgsql -d "$DB" "$@"; }

# row EXPRESSION: of the lock's row.
row() { sql -c "select $1 from public.dlock_locks where name = '$NAME'"; }
# Unix milliseconds of the server's clock, which is that of this machine.
EXPIRES='(extract(epoch from expires) * 1000)::bigint'
row_is_free() { [ "$(row "expires = '-infinity' and owner = ''")" = t ]; }
row_is_renewed() { [ "$(row "$EXPIRES")" -gt "$1" ]; }
wall_ms() { date +%s%3N; }

# The lock's sessions: all of them, those that wait to be called.
sessions() { sql -c "select count(*) from pg_stat_activity where application_name like 'dlock:%'"; }
called() { sql -c "select count(*) from pg_stat_activity where application_name like 'dlock:%:w'"; }
called_are() { [ "$(called)" = "$1" ]; }
no_sessions() { [ "$(sessions)" = 0 ]; }
end_sessions() { sql -c "select count(pg_terminate_backend(pid)) from pg_stat_activity where application_name like 'dlock:%'"; }

# hold [ARG...]: dlock holds the lock until the file "go" appears; returns when it does hold.
hold() {
    rm -f held go
    start_log hold.log "$DLOCK" "$@" "$L" sh -c 'echo >held; "$HELPERS/await" go'
    HOLDER=$STARTED
    wait_for 5 test -e held
}
# let_go [CODE]: and it ends with that code.
let_go() {
    : >go
    rc=0
    wait_exit 5 "$HOLDER" || rc=$?
    [ $rc -eq "${1:-0}" ] || fail "the holder's exit code is $rc: $(cat hold.log)"
}
# waiter N CMD...: the N-th waiter; returns when a release can call it.
waiter() {
    local n=$1
    shift
    start_log "wait$n.log" "$DLOCK" --ttl "${TTL:-30}" "$L" "$@"
    WAITER=$STARTED
    wait_for 5 called_are "$n"
}
exits() { # CODE SECONDS PID
    rc=0
    wait_exit "$2" "$3" || rc=$?
    [ $rc -eq "$1" ] || fail "exit code $rc, not $1: $(cat ./*.log)"
}
# entered FILE: when its clock was written, in ms of CLOCK_BOOTTIME.
entered() { echo $(($(cat "$1") / NS)); }

# freeze, thaw: the postmaster and all its children, of the server in use.
freeze() {
    local pid=$PG_PID
    [ $SERVER = default ] || pid=${PG_PIDS[own]}
    kill -STOP "$pid"
    wait_for 5 pid_stopped "$pid"
    FROZEN=("$pid" $(children "$pid"))
    kill -STOP "${FROZEN[@]}"
}
thaw() {
    [ -z "${FROZEN:-}" ] || kill -CONT "${FROZEN[@]}" 2>/dev/null || :
    unset FROZEN
}

# session [ARG...]: a psql that reads from descriptor 8; what is started while it is open gets 8>&-.
session() {
    rm -f sql session.log
    mkfifo sql
    start_log session.log bash -c '. "$0/tests/lib/common.bash"; . "$0/tests/lib/postgres.bash"
        pg_session "${@:2}" <"$1"' "$ROOT" "$T/sql" "$@"
    exec 8>sql
}
session_ends() { # commit | rollback
    echo "$1;" >&8
    exec 8>&-
}
blocked_are() { [ "$(sql -c "select count(*) from pg_stat_activity where application_name like 'dlock:%' and wait_event_type = 'Lock'")" = "$1" ]; }

# ------------------------------------------------------------ connections ---

@test "lease table: the holder's session is ended again and again: the command lives" {
    local i before
    hold --ttl 3
    for i in 1 2 3 4; do
        before=$(row "$EXPIRES")
        [ "$(end_sessions)" -ge 1 ]
        # Renewed by another session.
        wait_for 3 row_is_renewed "$before"
        pid_alive "$HOLDER"
    done
    end_sessions
    let_go
    row_is_free
    [ ! -s hold.log ] || fail "$(cat hold.log)"
}

@test "lease table: restarts of the server are ridden out, fast and immediate ones" {
    own_server
    local how before
    hold --ttl 5
    for how in fast immediate; do
        before=$(row "$EXPIRES")
        pg_restart own $how
        wait_for 5 row_is_renewed "$before"
        run run_t 5 "$DLOCK" -q -n "$L" true
        assert_rc 75
        pid_alive "$HOLDER"
    done
    let_go
    row_is_free
}

# outage COMMAND MEND: the server is away for good; TERM when nothing else is left, the tree gone in time.
outage() {
    rm -f "$C"/*
    background --ttl 3 "$L" $SUBJECT -t -k
    wait_for 5 running 4
    "$1"
    wait_for 5 tree_gone
    local gone
    gone=$(wall_ms)
    ended 10
    assert_rc 79
    assert_out "could not be renewed in time"
    "$2"
    # The row has survived, and says when somebody else may be given the lock.
    local expires offset
    expires=$(row "$EXPIRES")
    assert_between $((expires - 700)) "$gone" "$expires" "end of the tree (Unix ms)"
    # TERM at term_at, on its clock.
    offset=$(($(wall_ms) - $(now_ms)))
    lease_times 3000 $(((expires - 3000 - offset) * NS))
    assert_between $(($(ms $TERM_AT) - 60)) "$(ms "$(seen main sig 15)")" $(($(ms $TERM_AT) + 100)) "TERM (ms)"
    no_overlap
}
own_off() { pg_kill own; }
own_on() { pg_restart own fast; }

@test "lease table: the server is away for longer: TERM at term_at, 79, the tree is gone before the lease ends" {
    own_server
    outage own_off own_on
    outage freeze thaw
    [ "$(sql -c "select count(*) from pg_stat_activity where application_name like 'dlock:%:w'")" = 0 ]
}

@test "lease table: a stopped keeper's lock goes to another at its expiry, when its tree is gone: 79" {
    local expires
    start_log hold.log "$DLOCK" --ttl 2 --grace 0.2 "$L" "$HELPERS/witness" "$T" 60000 tree
    HOLDER=$STARTED
    wait_for 5 file_has history enter
    TTL=2 waiter 1 sh -c "date +%s%3N >at; exec '$HELPERS/witness' '$T' 10"
    kill -STOP "$HOLDER"
    wait_for 5 pid_stopped "$HOLDER"
    expires=$(row "$EXPIRES")
    exits 0 6 "$WAITER"
    [ ! -e violations ]
    assert_between "$expires" "$(cat at)" $((expires + 1000)) "take-over (Unix ms)"
    kill -CONT "$HOLDER"
    exits 79 5 "$HOLDER"
    # Its release did not touch what is another's.
    [ "$(row fence)" = "$(sed -n '/enter/h; ${x;s/^[a-z]* [0-9]* \([0-9]*\) .*/\1/p}' history)" ]
}

@test "lease table: a killed keeper: the tree dies at once, another has the lock within the ttl and a second" {
    local expires
    background --ttl 2 "$L" $SUBJECT -t -k
    wait_for 5 running 4
    kill -KILL "$K"
    wait_for 1 tree_gone
    expires=$(row "$EXPIRES")
    # One who waits, and one who tries all the time.
    TTL=2 waiter 1 true
    until "$DLOCK" -q -n "$L" sh -c 'date +%s%3N >at' 3>&-; do
        [ "$(wall_ms)" -lt $((expires + 1000)) ]
    done
    exits 0 2 "$WAITER"
    assert_between "$expires" "$(cat at)" $((expires + 1000)) "take-over (Unix ms)"
}

# --------------------------------------------------------- lost for certain ---

# stolen SQL TEXT: the row is changed during a hold: the tree is killed, not asked, at the next renewal.
stolen() {
    local t0
    rm -f "$C"/*
    background --ttl 3 "$L" $SUBJECT -t -k
    wait_for 5 running 4
    t0=$(now_ms)
    sql -c "$1"
    ended 5
    assert_rc 79
    # The next renewal is due after usable/3, 0.74 s.
    assert_between 0 $(($(now_ms) - t0)) $((1300 + SLOW)) "until its end (ms)"
    [ "$(count_seen main sig 15)" = 0 ]
    tree_gone
    assert_out "$2"
    [ "$(grep -c . out)" -le 2 ] || fail "$output"
}

@test "lease table: a row that was deleted, changed, expired or given away: killed at the next renewal, 79" {
    stolen "delete from dlock_locks where name = '$NAME'" 'gone'
    [ -z "$(row 1)" ]
    stolen "update dlock_locks set expires = clock_timestamp() - '1 s'::interval where name = '$NAME'" 'gone'
    stolen "update dlock_locks set owner = 'other', expires = clock_timestamp() + '2 s'::interval,
        holder = 'dlock1 host=elsewhere pid=4711 user=joe since=1 cmd=x note=' where name = '$NAME'" \
        'held by joe@elsewhere, pid 4711'
    # Another's row is as it was.
    [ "$(row owner)" = other ]
    sql -c "update dlock_locks set expires = '-infinity' where name = '$NAME'"
    stolen "update dlock_locks set fence = fence + 1 where name = '$NAME'" 'gone'
}

# during SQL: a command that does that as the superuser.
during() { echo "$PG_BIN/psql -X -q -h 127.0.0.1 -p $PG_PORT -U postgres -d postgres -c \"$1\""; }

@test "lease table: loss that only the release notices: 79 although the command succeeded" {
    run run_t 5 "$DLOCK" "$L" sh -c "$(during "delete from dlock_locks where name = '$NAME'")"
    assert_rc 79
    assert_out 'not ours any more'
    run run_t 5 "$DLOCK" "$L" sh -c "$(during "update dlock_locks set expires = 'epoch' where name = '$NAME'")"
    assert_rc 79
    run run_t 5 "$DLOCK" "$L" sh -c "$(during "update dlock_locks set owner = 'other',
        holder = 'dlock1 host=elsewhere pid=4711 user=joe since=1 cmd=x note=' where name = '$NAME'")"
    assert_rc 79
    assert_out joe@elsewhere
    [ "$(row "owner = 'other' and expires > clock_timestamp()")" = t ]
}

# ------------------------------------------------------------------ fence ---

fence() { run_t 5 "$DLOCK" -w 4 "$L" sh -c 'echo $DLOCK_FENCE'; }

@test "lease table: the fence grows, after deletion of the row and with a stored one ahead of the clock" {
    local i f last=0
    for i in $(seq 12); do
        f=$(fence)
        [ "$f" -gt "$last" ] || fail "$f after $last"
        # It is the server's clock in microseconds while nothing is ahead of that.
        assert_between $(($(wall_ms) - 3000)) $((f / 1000)) $(($(wall_ms) + 1)) "fence (ms)"
        last=$f
        [ $((i % 4)) -ne 0 ] || sql -c "delete from dlock_locks where name = '$NAME'"
    done
    fence >/dev/null
    sql -c "update dlock_locks set fence = 5000000000000000 where name = '$NAME'"
    [ "$(fence)" = 5000000000000001 ]
    [ "$(fence)" = 5000000000000002 ]
    # Also when it is taken from a dead holder.
    sql -c "update dlock_locks set expires = clock_timestamp() + '300 ms', owner = 'dead' where name = '$NAME'"
    [ "$(fence)" = 5000000000000003 ]
}

# The log is written by nobody but the commits: what a commit did not wait for is lost in the crash.
@test "lease table: synchronous_commit=off, and a crash right after the grant: nothing is forgotten" {
    local what f now
    for what in "database postgres" "role postgres"; do
        own_server -c wal_writer_delay=10s -c bgwriter_delay=10s -c autovacuum=off
        fence >/dev/null
        sql -c "alter $what set synchronous_commit = off"
        [ "$(sql -c 'show synchronous_commit')" = off ]
        sql -c checkpoint
        hold --ttl 20
        now=$(row fence)
        pg_restart own immediate -c autovacuum=off
        [ "$(row fence)" = "$now" ] || fail "fence $(row fence) after the crash, $now before"
        [ "$(row 'expires > clock_timestamp()')" = t ]
        run run_t 5 "$DLOCK" -q -n "$L" true
        assert_rc 75
        let_go
        f=$(fence)
        [ "$f" -gt "$now" ]
        # And so is a release: the row is free after the crash.
        sql -c checkpoint
        fence >/dev/null
        pg_restart own immediate -c autovacuum=off
        row_is_free
        pg_stop_all
    done
}

# ------------------------------------------------------------------ table ---

@test "lease table: ten at once make the table: all of them run" {
    local i n
    for n in 1 2 3; do
        NAME=$NAME.$n
        own_database
        for i in $(seq 10); do
            start_log "w$i.log" "$DLOCK" --connect-timeout 20 "$L" sh -c 'echo >>ran'
            pids[i]=$STARTED
        done
        for i in $(seq 10); do exits 0 20 "${pids[i]}"; done
        [ "$(in_db -c 'select count(*) from dlock_locks')" = 1 ]
    done
    [ "$(wc -l <ran)" -eq 30 ]
    # Another has begun to make it: all of them wait for that one, and then it is there, or not.
    local end
    for end in commit rollback; do
        NAME=$NAME.$end
        own_database
        session -d "$DB"
        { echo begin\;; "$DLOCK" --schema "$L"; echo '\echo made'; } >&8
        wait_for 5 file_has session.log made
        for i in $(seq 10); do
            start_log "w$i.log" "$DLOCK" --connect-timeout 20 "$L$i" true 8>&-
            pids[i]=$STARTED
        done
        wait_for 10 blocked_are 10
        session_ends $end
        for i in $(seq 10); do exits 0 20 "${pids[i]}"; done
        [ "$(in_db -c 'select count(*) from dlock_locks')" = 10 ]
    done
}

@test "lease table: a role that may not make it: 77 and the statement, which then does it" {
    own_database
    local ddl role=u${NAME//-/}
    in_db -c "create role $role login"
    L="postgres://$role@127.0.0.1:$PG_PORT/$DB?mode=lease#$NAME"
    run run_t 5 "$DLOCK" "$L" touch ran
    assert_rc 77
    [ ! -e ran ]
    ddl=$(grep -o 'CREATE TABLE .*)' <<<"$output")
    [ "$ddl;" = "$("$DLOCK" --schema "$L")" ] || fail "$ddl"
    in_db -c "$ddl"
    # It is there, and not this role's.
    run run_t 5 "$DLOCK" "$L" touch ran
    assert_rc 77
    assert_out permission
    [ ! -e ran ]
    in_db -c "grant select, insert, update, delete on public.dlock_locks to $role"
    run run_t 5 "$DLOCK" "$L" touch ran
    assert_rc 0
    [ -e ran ]
    # Waiting, too, and asking.
    hold
    start_log w.log "$DLOCK" "$L" true
    wait_for 5 called_are 1
    run run_t 5 "$DLOCK" --status "$L"
    assert_rc 75
    assert_out "pid $STARTED"
    let_go
    exits 0 2 "$STARTED"
}

@test "lease table: --schema prints what works, and connects to nothing" {
    own_database
    local role=u${NAME//-/}
    run -64 "$DLOCK" --schema "postgres://127.0.0.1:1/x#$NAME"
    run -0 "$DLOCK" --schema "postgres://127.0.0.1:1/x?mode=lease&table=s.\"t#$NAME"
    assert_out '"s"."""t"'
    in_db -c 'create schema s'
    run -0 "$DLOCK" --schema "postgres://127.0.0.1:1/x?mode=lease&table=s.t#$NAME"
    in_db <<<"$output"
    # Twice does no harm.
    in_db <<<"$output"
    in_db -c "create role $role login; grant usage on schema s to $role" \
        -c "grant select, insert, update, delete on s.t to $role"
    L="postgres://$role@127.0.0.1:$PG_PORT/$DB?mode=lease&table=s.t#$NAME"
    run run_t 5 "$DLOCK" "$L" "$DLOCK" -n "$L" true
    assert_rc 75
    [ "$(in_db -c 'select count(*) from s.t')" = 1 ]
    [ -z "$(in_db -c "select to_regclass('public.dlock_locks')")" ]
}

@test "lease table: odd names of tables; what is none is refused: 64" {
    own_database
    local t
    in_db -c 'create schema "Sché""ma"' -c "create schema \"a b; drop\"" -c 'create schema "%s"'
    for t in 'public.Locks' 'public.l"x' "public.l'x" 'Sché"ma.t' 'a b; drop.t--' '%25s.%25n' 'public.a\b' 'public./*' 'public.@T'; do
        L="postgres://$AT/$DB?mode=lease&table=$t#$NAME"
        run run_t 5 "$DLOCK" "$L" "$DLOCK" -q -n "$L" true
        assert_rc 75
    done
    [ "$(in_db -c "select string_agg(schemaname || '.' || tablename, ' ' order by schemaname, tablename) from pg_tables
        where schemaname !~ '^(pg_|information)'" | sort)" = \
        "$(in_db -c "select string_agg(t, ' ' order by a, b) from (values ('public', 'Locks'), ('public', 'l\"x'), ('public', 'l''x'),
            ('Sché\"ma', 't'), ('a b; drop', 't--'), ('%s', '%n'), ('public', 'a\\b'), ('public', '/*'), ('public', '@T')) v(a, b),
            lateral (select a || '.' || b) w(t)")" ]
    for t in '' x . .x x. a.b.c "$(printf '%0128d' 0 | sed 's/0/a/;s/0/./2')"; do
        run run_t 5 "$DLOCK" "postgres://$AT/$DB?mode=lease&table=$t#$NAME" touch ran
        assert_rc 64
    done
    run run_t 5 "$DLOCK" "postgres://$AT/$DB?mode=lease&table=nowhere.t#$NAME" touch ran
    assert_rc 69
    assert_out nowhere
    [ ! -e ran ]
}

@test "lease table: parameters that would have no effect are refused: 64, and named" {
    local p
    for p in mode=lease\&{key=1,key=1,2,fair=1,restart-grace=5,renew=write,renew=read} table=a.b mode=advisory\&table=a.b \
        mode=x mode= mode=lease\&nonsense=1; do
        run run_t 5 "$DLOCK" "postgres://$AT/postgres?$p#$NAME" touch ran
        assert_rc 64
        p=${p##*&}
        assert_out "${p%%=*}"
    done
    [ ! -e ran ]
}

# ---------------------------------------------------------------- waiting ---

@test "lease table: a release calls a waiter at once, out of several, too" {
    local n t0 i
    for n in 1 6; do
        hold
        rm -f got*
        for i in $(seq $n); do waiter "$i" sh -c "[ -e got ] || '$HELPERS/clock' got"; pids[i]=$STARTED; done
        t0=$(now_ms)
        let_go
        wait_for 3 test -e got
        assert_between 0 $(($(entered got) - t0)) $((400 + SLOW)) "hand-off (ms)"
        # And the chain does not break: nobody waits for a timer.
        for i in $(seq $n); do exits 0 3 "${pids[i]}"; done
    done
    wait_for 2 no_sessions
}

@test "lease table: a waiter whose holder dies has the lock at the holder's expiry" {
    local expires
    sql -c "insert into dlock_locks values ('$NAME', 7, 'dead', clock_timestamp() + '1.2 s', 'x')"
    expires=$(row "$EXPIRES")
    start_log w.log "$DLOCK" --ttl 30 "$L" sh -c 'date +%s%3N >at'
    exits 0 4 "$STARTED"
    assert_between "$expires" "$(cat at)" $((expires + 400 + SLOW)) "take-over (Unix ms)"
}

# messages_of WAITERS HANDOFFS: in tenths, what the server is sent per hand-off.
messages_of() {
    local i before
    hold --ttl 100
    rm -f order done2
    # Those that are not to be served block the chain until they are counted.
    for i in $(seq "$1"); do
        TTL=100 waiter "$i" sh -c "echo >>order; [ \$(wc -l <order) -le $2 ] || '$HELPERS/await' done2"
        pids[i]=$STARTED
    done
    before=$(pg_statements)
    let_go
    wait_for 10 eval '[ -e order ] && [ "$(wc -l <order)" -ge '$(($2 < $1 ? $2 + 1 : $2))' ]'
    [ "$2" -lt "$1" ] || wait_for 5 no_sessions
    PER=$((($(pg_statements) - before) * 10 / $2))
    : >done2
    for i in $(seq "$1"); do exits 0 20 "${pids[i]}"; done
}

# bats test_tags=slow
@test "lease table: what a hand-off costs the server does not grow with the waiters" {
    local two twenty
    messages_of 2 2
    two=$PER
    messages_of 20 10
    twenty=$PER
    echo "# tenths of messages per hand-off: $two with 2 waiters, $twenty with 20" >&3
    # The release, two tries, and the winner takes its name off the list; a timer may be in it.
    [ "$two" -le 60 ]
    [ "$twenty" -le $((two + 15)) ]
}

# bats test_tags=slow
@test "lease table: waiters that nobody calls ask about every five seconds" {
    local i before n t0
    hold --ttl 100
    for i in $(seq 8); do TTL=100 waiter "$i" true; pids[i]=$STARTED; done
    before=$(pg_statements)
    sleep 6 # what is measured
    n=$(($(pg_statements) - before))
    # Each of them has asked, about once.
    assert_between 8 "$n" 20 "messages of 8 waiters in 6 s"
    let_go
    for i in $(seq 8); do exits 0 10 "${pids[i]}"; done
}

# bats test_tags=slow
@test "lease table: killed waiters hold up nobody; those that are stopped do for six seconds at most" {
    local i t0
    # A release calls the two that have waited longest.
    hold
    for i in 1 2; do waiter $i true; pids[i]=$STARTED; done
    waiter 3 "$HELPERS/clock" got
    kill -KILL "${pids[1]}" "${pids[2]}"
    wait_for 5 called_are 1
    t0=$(now_ms)
    let_go
    exits 0 7 "$WAITER"
    assert_between 0 $(($(entered got) - t0)) $((400 + SLOW)) "hand-off (ms)"
    rm got
    hold
    for i in 1 2; do waiter $i "$HELPERS/clock" "late$i"; pids[i]=$STARTED; done
    waiter 3 "$HELPERS/clock" got
    kill -STOP "${pids[1]}" "${pids[2]}"
    wait_for 5 pid_stopped "${pids[2]}"
    t0=$(now_ms)
    let_go
    exits 0 7 "$WAITER"
    assert_between 0 $(($(entered got) - t0)) $((6000 + SLOW)) "hand-off (ms)"
    # When they go on they are served.
    kill -CONT "${pids[1]}" "${pids[2]}"
    for i in 1 2; do exits 0 7 "${pids[i]}"; done
    [ -e late1 ] && [ -e late2 ]
}

@test "lease table: waiters outlive their sessions, and are called again on the next ones" {
    local t0
    hold
    waiter 1 "$HELPERS/clock" got
    end_sessions
    wait_for 5 called_are 1
    t0=$(now_ms)
    let_go
    exits 0 7 "$WAITER"
    assert_between 0 $(($(entered got) - t0)) $((400 + SLOW)) "hand-off (ms)"
}

# --------------------------------------------------- a server that hangs ---

# block_row: the lock's row is held by an open transaction, so a try is not answered; unblock_row ends that.
block_row() {
    session
    echo "begin; select 1 from dlock_locks where name = '$NAME' for update; \\echo blocked" >&8
    wait_for 5 file_has session.log blocked
}
unblock_row() { session_ends commit; }

@test "lease table: a try that is unanswered when we go is undone when it is served: -n, -w, TERM" {
    local how before
    fence >/dev/null
    for how in n w TERM; do
        before=$(row fence)
        block_row
        case $how in
        n) start_log d.log "$DLOCK" -n --connect-timeout 0.6 --ttl 60 "$L" touch ran ;;
        w) start_log d.log "$DLOCK" -w 0.6 --ttl 60 "$L" touch ran ;;
        TERM) start_log d.log "$DLOCK" --connect-timeout 9 --ttl 60 "$L" touch ran ;;
        esac 8>&-
        wait_for 5 blocked_are 1
        case $how in
        TERM)
            kill -TERM "$STARTED"
            exits 143 2 "$STARTED" ;;
        *)
            exits 69 3 "$STARTED"
            file_has d.log 'no answer' ;;
        esac
        unblock_row
        # It has been granted (the fence says so), and given back.
        wait_for 2 eval '[ "$(row fence)" -gt '"$before"' ]'
        wait_for 1 row_is_free
        run -0 run_t 2 "$DLOCK" --status "$L"
        [ ! -e ran ]
    done
}

@test "lease table: a waiter gives up an unanswered try, undoes it, and has the lock in the end" {
    sql -c "insert into dlock_locks values ('$NAME', 7, 'dead', clock_timestamp() + '0.9 s', 'x')"
    TTL=6 waiter 1 "$HELPERS/clock" got
    block_row
    # That of the first try, and of the next one, which has another connection.
    wait_for 5 blocked_are 2
    unblock_row
    exits 0 5 "$WAITER"
    [ -e got ]
    wait_for 2 row_is_free
    wait_for 5 no_sessions
    row_is_free
}

@test "lease table: a try that is served late, when its waiter has the lock by another one, changes nothing" {
    local pid
    sql -c "insert into dlock_locks values ('$NAME', 7, 'dead', clock_timestamp() + '0.9 s', 'x')"
    start_log hold.log "$DLOCK" --ttl 6 "$L" sh -c 'echo >held; "$HELPERS/await" go'
    HOLDER=$STARTED
    wait_for 5 called_are 1
    pid=$(sql -c "select pid from pg_stat_activity where application_name like 'dlock:%:w'")
    FROZEN=("$pid")
    kill -STOP "$pid"
    wait_for 5 test -e held
    [ "$(sql -c "select count(*) from pg_stat_activity where pid = $pid")" = 1 ]
    thaw
    # It has read the try, its undo, and the end.
    wait_for 5 eval '[ "$(sql -c "select count(*) from pg_stat_activity where pid = '"$pid"'")" = 0 ]'
    [ "$(grep -c "\[$pid\].*execute" "$PG_LOG")" -ge 3 ]
    run -75 run_t 5 "$DLOCK" -n "$L" true
    let_go
    row_is_free
}

@test "lease table: a stopped server: 69, -w and TERM in time; the lock is free when it goes on" {
    own_server
    local t0
    "$DLOCK" "$L" true 3>&-
    freeze
    t0=$(now_ms)
    run -69 run_t 5 "$DLOCK" -n --connect-timeout 0.5 "$L" touch ran
    assert_between 480 $(($(now_ms) - t0)) $((1200 + SLOW)) "ms"
    assert_out 'no answer'
    t0=$(now_ms)
    run -69 run_t 5 "$DLOCK" -w 0.4 "$L" touch ran
    assert_between 390 $(($(now_ms) - t0)) $((700 + SLOW)) "ms"
    start_log d.log "$DLOCK" "$L" touch ran
    t0=$(now_ms)
    kill -TERM "$STARTED"
    exits 143 2 "$STARTED"
    t0=$(now_ms)
    run -69 run_t 5 "$DLOCK" --status --connect-timeout 0.4 "$L"
    assert_between 380 $(($(now_ms) - t0)) $((700 + SLOW)) "ms"
    thaw
    run -0 run_t 5 "$DLOCK" --status "$L"
    wait_for 5 no_sessions
    row_is_free
    [ ! -e ran ]
}

# bats test_tags=slow
@test "lease table: a waiter sits out a server that is stopped for less than its ttl; for longer: 69; -w holds" {
    own_server
    local t0
    "$DLOCK" "$L" true 3>&-
    dead_holder() {
        sql -c "update dlock_locks set expires = clock_timestamp() + '0.7 s', owner = 'dead' where name = '$NAME'"
    }
    dead_holder
    TTL=6 waiter 1 "$HELPERS/clock" got
    freeze
    sleep 2 # the fault itself: longer than one try is given
    [ ! -e got ]
    thaw
    exits 0 4 "$WAITER"
    [ -e got ]
    wait_for 2 row_is_free
    dead_holder
    # A ttl from the first failure on; the last connection request may take its time.
    start_log w.log "$DLOCK" --ttl 1.5 --connect-timeout 1 "$L" touch ran
    wait_for 5 called_are 1
    t0=$(now_ms)
    freeze
    exits 69 6 "$STARTED"
    assert_between 1400 $(($(now_ms) - t0)) $((4200 + SLOW)) "ms"
    thaw
    wait_for 5 no_sessions
    dead_holder
    t0=$(now_ms)
    start_log w.log "$DLOCK" -w 1.4 --ttl 30 "$L" touch ran
    wait_for 5 called_are 1
    freeze
    exits 75 4 "$STARTED"
    assert_between 1390 $(($(now_ms) - t0)) $((1700 + SLOW)) "ms"
    thaw
    [ ! -e ran ]
    wait_for 5 no_sessions
    run -0 run_t 5 "$DLOCK" -w 2 "$L" true
}

# ------------------------------------------------------------------ roles ---

# bats test_tags=slow
@test "lease table: settings of the role do not matter" {
    local setting r=r${NAME//-/} i last
    sql -c "create schema if not exists odd"
    for setting in "default_transaction_isolation=serializable" "default_transaction_isolation='repeatable read'" \
        "statement_timeout='100ms'" "lock_timeout='50ms'" "search_path=odd" "standard_conforming_strings=off" \
        "client_encoding=LATIN1" "idle_session_timeout='300ms'" "idle_in_transaction_session_timeout='1ms'" \
        "datestyle='German'" "intervalstyle=iso_8601" "extra_float_digits=-15" "timezone='Asia/Kathmandu'" \
        "application_name=mine" "synchronous_commit=remote_apply" "backslash_quote=off" "row_security=off"; do
        sql -c "create role $r login" -c "alter role $r set $setting" \
            -c "grant select, insert, update, delete on public.dlock_locks to $r"
        L="postgres://$r@127.0.0.1:$PG_PORT/postgres?mode=lease#$NAME"
        rm -rf h
        mkdir h
        # For the row, too.
        sql -c "delete from dlock_locks where name = '$NAME'"
        for i in 1 2 3; do
            start_log "w$i.log" bash -c 'for i in 1 2 3; do "$@" || exit; done' - "$DLOCK" --ttl 5 "$L" "$HELPERS/witness" "$T/h" 2
            pids[i]=$STARTED
        done
        for i in 1 2 3; do exits 0 10 "${pids[i]}" || fail "$setting"; done
        run -0 "$ROOT/tests/helpers/check_history.py" "$T/h" 9
        # One that is held: others are told, renewals succeed.
        run -75 run_t 5 "$DLOCK" "$L" "$DLOCK" -n "$L" true
        assert_out "held by pid"
        sql -c "drop owned by $r; drop role $r"
    done
    # A session that cannot write is no place for a lock.
    sql -c "create role $r login" -c "alter role $r set default_transaction_read_only = on"
    run -69 run_t 5 "$DLOCK" "$L" true
    assert_out read-only
}

@test "lease table: time-outs of the role: tries are made again, sessions are opened again" {
    local r=r${NAME//-/} before
    sql -c "create role $r login" -c "alter role $r set statement_timeout = '100ms'" \
        -c "alter role $r set idle_session_timeout = '300ms'" \
        -c "grant select, insert, update, delete on public.dlock_locks to $r"
    L="postgres://$r@127.0.0.1:$PG_PORT/postgres?mode=lease#$NAME"
    hold --ttl 3
    before=$(row "$EXPIRES")
    wait_for 4 row_is_renewed "$before"
    before=$(row "$EXPIRES")
    wait_for 4 row_is_renewed "$before"
    start_log w.log "$DLOCK" --ttl 30 "$L" "$HELPERS/clock" got
    wait_for 5 called_are 1
    let_go
    exits 0 7 "$STARTED"
    block_row
    start_log d.log "$DLOCK" --connect-timeout 5 "$L" touch ran
    # Two of them are cancelled.
    wait_for 5 eval '[ "$(grep -c "canceling statement due to statement timeout" "$PG_LOG")" -ge 2 ]'
    unblock_row
    exits 0 5 "$STARTED"
    [ -e ran ]
}

@test "lease table: names in a database with another encoding; one that it cannot hold is refused" {
    own_server
    sql -c "create database latin template postgres" -c "update pg_database set encoding = pg_char_to_encoding('LATIN1'),
        datcollate = 'C', datctype = 'C', datcollversion = null where datname = 'latin'"
    [ "$(sql -d latin -c 'show server_encoding')" = LATIN1 ]
    L="postgres://$AT/latin?mode=lease#"
    # The note is stored in a form that it can hold.
    run -75 run_t 5 "$DLOCK" --note 'zehn € für x' "${L}käse" "$DLOCK" -n "${L}käse" true
    assert_out "'käse' is held"
    assert_out 'zehn € für x'
    run -0 run_t 5 "$DLOCK" "${L}käse" "$DLOCK" -n "${L}kase" true
    # An error of the server's own words. (A transient one by its code: whoever retries retries in vain.)
    run -69 run_t 5 "$DLOCK" "${L}zehn€" touch ran
    assert_out 'has no equivalent in encoding "LATIN1"'
    [ ! -e ran ]
    run -69 run_t 5 "$DLOCK" --status "${L}zehn€"
    [ "$(sql -d latin -c "select count(*) from dlock_locks where expires > '-infinity'")" = 0 ]
}

# -------------------------------------------------------------- old rows ---

# bats test_tags=slow
@test "lease table: rows that nobody has used for a week go, a few at a time; others never" {
    own_database
    local i week='604800000000' now="(extract(epoch from clock_timestamp()) * 1000000)::bigint"
    run_t 5 "$DLOCK" "$L" true
    in_db -c "insert into dlock_locks values ('crashed', 5, 'x', clock_timestamp() - '8 days'::interval, ''),
            ('crashed lately', 5, 'x', clock_timestamp() - '6 days'::interval, ''),
            ('used lately', $now - $week + 60000000, '', '-infinity', ''),
            ('fence is ahead', 5000000000000000, '', '-infinity', ''),
            ('held', 5, 'x', clock_timestamp() + '1 h'::interval, '')" \
        -c "insert into dlock_locks select 'old' || i, $now - $week - 60000000, '', '-infinity', '' from generate_series(1, 60) i"
    left() { in_db -c "select count(*) from dlock_locks where name like 'old%' or name = 'crashed'"; }
    # A release in a hundred does it: 1500 without one are not to be expected before the end of the world.
    for ((i = 0; i < 300 && $(left) == 61; i++)); do
        run_t 20 bash -c 'for i in 1 2 3 4 5; do "$@" || exit; done' - "$DLOCK" "$L" true
    done
    case $(left) in 41 | 21 | 1) ;; *) fail "$(left) rows are left" ;; esac
    [ "$(in_db -c "select string_agg(name, ', ' order by name) from dlock_locks where name !~ 'old|crashed$'")" = \
        "crashed lately, fence is ahead, held, $NAME, used lately" ]
}

# ----------------------------------------------------------------- status ---

@test "lease table: --status without a table: free, and none is made" {
    own_database
    run -0 run_t 5 "$DLOCK" --status "$L"
    assert_out ": free"
    run -0 run_t 5 "$DLOCK" --status --json "$L"
    assert_out '"state":"free","holders":[],"waiters":[]'
    run -0 run_t 5 "$DLOCK" --status "${L/mode=lease/"mode=lease&table=nowhere.t"}"
    [ -z "$(in_db -c "select to_regclass('public.dlock_locks')")" ]
}

@test "lease table: --status tells the holder, its fence and lease, and who waits" {
    local first second f r=r${NAME//-/}
    hold --ttl 20 --note 'say "hi"'
    f=$(row fence)
    TTL=30 waiter 1 true
    first=$WAITER
    TTL=30 waiter 2 true
    second=$WAITER
    run -75 run_t 5 "$DLOCK" --status --json "$L"
    /usr/bin/python3 -c '
import json, sys
s = json.loads(sys.argv[1])
name, holder, fence, first, second = sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5]), int(sys.argv[6])
assert s["lock"] == name and s["state"] == "held" and len(s["holders"]) == 1, s
h = s["holders"][0]
assert h["pid"] == holder and h["fence"] == fence and h["note"] == "say \"hi\"" and h["command"] == "sh", s
assert 8000 < h["lease_left_ms"] <= 20000, s
assert [(w["place"], w["pid"]) for w in s["waiters"]] == [(1, first), (2, second)], s' \
        "$output" "$NAME" "$HOLDER" "$f" "$first" "$second"
    run -75 run_t 5 "$DLOCK" --status "$L"
    assert_out "pid $HOLDER"
    assert_out "fence: $f"
    assert_out "pid $second"
    # A role that may not read the queries of others sees that there are two.
    sql -c "create role $r login; grant select on dlock_locks to $r"
    run -75 run_t 5 "$DLOCK" --status --json "postgres://$r@127.0.0.1:$PG_PORT/postgres?mode=lease#$NAME"
    assert_out "\"pid\":$HOLDER"
    [ "$(grep -o '"place"' <<<"$output" | wc -l)" = 2 ]
    refute_out "\"pid\":$second"
    # And without a right to the table.
    sql -c "revoke select on dlock_locks from $r"
    run -77 run_t 5 "$DLOCK" --status "postgres://$r@127.0.0.1:$PG_PORT/postgres?mode=lease#$NAME"
    let_go
    exits 0 5 "$first"
    exits 0 5 "$second"
}

@test "lease table: a row that others have written is held, and shown without harm" {
    local text
    for text in '' garbage "dlock1 pid=x" $'dlock1 host=a\e[31m pid=1' '%s%n%00' 'dlock9 pid=1 host=h user=u since=1 cmd=c note='; do
        sql -v t="$text" <<<"insert into dlock_locks values ('$NAME', 7, 'x', clock_timestamp() + '1 h', :'t')
            on conflict (name) do update set holder = excluded.holder"
        run -75 run_t 5 "$DLOCK" --status "$L"
        assert_out held
        refute_out $'\e'
        run -75 run_t 5 "$DLOCK" -n "$L" true
        refute_out $'\e'
        run -75 run_t 5 "$DLOCK" --status --json "$L"
        /usr/bin/python3 -c 'import json, sys; assert len(json.loads(sys.argv[1])["holders"]) == 1' "$output"
    done
}

# ------------------------------------------------------------------- names ---

@test "lease table: odd names and notes: each is a lock of its own, and nothing is executed" {
    local n note="*/ ; drop table dlock_locks; -- '); drop table dlock_locks; \$1 /* \\' \" %s @T @C" enc
    own_database
    enc() { # every byte as %XX
        enc=$(printf %s "$1" | od -An -v -tx1 | tr -d '\n' | tr ' ' %)
    }
    for n in "quote'" "''" 'double"' 'back\' "back\\'" '%' '%s%n' '$1' '@T@W' "'); drop table dlock_locks; --" '*/ select 1; /*' \
        ' ' 'a b' 'a ' 'ä' 'A' 'a' '#' '?mode=advisory' "$(printf '%0255d' 0)" "$(printf '%0255d' 1)" "$(printf 'ä%.0s' {1..127})x"; do
        enc "$n"
        L="postgres://$AT/$DB?mode=lease#$enc"
        run -75 run_t 5 "$DLOCK" -q --note "$note" "$L" "$DLOCK" -q -n "$L" true
        run -75 run_t 5 "$DLOCK" -q --note "$note" "$L" "$DLOCK" --status --json "$L"
        printf '%s\n%s\n' "$n" "$output" >>told
        [ "$(in_db -v n="$n" <<<"select count(*) from dlock_locks where name = :'n'")" = 1 ]
    done
    [ "$(in_db -c 'select count(*) from dlock_locks')" = 22 ]
    /usr/bin/python3 -c 'import json, sys
lines = sys.stdin.read().split("\n")
for name, text in zip(lines[::2], lines[1::2]):
    s = json.loads(text)
    assert s["lock"] == name and s["holders"][0]["note"] == sys.argv[1], (name, s)
assert len(lines) == 45' "$note" <told
    run -64 run_t 5 "$DLOCK" "postgres://$AT/$DB?mode=lease#$(printf '%0256d' 0)" true
}

# ----------------------------------------------------------------- secrets ---

@test "lease table: the command gets no descriptor of ours" {
    run -0 run_t 5 sh -c 'ls /proc/self/fd' # without dlock
    local plain=$output
    run -0 run_t 5 "$DLOCK" "$L" sh -c 'ls /proc/self/fd; ls -l /proc/self/fd >&2'
    refute_out socket:
    run -0 --separate-stderr run_t 5 "$DLOCK" "$L" sh -c 'ls /proc/self/fd'
    [ "$output" = "$plain" ] || fail "$output, not $plain"
}

@test "lease table: a password is in no process list, message, query, row, and not in what the command is given" {
    own_server
    local form pw=c4n4ry-pw port=${PG_PORTS[own]} guard
    sql -c "create role app login superuser password '$pw'"
    printf '%s\n' 'host all postgres 127.0.0.1/32 trust' 'host all all 127.0.0.1/32 scram-sha-256' >"${PG_DIRS[own]}/pg_hba.conf"
    sql -c 'select pg_reload_conf()'
    wait_for 5 file_has "${PG_LOGS[own]}" 'reloading configuration files'
    # Until it is in force.
    wait_for 5 eval '! "$DLOCK" -q "postgres://app@127.0.0.1:'"$port"'/postgres?mode=lease#$NAME" true'
    (umask 077; echo "$pw" >pw)
    for form in "app:$pw@127.0.0.1:$port/postgres?mode=lease" "app@127.0.0.1:$port/postgres?password=$pw&mode=lease" \
        "app@127.0.0.1:$port/postgres?password-file=$T/pw&mode=lease"; do
        L="postgres://$form#$NAME"
        rm -f held go
        start_log hold.log "$DLOCK" -v "$L" sh -c 'env >env; echo >held; "$HELPERS/await" go'
        HOLDER=$STARTED
        wait_for 5 test -e held
        guard=$(children "$HOLDER" | head -n 1)
        start_log w.log "$DLOCK" -v "$L" true
        wait_for 5 called_are 1
        ! grep -qaF c4n4ry "/proc/$HOLDER/cmdline" "/proc/$guard/cmdline" "/proc/$STARTED/cmdline" env || fail "found"
        run -75 run_t 5 "$DLOCK" --status --json "$L"
        refute_out c4n4ry
        sql -c 'select query from pg_stat_activity' -c 'select * from dlock_locks' >rows
        let_go
        exits 0 5 "$STARTED"
        ! grep -F c4n4ry hold.log w.log rows || fail "found"
        # A wrong one is not shown either.
        [ "${form/"$pw"/}" = "$form" ] || {
            run -77 run_t 5 "$DLOCK" -v "${L/"$pw"/c4n4ry-no}" true
            refute_out c4n4ry
        }
    done
    ! grep -v '\[pgsql\]' "${PG_LOGS[own]}" | grep -F c4n4ry || fail "found"
}
