#!/usr/bin/env bats
# advisory.bats - advisory locks in a real PostgreSQL server: who excludes whom, what waiting costs the server,
# what --status says. Roles, odd servers and what they say are in server.bats, faults in faults.bats,
# ?mode=lease in files of its own (table*.bats).

# bats file_tags=long
load ../../support/common
load ../../support/postgres
load ../../support/pglock

setup_file() {
    export BATS_NO_PARALLELIZE_WITHIN_FILE=true
    pg_start
}
teardown_file() { pg_stop_all; }

setup() {
    dlock_setup
    at_server
}
teardown() { dlock_teardown; }

# ---------------------------------------------------------------- helpers ---

# The manual's statement, for the name $1.
key_of() {
    pgsql -v name="$1" <<<"SELECT ('x' || substr(encode(sha256(
        convert_to(:'name', 'UTF8')), 'hex'), 1, 16))::bit(64)::bigint"
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

@test "the command runs under the lock, and nothing is left afterwards" {
    run run_t 5 "$DLOCK" "$L" "$PG_BIN/psql" -XAtq -h 127.0.0.1 -p "$PG_PORT" -U postgres -d postgres \
        -c "select count(*) from pg_locks where locktype = 'advisory' and granted and mode = 'ExclusiveLock' and
            (classid::bigint << 32 | objid::bigint) = $(key_of "$NAME") and objsubid = 1"
    assert_rc 0
    [ "$output" = 1 ]
    wait_for 2 sessions_are 0
    locks_are true 0
}

