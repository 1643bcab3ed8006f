# One PostgreSQL server for the contract suite, the lock a row of the lease table.
# bats file_tags=contract,long
load "$SUPPORT/postgres"
STORE_SHARED=1 STORE_SLOTS=1 STORE_NUMBERS=1 STORE_TURNS=1 STORE_LEASE=1 STORE_FIFO=1 \
    STORE_FENCE=1 STORE_TELLS='fence left' STORE_PAUSES=1 STORE_TAKES=1 STORE_ONCE=1 STORE_STAYS=1
store_up() { pg_start; }
store_down() { pg_stop_all; }
store_lock() { echo "postgres://postgres@127.0.0.1:$PG_PORT/postgres?mode=lease#$1"; }
# A released row may stay: it keeps the fence until it is swept.
store_clean() {
    local left
    left=$(pgsql -v name="$1" <<<"select * from public.dlock_locks
        where name = :'name' and expires <> '-infinity'")
    [ -z "$left" ] || fail "left in the store: $left" || return
    [ -n "$(pgsql -c "select to_regclass('public.dlock_locks_holders')")" ] || return 0
    left=$(pgsql -v name="$1" <<<"select * from public.dlock_locks_holders where name = :'name'")
    [ -z "$left" ] || fail "left in the store: $left"
}
store_pids() { echo "$PG_PID" $(children "$PG_PID"); }
store_take() { pgsql -v name="$1" <<<"delete from public.dlock_locks where name = :'name'"; }

record() { pgsql -v name="$NAME" <<<"select $1 from public.dlock_locks_runs where name = :'name'"; }
store_has_run() { [ "$(record state)" = "$1" ]; }
store_record() { record 'md5(dlock_locks_runs::text)'; }
store_ends() {
    pgsql -v name="$NAME" <<<"update public.dlock_locks_runs
        set ended = to_timestamp($1 / 1000.0) where name = :'name'"
}
store_spoil() {
    local bad=("state = 'done'" "state = 'running'" "ended = null" "ended = 'infinity'"
        "began = '-infinity'" "status = 256"
        "fence = -1" "owner = repeat('f', 33)" "host = repeat('x', 1000000)"
        "command = E'\\033[31m'" "note = E'a\\nb'")
    WHAT='a row of "public"."dlock_locks_runs"'
    [ "$1" -lt ${#bad[@]} ] || return 1
    if [ "$1" -gt 0 ]; then # before that the record is good
        pgsql -v name="$NAME" >/dev/null \
            <<<"delete from public.dlock_locks_runs where name = :'name'"
        run_t 5 "$DLOCK" -q --once "$L" true
    fi
    pgsql -v name="$NAME" <<<"update public.dlock_locks_runs set ${bad[$1]} where name = :'name'" \
        >/dev/null
}
# Words of the message that begins a run, and of the one that ends it.
store_unanswered() {
    local words='WHEN NOT k.valid'
    [ "$1" = begin ] || words="timestamptz 'epoch'"
    listener pgproxy "$PG_PORT" gather "$words" never
    P="postgres://postgres@127.0.0.1:$LISTENS/postgres?mode=lease#$NAME"
}
store_own() {
    pg_start_in own
    L="postgres://postgres@127.0.0.1:${PG_PORTS[own]}/postgres?mode=lease#$NAME"
}
store_restart() { if [ "$1" = kill ]; then pg_restart own immediate; else pg_restart own fast; fi; }
