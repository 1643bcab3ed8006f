# One PostgreSQL server for the contract suite, the lock a session's advisory lock.
# bats file_tags=contract,long
load "$SUPPORT/postgres"
STORE_LEASE=1 STORE_FIFO='' STORE_FENCE=1 STORE_TELLS=left
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
