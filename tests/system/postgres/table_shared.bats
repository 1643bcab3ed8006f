#!/usr/bin/env bats
# table_shared.bats - shared locks and slots in PostgreSQL's lease table: the second table, races,
# what is locked, turns. What holds on every store is in tests/contract/suite.bats.

# bats file_tags=long,slow
load ../../support/pgtable

setup_file() {
    export BATS_NO_PARALLELIZE_WITHIN_FILE=true
    pgtable_start
    # The second table is there, too.
    "$DLOCK" -q -s "postgres://postgres@127.0.0.1:$PG_PORT/postgres?mode=lease#first" true 3>&-
}

refused() { run -75 run_t 5 "$DLOCK" -q -n "$@" "$L" touch ran && [ ! -e ran ]; }
notices_are() {
    is_sql "count(*) = $1 from dlock_locks_holders where name = '$NAME' and epoch = ''
        and expires > now()"
}
rows_are() { is_sql "count(*) = $1 from dlock_locks_holders where name = '$NAME'"; }

# ------------------------------------------------------------------- races ---

# A holder of a slot makes a folder of its number, and a writer one that must be alone.
TURN='cd "$1" || exit
    if [ -n "$DLOCK_SLOT" ]; then mine=slot.$DLOCK_SLOT; else mine=writer; fi
    mkdir "$mine" || exit 91
    case $mine in
    writer) [ "$(ls)" = writer ] || exit 92 ;;
    *) [ ! -e writer ] || exit 93 ;;
    esac
    [ "$(ls -d slot.* 2>/dev/null | wc -l)" -le "$2" ] || exit 94
    rmdir "$mine"'

