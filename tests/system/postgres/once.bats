#!/usr/bin/env bats
# once.bats - --once and --min-hold in PostgreSQL's lease table: the table of run records, roles,
# foreign rows, lost answers, records that expire, what it costs. What holds on every store is in
# tests/contract/suite.bats.

# bats file_tags=long
load ../../support/pgtable

setup_file() {
    export BATS_NO_PARALLELIZE_WITHIN_FILE=true
    pg_start
    "$DLOCK" -q --once "postgres://postgres@127.0.0.1:$PG_PORT/postgres?mode=lease#first" true 3>&-
}

# runs RC ARG... : dlock --once with a command that adds a line to ran; skips: with one that must
# not run.
runs() {
    run "-$1" run_t 10 "$DLOCK" -q --once "${@:2}" "$L" sh -c 'echo >>ran'
    [ -z "$output" ] || fail "$output"
}
skips() { run -5 run_t 10 "$DLOCK" -q --once --skip-exit-code 5 "$L" sh -c 'echo >>ran'; }
ran() { [ "$(wc -l 2>/dev/null <ran || echo 0)" -eq "$1" ] || final "$(wc -l <ran) runs, not $1"; }
# crowd N: of so many at once one runs.
crowd() {
    local i pids=()
    for i in $(seq "$1"); do
        start_log "w$i.log" "$DLOCK" --connect-timeout 20 --once "$L" sh -c 'echo >>ran'
        pids+=("$STARTED")
    done
    for i in "${pids[@]}"; do exits 0 20 "$i"; done
    ran 1
}
# record EXPRESSION: of the lock's record.
record() { pgsql -c "select $1 from public.dlock_locks_runs where name = '$NAME'"; }
record_is() { [ "$(record "$1")" = t ] || fail "not $1: $(record '*')"; }

# What only the message has that ends a run, and that begins one.
END="timestamptz 'epoch'" BEGIN='WHEN NOT k.valid'

# ------------------------------------------------------------------ table ---

@test "--forget finds no record in a database without the tables" {
    pgsql -c "create database \"$NAME\" template postgres"
    pgsql -d "$NAME" -c 'drop table public.dlock_locks_runs, public.dlock_locks'
    says 0 "'x' has no record of a run" --forget --yes \
        "postgres://postgres@127.0.0.1:$PG_PORT/$NAME?mode=lease#x"
}

@test "the record can be read by a person, and an advisory lock has none" {
    says 64 "?mode=lease before the '#'" --once "postgres://$AT/postgres#$NAME" true
    says 64 '?mode=lease' --forget --yes "postgres://$AT/postgres#$NAME"
    run -3 run_t 5 "$DLOCK" -q --once=2h --note 'says who' "$L" sh -c 'exit 3'
    record_is "state = 'failed' and status = 3 and owner ~ '^[0-9a-f]{32}$' and host = '$(hostname)'
        and
        pid > 1 and username <> '' and command like 'sh -c %' and note = 'says who' and
        ended between began and clock_timestamp() and expires = ended + '2h'
        and fence = (select fence from dlock_locks where name = '$NAME')"
    hold --once
    record_is "state = 'running' and status is null and ended is null and fence = $(cat held)"
    let_go
    record_is "state = 'succeeded' and status = 0"
    says 0 'last run: succeeded' --status "$L"
}

@test "the first --once makes the table; a role that may not is told, and nothing runs" {
    own_database dlock_locks_runs
    as_role
    in_db -c "grant select, insert, update, delete on dlock_locks to $R"
    L="postgres://$R@127.0.0.1:$PG_PORT/$DB?mode=lease#$NAME"
    run -0 run_t 5 "$DLOCK" "$L" true
    run -0 run_t 5 "$DLOCK" --status "$L"
    run -0 run_t 5 "$DLOCK" --forget --yes "$L"
    [ -z "$(in_db -c "select to_regclass('dlock_locks_runs')")" ]
    says 77 'run: dlock --schema LOCK | psql ...' --once "$L" touch ran
    in_db -c "$("$DLOCK" --schema "$L" | sed '/^GRANT/,$d')"
    says 77 permission --once "$L" touch ran
    # Without the record there is no lock either.
    run -0 run_t 5 "$DLOCK" -n "$L" true
    CI=1 run -0 --separate-stderr run_t 5 "$DLOCK" --status "$L"
    [[ $stderr == *permission* ]] || fail "$stderr"
    [ ! -e ran ]
    in_db -c "grant select, insert, update, delete on dlock_locks_runs to $R"
    runs 0
    skips
    run -0 run_t 5 "$DLOCK" --forget --yes "$L"
    runs 0
    ran 2
}

