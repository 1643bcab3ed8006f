#!/usr/bin/env bats
# check.bats - --check on PostgreSQL: silence about a good server, and a finding for each planted
# misconfiguration.

# bats file_tags=long
load ../../support/pgtable

setup_file() {
    export BATS_NO_PARALLELIZE_WITHIN_FILE=true
    pg_start -c fsync=on -c full_page_writes=on
    "$DLOCK" -q "postgres://postgres@127.0.0.1:$PG_PORT/postgres?mode=lease#first" true 3>&-
}

A() { echo "postgres://${1:-postgres}@${AT#*@}/postgres#$NAME"; }
L() { echo "postgres://${1:-postgres}@${AT#*@}/postgres?mode=lease#$NAME"; }

# finds RC LOCK TEXT...: --check of the lock exits with RC, and has these lines beside "ok".
finds() {
    local text
    run -"$1" run_t 15 "$DLOCK" --check "$2"
    for text in "${@:3}"; do assert_out "$text"; done
    # Without SELECT, the pings for the round trip say what is missing, too.
    [ "$(grep -cvE '^(ok|dlock:) ' <<<"$output")" = $(($# - 2)) ] || fail "other findings: $output"
}

@test "a good server has only good lines, and stays as it is" {
    local kind before
    dump() { "$PG_BIN/pg_dump" -h 127.0.0.1 -p "$PG_PORT" -U postgres postgres | grep -v restrict; }
    before=$(dump)
    finds 0 "$(A)"
    finds 0 "$(L)"
    for text in "user postgres" "version: PostgreSQL" "fsync: on" "table: as --schema"; do
        assert_out "$text"
    done
    for kind in -s "--slots 2"; do run -0 run_t 5 "$DLOCK" $kind --check "$(A)"; done
    [ "$(dump)" = "$before" ]
    locks_are true 0
    run -0 run_t 5 "$DLOCK" --check --json "$(L)"
    assert_out '{"level":"ok","text":"fsync: on"}'
}

@test "each missing right is a failure" {
    local emit
    role_named poor
    finds 77 "$(L poor)" "right: SELECT on" "right: INSERT on" "right: UPDATE on" "right: DELETE on"
    pgsql -c "grant select, insert, update on dlock_locks to poor"
    finds 77 "$(L poor)" "failure  right: DELETE on \"public\".\"dlock_locks\" is missing; GRANT"
    emit=$(pgsql -c "select oid::regprocedure from pg_proc
        where proname = 'pg_logical_emit_message' and proargtypes[2] = 'text'::regtype")
    pgsql -c "revoke execute on function $emit from public"
    finds 77 "$(A poor)" "right: EXECUTE on $emit is missing; GRANT EXECUTE ON FUNCTION $emit"
    pgsql -c "grant execute on function $emit to public" \
        -c "revoke usage on language plpgsql from public"
    finds 1 "$(A poor)" "warning  language: no PL/pgSQL"
    pgsql -c "grant usage on language plpgsql to public"
}

# As release 17 did to pg_logical_emit_message.
@test "a function may have further arguments with a default" {
    own_server -c fsync=on -c full_page_writes=on -c allow_system_table_mods=on
    pgsql -c "alter function pg_notify(text, text) rename to notify_before" \
        -c "create function pg_catalog.pg_notify(text, text, boolean default false) returns void
            language sql as 'select pg_catalog.notify_before(\$1, \$2)'"
    finds 0 "$(A)"
    role_named poor
    pgsql -c "revoke execute on function pg_notify from public"
    finds 77 "$(A poor)" "failure  right: EXECUTE on pg_notify(text,text,boolean) is missing"
    pgsql -c "alter function pg_notify rename to notify_after"
    finds 69 "$(A)" "failure  function: pg_notify(text, text) does not exist on this server"
}

@test "a table that is missing, or not that of --schema" {
    own_database dlock_locks
    finds 1 "$L" "warning  table: \"public\".\"dlock_locks\" does not exist yet"
    [ -z "$(in_db -c "select to_regclass('public.dlock_locks')")" ]
    role_named nobody1
    finds 77 "${L/postgres@/nobody1@}" "failure  table: \"public\".\"dlock_locks\" does not exist;"
    "$DLOCK" --schema "$L" | in_db
    in_db -c "alter table dlock_locks add more int"
    finds 77 "$L" "failure  table: the table \"public\".\"dlock_locks\" is not safe to use"
}

@test "settings that end a renewal are a warning" {
    local setting
    for setting in statement_timeout lock_timeout idle_session_timeout; do
        role_named "r_$setting" $setting=300ms
        pgsql -c "grant select, insert, update, delete on dlock_locks to r_$setting"
        finds 1 "$(L r_$setting)" "warning  $setting: 300ms "
        finds 0 "$(A r_$setting)" # which sets it by itself
    done
}

@test "settings that lose a lock are a warning" {
    own_server -c fsync=off -c full_page_writes=off
    finds 1 "$(A)" "warning  fsync: off" "warning  full_page_writes: off"
}

@test "a role whose commits wait for no standby is a warning" {
    local how lock
    own_server -c fsync=on -c full_page_writes=on -c synchronous_standby_names=standby1
    local -x PGOPTIONS='-c synchronous_commit=off' # ours would wait, too
    "$DLOCK" -q "$(L)" true
    for how in off local remote_write on remote_apply; do
        role_named "c_$how" "synchronous_commit=$how"
        pgsql -c "grant select, insert, update, delete on dlock_locks to c_$how"
    done
    unset PGOPTIONS
    for how in off local remote_write on remote_apply; do
        for lock in A L; do
            case $how in
            off | local)
                finds 1 "$($lock c_$how)" "warning  synchronous_commit: $how, so a commit waits"
                assert_out "; ALTER ROLE c_$how SET synchronous_commit = on"
                ;;
            *)
                finds 0 "$($lock c_$how)"
                assert_out "ok       synchronous_commit: $how"
                ;;
            esac
        done
    done
}

@test "a server with few free connections is a warning" {
    own_server -c fsync=on -c full_page_writes=on -c max_connections=8 -c max_wal_senders=0 \
        -c superuser_reserved_connections=2
    hold
    for id in a b c d; do L=$(A)$id holds $id; done
    wait_for 5 pg_backends_are 5
    finds 1 "$(A)" "warning  connections: 6 of 6 in use; raise max_connections"
    end a b c d
    let_go
}
pg_backends_are() { [ "$(pg_backends 'dlock:%')" = "$1" ]; }

# bats test_tags=plain
@test "a clock that differs is a warning" {
    # This machine's clock, in ns.
    /usr/bin/python3 -S -c 'import struct, sys
sys.stdout.buffer.write(struct.pack("=q", 5 * 10**9))' >offset
    LD_PRELOAD=$HELPERS/wallclock.so WALLCLOCK=$T/offset run -1 run_t 15 "$DLOCK" --check "$(A)"
    assert_out "warning  clock: the server is 5"
    assert_out "behind this machine"
}

@test "a pooler refuses advisory locks, and is a warning for the table" {
    [ -x /usr/sbin/pgbouncer ] || skip "needs PgBouncer"
    pgb_start transaction
    AT=postgres@127.0.0.1:$PGB_PORT
    run -64 run_t 15 "$DLOCK" --check "$(A)"
    assert_out "failure  pooler: "
    finds 1 "$(L)" "warning  pooler: waiters poll once a second"
    pgb_stop
}

@test "no secret is told" {
    pgsql -c "create role app login superuser password 'c4n4ry-pw'"
    run run_t 15 "$DLOCK" -v --check "postgres://app:c4n4ry-pw@127.0.0.1:$PG_PORT/postgres#$NAME"
    refute_out c4n4ry
    assert_out "user app"
}