@test "slots are never overbooked, and no two have a number" {
    local n turns=6 strict=options=-cdefault_transaction_isolation%3Dserializable
    for n in 1 2 3; do
        # At a stricter isolation level most of them are told to try again.
        [ $n != 3 ] || L=${L%#*}\&$strict#$NAME turns=2
        mkdir "$T/h$n"
        "$ROOT/tests/support/helpers/swarm.py" 12 60 bash -c '
            for ((i = 0; i < $5; i++)); do
                kind=--slots=$4
                [ $((I + i)) -ne 7 ] || kind=-x
                "$DLOCK" --ttl 5 $kind "$1" bash -c "$2" - "$3" "$4" || exit
            done' - "$L-$n" "$TURN" "$T/h$n" $n $turns
    done
}

# ------------------------------------------------------------------ locking ---

# Each would wait for its commit with the row locked, and the renewals behind all of them.
@test "a refused try locks nothing" {
    own_server -c autovacuum=off
    local xid t0
    xid() { pgsql -c 'select txid_snapshot_xmax(txid_current_snapshot())'; }
    held a --slots 1 --ttl 60
    xid=$(xid)
    refused --slots 1
    refused --slots 1
    run -65 run_t 5 "$DLOCK" -n --slots 2 "$L" touch ran
    [ "$(xid)" = "$xid" ] || fail "transaction ids: $xid, now $(xid)"
    # Another one has the row: that is not waited for.
    block_row
    t0=$(now_ms)
    refused --slots 1 8>&-
    refused -x 8>&-
    assert_between 0 $(($(now_ms) - t0)) $((1000 + SLOW + BUSY)) "two refused tries (ms)"
    unblock_row
    end a
    # A writer's, and one that waits. (A row that was never locked.)
    NAME=$NAME.w L=$L.w
    hold
    xid=$(xid)
    for _ in 1 2 3; do refused -x; done
    start_log w.log "$DLOCK" "$L" true
    wait_for 5 called_are 1
    [ "$(row xmax)" = 0 ] || fail "the row is locked by transaction $(row xmax)"
    [ "$(xid)" = "$xid" ] || fail "transaction ids: $xid, now $(xid)"
    hand_over
}

# Its network may be cut within a message that locks the row. By default the server learns that
# after two hours.
@test "the server soon takes a reader that is cut off for dead" {
    held a -s --ttl 100
    timer() { ss -Htno state established "sport = :$PG_PORT"; }
    has_timer() { [[ $(timer) =~ keepalive,[0-9.]+(ms|sec) ]]; }
    wait_for 5 has_timer || fail "$(timer)"
    end a
}

# ------------------------------------------------------------------- losses ---

@test "a reader whose epoch or row is gone loses the lock" {
    local change
    for change in "update dlock_locks set owner = 'someone' where name = '$NAME'" \
        "delete from dlock_locks where name = '$NAME'" \
        "delete from dlock_locks_holders where name = '$NAME'"; do
        held a -s --ttl 2
        pgsql -c "$change"
        exits 79 5 "${PIDS[a]}"
        file_has holds.a.log 'is lost' || fail "$(cat holds.a.log)"
        pgsql -c "delete from dlock_locks where name = '$NAME'"
    done
}

@test "a new epoch removes the rows of those that died in an old one" {
    held a --slots 2 --ttl 1
    kill -KILL "${PIDS[a]}"
    held b -s
    # It stood beside the dead one; the next one is alone.
    end b
    pgsql -c "update dlock_locks_holders set expires = clock_timestamp() + '1 h'
        where name = '$NAME'" -c "update dlock_locks set expires = '-infinity' where name = '$NAME'"
    held c --slots 3
    [ "$(cat slot.c)" = 0 ]
    rows_are 1
    end c
}

@test "rows of dead holders are removed after a week" {
    pgsql -c "insert into dlock_locks_holders select 'dead', d::text, 'shared:x', 0, 0, \
    clock_timestamp() - d * '1 day'::interval, ''
        from generate_series(6, 9) d"
    always run_t 5 "$DLOCK" -s "$L" true
    wait_for 5 is_sql "string_agg(token, ' ' order by token) in ('6', '6 7')
        from dlock_locks_holders where name = 'dead'"
}

# -------------------------------------------------------------------- turns ---

@test "a stopped writer lets readers in when its notice is old" {
    held a -s
    holds w --ttl 2
    wait_for 5 notices_are 1
    refused -s
    kill -STOP "${PIDS[w]}"
    # It stays in line, and its notice lives for 2 s.
    holds b -s
    is_in b 7
    end a b
    kill -CONT "${PIDS[w]}"
    is_in w 7
    notices_are 0
    end w
}

# A try is under way when its session ends, so that the next one has another token.
@test "a writer's notice goes with it after a new connection" {
    local waits="application_name like 'dlock:%:%' and wait_event_type = 'Lock'"
    held a -s
    holds w
    wait_for 5 notices_are 1
    session
    echo 'begin; lock table dlock_locks; \echo locked' >&8
    wait_for 5 file_has session.log locked
    wait_for 8 is_sql "count(pg_terminate_backend(pid)) = 1 from pg_stat_activity where $waits"
    session_ends commit
    wait_for 5 called_are 1
    end a
    is_in w
    notices_are 0
    end w
}

@test "a role without rights to the table has no say in the number of slots" {
    local app
    app=dlock:$(printf '"public"."dlock_locks"#%s' "$NAME" | sha256sum |
        cut -c 1-16):$(printf %016d 1)n7
    role_named r${NAME//-/}
    session -U r${NAME//-/}
    echo "set application_name = '$app'; \\echo named" >&8
    wait_for 5 file_has session.log named
    run -0 run_t 8 "$DLOCK" -w 7 --slots 2 "$L" true 8>&-
    # Within the turns of waiters, since later they would have no say.
    pgsql -c "grant update on dlock_locks to r${NAME//-/}" -c "update dlock_locks
        set freed = clock_timestamp() + '1 min' where name = '$NAME'"
    run -65 run_t 8 "$DLOCK" -w 7 --slots 2 "$L" true 8>&-
    session_ends commit
}

# looks: how many of its statements have read the list of all sessions, by the plans in the log.
looks() {
    tail -c "+$((FROM + 1))" "$PG_LOG" | grep 'Function Scan on pg_stat_get_activity' |
        grep -vc 'never executed' || :
}

@test "readers and slots look at all sessions only if there may be waiters" {
    local kind FROM
    as_role session_preload_libraries=auto_explain auto_explain.log_min_duration=0 \
        auto_explain.log_analyze=on
    pgsql -c "grant select, insert, update, delete on dlock_locks_holders to $R"
    for kind in -s "--slots 2"; do
        NAME=$NAME.x L=$L.x
        FROM=$(wc -c <"$PG_LOG")
        run -0 run_t 5 "$DLOCK" $kind "$L" true
        [ "$(looks)" = 0 ] || fail "$(looks) looks at the line of a lock without waiters"
        # Soon after a release a waiter may have its turn.
        pgsql -c "update dlock_locks set freed = clock_timestamp() + '1 min' where name = '$NAME'"
        FROM=$(wc -c <"$PG_LOG")
        refused $kind
        [ "$(looks)" = 1 ] || fail "$(looks) looks within the turns of waiters"
        pgsql -c "update dlock_locks set freed = null where name = '$NAME'"
        held a $kind
        holds w --ttl 30
        wait_for 5 called_are 1
        FROM=$(wc -c <"$PG_LOG")
        kill -STOP "${PIDS[w]}"
        end a
        [ "$(looks)" -ge 1 ] || fail "no look for the waiter"
        kill -CONT "${PIDS[w]}"
        is_in w
        end w
    done
}

@test "readers and slots take and leave a lock without waiters by short statements" {
    local kind from said
    for kind in -s "--slots 2"; do
        L=$L.x NAME=$NAME.x
        from=$(wc -c <"$PG_LOG")
        "$DLOCK" $kind "$L" true
        # Once more, when a waiter may have its turn.
        "$DLOCK" $kind "$L" true
        said=$(tail -c "+$((from + 1))" "$PG_LOG")
        ! grep pg_stat_get_activity <<<"$said" || fail "more than free, grant and leave"
        # One glance for each table and run, whatever the number of requests.
        [ "$(grep -c 'dlock finding' <<<"$said")" = 4 ] || fail "$said"
        rows_are 0
        row_is_free
    done
}

# bats test_tags=slow
@test "the cost of a grant does not grow with the readers" {
    local i before n per=()
    for n in 2 16; do
        hold --ttl 100
        for i in $(seq $n); do holds $i -s --ttl 100; done
        wait_for 10 called_are $n
        before=$(pg_statements)
        let_go
        for i in $(seq $n); do is_in $i; done
        per+=($((($(pg_statements) - before) * 10 / n)))
        for i in $(seq $n); do end $i; done
    done
    # The release is in it; each looks, locks and writes.
    [ "${per[0]}" -le 60 ] && [ "${per[1]}" -le 50 ]
}

# -------------------------------------------------------------- two tables ---

@test "-s makes the second table, or prints how; -x needs none" {
    own_database dlock_locks_holders
    as_role
    in_db -c "grant select, insert, update, delete on dlock_locks to $R"
    L="postgres://$R@127.0.0.1:$PG_PORT/$DB?mode=lease#$NAME"
    run -0 run_t 5 "$DLOCK" "$L" "$DLOCK" --status "${L}2"
    says 77 'the table for holders does not exist and cannot be created' -s "$L" touch ran
    [ ! -e ran ]
    "$DLOCK" --schema "$L" | in_db
    run -0 run_t 5 "$DLOCK" -s "$L" touch ran
    in_db -c 'drop table dlock_locks, dlock_locks_holders, dlock_locks_runs'
    # A role that may makes both.
    L="postgres://$AT/$DB?mode=lease#$NAME"
    run -0 run_t 5 "$DLOCK" --slots 2 "$L" true
    [ "$(in_db -c "select count(*) from pg_tables where schemaname = 'public'")" = 2 ]
    run -64 "$DLOCK" -s "postgres://$AT/$DB?mode=lease&table=public.$(printf %056d 1)#$NAME" true
}

@test "refuses a second table that is not what --schema makes" {
    own_database dlock_locks_holders
    local change what
    in_db -c 'create sequence public.calls' -c 'create role mallory'
    "$DLOCK" -s "$L" true
    in_db -c "create function f() returns trigger language plpgsql
        as 'begin perform nextval(''public.calls''); return new; end'"
    while IFS='|' read -r what change; do
        in_db -c "$change" >sql.log
        for kind in -s '--slots 1'; do
            says 77 '"public"."dlock_locks_holders" is not safe to use' $kind "$L" touch ran
            assert_out "$what"
        done
        [ ! -e ran ]
        run -0 run_t 5 "$DLOCK" -x "$L" true
        [ "$(in_db -c 'select is_called from calls')" = f ]
        in_db -c 'drop table dlock_locks_holders cascade' -c "$("$DLOCK" --schema "$L")" 2>/dev/null
    done <<'EOT'
it has the trigger t|create trigger t before insert on dlock_locks_holders execute function f()
its columns differ|alter table dlock_locks_holders add more text
it is owned by mallory|alter table dlock_locks_holders owner to mallory
EOT
    # The first one is checked for readers, too.
    in_db -c 'create trigger t before insert or update on dlock_locks execute function f()'
    says 77 '"public"."dlock_locks" is not safe to use' -s "$L" touch ran
}

# ------------------------------------------------------------------- status ---

# With and without the right to the second table.
@test "a writer is told of a holder that is there, and of its kind" {
    local plain=$L
    as_role
    told() {
        run -75 run_t 5 "$DLOCK" -v -n "$L" true && assert_out "pid ${PIDS[$1]}" && assert_out "$2"
    }
    L=$plain holds a -s
    is_in a
    L=$plain holds b --slots 3
    is_in b
    told b '(slot 0 of 3)'
    end b
    told a '(shared)'
    says 75 '(shared)' --status "$L"
    end a
}

# ---------------------------------------------------------------- pgbouncer ---

@test "readers, slots and a waiting writer work through PgBouncer in transaction mode" {
    [ -x /usr/sbin/pgbouncer ] || skip "pgbouncer is not installed"
    pgb_start transaction default_pool_size=2
    L="postgres://postgres@127.0.0.1:$PGB_PORT/postgres?mode=lease#$NAME"
    holds a -s --ttl 2
    holds b --slots 1 --ttl 2
    is_in a
    is_in b
    refused --slots 1
    holds w --ttl 2
    wait_for 5 notices_are 1
    # Later ones stay behind it, also those that are directly connected.
    refused -s
    L="postgres://$AT/postgres?mode=lease#$NAME" refused -s
    holds c -s --ttl 2
    end a b
    is_in w
    [ ! -e in.c ]
    end w
    is_in c
    end c
    rows_are 0
}
