# One PostgreSQL server for the contract suite, the lock a session's advisory lock.
# bats file_tags=contract,long
load "$SUPPORT/postgres"
STORE_LEASE=1 STORE_FIFO='' STORE_FENCE=1 STORE_TELLS=left STORE_PAUSES=1 STORE_TAKES=1
STORE_SHARED=1 STORE_SLOTS=1 STORE_NUMBERS=1 STORE_TURNS=1
store_up() { pg_start; }
store_down() { pg_stop_all; }
store_lock() { echo "postgres://postgres@127.0.0.1:$PG_PORT/postgres#$1"; }
no_session() { [ "$(pg_backends 'dlock:%')" = 0 ]; }
# A lock lasts as long as its session; the server takes a moment to notice that a client is gone.
store_clean() {
    local left
    wait_for 2 no_session || fail "sessions of dlock are left: $(pg_backends 'dlock:%')" || return
    left=$(pgsql -c "select * from pg_locks where locktype = 'advisory'")
    [ -z "$left" ] || fail "left in the store: $left"
}
store_pids() { echo "$PG_PID" $(children "$PG_PID"); }
store_take() {
    pgsql -c "select pg_terminate_backend(pid) from pg_stat_activity
        where application_name like 'dlock:%'"
}
