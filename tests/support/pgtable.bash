# pgtable.bash - a lock in the lease table of PostgreSQL (?mode=lease), for the files that test it:
# table*.bats and others. It is their frame, too: see pgtests.bash.
#
#     pgtable_start                    in setup_file: the file's server, with the table
#     at_server                        L (the lock's URI), U (the same without the name), AT (user
#                                      and server)
#     own_database TABLE               a new database $DB on the file's server, without that table;
#                                      L is there; in_db ARG...: pgsql there
#     row EXPRESSION                   of the lock's row
#     proxy FAULT ARG...               L goes through helpers/pgproxy.py from now on
#     as_role [SETTING...]             L is that of a new role $R, which has the rights to the table
#     waiter                           see below

source "${BASH_SOURCE[0]%/*}/pgtests.bash"

setup_file() {
    export BATS_NO_PARALLELIZE_WITHIN_FILE=true
    pgtable_start
}

pgtable_start() {
    pg_start
    # The table is there; tests of how it is made use a database of their own.
    "$DLOCK" -q "postgres://postgres@127.0.0.1:$PG_PORT/postgres?mode=lease#first" true 3>&-
}
at_server() {
    AT=postgres@127.0.0.1:$PG_PORT
    U="postgres://$AT/postgres?mode=lease"
    L="$U#$NAME"
    PSQL=("$PG_BIN/psql" -XAtq -h 127.0.0.1 -p "$PG_PORT" -U postgres -d postgres)
}
own_database() {
    DB=$NAME
    pgsql -c "create database \"$DB\" template postgres" -c "\\c \"$DB\"" -c "drop table $1"
    L="postgres://$AT/$DB?mode=lease#$NAME"
}
as_role() {
    R=r${NAME//-/}
    role_named "$R" "$@"
    pgsql -c "grant select, insert, update, delete on dlock_locks to $R"
    L="postgres://$R@${AT#*@}/postgres?mode=lease#$NAME"
}
proxy() {
    listener pgproxy "$PG_PORT" "$@"
    L="postgres://postgres@127.0.0.1:$LISTENS/postgres?mode=lease#$NAME"
}

row() { pgsql -c "select $1 from public.dlock_locks where name = '$NAME'"; }
# Unix milliseconds of the server's clock, which is that of this machine.
EXPIRES='(extract(epoch from expires) * 1000)::bigint'
row_is_free() { [ "$(row "expires = '-infinity' and owner = ''")" = t ]; }
row_is_renewed() { [ "$(row "$EXPIRES")" -gt "$1" ]; }
renewed() { wait_for "${1:-5}" row_is_renewed "$(row "$EXPIRES")"; }

# The lock's sessions: all of them, those that wait to be called.
called() { pg_backends 'dlock:%:%'; }
called_are() { [ "$(called)" = "$1" ]; }
no_sessions() { [ "$(pg_backends 'dlock:%')" = 0 ]; }
end_sessions() {
    pgsql -c "select count(pg_terminate_backend(pid)) from pg_stat_activity
        where application_name like 'dlock:%'"
}

# waiter N CMD...: the N-th waiter; returns when a release can call it.
waiter() {
    start_log "wait$1.log" "$DLOCK" --ttl "${TTL:-30}" "$L" "${@:2}"
    WAITER=$STARTED
    wait_for 5 called_are "$1"
}
