#!/usr/bin/env bats
# postgres.bats - advisory locks in a real PostgreSQL server: who excludes whom, what waiting costs the server,
# whom it lets in, what is said. Faults are in pgfaults.bats, ?mode=lease in a file of its own.

load lib/common
load lib/postgres

setup_file() {
    export BATS_NO_PARALLELIZE_WITHIN_FILE=true
    pg_start
}
teardown_file() { pg_stop_all; }

setup() {
    dlock_setup
    U="postgres://postgres@127.0.0.1:$PG_PORT/postgres"
    L="$U#$NAME"
}
teardown() { dlock_teardown; }

# ---------------------------------------------------------------- helpers ---

# own_server [ARG...]: one for this test; pgsql and the others then mean this one.
own_server() {
    pg_start_in own "$@"
    PG_PORT=${PG_PORTS[own]} PG_LOG=${PG_LOGS[own]} PG_SOCK=${PG_SOCKS[own]}
    U="postgres://postgres@127.0.0.1:$PG_PORT/postgres"
    L="$U#$NAME"
}

# The manual's statement, for the name $1.
key_of() {
    pgsql -v name="$1" <<<"SELECT ('x' || substr(encode(sha256(
        convert_to(:'name', 'UTF8')), 'hex'), 1, 16))::bit(64)::bigint"
}
app_of() { echo "dlock:$(printf %s "$1" | sha256sum | cut -c 1-16)"; }

# Sessions of $NAME: those that wait (also in the moment between two chunks), the one that holds.
waiting() {
    pgsql -c "select count(*) from pg_stat_activity where application_name = '$(app_of "$NAME")'
        and query like '/* dlock1 % wait=%'"
}
waiting_is() { [ "$(waiting)" = "$1" ]; }
sessions() { pg_backends "$(app_of "$NAME")"; }
sessions_are() { [ "$(sessions)" = "$1" ]; }
locks() { pgsql -c "select count(*) from pg_locks where locktype = 'advisory' and $1"; }
locks_are() { [ "$(locks "$1")" = "$2" ]; }

# hold [ARG...]: dlock holds $L until the file "go" appears; returns when it does hold.
hold() {
    rm -f held go
    start_log hold.log "$DLOCK" "$@" "$L" sh -c 'echo >held; "$HELPERS/await" go'
    HOLDER=$STARTED
    wait_for 5 test -e held
}
let_go() {
    echo >go
    wait_exit 5 "$HOLDER"
}

# sql_hold EXPR [PGAPPNAME]: psql holds that key until the file "sql-go" appears.
sql_hold() {
    rm -f locked sql-go
    printf '%s\n' "SELECT pg_advisory_lock($1);" '\! echo >locked; "$HELPERS/await" sql-go' >hold.sql
    PGAPPNAME=psql start_log psql.log pg_session -f "$T/hold.sql"
    PSQL=$STARTED
    wait_for 5 test -e locked || { cat psql.log; false; }
}
sql_let_go() {
    echo >sql-go
    wait_exit 5 "$PSQL"
}

# wait_in_line N CMD...: a waiter for $L, the N-th of them.
wait_in_line() {
    local n=$1
    shift
    start_log "wait$n.log" "$DLOCK" "$L" "$@"
    WAITER=$STARTED
    wait_for 5 waiting_is "$n"
}

# -------------------------------------------------------------- exclusion ---

@test "postgres: the command runs under the lock, and nothing is left afterwards" {
    run run_t 5 "$DLOCK" "$L" "$PG_BIN/psql" -XAtq -h 127.0.0.1 -p "$PG_PORT" -U postgres -d postgres \
        -c "select count(*) from pg_locks where locktype = 'advisory' and granted and mode = 'ExclusiveLock' and
            (classid::bigint << 32 | objid::bigint) = $(key_of "$NAME") and objsubid = 1"
    assert_rc 0
    [ "$output" = 1 ]
    wait_for 2 sessions_are 0
    locks_are true 0
}

@test "postgres: a program that locks the documented key and dlock exclude each other" {
    local name uri key
    # The name as it is, and as the URI has it.
    for name in "$NAME" "käse/$NAME" "%$NAME 'x'" "日本$NAME"; do
        uri=$(/usr/bin/python3 -c 'import sys, urllib.parse; print(urllib.parse.quote(sys.argv[1], safe=""))' "$name")
        L="$U#$uri"
        key=$(key_of "$name")
        sql_hold "$key"
        run run_t 5 "$DLOCK" -n "$L" touch "$T/ran"
        assert_rc 75
        [ ! -e ran ]
        assert_out "(psql)"
        sql_let_go
        run run_t 5 "$DLOCK" -n "$L" "$PG_BIN/psql" -XAtq -h 127.0.0.1 -p "$PG_PORT" -U postgres -d postgres \
            -c "select pg_try_advisory_lock($key)"
        assert_rc 0
        [ "$output" = f ]
        [ "$(pgsql -c "select pg_try_advisory_lock($key)")" = t ]
    done
}

