#!/usr/bin/env bats
# library.bats - libdlock as other programs use it: tests/programs and the examples, on stores.

# bats file_tags=long,thread
load ../../support/common
load ../../support/record_folder
load ../../support/redis
load ../../support/postgres
load ../../support/mysql
load ../../support/zookeeper

PROG=$BUILD/programs
END_OF_SESSION='select pg_terminate_backend(pid) from'

setup_file() {
    redis_start
    pg_start
    my_start
    zk_start
}
teardown_file() {
    zk_stop_all
    my_stop_all
    pg_stop_all
    redis_stop
}
setup() {
    dlock_setup
    DISK=$(disk_folder "$T")
    MY_CLIENT="mariadb --no-defaults -S $MY_SOCK -u root -N -B"
}
teardown() {
    disk_done "${DISK:-}"
    dlock_teardown
}

# on STORE: L is a lock there, and TAKE a script that takes L from its holder; empty: impossible.
on() {
    local name=$NAME.$1
    TAKE=$PWD/take.$1
    case $1 in
    file) L=file://$DISK#$name TAKE='' ;;
    bare) L=$PWD/$name TAKE='' ;;
    redis) L=redis://127.0.0.1:$REDIS_PORT#$name
        script "redis-cli -p $REDIS_PORT del '$name'" ;;
    advisory) L=postgres://postgres@127.0.0.1:$PG_PORT/postgres#$name
        sql_script "$END_OF_SESSION pg_locks where locktype = 'advisory' and granted" ;;
    table) L="postgres://postgres@127.0.0.1:$PG_PORT/postgres?mode=lease#$name"
        sql_script "delete from public.dlock_locks where name = '$name'" ;;
    mysql) L=mysql://dl:pw@127.0.0.1:$MY_PORT/app#$name
        script "$MY_CLIENT -e \"DELETE FROM dlock_locks WHERE name = '$name'\" app" ;;
    zookeeper) L=zk://127.0.0.1:$ZK_PORT#$name
        local zk="'$ROOT/tests/support/helpers/zk.py' $ZK_PORT"
        script "$zk rm \"/$name/\$($zk ls '/$name')\"" ;;
    esac
}
script() { printf '#!/bin/sh\nexec >/dev/null\n%s\n' "$1" >"$TAKE" && chmod +x "$TAKE"; }
sql_script() {
    local -a psql
    pg_psql "$PG_PORT" -c "$1"
    script "${psql[*]@Q}"
}
# on_all PROGRAM STORE...: the program with the lock and TAKE, on all of them at once.
on_all() {
    local program=$1 store bad=''
    local -A pids=()
    shift
    for store; do
        on "$store"
        start_log "$program.$store" timeout 60 "$PROG/$program" "$L" ${TAKE:+"$TAKE"}
        pids[$store]=$STARTED
    done
    for store; do
        wait_exit 60 "${pids[$store]}" || bad+="$store: $(cat "$program.$store")"$'\n'
    done
    [ -z "$bad" ] || fail "$bad"
}

# ----------------------------------------------------------------- calls ---

@test "every call in every state" {
    local store
    on_all states file redis advisory table mysql zookeeper
    for store in file redis advisory table mysql zookeeper; do
        cp "$ROOT/tests/programs/states.expected" want
        case $store in
        file) sed -i '/^LOST/d' want ;; # nothing can be lost there
        # The session is gone, and nothing of the lock can be left.
        advisory) sed -i 's/^LOST release DLOCK_ELOST/LOST release DLOCK_OK/' want ;;
        esac
        diff want "states.$store" || fail "$store: another result"
    done
}

@test "dlock_keep asks without losing the lock, and says what is not held" {
    on_all keep file redis advisory table mysql zookeeper
}

@test "dlock_renew_now renews before a busy step, and says what is not held" {
    on_all renew file redis advisory table mysql zookeeper
}

@test "a hundred handles of one process hold and give back, each its own lock" {
    local store mode
    for store in file redis table mysql zookeeper advisory; do
        on "$store"
        for mode in exclusive shared 'slots 3'; do
            run_t 60 "$PROG/handles" 100 "$mode" "$L" >out 2>&1 || fail "$store, $mode: $(cat out)"
            grep -q ' 100 held .* 100 released' out || fail "$store, $mode: $(cat out)"
        done
    done
}

# bats test_tags=plain
@test "a caller that is busy for two thirds of the ttl holds the lock only if it renews first" {
    local pid
    # The answer to a renewal comes when the caller is busy already.
    listener proxy "$REDIS_PORT" late 0.05
    start_log careless timeout 60 "$PROG/renew" "redis://127.0.0.1:$LISTENS#$NAME.careless" \
        careless DLOCK_ELOST
    pid=$STARTED
    run -0 run_t 60 "$PROG/renew" "redis://127.0.0.1:$REDIS_PORT#$NAME.busy" busy DLOCK_OK
    wait_exit 60 "$pid" || fail "$(cat careless)"
}