@test "dlock and a client of the documented key exclude each other" {
    local name uri key
    # The name as it is, and as the URI has it.
    for name in "$NAME" "käse/$NAME" "%$NAME 'x'" "日本$NAME"; do
        uri=$(/usr/bin/python3 -c 'import sys, urllib.parse; print(urllib.parse.quote(sys.argv[1], safe=""))' "$name")
        L="$U#$uri"
        key=$(key_of "$name")
        sql_hold "$key"
        run run_t 5 "$DLOCK" -vn "$L" touch "$T/ran"
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

@test "psql and dlock hand the lock to each other" {
    local key t0
    key=$(key_of "$NAME")
    sql_hold "$key"
    start_log w.log "$DLOCK" "$L" "$HELPERS/clock" "$T/got"
    local waiter=$STARTED
    wait_for 5 waiting_is 1
    "$HELPERS/clock" t0
    sql_let_go
    wait_exit 5 "$waiter"
    assert_between 0 $((($(cat got) - $(cat t0)) / 1000000)) $((200 + SLOW + BUSY)) "hand-off (ms)"
    # A psql that waits does not come before the command has ended.
    hold
    printf '%s\n' "SELECT pg_advisory_lock($key);" '\! test -e go && echo >in-time' >wait.sql
    start_log psql.log pg_session -f "$T/wait.sql"
    wait_for 5 locks_are 'not granted' 1
    let_go
    wait_exit 5 "$STARTED"
    [ -e in-time ]
}

@test "?key=N and ?key=N,N are those of other programs" {
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
        run run_t 5 "$DLOCK" -vn "$L" true
        assert_rc 75
        assert_out psql
        run run_t 5 "$DLOCK" --status "$L"
        assert_rc 75
        sql_let_go
        run run_t 5 "$DLOCK" --status "$L"
        assert_rc 0
    done
}

@test "a 64-bit key and two 32-bit keys differ" {
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

@test "refuses invalid keys" {
    local k
    for k in '' x 1x 1, ,1 1,2,3 1,x 9223372036854775808 -9223372036854775809 2147483648,1 1,-2147483649 - 1,- ' 1' +1; do
        run run_t 5 "$DLOCK" "$U?key=${k// /%20}#$NAME" touch ran
        assert_rc 64
        assert_out "key="
        [ ! -e ran ]
    done
}

@test "another database has locks of its own" {
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

@test "the command does not inherit the session's socket" {
    run run_t 5 ls -l /proc/self/fd
    local before=${#lines[@]}
    run run_t 5 "$DLOCK" "$L" ls -l /proc/self/fd
    assert_rc 0
    refute_out socket
    [ "${#lines[@]}" -eq "$before" ] || fail "$output"
}

# ---------------------------------------------------------------- waiting ---

@test "CREATE INDEX CONCURRENTLY does not wait for our waiters" {
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

@test "with ?fair=1 CREATE INDEX CONCURRENTLY waits for the waiters" {
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

@test "with ?fair=1 six waiters are served in the order they came" {
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
@test "100 waiters send at most 1.2 statements a second each" {
    local i n0 t0 holder least most
    hold
    holder=$(pgsql -c "select pid from pg_locks where locktype = 'advisory' and granted")
    for i in $(seq 100); do
        start_log "w$i.log" "$DLOCK" "$L" sh -c 'echo >>order'
    done
    wait_for 30 waiting_is 100
    n0=$(pg_statements)
    t0=$(now_ms)
    sleep 5 # what is measured
    # By session: how many of them, the least and the most.
    pg_messages default | tail -n +$((n0 + 1)) | awk -v h="$holder" '$1 != h { print $1 }' | sort | uniq -c | sort -n >each
    t0=$(($(now_ms) - t0))
    read -r least _ <each
    read -r most _ < <(tail -n 1 each)
    echo "# $least to $most statements of each of 100 waiters in $t0 ms" >&3
    # They do ask; and one more than the time has room for, since both ends are cut off.
    [ "$(wc -l <each)" = 100 ]
    [ "$most" -le $((t0 * 12 / 10000 + 1)) ] || fail "$most statements of one waiter in $t0 ms"
    [ "$least" -ge $((t0 * 5 / 10000)) ] || fail "$least statements of one waiter in $t0 ms"
    let_go
    wait_for 30 eval '[ "$(wc -l <order)" = 100 ]'
    wait_for 5 sessions_are 0
}

# bats test_tags=slow
@test "waiting writes no line into the server's log" {
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

@test "a killed waiter's session is gone within 2 s" {
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

@test "a cancelled waiter leaves within 0.5 s and logs nothing" {
    local p t0 rc lines0
    own_server -c log_statement=none -c log_lock_waits=on -c log_checkpoints=off -c deadlock_timeout=100s
    hold
    lines0=$(wc -l <"$PG_LOG")
    for p in '' '?fair=1'; do
        start_log w.log "$DLOCK" "$U$p#$NAME" touch ran
        # Where its statement catches being cancelled: in its first millisecond it does not yet.
        wait_for 5 locks_are 'not granted' 1
        kill -TERM "$STARTED"
        t0=$(now_ms)
        rc=0
        wait_exit 5 "$STARTED" || rc=$?
        [ $rc -eq 143 ]
        wait_for 5 sessions_are 1
        assert_between 0 $(($(now_ms) - t0)) $((500 + SLOW + BUSY)) "TERM $p: time (ms)"
        t0=$(now_ms)
        run run_t 5 "$DLOCK" -w 1.3 "$U$p#$NAME" touch ran
        assert_rc 75
        wait_for 5 sessions_are 1
        assert_between 1280 $(($(now_ms) - t0)) $((1800 + SLOW + BUSY)) "-w $p: time (ms)"
    done
    [ "$(wc -l <"$PG_LOG")" = "$lines0" ] || fail "$(tail -n +$((lines0 + 1)) "$PG_LOG")"
    let_go
    [ ! -e ran ]
    wait_for 2 sessions_are 0
    [ "$(wc -l <"$PG_LOG")" = "$lines0" ] || fail "$(tail -n +$((lines0 + 1)) "$PG_LOG")"
}

# ----------------------------------------------------------------- status ---

@test "--status shows the holder and the waiters of ?fair=1 in order" {
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

@test "the fence that --status shows is the command's" {
    hold --ttl 1
    start_log f.log "$DLOCK" --ttl 1 "$U#$NAME.2" sh -c 'echo $DLOCK_FENCE >fence; "$HELPERS/await" go'
    wait_for 5 test -s fence
    wait_for 5 eval '"$DLOCK" --status --json "$U#$NAME.2" | grep -qF "\"$(cat fence)\""'
    let_go
    wait_exit 5 "$STARTED"
}

@test "--status of waiters that ask in chunks never lacks one" {
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

@test "--status of a foreign holder and a foreign waiter" {
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
assert "lease_left_ms" not in h[0] and "fence" not in h[0], s
# A session may be older than the lock.
assert "since_ms" not in h[0] and "since_ms" not in w[0], s' "$output"
    run run_t 5 "$DLOCK" --status "$L"
    assert_rc 75
    assert_out psql
    sql_let_go
}

@test "--status tells when the lock was granted and how long its holder waited" {
    local before after began
    hold
    began=$(date +%s%3N)
    start_log w.log "$DLOCK" --ttl 1.5 "$L" sh -c ': >got; "$HELPERS/await" end'
    wait_for 5 waiting_is 1
    sleep 1.1 # that long
    before=$(date +%s%3N)
    let_go
    wait_for 5 test -e got
    after=$(date +%s%3N)
    told() {
        "$DLOCK" --status --json "$L" >status.json || [ $? = 75 ]
        [[ $(<status.json) =~ \"since_ms\":([0-9]+),\"waited_ms\":([0-9]+) ]] || fail "$(cat status.json)"
        assert_between "$before" "${BASH_REMATCH[1]}" "$after" "since (Unix ms)"
        assert_between 1100 "${BASH_REMATCH[2]}" $((after - began)) "waited (ms)"
    }
    told
    # And after a renewal.
    wait_for 5 eval '[ "$(pgsql -c "select count(*) from pg_stat_activity where query like '\''/* dlock1 % fence=%'\''")" != 0 ]'
    told
    : >end
    exits 0 5 "$STARTED"
}
