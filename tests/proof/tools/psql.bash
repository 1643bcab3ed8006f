# A session of psql takes an advisory lock, then runs the command; the lock goes with the session.
STORE=postgres
tool_about() { echo "psql -c 'select pg_advisory_lock(1)' -c '\\! COMMAND'"; }
tool_version() { "$PG_BIN/psql" --version; }
# Of several hosts the one that takes writes.
tool_run() {
    local hosts ports
    hosts=$(sed 's/:[0-9]*//g' <<<"$ADDR") ports=$(sed 's/[^,]*://g' <<<"$ADDR")
    exec ${VIA[@]+"${VIA[@]}"} "$PG_BIN/psql" -X -q -v ON_ERROR_STOP=1 \
        -d "user=postgres dbname=postgres host=$hosts port=$ports \
            target_session_attrs=read-write" \
        -c 'select pg_advisory_lock(1)' -c "\\! $(printf '%q ' "${@:2}")"
}
pg_advisory() { pgsql -c "select $1 from pg_locks where locktype = 'advisory' and $2"; }
tool_waiting() { [ "$(pg_advisory 'count(*)' 'not granted')" = 1 ]; }
tool_delete() { pg_advisory 'pg_terminate_backend(pid)' granted; }