@test "postgres: a waiter gets the lock when psql lets it go, and the other way round" {
    local key t0
    key=$(key_of "$NAME")
    sql_hold "$key"
    start_log w.log "$DLOCK" "$L" "$HELPERS/clock" "$T/got"
    local waiter=$STARTED
    wait_for 5 waiting_is 1
    "$HELPERS/clock" t0
    sql_let_go
    wait_exit 5 "$waiter"
    assert_between 0 $((($(cat got) - $(cat t0)) / 1000000)) $((200 + SLOW)) "hand-off (ms)"
    # A psql that waits does not come before the command has ended.
    hold
    printf '%s\n' "SELECT pg_advisory_lock($key);" '\! test -e go && echo >in-time' >wait.sql
    start_log psql.log pg_session -f "$T/wait.sql"
    wait_for 5 locks_are 'not granted' 1
    let_go
    wait_exit 5 "$STARTED"
    [ -e in-time ]
}

@test "postgres: ?key=N and ?key=N,N are those of other programs" {
    local k sql
    for k in 42 -42 0 9223372036854775807 -9223372036854775808 4294967296 1,2 -1,2 1,-2147483648 2147483647,-1; do
        case $k in
        *,*) sql="'${k%,*}'::int, '${k#*,}'::int" ;;
        *) sql="'$k'::bigint" ;;
        esac
        L="$U?key=$k#$NAME"
        run run_t 5 "$DLOCK" "$L" "$PG_BIN/psql" -XAtq -h 127.0.0.1 -p "$PG_PORT" -U postgres -d postgres \
            -c "select pg_try_advisory_lock($sql)"
        assert_rc 0
        [ "$output" = f ] || fail "$k: $output"
        sql_hold "$sql"
        run run_t 5 "$DLOCK" -n "$L" true
        assert_rc 75
        assert_out psql
        run run_t 5 "$DLOCK" --status "$L"
        assert_rc 75
        sql_let_go
        run run_t 5 "$DLOCK" --status "$L"
        assert_rc 0
    done
}

@test "postgres: a 64-bit key and two 32-bit keys of the same bits are different locks" {
    run run_t 5 "$DLOCK" "$U?key=4294967298#$NAME" "$DLOCK" -n "$U?key=1,2#$NAME" echo both
    assert_rc 0
    assert_out both
    run run_t 5 "$DLOCK" "$U?key=4294967298#$NAME" "$DLOCK" -q -n "$U?key=4294967298#other" true
    assert_rc 75
    L="$U?key=4294967298#$NAME"
    hold
    run run_t 5 "$DLOCK" --status "$U?key=1,2#$NAME"
    assert_rc 0
    let_go
}

@test "postgres: keys that are none are refused: 64" {
    local k
    for k in '' x 1x 1, ,1 1,2,3 1,x 9223372036854775808 -9223372036854775809 2147483648,1 1,-2147483649 - 1,- ' 1' +1; do
        run run_t 5 "$DLOCK" "$U?key=${k// /%20}#$NAME" touch ran
        assert_rc 64
        assert_out "key="
        [ ! -e ran ]
    done
}

@test "postgres: another database has locks of its own" {
    pgsql -c "create database \"$NAME\" template postgres"
    run run_t 5 "$DLOCK" "$L" "$DLOCK" -n "postgres://postgres@127.0.0.1:$PG_PORT/$NAME#$NAME" echo both
    assert_rc 0
    assert_out both
    hold
    run run_t 5 "$DLOCK" --status "postgres://postgres@127.0.0.1:$PG_PORT/$NAME#$NAME"
    assert_rc 0
    let_go
    pgsql -c "drop database \"$NAME\" with (force)"
}

