# pglock.bash - locks in PostgreSQL, advisory where nothing else is said. Load after common.bash and postgres.bash;
# setup calls at_server.

# U is the URI of the server that pgsql asks, too, L that of the lock.
at_server() {
    U="postgres://postgres@127.0.0.1:$PG_PORT/postgres"
    L="$U#$NAME"
}

# own_server [ARG...]: one for this test; pgsql and the others then mean this one.
own_server() {
    pg_start_in own "$@"
    PG_PORT=${PG_PORTS[own]} PG_LOG=${PG_LOGS[own]} PG_SOCK=${PG_SOCKS[own]}
    at_server
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
