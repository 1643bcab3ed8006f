# A session of psql takes an advisory lock, then runs the command; the lock goes with the session.
STORE=postgres
tool_about() { echo "psql -c 'select pg_advisory_lock(1)' -c '\\! COMMAND'"; }
tool_version() { "$PG_BIN/psql" --version; }
tool_run() {
    exec ${VIA[@]+"${VIA[@]}"} "$PG_BIN/psql" -X -q -v ON_ERROR_STOP=1 \
        -h "${ADDR%:*}" -p "${ADDR#*:}" -U postgres -d postgres \
        -c 'select pg_advisory_lock(1)' -c "\\! $(printf '%q ' "${@:2}")"
}
pg_advisory() { pgsql -c "select $1 from pg_locks where locktype = 'advisory' and $2"; }
tool_waiting() { [ "$(pg_advisory 'count(*)' 'not granted')" = 1 ]; }
tool_delete() { pg_advisory 'pg_terminate_backend(pid)' granted; }
