#!/usr/bin/env bats
# advisory.bats - advisory locks in a real PostgreSQL server: who excludes whom, what waiting costs
# the server, what --status says. Roles, odd servers and what they say are in server.bats, faults in
# faults.bats, ?mode=lease in files of its own (table*.bats).

# bats file_tags=long
load ../../support/pgtests

# wait_in_line N CMD...: a waiter for $L, the N-th of them.
wait_in_line() {
    local n=$1
    shift
    start_log "wait$n.log" "$DLOCK" "$L" "$@"
    WAITER=$STARTED
    wait_for 5 waiting_is "$n"
}

# -------------------------------------------------------------- exclusion ---

# Advisory locks without a token: the set would wait for itself.
@test "a set takes locks that differ in a parameter, and one lock in no two spellings" {
    local pair n lock
    local -a differ=("?key=7# ?key=8#" "# ?mode=lease#"
        "?mode=lease&table=public.one# ?mode=lease&table=public.two#")
    local -a same=("# ?connect_timeout=3#" "# ?mode=advisory#" "?key=7#a ?key=7#b"
        "?mode=lease# ?mode=lease&table=public.dlock_locks#")
    for pair in "${differ[@]}"; do
        run -0 run_t 10 "$DLOCK" --also "$U${pair% *}$NAME" "$U${pair#* }$NAME" true
        [ -z "$output" ] || fail "$output"
    done
    # Both modes: each lock is held, and keeps out the clients of its mode.
    start_log set.log "$DLOCK" --also "$U?mode=lease#$NAME" "$L" sh -c ': >in; "$HELPERS/await" go'
    wait_for 5 test -e in || fail "$(cat set.log)"
    for lock in "$L" "$U?mode=lease#$NAME"; do run -75 run_t 5 "$DLOCK" -qn "$lock" touch ran; done
    : >go
    exits 0 5 "$STARTED"
    [ ! -s set.log ] || fail "$(cat set.log)"
    # A holder in one mode does not keep out the clients of the other.
    run -0 run_t 5 "$DLOCK" -n "$U?mode=lease#$NAME" "$DLOCK" -n "$L" true
    for n in '' -n; do
        for pair in "${same[@]}"; do
            CI=1 says 64 "this is the same lock as " $n --also "$U${pair% *}$NAME" \
                "$U${pair#* }$NAME" touch ran
        done
        says 64 "this is the same lock as " $n --also "${L/127.0.0.1/localhost}" "$L" touch ran
    done
    [ ! -e ran ]
}

@test "dlock and a client of the documented key exclude each other" {
    local name uri key
    # The name as it is, and as the URI has it.
    for name in "$NAME" "käse/$NAME" "%$NAME 'x'" "日本$NAME"; do
        uri=$(/usr/bin/python3 \
            -c 'import sys, urllib.parse; print(urllib.parse.quote(sys.argv[1], safe=""))' "$name")
        L="$U#$uri"
        key=$(key_of "$name")
        sql_hold "pg_advisory_lock($key)"
        run -75 run_t 5 "$DLOCK" -vn "$L" touch "$T/ran"
        [ ! -e ran ]
        assert_out "(psql)"
        sql_let_go
        run -0 run_t 5 "$DLOCK" -n "$L" "${PSQL[@]}" \
            -c "select pg_try_advisory_lock($key)"
        [ "$output" = f ]
        [ "$(pgsql -c "select pg_try_advisory_lock($key)")" = t ]
    done
}

@test "psql and dlock hand the lock to each other" {
    local key t0
    key=$(key_of "$NAME")
    sql_hold "pg_advisory_lock($key)"
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
    hand_over
    [ -e in-time ]
}

@test "?key=N and ?key=N,N are those of other programs" {
    local k sql
    # unit/postgres/test_postgres.c has more of them.
    for k in 42 -9223372036854775808 -1,2 1,-2147483648; do
        case $k in
        *,*) sql="'${k%,*}'::int, '${k#*,}'::int" ;;
        *) sql="'$k'::bigint" ;;
        esac
        L="$U?key=$k#$NAME"
        run -0 run_t 5 "$DLOCK" "$L" "${PSQL[@]}" \
            -c "select pg_try_advisory_lock($sql)"
        [ "$output" = f ] || fail "$k: $output"
        sql_hold "pg_advisory_lock($sql)"
        says 75 psql -vn "$L" true
        run -75 run_t 5 "$DLOCK" --status "$L"
        sql_let_go
        run -0 run_t 5 "$DLOCK" --status "$L"
    done
}