# bats test_tags=plain
@test "a renewal for the caller costs one request" {
    redis_start_in own
    local n url=redis://127.0.0.1:${REDIS_PORTS[own]}#$NAME
    for n in 1 0 20; do # the first run is where the server learns the scripts
        redis-cli -p "${REDIS_PORTS[own]}" config resetstat
        run -0 run_t 20 "$PROG/renew" "$url" times $n
        redis-cli -p "${REDIS_PORTS[own]}" info commandstats | count_evals >evals.$n
    done
    [ "$(cat evals.0) $(cat evals.20)" = '2 22' ] ||
        fail "$(cat evals.0) without, $(cat evals.20) with 20 renewals"
    redis_stop own
}

@test "times without end, values out of range, and NULL" {
    local store
    for store in file bare redis advisory table mysql zookeeper; do
        on "$store"
        run_t 20 "$PROG/limits" "$L" 2>log || fail "$store: $(cat log)"
    done
}

@test "what interrupts and drives: cancel_fd, dlock_poll_fd, retry_at" {
    # Here TAKE only cuts the connection.
    sql_script() {
        local -a psql
        pg_psql "$PG_PORT" \
            -c "$END_OF_SESSION pg_stat_activity where application_name like 'dlock:%'"
        script "${psql[*]@Q}"
    }
    script() { # CMD
        local cmd=$1
        [[ $cmd != redis-cli* ]] || cmd="redis-cli -p $REDIS_PORT client kill type normal"
        [[ $cmd != mariadb* ]] || cmd="$MY_CLIENT -e \"SELECT CONCAT('KILL ', id, ';')
            FROM information_schema.processlist WHERE user = 'dl'\" | $MY_CLIENT --force"
        [[ $cmd != *zk.py* ]] || cmd=:
        printf '#!/bin/sh\nexec >/dev/null\n%s\n' "$cmd" >"$TAKE" && chmod +x "$TAKE"
    }
    on_all loop file redis table mysql zookeeper
    run_t 20 "$PROG/loop" -d "redis://127.0.0.1:1#x" 2>log || fail "$(cat log)"
    run_t 20 "$PROG/loop" -d "postgres://127.0.0.1:1/x#x" 2>log || fail "$(cat log)"
}

# -------------------------------------------------------------- examples ---

lines_are() { [ "$(grep -c "$1" out)" -ge "$2" ]; }

@test "the example of steps: interrupted, and with a lock that is taken away" {
    on redis
    run -0 run_t 10 "$PROG/steps" "$L" 2
    [[ ${lines[0]} =~ ^"step 1 with fence "([1-9][0-9]*)$ ]] || fail "$output"
    [ "${lines[*]:1}" = "step 2 with fence ${BASH_REMATCH[1]}" ] || fail "$output"
    rcli set "$NAME.redis" other px 60000
    start_log out "$PROG/steps" "$L" 2
    wait_for 5 waits_in_line
    kill -TERM "$STARTED"
    wait_exit 5 "$STARTED" && fail "it was interrupted"
    file_has out "was interrupted"
    rcli del "$NAME.redis"
    start_log out "$PROG/steps" "$L" 1000
    wait_for 5 lines_are '^step' 2
    "$TAKE"
    wait_exit 15 "$STARTED" && fail "it was lost"
    file_has out "is lost"
}
waits_in_line() { [ "$(rcli exists "{$NAME.redis}:dlock:queue")" = 1 ]; }

again() { redis_launch fifty "${REDIS_DIRS[fifty]}" "${REDIS_PORTS[fifty]}" "$@"; }
fifty() { redis-cli -p "${REDIS_PORTS[fifty]}" "$@"; }
# All leases are new since that moment: longer than they could be otherwise.
renewed() {
    local i
    for i in 1 25 50; do [ "$(fifty pttl l$i)" -gt 5000 ] || return; done
}
older() { [ "$(fifty pttl l1)" -lt 5000 ]; }
lost_are() { [ "$(grep -c ' lost' out)" = "$1" ] || fail "$(grep -v ' held' out)"; }

@test "fifty locks in one epoll loop, through a server's stop, crash and restart" {
    local i locks=()
    redis_start_in fifty --appendonly yes --appendfsync always
    local url=redis://127.0.0.1:${REDIS_PORTS[fifty]}?restart-grace=0
    for i in {1..50}; do locks+=("$url#l$i"); done
    start_log out "$PROG/leader" -t 6 "${locks[@]}"
    wait_for 10 lines_are ' held' 50
    # A stop that the leases outlast.
    kill -STOP "${REDIS_PIDS[fifty]}"
    sleep 1.2
    kill -CONT "${REDIS_PIDS[fifty]}"
    wait_for 8 renewed
    lost_are 0
    # A crash, and a restart with the data: all survive.
    redis_kill fifty
    again --appendonly yes --appendfsync always
    wait_for 5 older
    wait_for 8 renewed
    lost_are 0
    # A crash that loses the data: each is reported lost, once, and held again.
    redis_kill fifty
    again
    wait_for 10 lines_are ' held' 100
    lost_are 50
    [ "$(grep ' lost' out | cut -d' ' -f1 | sort -u | wc -l)" = 50 ]
    wait_for 8 renewed
    [ "$(wc -l <out)" = 150 ] || fail "$(cat out)"
    kill -TERM "$STARTED"
    exits 0 10 "$STARTED"
    [ -z "$(fifty keys 'l*')" ] || fail "left: $(fifty keys 'l*')"
    redis_stop fifty
}
