# pglock.bash - locks in PostgreSQL, advisory where nothing else is said. Load after common.bash and
# postgres.bash; setup calls at_server.

# U is the URI of the server that pgsql asks, too, L that of the lock, PSQL a bare psql there, for a
# command under test.
at_server() {
    U="postgres://postgres@127.0.0.1:$PG_PORT/postgres"
    L="$U#$NAME"
    PSQL=("$PG_BIN/psql" -XAtq -h 127.0.0.1 -p "$PG_PORT" -U postgres -d postgres)
}

# own_server [ARG...]: one for this test; pgsql and the others then mean this one. use_server NAME:
# they mean that one.
own_server() {
    pg_start_in own "$@"
    use_server own
}
use_server() {
    PG_PORT=${PG_PORTS[$1]} PG_PID=${PG_PIDS[$1]} PG_LOG=${PG_LOGS[$1]} PG_SOCK=${PG_SOCKS[$1]}
    at_server
}

# hba LINE...: whom the test's own server lets in from now on, and how.
hba() {
    local reloads
    reloads=$(grep -c 'reloading configuration' "$PG_LOG" || :)
    printf '%s\n' "$@" >"${PG_DIRS[own]}/pg_hba.conf"
    kill -HUP "$PG_PID"
    reloaded() { [ "$(grep -c 'reloading configuration' "$PG_LOG")" -gt "$reloads" ]; }
    wait_for 5 reloaded
}

in_db() { pgsql -d "$DB" "$@"; }

# role_named NAME [SETTING...]: a role that may connect and nothing else, with these settings.
role_named() {
    local set
    pgsql -c "create role $1 login nosuperuser nocreatedb nocreaterole"
    for set in "${@:2}"; do pgsql -c "alter role $1 set ${set%%=*} = '${set#*=}'"; done
}

# is_sql EXPRESSION...: is it true?
is_sql() { [ "$(pgsql -c "select $1")" = t ]; }

# The manual's statement, for the name $1.
key_of() {
    pgsql -v name="$1" <<<"SELECT ('x' || substr(encode(sha256(
        convert_to(:'name', 'UTF8')), 'hex'), 1, 16))::bit(64)::bigint"
}

app_of() { echo "dlock: $1"; }

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

# The server's process of the holder; not a waiter's, which may hold the turnstile.
holder_pid() {
    pgsql -c "select l.pid from pg_locks l join pg_stat_activity a using (pid)
        where l.locktype = 'advisory' and l.granted and a.application_name = '$(app_of "$NAME")'
        and classid::bigint << 32 | objid::bigint =
            x'$(printf %s "$NAME" | sha256sum | cut -c 1-16)'::bigint"
}
# log_has PID TEXT: the server has said TEXT about its process PID.
log_has() { grep -F "[$1] " "$PG_LOG" | grep -qF "$2"; }

# fence [OPTION...]: that of a hold of a moment.
# shellcheck disable=SC2016
fence() { run_t 5 "$DLOCK" -w 4 "$@" "$L" sh -c 'echo $DLOCK_FENCE'; }

# stop_server, go_on: all processes of the server in use.
stop_server() {
    kill -STOP "$PG_PID"
    wait_for 5 pid_stopped "$PG_PID"
    STOPPED=("$PG_PID" $(children "$PG_PID"))
    kill -STOP "${STOPPED[@]}"
}
go_on() {
    [ -z "${STOPPED:-}" ] || kill -CONT "${STOPPED[@]}" 2>/dev/null || :
    unset STOPPED
}

# session [ARG...]: a psql that reads from descriptor 8; what is started while it is open gets 8>&-.
session() {
    rm -f sql session.log
    mkfifo sql
    start_log session.log bash \
        -c '. "$0/tests/support/common.bash"; . "$0/tests/support/postgres.bash"
        pg_session "${@:2}" <"$1"' "$ROOT" "$T/sql" "$@"
    exec 8>sql
}
session_ends() { # commit | rollback
    echo "$1;" >&8
    exec 8>&-
}
blocked_are() {
    is_sql "count(*) = $1 from pg_stat_activity
        where application_name like 'dlock:%' and wait_event_type = 'Lock'"
}
# block_row: the lock's row in the lease table is held by an open transaction, so a try is not
# answered; unblock_row ends that.
block_row() {
    session
    echo "begin; select 1 from dlock_locks where name = '$NAME' for update; \\echo blocked" >&8
    wait_for 5 file_has session.log blocked
}
unblock_row() { session_ends commit; }

# sql_hold EXPRESSION: psql holds the lock of that expression until sql_let_go; $PSQL_PID.
sql_hold() {
    rm -f locked sql-go
    printf '%s\n' "SELECT $1;" '\! echo >locked; "$HELPERS/await" sql-go' >hold.sql
    PGAPPNAME=psql start_log psql.log pg_session -f "$T/hold.sql"
    PSQL_PID=$STARTED
    wait_for 5 test -e locked || fail "$(cat psql.log)"
}
sql_let_go() {
    : >sql-go
    wait_exit 5 "$PSQL_PID"
}

# indexing [OPTION [SQL]]: a table, and a holder of $L that makes an index of it when it is let go,
# after that SQL.
# shellcheck disable=SC2016
indexing() {
    pgsql -c "create table \"$NAME\" as select g as a from generate_series(1, 100) g"
    start_log hold.log "$DLOCK" "${1:--x}" "$L" sh \
        -c 'echo >held; "$HELPERS/await" go; exec "$0" "$@"' \
        "${PSQL[@]}" -c "${2:-select}" -c "create index concurrently on \"$NAME\" (a)"
    HOLDER=$STARTED
    wait_for 5 test -e held
}
