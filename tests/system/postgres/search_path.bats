#!/usr/bin/env bats
# search_path.bats - the search path of a role, and the glance at the lease table in front of its
# check.

load ../../support/pgtable

@test "a role's search path does no harm, and is the session's again afterwards" {
    local lock
    pgsql -c "alter role postgres set search_path = nowhere, pg_temp, pg_catalog"
    for lock in "$L" "${L/lease/advisory}"; do
        run -9 run_t 5 "$DLOCK" "$lock" "$DLOCK" --no-reentrant -E 9 -n "$lock" true
        run -0 run_t 5 "$DLOCK" -s "$lock" true
        run -0 run_t 5 "$DLOCK" --slots 2 "$lock" true
    done
    [ -x /usr/sbin/pgbouncer ] || return 0
    # One session for all clients of the pool, without a reset between them.
    pgb_start transaction default_pool_size=1 server_reset_query=
    run -0 run_t 5 "$DLOCK" "postgres://postgres@127.0.0.1:$PGB_PORT/postgres?mode=lease#$NAME" true
    [ "$(PG_PORT=$PGB_PORT pgsql -c 'show search_path')" = 'nowhere, pg_temp, pg_catalog' ]
    pgb_stop
    pgsql -c 'alter role postgres reset search_path'
}

# checks: how many of the statements in the log are the thorough check.
checks() { grep -c 'it has the trigger' "$PG_LOG"; }

@test "a table of --schema needs no more than a glance, also with grants" {
    local before
    before=$(checks)
    run -0 run_t 5 "$DLOCK" --once -w 5 "$L" true # makes the table of run records
    [ "$(checks)" -gt "$before" ]
    run -0 run_t 5 "$DLOCK" -s "$L" true
    pgsql -c "create role reader" \
        -c 'grant select, insert, update, delete on public.dlock_locks to reader'
    before=$(checks)
    run -0 run_t 5 "$DLOCK" "$L" true
    run -0 run_t 5 "$DLOCK" -s "$L" true
    run -0 run_t 5 "$DLOCK" --once "$L" true
    run -0 run_t 5 "$DLOCK" --status "$L"
    [ "$(checks)" = "$before" ]
}

@test "a trigger that has gone costs the thorough check, in each operation" {
    pgsql -c "create function public.f() returns trigger
        language plpgsql as 'begin return new; end'" \
        -c 'create trigger t before update on public.dlock_locks for each row
            execute function public.f()'
    run -77 run_t 5 "$DLOCK" "$L" true
    pgsql -c 'drop function public.f() cascade'
    hold --ttl 2
    start_log w.log "$DLOCK" -v -w 10 "$L" touch ran
    wait_for 5 file_has w.log "waiting"
    run -75 run_t 5 "$DLOCK" --status "$L"
    # The hold renews itself, and is released, over a new connection.
    pgsql -c "select pg_terminate_backend(pid) from pg_stat_activity
        where application_name like 'dlock:%'" >ended
    let_go
    exits 0 5 "$STARTED"
    [ -e ran ]
    run -0 run_t 5 "$DLOCK" --once "$L" true
    run -0 run_t 5 "$DLOCK" --slots 2 "$L" true
}
