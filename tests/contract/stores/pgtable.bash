# One PostgreSQL server for the contract suite, the lock a row of the lease table.
# bats file_tags=contract,long
load "$SUPPORT/postgres"
STORE_SHARED=1 STORE_SLOTS=1 STORE_NUMBERS=1 STORE_TURNS=1 STORE_LEASE=1 STORE_FIFO=1 STORE_FENCE=1 STORE_TELLS='fence left' STORE_PAUSES=1 STORE_TAKES=1 STORE_ONCE=1 STORE_STAYS=1
store_up() { pg_start; }
store_down() { pg_stop_all; }
store_lock() { echo "postgres://postgres@127.0.0.1:$PG_PORT/postgres?mode=lease#$1"; }
# A released row may stay: it keeps the fence until it is swept.
store_clean() {
    local left
    left=$(pgsql -v name="$1" <<<"select * from public.dlock_locks where name = :'name' and expires <> '-infinity'")
    [ -z "$left" ] || fail "left in the store: $left" || return
    [ -n "$(pgsql -c "select to_regclass('public.dlock_locks_holders')")" ] || return 0
    left=$(pgsql -v name="$1" <<<"select * from public.dlock_locks_holders where name = :'name'")
    [ -z "$left" ] || fail "left in the store: $left"
}
store_pids() { echo "$PG_PID" $(children "$PG_PID"); }
store_take() { pgsql -v name="$1" <<<"delete from public.dlock_locks where name = :'name'"; }