@test "a 64-bit key and two 32-bit keys differ" {
    says 0 both "$U?key=4294967298#$NAME" "$DLOCK" -n "$U?key=1,2#$NAME" echo both
    run -75 run_t 5 "$DLOCK" "$U?key=4294967298#$NAME" "$DLOCK" -q -n "$U?key=4294967298#other" true
    L="$U?key=4294967298#$NAME"
    hold
    run -0 run_t 5 "$DLOCK" --status "$U?key=1,2#$NAME"
    let_go
}

@test "another database has locks of its own" {
    pgsql -c "create database \"$NAME\" template postgres"
    says 0 both "$L" "$DLOCK" -n "postgres://postgres@127.0.0.1:$PG_PORT/$NAME#$NAME" echo both
    hold
    run -0 run_t 5 "$DLOCK" --status "postgres://postgres@127.0.0.1:$PG_PORT/$NAME#$NAME"
    let_go
}

# ---------------------------------------------------------------- waiting ---

@test "CREATE INDEX CONCURRENTLY does not wait for our waiters" {
    local i t0
    indexing
    for i in 1 2 3 4 5; do wait_in_line $i true; done
    t0=$(now_ms)
    let_go
    assert_between 0 $(($(now_ms) - t0)) $((4500 + SLOW)) "time (ms)"
}

@test "with ?fair=1 CREATE INDEX CONCURRENTLY waits for the waiters" {
    L="$U?fair=1#$NAME"
    indexing -x "set statement_timeout = '2s'"
    wait_in_line 1 true
    # It stands in the server's queue, with a snapshot.
    wait_for 5 locks_are 'not granted' 1
    : >go
    exits 1 8 "$HOLDER"
    file_has hold.log "statement timeout"
    wait_exit 5 "$WAITER"
}

