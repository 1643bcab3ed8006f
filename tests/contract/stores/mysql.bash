# One MariaDB server for the contract suite, the lock a row of the lease table. With MY_URI, see
# `make check-mysql`, it is a server that is there, with tables of our own; nobody stops it.
# bats file_tags=contract,long
load "$SUPPORT/mysql"
STORE_SHARED=1 STORE_SLOTS=1 STORE_NUMBERS=1 STORE_TURNS=1 STORE_LEASE=1 STORE_FIFO=1 \
    STORE_FENCE=1 STORE_TELLS='fence left' STORE_PAUSES=1 STORE_TAKES=1 STORE_ONCE=1 STORE_STAYS=1
MY_DATABASE=app MY_TABLE=dlock_locks
store_up() { my_start; }
store_down() { my_stop_all; }
store_lock() { echo "mysql://dl:pw@127.0.0.1:$MY_PORT/app#$1"; }
sql() { mysql -e "$1" "$MY_DATABASE"; }
hex() { printf %s "$1" | od -An -v -tx1 | tr -d ' \n'; }
# A released row may stay: it keeps the fence until it is swept.
store_clean() {
    local left
    left=$(sql "SELECT * FROM $MY_TABLE
        WHERE name = x'$(hex "$1")' AND expires <> '1970-01-01'")
    [ -z "$left" ] || fail "left in the store: $left" || return
    # A waiter that was killed leaves a row that says nothing, once its session has ended.
    wait_for 4 no_client "$1" ||
        fail "left in the store: $(sql "SELECT * FROM ${MY_TABLE}_clients")"
}
no_client() {
    [ -z "$(sql "SELECT 1 FROM ${MY_TABLE}_clients w WHERE name = x'$(hex "$1")' AND (
        expires > UTC_TIMESTAMP(6) OR
        IS_USED_LOCK(CONCAT('dlock.w.', CONVERT(token USING utf8mb4))) IS NOT NULL)")" ]
}
store_pids() { echo "$MY_PID"; }
store_take() { sql "DELETE FROM $MY_TABLE WHERE name = x'$(hex "$1")'"; }

record() { sql "SELECT $1 FROM $MY_TABLE WHERE name = x'$(hex "$NAME")'"; }
store_has_run() { [ "$(record run_state)" = "$1" ]; }
store_record() {
    record "MD5(CONCAT_WS('|', run_state, run_status, run_fence, run_owner, run_host, run_pid,
        run_user, run_command, run_note, run_began, run_ended, run_until))"
}
set_record() { sql "UPDATE $MY_TABLE SET $1 WHERE name = x'$(hex "$NAME")'"; }
store_ends() { set_record "run_ended = '1970-01-01' + INTERVAL $1 * 1000 MICROSECOND"; }
store_spoil() {
    local bad=("run_state = 'done'" "run_state = 'failures'" "run_status = 256" "run_status = -5"
        "run_fence = -1" "run_pid = -1" "run_owner = REPEAT('f', 33)" "run_owner = ''"
        "run_owner = 'x'")
    WHAT="a row of \`$MY_DATABASE\`.\`$MY_TABLE\`"
    [ "$1" -lt ${#bad[@]} ] || return 1
    if [ "$1" -gt 0 ]; then # before that the record is good
        store_take "$NAME"
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

# ---------------------------------------------------------- a server that is there ---

# Sets MY_DATABASE, and what mysql needs, from MY_URI.
decoded() { printf %b "${1//%/\\x}"; }
read_uri() {
    local at=${MY_URI#*://} parameters=''
    [[ $at != *\#* ]] || { echo "MY_URI: the database, without a lock's name" >&2; return 1; }
    [[ $at != *\?* ]] || parameters=${at#*\?} at=${at%%\?*}
    MY_DATABASE=$(decoded "${at#*/}") at=${at%%/*}
    MY_USER='' MY_PASSWORD=''
    if [[ $at == *@* ]]; then
        MY_USER=${at%@*} at=${at##*@}
        [[ $MY_USER != *:* ]] || MY_PASSWORD=$(decoded "${MY_USER#*:}") MY_USER=${MY_USER%%:*}
        MY_USER=$(decoded "$MY_USER")
    fi
    MY_AT=(--protocol=TCP -h "${at%:*}")
    [[ ! $at =~ :([0-9]+)$ ]] || MY_AT+=(-P "${BASH_REMATCH[1]}")
    [[ ! $at =~ ^\[(.*)\] ]] || MY_AT[2]=${BASH_REMATCH[1]}
    [[ ! "&$parameters" =~ \&socket=([^&]*) ]] || MY_AT=(-S "$(decoded "${BASH_REMATCH[1]}")")
    MY_CLIENT=$(type -P mariadb || type -P mysql) ||
        { echo "MY_URI: neither mariadb nor mysql is installed" >&2; return 1; }
}
if [ -n "${MY_URI:-}" ]; then
    read_uri || exit 1
    MY_TABLE=dlock_contract STORE_PAUSES=
    mysql() {
        MYSQL_PWD=$MY_PASSWORD timeout -k 2 30 "$MY_CLIENT" --no-defaults "${MY_AT[@]}" \
            ${MY_USER:+-u "$MY_USER"} -N -B --comments "$@" 3>&-
    }
    store_up() {
        local version
        version=$(sql 'SELECT VERSION()') && store_down || return
        echo "# mysql:   $version" >&3
    }
    store_down() { sql "DROP TABLE IF EXISTS $MY_TABLE, ${MY_TABLE}_clients"; }
    store_lock() {
        local mark='?'
        [[ $MY_URI != *\?* ]] || mark='&'
        echo "$MY_URI${mark}table=$MY_TABLE#$1"
    }
    unset -f store_pids store_unanswered store_own store_restart
fi
