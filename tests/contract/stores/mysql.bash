# One MariaDB server for the contract suite, the lock a row of the lease table.
# bats file_tags=contract,long
load "$SUPPORT/mysql"
STORE_SHARED=1 STORE_SLOTS=1 STORE_NUMBERS=1 STORE_TURNS=1 STORE_LEASE=1 STORE_FIFO=1 \
    STORE_FENCE=1 STORE_TELLS='fence left' STORE_PAUSES=1 STORE_TAKES=1 STORE_ONCE=1 STORE_STAYS=1
store_up() { my_start; }
store_down() { my_stop_all; }
store_lock() { echo "mysql://dl:pw@127.0.0.1:$MY_PORT/app#$1"; }
hex() { printf %s "$1" | od -An -v -tx1 | tr -d ' \n'; }
# A released row may stay: it keeps the fence until it is swept.
store_clean() {
    local left
    left=$(mysql -e "SELECT * FROM dlock_locks
        WHERE name = x'$(hex "$1")' AND expires <> '1970-01-01'" app)
    [ -z "$left" ] || fail "left in the store: $left" || return
    # A waiter that was killed leaves a row that says nothing, once its session has ended.
    wait_for 4 no_client "$1" ||
        fail "left in the store: $(mysql -e 'SELECT * FROM dlock_locks_clients' app)"
}
no_client() {
    [ -z "$(mysql -e "SELECT 1 FROM dlock_locks_clients w WHERE name = x'$(hex "$1")' AND (
        expires > UTC_TIMESTAMP(6) OR IS_USED_LOCK(CONCAT('dlock.w.', token)) IS NOT NULL)" app)" ]
}
store_pids() { echo "$MY_PID"; }
store_take() { mysql -e "DELETE FROM dlock_locks WHERE name = x'$(hex "$1")'" app; }

record() { mysql -e "SELECT $1 FROM dlock_locks WHERE name = x'$(hex "$NAME")'" app; }
store_has_run() { [ "$(record run_state)" = "$1" ]; }
store_record() {
    record "MD5(CONCAT_WS('|', run_state, run_status, run_fence, run_owner, run_host, run_pid,
        run_user, run_command, run_note, run_began, run_ended, run_until))"
}
set_record() { mysql -e "UPDATE dlock_locks SET $1 WHERE name = x'$(hex "$NAME")'" app; }
store_ends() { set_record "run_ended = '1970-01-01' + INTERVAL $1 * 1000 MICROSECOND"; }
store_spoil() {
    local bad=("run_state = 'done'" "run_state = 'failures'" "run_status = 256" "run_status = -5"
        "run_fence = -1" "run_pid = -1" "run_owner = REPEAT('f', 33)" "run_owner = ''"
        "run_owner = 'x'")
    WHAT='a row of `app`.`dlock_locks`'
    [ "$1" -lt ${#bad[@]} ] || return 1
    if [ "$1" -gt 0 ]; then # before that the record is good
        mysql -e "DELETE FROM dlock_locks WHERE name = x'$(hex "$NAME")'" app
        run_t 5 "$DLOCK" -q --once "$L" true
    fi
    set_record "${bad[$1]}"
}
# Words of the message that begins a run, and of the one that ends it.
store_unanswered() {
    local words="+ 1, l.run_state = 'running'"
    [ "$1" = begin ] || words='SET l.run_status = IF('
    listener pgproxy "$MY_PORT" gather "$words" never
    P="mysql://dl:pw@127.0.0.1:$LISTENS/app#$NAME"
}
store_own() {
    my_start_in own
    L="mysql://dl:pw@127.0.0.1:${MY_PORTS[own]}/app#$NAME"
}
store_restart() { my_restart own "$1"; }