@test "with ?fair=1 six waiters are served in the order they came" {
    local i
    L="$U?fair=1#$NAME"
    hold
    for i in 1 2 3 4 5 6; do
        start_log "w$i.log" "$DLOCK" "$L" sh -c "echo $i >>order"
        wait_for 5 locks_are 'not granted' $i
    done
    hand_over
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
    pg_messages default | tail -n +$((n0 + 1)) | awk -v h="$holder" '$1 != h { print $1 }' | sort |
        uniq -c | sort -n >each
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

# quiet_server: one that logs waits for locks, and nothing that dlock does should be in its log;
# logs_nothing: it is not.
quiet_server() {
    own_server -c log_statement=none -c log_lock_waits=on -c log_checkpoints=off "$@"
    hold
    lines0=$(wc -l <"$PG_LOG")
}
logs_nothing() {
    [ "$(wc -l <"$PG_LOG")" = "$lines0" ] || fail "$(tail -n +$((lines0 + 1)) "$PG_LOG")"
}

# bats test_tags=slow
@test "waiting writes no line into the server's log" {
    local i lines0
    quiet_server
    for i in $(seq 20); do
        # Two of them stand in line for longer than deadlock_timeout: log_lock_waits tells of these.
        start_log "w$i.log" "$DLOCK" "$L" sh -c 'echo >>order'
    done
    wait_for 15 waiting_is 20
    lines0=$(wc -l <"$PG_LOG")
    sleep 5 # what is measured
    logs_nothing
    let_go
    wait_for 15 eval '[ "$(wc -l <order)" = 20 ]'
    wait_for 5 sessions_are 0
    logs_nothing
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
    local p t0 lines0
    quiet_server -c deadlock_timeout=100s
    for p in '' '?fair=1'; do
        start_log w.log "$DLOCK" "$U$p#$NAME" touch ran
        # Where its statement catches being cancelled: in its first millisecond it does not yet.
        wait_for 5 locks_are 'not granted' 1
        kill -TERM "$STARTED"
        t0=$(now_ms)
        exits 143 5 "$STARTED"
        wait_for 5 sessions_are 1
        assert_between 0 $(($(now_ms) - t0)) $((500 + SLOW + BUSY)) "TERM $p: time (ms)"
        takes 1280 $((1800 + BUSY)) 75 "$DLOCK" -w 1.3 "$U$p#$NAME" touch ran
        wait_for 5 sessions_are 1
    done
    logs_nothing
    let_go
    [ ! -e ran ]
    wait_for 2 sessions_are 0
    logs_nothing
}

# ----------------------------------------------------------------- status ---

@test "--status shows the waiters of ?fair=1 in their order" {
    local i pids=()
    L="$U?fair=1#$NAME"
    hold --ttl 3
    for i in 1 2; do
        start_log w$i.log "$DLOCK" --note "number $i" "$L" true
        pids+=("$STARTED")
        wait_for 5 locks_are 'not granted' $i
    done
    run -75 run_t 5 "$DLOCK" --status --json "$L"
    /usr/bin/python3 -c '
import json, sys
w = json.loads(sys.argv[1])["waiters"]
assert [x["place"] for x in w] == [1, 2] and [x["note"] for x in w] == ["number 1", "number 2"], w
assert [x["pid"] for x in w] == [int(x) for x in sys.argv[2:]], w
assert not any("fence" in x or "lease_left_ms" in x for x in w), w' "$output" "${pids[@]}"
    let_go
    wait_exit 5 "${pids[1]}"
    run -0 run_t 5 "$DLOCK" --status "$L"
}

@test "the fence that --status shows is the command's" {
    hold --ttl 1
    start_log f.log "$DLOCK" --ttl 1 "$U#$NAME.2" sh \
        -c 'echo $DLOCK_FENCE >fence; "$HELPERS/await" go'
    wait_for 5 test -s fence
    wait_for 5 eval '"$DLOCK" --status --json "$U#$NAME.2" | grep -qF "\"$(cat fence)\""'
    hand_over
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
    wait_for 5 is_sql "count(*) = 1 from pg_stat_activity
        where state = 'idle' and query like '%pid=$WAITER % wait=%'"
    [ "$(listed)" = 3 ] || fail "$("$DLOCK" --status "$L")"
    [ "$("$DLOCK" --status "$L" | grep -c "pid $WAITER ")" = 1 ]
    kill -CONT "$WAITER"
    let_go
}

@test "--status shows a foreign holder and a foreign waiter" {
    local key
    key=$(key_of "$NAME")
    sql_hold "pg_advisory_lock($key)"
    start_log psql2.log pg_session -c "select pg_advisory_lock_shared($key)"
    wait_for 5 locks_are 'not granted' 1
    run -75 run_t 5 "$DLOCK" --status --json "$L"
    /usr/bin/python3 -c '
import json, sys
s = json.loads(sys.argv[1])
h, w = s["holders"], s["waiters"]
assert len(h) == 1 and h[0]["kind"] == "foreign", s
assert h[0]["command"] == "psql" and h[0]["user"] == "postgres", s
assert len(w) == 1 and w[0]["kind"] == "foreign" and w[0]["command"] == "pgsql", s
assert "lease_left_ms" not in h[0] and "fence" not in h[0], s
# A session may be older than the lock.
assert "since_ms" not in h[0] and "since_ms" not in w[0], s' "$output"
    says 75 psql --status "$L"
    sql_let_go
}

@test "the sessions have the lock's name for people, where it fits" {
    hold
    is_sql "application_name = 'dlock: $NAME' and query like '/* dlock1 % lock=$NAME */ %'
        from pg_stat_activity where pid = $(holder_pid)"
    says 75 "pid $HOLDER" --status "$L"
    let_go
    # A name that does not fit, or that could end a comment, is its hash.
    for name in "$(printf 'x%.0s' {1..57})" 'a b' 'x*%2F' 'p=w'; do
        run -0 run_t 5 "$DLOCK" "$U#$name" "${PSQL[@]}" -c "select count(*) from pg_stat_activity
            where application_name ~ '^dlock:[0-9a-f]{16}\$' and query not like '% lock=%'"
        [ "$output" = 1 ] || fail "$name: $output"
    done
}

@test "--status tells the grant and the wait of a holder after a renewal too" {
    local before after began
    hold
    began=$(date +%s%3N)
    start_log w.log "$DLOCK" --ttl 1.5 "$L" sh -c ': >got; "$HELPERS/await" end'
    wait_for 5 waiting_is 1
    before=$(date +%s%3N)
    let_go
    wait_for 5 test -e got
    after=$(date +%s%3N)
    wait_for 5 is_sql "count(*) > 0 from pg_stat_activity where query like '/* dlock1 % fence=%'"
    "$DLOCK" --status --json "$L" >status.json || [ $? = 75 ]
    [[ $(<status.json) =~ \"since_ms\":([0-9]+),\"waited_ms\":([0-9]+) ]] ||
        fail "$(cat status.json)"
    assert_between "$before" "${BASH_REMATCH[1]}" "$after" "since (Unix ms)"
    assert_between 0 "${BASH_REMATCH[2]}" $((after - began)) "waited (ms)"
    : >end
    exits 0 5 "$STARTED"
}