@test "postgres: the command gets none of our descriptors, so not the session's socket" {
    run run_t 5 ls -l /proc/self/fd
    local before=${#lines[@]}
    run run_t 5 "$DLOCK" "$L" ls -l /proc/self/fd
    assert_rc 0
    refute_out socket
    [ "${#lines[@]}" -eq "$before" ] || fail "$output"
}

# ---------------------------------------------------------------- waiting ---

@test "postgres: CREATE INDEX CONCURRENTLY in the command does not wait for our waiters" {
    local i
    pgsql -c "create table \"$NAME\" as select g as a from generate_series(1, 100) g"
    start_log hold.log "$DLOCK" "$L" sh -c 'echo >held; "$HELPERS/await" go
        exec "$0" "$@"' "$PG_BIN/psql" -XAtq -h 127.0.0.1 -p "$PG_PORT" -U postgres -d postgres \
        -c "create index concurrently on \"$NAME\" (a)"
    HOLDER=$STARTED
    wait_for 5 test -e held
    for i in 1 2 3 4 5; do wait_in_line $i true; done
    local t0
    t0=$(now_ms)
    let_go
    assert_between 0 $(($(now_ms) - t0)) $((4500 + SLOW)) "time (ms)"
    pgsql -c "drop table \"$NAME\""
}

@test "postgres: with ?fair=1 CREATE INDEX CONCURRENTLY in the command hangs on the waiters" {
    pgsql -c "create table \"$NAME\" as select g as a from generate_series(1, 100) g"
    L="$U?fair=1#$NAME"
    start_log hold.log "$DLOCK" "$L" sh -c 'echo >held; "$HELPERS/await" go
        exec "$0" "$@"' "$PG_BIN/psql" -XAtq -h 127.0.0.1 -p "$PG_PORT" -U postgres -d postgres \
        -c "set statement_timeout = '2s'" -c "create index concurrently on \"$NAME\" (a)"
    HOLDER=$STARTED
    wait_for 5 test -e held
    wait_in_line 1 true
    # It stands in the server's queue, with a snapshot.
    wait_for 5 locks_are 'not granted' 1
    local rc=0
    echo >go
    wait_exit 8 "$HOLDER" || rc=$?
    [ $rc -eq 1 ]
    file_has hold.log "statement timeout"
    wait_exit 5 "$WAITER"
    pgsql -c "drop table \"$NAME\""
}

@test "postgres: with ?fair=1 six waiters are served in the order they came" {
    local i
    L="$U?fair=1#$NAME"
    hold
    for i in 1 2 3 4 5 6; do
        start_log "w$i.log" "$DLOCK" "$L" sh -c "echo $i >>order"
        wait_for 5 locks_are 'not granted' $i
    done
    let_go
    wait_exit 10 "$STARTED"
    [ "$(tr -d '\n' <order)" = 123456 ]
}

# bats test_tags=slow
@test "postgres: 100 waiters: at most 1.2 statements a second each" {
    local i n0 n1 t0
    hold
    for i in $(seq 100); do
        start_log "w$i.log" "$DLOCK" "$L" sh -c 'echo >>order'
    done
    wait_for 30 waiting_is 100
    n0=$(pg_statements)
    t0=$(now_ms)
    sleep 5 # what is measured
    n1=$(pg_statements)
    t0=$(($(now_ms) - t0))
    echo "# $((n1 - n0)) statements of 100 waiters in $t0 ms" >&3
    # And they do ask.
    assert_between $((100 * t0 * 5 / 10000)) $((n1 - n0)) $((100 * t0 * 12 / 10000)) "statements"
    let_go
    wait_for 30 eval '[ "$(wc -l <order)" = 100 ]'
    wait_for 5 sessions_are 0
}

# bats test_tags=slow
@test "postgres: waiting writes no line into the server's log" {
    local i lines0
    own_server -c log_statement=none -c log_lock_waits=on -c log_checkpoints=off
    hold
    for i in $(seq 20); do
        # Two of them stand in line for longer than deadlock_timeout: log_lock_waits tells of these.
        start_log "w$i.log" "$DLOCK" "$L" sh -c 'echo >>order'
    done
    wait_for 15 waiting_is 20
    lines0=$(wc -l <"$PG_LOG")
    sleep 5 # what is measured
    [ "$(wc -l <"$PG_LOG")" = "$lines0" ] || fail "$(tail -n +$((lines0 + 1)) "$PG_LOG")"
    let_go
    wait_for 15 eval '[ "$(wc -l <order)" = 20 ]'
    wait_for 5 sessions_are 0
    [ "$(wc -l <"$PG_LOG")" = "$lines0" ] || fail "$(tail -n +$((lines0 + 1)) "$PG_LOG")"
}

@test "postgres: a killed waiter's session is gone within 2 s" {
    local p t0
    hold
    for p in '' '?fair=1'; do
        start_log w.log "$DLOCK" "$U$p#$NAME" true
        wait_for 5 waiting_is 1
        kill -KILL "$STARTED"
        t0=$(now_ms)
        wait_for 5 sessions_are 1
        assert_between 0 $(($(now_ms) - t0)) 2000 "$p: time (ms)"
    done
    let_go
}

@test "postgres: a waiter that gets TERM, or whose time is over, leaves within 0.5 s, and no word in the log" {
    local p t0 rc lines0
    own_server -c log_statement=none -c log_lock_waits=on -c log_checkpoints=off -c deadlock_timeout=100s
    hold
    lines0=$(wc -l <"$PG_LOG")
    for p in '' '?fair=1'; do
        start_log w.log "$DLOCK" "$U$p#$NAME" touch ran
        wait_for 5 waiting_is 1
        kill -TERM "$STARTED"
        t0=$(now_ms)
        rc=0
        wait_exit 5 "$STARTED" || rc=$?
        [ $rc -eq 143 ]
        wait_for 5 sessions_are 1
        assert_between 0 $(($(now_ms) - t0)) $((500 + SLOW)) "TERM $p: time (ms)"
        t0=$(now_ms)
        run run_t 5 "$DLOCK" -w 1.3 "$U$p#$NAME" touch ran
        assert_rc 75
        wait_for 5 sessions_are 1
        assert_between 1280 $(($(now_ms) - t0)) $((1800 + SLOW)) "-w $p: time (ms)"
    done
    [ "$(wc -l <"$PG_LOG")" = "$lines0" ] || fail "$(tail -n +$((lines0 + 1)) "$PG_LOG")"
    let_go
    [ ! -e ran ]
    wait_for 2 sessions_are 0
    [ "$(wc -l <"$PG_LOG")" = "$lines0" ] || fail "$(tail -n +$((lines0 + 1)) "$PG_LOG")"
}

# ------------------------------------------------------------------ roles ---

# role [SETTING...]: a role that may connect and nothing else; its URI becomes ours.
role() {
    local s
    ROLE=${NAME//-/_}
    pgsql -c "create role $ROLE login nosuperuser nocreatedb nocreaterole"
    for s; do pgsql -c "alter role $ROLE set ${s%%=*} = '${s#*=}'"; done
    U="postgres://$ROLE@127.0.0.1:$PG_PORT/postgres"
    L="$U#$NAME"
}

# In a database where nobody else has a right to anything.
bare_database() {
    pgsql -c "create database \"$NAME\" template postgres"
    pgsql -d "$NAME" -c "revoke all on schema public from public" -c "revoke temp on database \"$NAME\" from public"
    U="${U%/*}/$NAME"
    L="$U#$NAME"
}

# A hold and a wait for longer than a chunk, a poll, a ttl; $took: the hand-off (ms).
hold_and_wait() {
    local t0 n
    hold --ttl 1.5
    rm -f fence
    start_log w.log "$DLOCK" "$L" sh -c 'echo $DLOCK_FENCE >fence'
    wait_for 5 sessions_are 2
    n=$(pg_statements)
    sleep 2 # that long
    pid_alive "$HOLDER"
    sessions_are 2
    # A renewal every 0.4 s, two or three chunks.
    assert_between 4 $(($(pg_statements) - n)) 13 "statements"
    run run_t 5 "$DLOCK" --status "$L"
    assert_rc 75
    assert_out "pid $HOLDER"
    t0=$(now_ms)
    let_go
    wait_exit 5 "$STARTED"
    took=$(($(now_ms) - t0))
    [ "$(cat fence)" -gt 0 ]
    [ ! -s hold.log ] && [ ! -s w.log ]
}

@test "postgres: a role that may connect and nothing else can do everything" {
    role
    bare_database
    hold_and_wait
    assert_between 0 $took $((400 + SLOW)) "hand-off (ms)"
    pgsql -c "drop database \"$NAME\" with (force)"
}

# bats test_tags=slow
@test "postgres: time-outs and the like of the role's own neither end a wait nor a hold" {
    role statement_timeout=100ms lock_timeout=50ms default_transaction_isolation=serializable synchronous_commit=off \
        idle_session_timeout=200ms idle_in_transaction_session_timeout=50ms intervalstyle=iso_8601 \
        standard_conforming_strings=off search_path=nowhere bytea_output=escape
    hold_and_wait
    assert_between 0 $took $((400 + SLOW)) "hand-off (ms)"
    L="$U?fair=1#$NAME"
    hold_and_wait
}

@test "postgres: a role whose transactions are read-only is refused, and the message says so" {
    role default_transaction_read_only=on
    run run_t 10 "$DLOCK" --connect-timeout 2 "$L" touch ran
    assert_rc 69
    assert_out "read-only"
    [ ! -e ran ]
}

# bats test_tags=slow
@test "postgres: where PL/pgSQL may not be used, a waiter asks once a second" {
    role
    bare_database
    pgsql -d "$NAME" -c "revoke usage on language plpgsql from public"
    hold_and_wait
    assert_between 0 $took $((2000 + SLOW)) "hand-off (ms)"
    pgsql -d "$NAME" -c "drop extension plpgsql cascade"
    hold_and_wait
    assert_between 0 $took $((2000 + SLOW)) "hand-off without the language (ms)"
    # It leaves at once, too.
    hold
    local t0
    t0=$(now_ms)
    run run_t 5 "$DLOCK" -w 0.5 "$L" true
    assert_rc 75
    assert_between 480 $(($(now_ms) - t0)) $((1000 + SLOW)) "-w (ms)"
    let_go
    pgsql -c "drop database \"$NAME\" with (force)"
}

# ----------------------------------------------------------------- status ---

@test "postgres: --status shows holder, fence, lease, note, and the waiters of ?fair=1 in order" {
    local i pids=()
    L="$U?fair=1#$NAME"
    hold --ttl 3 --note "the note"
    start_log w1.log "$DLOCK" --note "first" "$L" true
    pids+=("$STARTED")
    wait_for 5 locks_are 'not granted' 1
    start_log w2.log "$DLOCK" --note "second" "$L" true
    pids+=("$STARTED")
    wait_for 5 locks_are 'not granted' 2
    # The fence stands in the first renewal.
    wait_for 5 eval '"$DLOCK" --status --json "$L" | grep -q fence'
    run run_t 5 "$DLOCK" --status --json "$L"
    assert_rc 75
    [ "${#lines[@]}" = 1 ]
    /usr/bin/python3 -c '
import json, sys
s = json.loads(sys.argv[1])
h, w = s["holders"], s["waiters"]
assert s["state"] == "held" and s["lock"] == sys.argv[2], s
assert len(h) == 1 and len(w) == 2, s
assert h[0]["pid"] == int(sys.argv[3]) and h[0]["note"] == "the note" and "kind" not in h[0], s
assert int(h[0]["fence"]) > 2 ** 48 and 0 < h[0]["lease_left_ms"] <= 3000, s
assert [x["place"] for x in w] == [1, 2] and [x["note"] for x in w] == ["first", "second"], s
assert [x["pid"] for x in w] == [int(x) for x in sys.argv[4:]], s
assert not any("fence" in x or "lease_left_ms" in x for x in w), s
' "$output" "$NAME" "$HOLDER" "${pids[@]}"
    run run_t 5 "$DLOCK" --status "$L"
    assert_rc 75
    assert_out "pid $HOLDER"
    assert_out "the note"
    let_go
    wait_exit 5 "${pids[1]}"
    run run_t 5 "$DLOCK" --status "$L"
    assert_rc 0
}

@test "postgres: the fence that --status shows is the command's" {
    hold --ttl 1
    start_log f.log "$DLOCK" --ttl 1 "$U#$NAME.2" sh -c 'echo $DLOCK_FENCE >fence; "$HELPERS/await" go'
    wait_for 5 test -s fence
    wait_for 5 eval '"$DLOCK" --status --json "$U#$NAME.2" | grep -qF "\"$(cat fence)\""'
    let_go
    wait_exit 5 "$STARTED"
}

@test "postgres: --status of waiters that ask in chunks never lacks one" {
    local i
    hold
    for i in 1 2 3; do wait_in_line $i true; done
    listed() { "$DLOCK" --status --json "$L" | grep -o '"place"' | wc -l; }
    for i in $(seq 20); do
        [ "$(listed)" = 3 ] || fail "$("$DLOCK" --status "$L")"
    done
    # One that is between two chunks for longer: the server does not hear from it.
    kill -STOP "$WAITER"
    wait_for 5 eval 'pgsql -c "select state from pg_stat_activity where query like '"'%pid=$WAITER % wait=%'"'" | grep -qx idle'
    [ "$(listed)" = 3 ] || fail "$("$DLOCK" --status "$L")"
    [ "$("$DLOCK" --status "$L" | grep -c "pid $WAITER ")" = 1 ]
    kill -CONT "$WAITER"
    let_go
}

@test "postgres: --status of a foreign holder and a foreign waiter" {
    local key
    key=$(key_of "$NAME")
    sql_hold "$key"
    start_log psql2.log pg_session -c "select pg_advisory_lock_shared($key)"
    wait_for 5 locks_are 'not granted' 1
    run run_t 5 "$DLOCK" --status --json "$L"
    assert_rc 75
    /usr/bin/python3 -c '
import json, sys
s = json.loads(sys.argv[1])
h, w = s["holders"], s["waiters"]
assert len(h) == 1 and h[0]["kind"] == "foreign" and h[0]["command"] == "psql" and h[0]["user"] == "postgres", s
assert len(w) == 1 and w[0]["kind"] == "foreign" and w[0]["command"] == "pgsql", s
assert "lease_left_ms" not in h[0] and "fence" not in h[0], s' "$output"
    run run_t 5 "$DLOCK" --status "$L"
    assert_rc 75
    assert_out psql
    sql_let_go
}

@test "postgres: --status by a role that may not read the holder's query: its session's number" {
    hold --note hidden
    local pid
    pid=$(pgsql -c "select pid from pg_locks where locktype = 'advisory'")
    role
    run run_t 5 "$DLOCK" --status --json "$L"
    assert_rc 75
    refute_out hidden
    refute_out foreign
    assert_out "\"pid\":$pid"
    # Waiting, too, and -n.
    run run_t 5 "$DLOCK" -n "$L" true
    assert_rc 75
    assert_out "$pid"
    run run_t 5 "$DLOCK" -w 1.2 "$L" true
    assert_rc 75
    let_go
}

# -------------------------------------------------------- errors, servers ---

# fails CODE TEXT ARG...: dlock ARG... touch ran
fails() {
    local code=$1 text=$2
    shift 2
    run run_t 10 "$DLOCK" "$@" touch ran
    assert_rc "$code"
    assert_out "$text"
    [ "${#lines[@]}" = 1 ] || fail "more than a line: $output"
    [[ $output == dlock:\ * ]]
    [ ! -e ran ]
}

@test "postgres: no server 69, no such database 69, no such role 77, unknown parameters 64" {
    fails 69 "127.0.0.1:1" "postgres://127.0.0.1:1/x#$NAME"
    fails 69 refused "postgres://127.0.0.1:1/x#$NAME"
    fails 69 nodb "postgres://postgres@127.0.0.1:$PG_PORT/nodb#$NAME"
    fails 77 norole "postgres://norole@127.0.0.1:$PG_PORT/postgres#$NAME"
    fails 64 nosuchparam "$U?nosuchparam=1#$NAME"
    fails 64 mode "$U?mode=other#$NAME"
    fails 64 fair "$U?fair=2#$NAME"
    fails 64 renew "$U?renew=1#$NAME"
    fails 64 duration "$U?restart-grace=x#$NAME"
    fails 64 table "$U?table=public.x#$NAME"
    fails 64 port "$U?port=1#$NAME"
    fails 64 shared -s "$L"
    fails 64 "24 days" --ttl 25d "$L"
    fails 69 no/where "postgres:///postgres?host=/no/where#$NAME"
    PGSERVICE=nosuch fails 64 nosuch "postgres:///postgres#$NAME"
    run run_t 5 "$DLOCK" --schema "$L"
    assert_rc 64
    # libpq's own names are known.
    run run_t 5 "$DLOCK" "$U?sslmode=disable&connect_timeout=3&application_name=mine&keepalives=1#$NAME" true
    assert_rc 0
    run run_t 5 "$DLOCK" "$U?options=-csearch_path%3Dx&gssencmode=disable#$NAME" true
    assert_rc 0
}

# with_passwords: an own server that asks for them; the role "u" has $PW.
with_passwords() {
    own_server
    PW=c4nary-Right%x
    pgsql -c "create role u login password '$PW'"
    printf '%s\n' 'local all all trust' 'host all u 127.0.0.1/32 scram-sha-256' \
        'host all all 127.0.0.1/32 trust' >"${PG_DIRS[own]}/pg_hba.conf"
    pgsql -c "select pg_reload_conf()"
    wait_for 5 eval '! "$PG_BIN/psql" -w -h 127.0.0.1 -p "$PG_PORT" -U u -d postgres -c "select 1"'
    H=127.0.0.1:$PG_PORT/postgres
}

@test "postgres: a wrong password or none is 77; the right one from anywhere; it is in no message" {
    with_passwords
    fails 77 "password" "postgres://u:c4nary-wrong@$H#$NAME"
    refute_out c4nary
    fails 77 "password" -v "postgres://u@$H#$NAME"
    works() {
        run run_t 5 "$DLOCK" "$@" true
        assert_rc 0
        [ -z "$output" ]
    }
    works "postgres://u:c4nary-Right%25x@$H#$NAME"
    PGPASSWORD=$PW works "postgres://u@$H#$NAME"
    PGPASSWORD=$PW PGUSER=u works "postgres://$H#$NAME"
    echo "127.0.0.1:$PG_PORT:*:u:$PW" >pass
    chmod 600 pass
    PGPASSFILE=$T/pass works "postgres://u@$H#$NAME"
    printf '%s\n' '[here]' host=127.0.0.1 port="$PG_PORT" user=u dbname=postgres password="$PW" >service
    PGSERVICEFILE=$T/service PGSERVICE=here works "postgres://#$NAME"
    PGSERVICEFILE=$T/service works "postgres://?service=here#$NAME"
    PGHOST=127.0.0.1 PGPORT=$PG_PORT PGUSER=u PGPASSWORD=$PW PGDATABASE=postgres works "postgres://#$NAME"
    printf '%s\n' "$PW" >pw
    chmod 644 pw
    fails 77 "chmod 600" "postgres://u@$H?password-file=$T/pw#$NAME"
    chmod 600 pw
    works "postgres://u@$H?password-file=$T/pw#$NAME"
    fails 77 "password" "postgres://u:c4nary-wrong@$H?password-file=$T/pw#$NAME"
    refute_out c4nary
}

@test "postgres: the password is neither in the arguments, nor in what the server shows or logs" {
    with_passwords
    local lines0
    lines0=$(wc -l <"$PG_LOG")
    L="postgres://u:c4nary-Right%25x@$H#$NAME"
    hold --ttl 1 -v
    start_log w.log "$DLOCK" -v "$L" true
    wait_for 5 waiting_is 1
    wait_for 5 eval 'pgsql -c "select query from pg_stat_activity" | grep -q " fence="'
    ! pgsql -c "select * from pg_stat_activity" | grep -iF c4nary || fail "found"
    ! tail -n +$((lines0 + 1)) "$PG_LOG" | grep -iF c4nary || fail "found"
    for pid in $HOLDER $STARTED $(children "$HOLDER"); do
        ! tr '\0' ' ' <"/proc/$pid/cmdline" | grep -iF c4nary || fail "found"
    done
    run run_t 5 "$DLOCK" --status --json "$L"
    assert_rc 75
    refute_out c4nary
    refute_out Right
    let_go
    wait_exit 5 "$STARTED"
    ! grep -iF c4nary hold.log w.log || fail "found"
}

@test "postgres: Unix sockets, in the URI and from libpq's variables" {
    run run_t 5 "$DLOCK" "postgres://postgres@/postgres?host=${PG_SOCK//\//%2F}&port=$PG_PORT#$NAME" \
        "$DLOCK" -q -n "$L" true
    assert_rc 75
    PGHOST=$PG_SOCK PGPORT=$PG_PORT PGUSER=postgres run run_t 5 "$DLOCK" "postgres:///postgres#$NAME" "$DLOCK" -q -n "$L" true
    assert_rc 75
    run run_t 5 "$DLOCK" "postgresql://postgres@/postgres?host=$PG_SOCK,127.0.0.1&port=1,$PG_PORT#$NAME" "$DLOCK" -q -n "$L" true
    assert_rc 75
    run run_t 5 "$DLOCK" "postgres://postgres@/postgres?hostaddr=127.0.0.1&port=$PG_PORT#$NAME" "$DLOCK" -q -n "$L" true
    assert_rc 75
    run run_t 5 "$DLOCK" "postgres://postgres@localhost:$PG_PORT/postgres#$NAME" "$DLOCK" -q -n "$L" true
    assert_rc 75
}

@test "postgres: several hosts: one dead, one silent, then the server" {
    local t0
    start /usr/bin/python3 -c '
import signal, socket
s = socket.create_server(("127.0.0.1", 0))
print(s.getsockname()[1], flush=True)
signal.pause()' >silent
    wait_for 5 test -s silent
    L="postgres://postgres@127.0.0.1:1,127.0.0.1:$(cat silent),127.0.0.1:$PG_PORT/postgres#$NAME"
    t0=$(now_ms)
    run run_t 10 "$DLOCK" --connect-timeout 2 "$L" echo ran
    assert_rc 0
    assert_out ran
    assert_between 900 $(($(now_ms) - t0)) $((1500 + SLOW)) "time (ms)"
    t0=$(now_ms)
    fails 69 "no answer" --connect-timeout 0.6 "postgres://postgres@127.0.0.1:$(cat silent)/postgres#$NAME"
    assert_between 580 $(($(now_ms) - t0)) $((1000 + SLOW)) "time (ms)"
}

@test "postgres: too many connections: tried again until the connect time-out, then 69, and named" {
    own_server -c max_connections=5 -c superuser_reserved_connections=3 -c max_wal_senders=0
    role
    local t0
    hold
    start_log w.log pg_session -U "$ROLE" -c '\! echo >second; "$HELPERS/await" sql-go'
    wait_for 5 test -e second
    t0=$(now_ms)
    fails 69 "connection" --connect-timeout 1 "$U#$NAME.2"
    assert_between 950 $(($(now_ms) - t0)) $((1600 + SLOW)) "time (ms)"
    echo "# $output" >&3
    # One leaves in the meantime.
    start_log w2.log "$DLOCK" --connect-timeout 9 "$U#$NAME.2" true
    wait_for 5 eval '[ "$(grep -c "FATAL: .*connection" "$PG_LOG")" -ge 8 ]'
    let_go
    wait_exit 5 "$STARTED"
    [ ! -s w2.log ]
    echo >sql-go
}

@test "postgres: a pooler is noticed before anything is set or locked: 64" {
    local mode
    for mode in transaction session statement; do
        pgb_start $mode
        L="postgres://postgres@127.0.0.1:$PGB_PORT/postgres#$NAME"
        fails 64 mode=lease -w 5 "$L"
        locks_are true 0
        # The session that the next one gets is as it was.
        [ "$("$PG_BIN/psql" -XAtq -h 127.0.0.1 -p "$PGB_PORT" -U postgres -d postgres \
            -c 'show idle_session_timeout' -c 'show statement_timeout' | tr '\n' ' ')" = "0 0 " ]
        # To look does no harm.
        run run_t 5 "$DLOCK" --status "$L"
        assert_rc 0
    done
}

@test "postgres: restart-grace: a server that was just started grants nothing; who waits gets it in time" {
    own_server
    L="$U?restart-grace=5#$NAME"
    run run_t 5 "$DLOCK" -n "$L" touch ran
    assert_rc 75
    assert_out restart-grace
    [ ! -e ran ]
    # Without it there is no such thing.
    run run_t 5 "$DLOCK" -n "$U#$NAME" true
    assert_rc 0
    run run_t 15 "$DLOCK" "$L" "$PG_BIN/psql" -XAtq -h 127.0.0.1 -p "$PG_PORT" -U postgres -d postgres \
        -c "select 'up for ', clock_timestamp() - pg_postmaster_start_time() between '5 s' and '8 s'"
    assert_rc 0
    assert_out restart-grace
    assert_out "up for |t"
    run run_t 5 "$DLOCK" -n "$L" true
    assert_rc 0
    [ -z "$output" ]
}

@test "postgres: a server that is starting is waited for; the fence is larger on the new timeline" {
    own_server
    local before after
    before=$(run_t 5 "$DLOCK" "$L" sh -c 'echo $DLOCK_FENCE')
    pg_stop own
    # Archive recovery that lasts until the file appears.
    : >"${PG_DIRS[own]}/recovery.signal"
    chmod 666 "${PG_DIRS[own]}/recovery.signal"
    start_log starting.log sh -c 'until "$1" -XAt -h 127.0.0.1 -p "$2" -U postgres -d postgres -c "select 1" 2>&1 |
            grep "starting up"; do sleep .02; done
        "$DLOCK" --connect-timeout 0.5 "$3" touch ran; echo "rc=$?"
        "$DLOCK" --connect-timeout 20 "$3" sh -c "echo \$DLOCK_FENCE >after" &
        sleep .5
        echo >"$4/goes-on"
        wait $!; echo "rc=$?"' - "$PG_BIN/psql" "$PG_PORT" "$L" "$PG_SOCK"
    local script=$STARTED
    pg_restart own fast -c restore_command="while [ ! -e '$PG_SOCK/goes-on' ]; do sleep .05; done; false"
    wait_exit 10 "$script"
    cat starting.log
    [ "$(grep rc= starting.log | tr '\n' ' ')" = "rc=69 rc=0 " ]
    grep '^dlock:' starting.log | grep -q "starting up"
    [ ! -e ran ]
    [ "$(cat after)" -gt "$before" ]
    [ $(($(cat after) >> 48)) -gt $((before >> 48)) ]
}

@test "postgres: a standby is refused; one that is promoted grants larger fences" {
    own_server
    local dir before after i
    # So that the old timeline's log is ahead of where the new one begins.
    before=$(run_t 5 "$DLOCK" "$L" sh -c 'echo $DLOCK_FENCE')
    dir=$(pg_folder)
    PG_SOCKS[standby]=$dir PG_DIRS[standby]=$dir/data PG_LOGS[standby]=$dir/log PG_PORTS[standby]=$(pg_port)
    (cd / && "${pg_as[@]}" "$PG_BIN/pg_basebackup" -D "$dir/data" -h 127.0.0.1 -p "$PG_PORT" -U postgres -c fast --no-sync -R) 3>&-
    before=$(run_t 5 "$DLOCK" "$L" sh -c 'echo $DLOCK_FENCE')
    # It says "standby" where pg_launch waits for "ready".
    eval "$(declare -f pg_ready | sed 's/ready\*/@(ready|standby)*/')"
    pg_launch standby
    fails 69 "" --connect-timeout 2 "postgres://postgres@127.0.0.1:${PG_PORTS[standby]}/postgres#$NAME"
    echo "# $output" >&3
    # The primary is taken, whatever the order.
    run run_t 5 "$DLOCK" "postgres://postgres@127.0.0.1:${PG_PORTS[standby]},127.0.0.1:$PG_PORT/postgres#$NAME" \
        "$DLOCK" -q -n "$L" true
    assert_rc 75
    wait_for 5 eval '[ "$(pgsql -c "select pg_current_wal_lsn() = replay_lsn from pg_stat_replication")" = t ]'
    before=$(run_t 5 "$DLOCK" "$L" sh -c 'echo $DLOCK_FENCE')
    pg_kill own
    pgsql_in standby -c "select pg_promote()"
    for i in 1 2; do
        after=$(run_t 5 "$DLOCK" "postgres://postgres@127.0.0.1:${PG_PORTS[standby]}/postgres#$NAME" sh -c 'echo $DLOCK_FENCE')
        [ "$after" -gt "$before" ]
        before=$after
    done
}

@test "postgres: the fence grows from grant to grant, also with traffic in other databases" {
    local i f n last=0
    pgsql -c "create database \"$NAME\" template postgres"
    for i in 1 2 3; do
        start_log other$i.log bash -c 'while [ ! -e go ]; do "$DLOCK" "$1" true || exit; done' - \
            "postgres://postgres@127.0.0.1:$PG_PORT/$NAME#$NAME$i"
    done
    # What a sanitizer can find, it finds in fewer.
    n=30
    [ -z "${SAN:-}" ] || n=8
    for i in $(seq $n); do
        f=$(run_t 5 "$DLOCK" "$L" sh -c 'echo $DLOCK_FENCE')
        [ "$f" -gt "$last" ]
        last=$f
    done
    [ $((last >> 48)) -eq 1 ]
    echo >go
    wait_exit 5 "$STARTED"
    settle 3
    pgsql -c "drop database \"$NAME\" with (force)"
}
