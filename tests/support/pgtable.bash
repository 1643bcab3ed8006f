# pgtable.bash - a lock in the lease table of PostgreSQL (?mode=lease), for the files that test it: table*.bats.
# Load after common.bash, fake.bash and postgres.bash.
#
#     pgtable_start                    in setup_file: the file's server, with the table
#     pgtable_setup                    after dlock_setup: L (the lock's URI), AT (user and server), SERVER
#     own_server [ARG...]              another server for this test; L, sql and the others then mean that one
#     sql ARG... | row EXPRESSION      psql there; of the lock's row
#     waiter                           see below
#     freeze | thaw                    (thaw in teardown)

pgtable_start() {
    pg_start
    # The table is there; tests of how it is made use a database of their own.
    "$DLOCK" -q "postgres://postgres@127.0.0.1:$PG_PORT/postgres?mode=lease#first" true 3>&-
}
pgtable_setup() {
    SERVER=default
    AT=postgres@127.0.0.1:$PG_PORT
    L="postgres://$AT/postgres?mode=lease#$NAME"
}

own_server() {
    pg_start_in own "$@"
    SERVER=own
    AT=postgres@127.0.0.1:${PG_PORTS[own]}
    L="postgres://$AT/postgres?mode=lease#$NAME"
}
sql() { if [ $SERVER = own ]; then pgsql_in own "$@"; else pgsql "$@"; fi; }

# row EXPRESSION: of the lock's row.
row() { sql -c "select $1 from public.dlock_locks where name = '$NAME'"; }
# Unix milliseconds of the server's clock, which is that of this machine.
EXPIRES='(extract(epoch from expires) * 1000)::bigint'
row_is_free() { [ "$(row "expires = '-infinity' and owner = ''")" = t ]; }
row_is_renewed() { [ "$(row "$EXPIRES")" -gt "$1" ]; }

# The lock's sessions: all of them, those that wait to be called.
sessions() { sql -c "select count(*) from pg_stat_activity where application_name like 'dlock:%'"; }
called() { sql -c "select count(*) from pg_stat_activity where application_name like 'dlock:%:%'"; }
called_are() { [ "$(called)" = "$1" ]; }
no_sessions() { [ "$(sessions)" = 0 ]; }
end_sessions() { sql -c "select count(pg_terminate_backend(pid)) from pg_stat_activity where application_name like 'dlock:%'"; }

# waiter N CMD...: the N-th waiter; returns when a release can call it.
waiter() {
    local n=$1
    shift
    start_log "wait$n.log" "$DLOCK" --ttl "${TTL:-30}" "$L" "$@"
    WAITER=$STARTED
    wait_for 5 called_are "$n"
}

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
    start_log session.log bash -c '. "$0/tests/support/common.bash"; . "$0/tests/support/postgres.bash"
        pg_session "${@:2}" <"$1"' "$ROOT" "$T/sql" "$@"
    exec 8>sql
}
session_ends() { # commit | rollback
    echo "$1;" >&8
    exec 8>&-
}
blocked_are() { [ "$(sql -c "select count(*) from pg_stat_activity where application_name like 'dlock:%' and wait_event_type = 'Lock'")" = "$1" ]; }

# fence: that of a hold of a moment.
fence() { run_t 5 "$DLOCK" -w 4 "$L" sh -c 'echo $DLOCK_FENCE'; }

# block_row: the lock's row is held by an open transaction, so a try is not answered; unblock_row ends that.
block_row() {
    session
    echo "begin; select 1 from dlock_locks where name = '$NAME' for update; \\echo blocked" >&8
    wait_for 5 file_has session.log blocked
}
unblock_row() { session_ends commit; }