@test "a store that takes no record refuses before the command" {
    own_database dlock_locks_runs
    run -0 run_t 5 "$DLOCK" -q --once "${L}0" true
    pgsql -c "alter database \"$DB\" set default_transaction_read_only = on"
    run run_t 8 "$DLOCK" --connect-timeout 1 --once "$L" touch ran
    [ "$status" = 69 ] || fail "$status: $output"
    pgsql -c "alter database \"$DB\" reset default_transaction_read_only"
    in_db -c 'alter table dlock_locks_runs add constraint c check (false) not valid'
    says 77 'it has the constraint c' --once "$L" touch ran
    [ ! -e ran ]
    [ "$(in_db -c "select count(*) from dlock_locks where name = '$NAME'
        and expires > now()")" = 0 ]
}

@test "a table of that name that is not ours is refused, and nothing is overwritten" {
    own_database dlock_locks_runs
    local what text r=r${NAME//-/}
    in_db -c "create role $r login; grant create on schema public to $r"
    local a_row="dlock_locks_runs (name text primary key); insert into dlock_locks_runs
        values ('$NAME')"
    while IFS='|' read -r what text; do
        in_db -c "drop table if exists dlock_locks_runs" \
            -c "${text/RUNS/"$a_row"}" >sql.log
        run -77 run_t 5 "$DLOCK" --once "$L" touch ran
        assert_out '"public"."dlock_locks_runs" is not safe to use: '"$what"
        CI=1 run -0 --separate-stderr run_t 5 "$DLOCK" --status "$L"
        [[ $stderr == *"$what"* ]] || fail "$stderr"
        [ "$(in_db -c 'select count(*) from dlock_locks_runs')" = 1 ]
    done <<EOT
its columns differ|create table RUNS
it is owned by $r|set role $r; create table RUNS; reset role
it is not a plain table|create view dlock_locks_runs as select 'x' as name
EOT
    [ ! -e ran ]
    in_db -c 'drop view dlock_locks_runs'
    says 64 'with run records' --once \
        "postgres://$AT/$DB?mode=lease&table=public.$(printf 'x%.0s' {1..59})#$NAME" true
}

@test "a waiter that finds a foreign row calls the next one" {
    local w1
    runs 0
    pgsql -c "delete from dlock_locks_runs where name = '$NAME'"
    hold
    start_log w1.log "$DLOCK" --once "$L" touch no
    w1=$STARTED
    wait_for 5 called_are 1
    start_log w2.log "$DLOCK" "$L" true
    wait_for 5 called_are 2
    pgsql -c "insert into dlock_locks_runs
        values ('$NAME', 'x', 0, 0, 'x', '', 0, '', '', '', now(), now(), now())"
    run -75 run_t 5 "$DLOCK" --status "$L"
    let_go
    exits 65 3 "$w1"
    exits 0 3 "$STARTED"
    [ ! -e no ]
}

# ---------------------------------------------------------------- answers ---

# lost_grant RC: a waiter whose first grant it does not hear of. At the first contact, dlock gives
# up.
lost_grant() {
    hold
    proxy lose "$BEGIN" "$T/lose"
    start_log w.log "$DLOCK" -q --once --skip-exit-code 5 "$L" sh -c 'echo >>ran'
    wait_for 5 called_are 1
    : >lose
    L="postgres://$AT/postgres?mode=lease#$NAME"
    : >go
    exits "$1" 5 "$STARTED"
    [ ! -e lose ]
    exits 0 5 "$HOLDER"
    row_is_free
}

@test "a grant whose answer is lost begins one run, and a skip none" {
    lost_grant 0
    record_is "state = 'succeeded'"
    ran 1
    lost_grant 5
    ran 1
}

@test "an end whose answer is lost is found in the record" {
    local fault
    for fault in lose drop mute; do
        rm -f ran
        NAME=$NAME.$fault
        proxy $fault "$END" "$T/$fault"
        : >$fault
        runs 0
        [ ! -e $fault ]
        ran 1
        row_is_free
        record_is "state = 'succeeded' and status = 0"
        skips
        ran 1
    done
}

# The first try of the release is served only while the second one waits for the row.
@test "an end that comes twice at once is recorded once" {
    proxy drop "$END" "$T/drop"
    hold --ttl 30 --once
    block_row
    : >drop
    : >go
    several() { ! blocked_are 0 && ! blocked_are 1; }
    wait_for 5 several
    unblock_row
    exits 0 5 "$HOLDER"
    [ ! -s hold.log ] || fail "$(cat hold.log)"
    record_is "state = 'succeeded'"
    row_is_free
}

# The proxy keeps the answer back.
@test "a success that cannot be recorded is said, and the next one runs" {
    proxy cut "$END"
    run -79 run_t 8 "$DLOCK" --ttl 1 --connect-timeout 1 --once "$L" sh -c 'echo >>ran'
    assert_out 'succeeded, but its run is not recorded'
    L="postgres://$AT/postgres?mode=lease#$NAME"
    record_is "state = 'running'"
    runs 0
    ran 2
}

@test "who is not the owner any more writes nothing" {
    hold --ttl 30 --once
    pgsql -c "update dlock_locks set owner = repeat('a', 32) where name = '$NAME'"
    let_go 79
    record_is "state = 'running'"
    pgsql -c "update dlock_locks set expires = '-infinity' where name = '$NAME'"
    # The lock is ours, the record is not.
    hold --ttl 30 --once
    pgsql -c "update dlock_locks_runs set owner = repeat('b', 32) where name = '$NAME'"
    let_go 79
    grep -q 'succeeded, but its run is not recorded: .*another client has changed the run record' \
        hold.log || fail "$(cat hold.log)"
    record_is "state = 'running' and owner = repeat('b', 32)"
    row_is_free
    # A record that a person has removed is made anew.
    hold --ttl 30 --once
    pgsql -c "delete from dlock_locks_runs where name = '$NAME'"
    let_go
    record_is "state = 'succeeded' and ended - began < '10 s' and began < ended"
}

# ----------------------------------------------------------------- at once ---

# Its first statement has begun before the success was there: what that reads would be run again.
@test "who waits for the row of one that succeeds does not run" {
    local i pids=()
    run_t 5 "$DLOCK" -q "$L" true # there is a row, and it is free
    block_row
    for i in 1 2 3; do
        start_log "w$i.log" "$DLOCK" --once --skip-exit-code 5 "$L" touch no 8>&-
        pids+=("$STARTED")
    done
    wait_for 5 blocked_are 3
    echo "insert into dlock_locks_runs
        values ('$NAME', 'succeeded', 0, 1, repeat('a', 32), 'h', 1, 'u', 'c', '',
        now(), clock_timestamp(), clock_timestamp() + '1 h');" >&8
    unblock_row
    for i in "${pids[@]}"; do exits 5 5 "$i"; done
    [ ! -e no ] || final "run again after a success"
}

@test "one of a crowd runs where the role's default is serializable" {
    L=${L%#*}\&options=-cdefault_transaction_isolation%3Dserializable#$NAME
    crowd 12
}

@test "a chain of waiters leaves at once" {
    local i t0 pids=()
    hold --ttl 30 --once
    for i in $(seq 12); do
        start_log "w$i.log" "$DLOCK" --once "$L" touch no
        pids+=("$STARTED")
    done
    wait_for 10 called_are 12
    t0=$(now_ms)
    let_go
    for i in "${pids[@]}"; do exits 0 10 "$i"; done
    # Not when their turns come: the last one's is 2.3 s after the release.
    assert_between 0 $(($(now_ms) - t0)) $((1500 + SLOW)) "12 skips, in ms"
    [ ! -e no ]
}

# bats test_tags=slow
@test "one of a crowd runs through PgBouncer" {
    [ -x /usr/sbin/pgbouncer ] || skip "pgbouncer is not installed"
    pgb_start transaction default_pool_size=3
    L="postgres://postgres@127.0.0.1:$PGB_PORT/postgres?mode=lease#$NAME"
    crowd 12
    says 0 'last run: succeeded' --status "$L"
    run -0 run_t 5 "$DLOCK" --forget --yes "$L"
    run -3 run_t 5 "$DLOCK" -q --once=1ms --min-hold 500ms "$L" sh -c 'echo >>ran; exit 3'
    record_is "state = 'failed' and status = 3"
    runs 0
    ran 3
}

# ------------------------------------------------------------------- sweep ---

swept() {
    is_sql "count(*) = 0 from dlock_locks_runs where name like '$NAME.%' or name like '$NAME-%'"
}

# bats test_tags=soak
@test "records that have expired go, 20 with each run, at the same cost" {
    local i n before cost
    n=$(amount once_names)
    pgsql <<<"insert into dlock_locks_runs select '$NAME-' || i, 'succeeded', 0, 1, repeat('a', 32),
        'h', 1,
            'u', 'c', '', now() - '9 d'::interval, now() - '9 d'::interval, now() - '8 d'::interval
            from generate_series(1, $n) i;
        insert into dlock_locks select '$NAME-' || i, 1, '', '-infinity', ''
        from generate_series(1, $n) i"
    # Another client has some of them in its hands: nobody waits.
    session
    echo "begin; select 1 from dlock_locks_runs where name = '$NAME-1' for update;
        select 1 from dlock_locks where name = '$NAME-2' for update; \\echo blocked" >&8
    wait_for 5 file_has session.log blocked
    before=$(pg_statements)
    for i in $(seq $((n / 20))); do
        run_t 5 "$DLOCK" -q --once=1ms "$L.$i" true 8>&-
    done
    cost=$(($(pg_statements) - before))
    session_ends rollback
    # Each run: two checks, keepalives, try, begin; lock, end; sweep. Now and then a sweep of the
    # locks.
    assert_between $((8 * (n / 20))) $cost $((8 * (n / 20) + n / 40 + 2)) "statements"
    L=$L.x
    for i in 1 2 3; do
        swept && break
        run_t 5 "$DLOCK" -q --once=1ms "$L.$i" true
    done
    swept || is_sql "count(*) <= 2 from dlock_locks_runs where expires < now()" || fail "not swept"
    # The locks of such records go with them; the one in use is left for the sweep of all locks.
    is_sql "count(*) <= 1 from dlock_locks where name like '$NAME-%'"
}

# always: see fixed_random.c.
@test "the rows of locks whose records were not kept for a week go, too" {
    own_database dlock_locks_runs
    in_db -c 'delete from dlock_locks' \
        -c "insert into dlock_locks select 'old' || i, 1, '', '-infinity', ''
        from generate_series(1, 60) i"
    are_swept() {
        [ "$(in_db -c "select count(*) <= 40 from dlock_locks where name like 'old%'")" = t ]
    }
    run_t 5 "$DLOCK" -q --once=1ms "$L" true
    DICE=10 always run_t 5 "$DLOCK" -q --once=1ms "$L" true
    wait_for 5 are_swept
}

@test "what is not used costs nothing more" {
    local before
    run_t 5 "$DLOCK" -q "$L" true
    before=$(pg_statements)
    run_t 5 "$DLOCK" -q "$L" true
    assert_between 3 $(($(pg_statements) - before)) 4 "statements of a plain run"
    runs 0
    before=$(pg_statements)
    skips
    # Two checks, keepalives, try, begin.
    [ $(($(pg_statements) - before)) -eq 5 ] ||
        fail "$(($(pg_statements) - before)) statements of a skip"
}

# ---------------------------------------------------------------- min-hold ---

@test "--min-hold: the row has another owner, and the rest of the time" {
    local expires
    hold --ttl 30 --min-hold 4s
    expires=$(row "$EXPIRES")
    : >go
    exits 0 2 "$HOLDER"
    [ "$(row "owner ~ '^over:[0-9a-f]{32}$' and expires between clock_timestamp()
        and clock_timestamp() + '4 s'")" = t ] ||
        fail "$(row '*')"
    [ "$(row "$EXPIRES")" -lt "$expires" ]
    run -75 run_t 5 "$DLOCK" -n "$L" true
    run -75 run_t 5 "$DLOCK" --status --json "$L"
    assert_out "\"pid\":$HOLDER"
    # A late renewal finds another owner.
    [ "$(pgsql -c "update dlock_locks set expires = clock_timestamp() + '1 h' where name = '$NAME'
        and owner ~ '^[0-9a-f]' returning 1")" = '' ]
}
