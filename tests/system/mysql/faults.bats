#!/usr/bin/env bats
# faults.bats - faults of a server of MySQL around a lock: read-only, tables and rows locked by
# others, no free connection, killed sessions and statements, time-outs, restarts.

# bats file_tags=long
load ../../support/holders
load ../../support/mysql

setup_file() {
    export BATS_NO_PARALLELIZE_WITHIN_FILE=true # some change the server's settings
    my_start
}
teardown_file() { my_stop_all; }
setup() {
    dlock_setup
    fake_setup
    at "$MY_PORT"
    run -0 run_t 5 "$DLOCK" -s "$L" true # the tables are there
}
teardown() {
    unset_all
    : >go
    dlock_teardown
}
at() { L="mysql://dl:pw@127.0.0.1:$1/app#$NAME"; }
set_all() { mysql -e "SET GLOBAL $1"; }
unset_all() {
    set_all "read_only = 0, GLOBAL max_connections = 300, GLOBAL max_statement_time = 0"
}
row() { mysql -e "SELECT $1 FROM dlock_locks WHERE name = '$NAME'" app; }
# A renewal has come since.
renewed() { wait_for "${1:-8}" row_is_not "$(row version)"; }
row_is_not() { [ "$(row version)" != "$1" ]; }
# waiter [OPTION...]: one that waits for $L; returns when it waits in the server.
waiter() {
    start_log "wait.$((WAITERS += 1)).log" "$DLOCK" --ttl 20 "$@" "$L" "$HELPERS/clock" got
    WAITER=$STARTED
    wait_for 5 waits_are $WAITERS
}
WAITERS=0
waits_are() {
    [ "$(mysql -e "SELECT COUNT(*) FROM information_schema.processlist
        WHERE user = 'dl' AND state = 'User lock'")" = "$1" ]
}
# Kill these sessions of the account, or their statements (QUERY). One session of ours does it.
# No cursor over the list: closing one has crashed a server.
killing() { # CONNECTION|QUERY [SQL]
    echo "BEGIN NOT ATOMIC DECLARE CONTINUE HANDLER FOR SQLEXCEPTION BEGIN END; SET @id = 0;
        WHILE @id IS NOT NULL DO
            SELECT MIN(id) INTO @id FROM information_schema.processlist
            WHERE user = 'dl' AND id > @id AND (${2:-1});
            IF @id IS NOT NULL THEN EXECUTE IMMEDIATE CONCAT('KILL $1 ', @id); END IF;
        END WHILE; END//"
}
kill_all() { mysql --delimiter=// -e "$(killing "$@")"; }
silent() { [ ! -s "$1" ] || fail "$1: $(cat "$1")"; }

# ------------------------------------------------------- a server without writes ---

@test "a read-only server grants nothing, and a hold ends there in time" {
    local kind
    hold --ttl 3
    set_all "read_only = 1"
    for kind in '' -s '--slots 2' --once; do
        # shellcheck disable=SC2086
        says 69 "the server takes no writes (read_only): name its primary" $kind -n "$L.x" touch ran
    done
    says 75 "pid $HOLDER" --status "$L"
    exits 79 6 "$HOLDER"
    file_has hold.log "could not be renewed in time: the server takes no writes (read_only)" ||
        fail "$(cat hold.log)"
    [ ! -e ran ]
}

@test "a hold outlives a short time without writes" {
    hold --ttl 4
    set_all "read_only = 1"
    unclear() { [ "$(mysql -e "SELECT COUNT(*) FROM information_schema.processlist
        WHERE user = 'dl'")" = 0 ]; }
    wait_for 4 unclear # a renewal was refused
    set_all "read_only = 0"
    renewed
    renewed
    let_go
}

@test "of two servers the one that takes writes has the lock, in each order" {
    local other ports
    my_start_in second
    other=${MY_PORTS[second]}
    set_all "read_only = 1"
    for ports in "$MY_PORT,127.0.0.1:$other" "$other,127.0.0.1:$MY_PORT"; do
        at "$ports"
        hold
        [ "$(mysql_in second -e "SELECT COUNT(*) FROM dlock_locks
            WHERE expires > UTC_TIMESTAMP(6)" app)" = 1 ]
        [ "$(row 'expires > UTC_TIMESTAMP(6)')" = 0 ]
        run -75 run_t 5 "$DLOCK" -n "$L" true
        let_go
    done
    mysql_in second -e "SET GLOBAL read_only = 1"
    says 69 "the server takes no writes" "$L" true
}

# ---------------------------------------------------------------- others' locks ---

# A session of somebody else that has run SQL, and stays.
stranger() {
    start_log stranger.log mysql --unbuffered -e "$1; SELECT 'has it'; SELECT SLEEP(60)" app
    STRANGER=$STARTED
    wait_for 5 file_has stranger.log "has it"
}
stranger_ends() {
    kill "$STRANGER"
    mysql --delimiter=// -e "BEGIN NOT ATOMIC FOR p IN (SELECT id FROM
        information_schema.processlist WHERE info LIKE 'SELECT SLEEP(60)%' AND user = 'root') DO
        EXECUTE IMMEDIATE CONCAT('KILL ', p.id); END FOR; END//"
}

@test "rides out a global read lock, and a stranger's lock of the row" {
    local how
    for how in "FLUSH TABLES WITH READ LOCK" \
        "BEGIN; SELECT * FROM dlock_locks WHERE name = '$NAME' FOR UPDATE"; do
        fresh stranger.log
        hold --ttl 6
        stranger "$how"
        # Longer than a renewal, and shorter than the ttl.
        lasts 1500
        run -69 run_t 8 "$DLOCK" -n --connect-timeout 1 "$L" touch ran
        [ "${#lines[@]}" = 1 ] || fail "$output"
        pid_alive "$HOLDER"
        stranger_ends
        renewed
        run -75 run_t 5 "$DLOCK" -n "$L" touch ran
        let_go
    done
    [ ! -e ran ]
}

@test "a lock of the row for longer ends the hold in time" {
    hold --ttl 2
    stranger "BEGIN; SELECT * FROM dlock_locks WHERE name = '$NAME' FOR UPDATE"
    exits 79 5 "$HOLDER"
    stranger_ends
    run -0 run_t 5 "$DLOCK" -w 4 "$L" true
}

# ------------------------------------------------------------------- connections ---

@test "a server without a free connection is tried again" {
    my_start_in few --max-connections=10
    local i
    at "${MY_PORTS[few]}"
    run -0 run_t 5 "$DLOCK" "$L" true
    hold --ttl 4
    start_log w.log "$DLOCK" --ttl 20 "$L" "$HELPERS/clock" got
    WAITER=$STARTED
    wait_for 5 waiters_are 1
    fill() {
        start_log "fill.$1" mariadb --no-defaults -h 127.0.0.1 -P "${MY_PORTS[few]}" -u dl -ppw \
            -e 'SELECT SLEEP(20)'
    }
    for i in {1..12}; do fill "$i"; done # all that are left; the superuser has one more
    wait_for 5 grep -q "Too many connections" fill.*
    # The connection of a client before may have ended only now.
    full() {
        fill "$((i += 1))"
        wait_for 1 [ -s "fill.$i" ]
    }
    wait_for 5 full
    says 69 "Too many connections" -n --connect-timeout 1 "$L" touch ran
    start_log late.log "$DLOCK" --connect-timeout 15 -s "$L.other" true
    lasts 700
    pid_alive "$STARTED"
    # The holder and the waiter lose theirs, too, and look for another one.
    # The superuser has one connection more, which the client before may have had just now.
    kill_few() { MY_SOCK=${MY_SOCKS[few]} kill_all CONNECTION "$1"; }
    wait_for 5 kill_few "COALESCE(info, '') NOT LIKE 'SELECT SLEEP(20)%'"
    lasts 500
    wait_for 5 kill_few "info LIKE 'SELECT SLEEP(20)%'"
    exits 0 10 "$STARTED"
    pid_alive "$HOLDER"
    lasts 2000
    let_go
    exits 0 8 "$WAITER"
    [ ! -e ran ]
}

@test "killed sessions of a holder and of a waiter are made anew" {
    local i kind before
    for kind in -x -s; do
        NAME+=$kind WAITERS=0
        at "$MY_PORT"
        fresh got
        hold $kind --ttl 20
        waiter -x
        for i in 1 2 3; do
            before=$(row version)
            kill_all CONNECTION
            # By the next session, at once.
            wait_for 2 row_is_not "$before"
            wait_for 8 waits_are 1
            wait_for 5 waiters_are 1
        done
        pid_alive "$HOLDER"
        silent hold.log
        hand_over 2500
        silent wait.1.log
    done
}

# Statements of acquires, renewals and releases are killed at any moment. That has crashed MariaDB,
# rarely: then only exclusion is looked at, and the server's words are shown.
@test "killed statements lose no lock and no exit code" {
    local i n pids=() kills CRASHED=''
    my_start_in killed
    at "${MY_PORTS[killed]}"
    run -0 run_t 5 "$DLOCK" -s "$L" true
    mkfifo nothing
    # shellcheck disable=SC2016
    start_log killer.log bash -c '
        while [ ! -e stop ]; do echo "$0"; read -r -t 0.2 <>nothing; done |
        mariadb --no-defaults --delimiter=// -S "$1" -u root' \
        "BEGIN NOT ATOMIC DECLARE until DATETIME(6) DEFAULT NOW(6) + INTERVAL 200000 MICROSECOND;
        WHILE NOW(6) < until DO
            $(killing QUERY "info IS NOT NULL AND state <> 'User lock'" | sed 's,//,;,')
        END WHILE; END//" "${MY_SOCKS[killed]}"
    mkdir -p h
    for i in 1 2 3 4; do
        # shellcheck disable=SC2016
        start_log "k$i.log" bash -c 'kinds=(-x -s "--slots 2" -x) words=(x s n x) rc=0
            for t in {1..12}; do
                k=$(((t + $0) % 4))
                "$DLOCK" -q --ttl 1.5 ${kinds[k]} "$1" "$HELPERS/kinds" h $0.$t ${words[k]} 2 \
                    $((t == 9 ? 900 : 0)) alone || rc=$?
                echo "$rc"
                [ "$rc" = 0 ] || break
            done' "$i" "$L"
        pids+=("$STARTED")
    done
    over() {
        for i in "${pids[@]}"; do pid_gone "$i" || pid_gone "${MY_PIDS[killed]}" || return; done
    }
    wait_for 50 over
    if pid_gone "${MY_PIDS[killed]}" && grep -q 'got signal' "${MY_LOGS[killed]}"; then
        CRASHED=1
        sed -n '/got signal/,/^Optimizer/s/^/# /p' "${MY_LOGS[killed]}" >&3
        my_restart killed kill 2>/dev/null
    fi
    for i in "${pids[@]}"; do exits 0 50 "$i"; done
    : >stop
    ! grep -w refused h/history || final "two at once"
    [ -z "$CRASHED" ] || return 0
    n=$(cat k?.log | grep -c '^0$')
    [ "$n" = 48 ] || final "$n of 48 ended well: $(grep -v '^0$' k?.log)"
    kills=$(kills)
    [ $kills -ge 100 ] || fail "only $kills statements were killed: $(cat killer.log)"
}
kills() { mysql_in killed -e "SHOW GLOBAL STATUS LIKE 'Com_kill'" | cut -f 2; }

@test "the server's limit of a statement's time disturbs no wait" {
    set_all "max_statement_time = 0.5"
    hold --ttl 3
    start_log w1.log "$DLOCK" --ttl 20 "$L" "$HELPERS/clock" got
    WAITER=$STARTED
    wait_for 5 waiters_are 1
    renewed
    renewed
    pid_alive "$WAITER"
    exceeded() {
        [ "$(mysql -e "SHOW GLOBAL STATUS LIKE 'Max_statement_time_exceeded'" | cut -f 2)" -ge 2 ]
    }
    wait_for 10 exceeded
    hand_over 900
    silent w1.log
    silent hold.log
}

# --------------------------------------------------- answers that do not come ---

# fault HOW WORDS N [ERROR]: of the next N statements with WORDS, through $P.
fault() {
    printf '%*s' "$3" '' >"$T/fault"
    listener myproxy "$MY_PORT" "$1" "$2" "$T/fault" ${4:+"$4"}
    P="mysql://dl:pw@127.0.0.1:$LISTENS/app#$NAME"
}

@test "an error behind a grant is no grant of that time" {
    local how kind before
    # The row is written, and the look at it fails: by a time-out, or as the connection is lost.
    for how in 'error 1969' 'cut 0'; do
        for kind in -x -s; do
            [ $kind = -x ] && words='l.fence AS held_fence' || words='AS fence, h.place AS slot'
            before=$(row version)
            # shellcheck disable=SC2086
            fault ${how% *} "$words" 3 ${how#* }
            run -0 run_t 4 "$DLOCK" -q --retry --ttl 20 $kind "$P" mariadb --no-defaults \
                -S "$MY_SOCK" -u root -N -B app -e "SELECT version FROM dlock_locks
                    WHERE name = '$NAME'"
            [ ! -e fault ]
            # Three grants were undone, and a fourth one counts.
            [ "$output" -ge $((before + 7)) ] || fail "$how $kind: $output, $before before"
        done
    done
}

@test "a grant of readers and slots that is interrupted behind its commit counts" {
    local kind
    for kind in -s '--slots 2'; do
        fault late "l.expires = GREATEST(" 1 1317
        # shellcheck disable=SC2086
        run run_t 9 "$DLOCK" --ttl 5 -w 3 $kind "$P" true
        [ "$status" = 0 ] && [ -z "$output" ] || final "$kind: $status: $output" || return
        [ ! -e fault ]
    done
}

@test "an error behind a release is no loss" {
    local how kind words
    for how in 'error 1969' 'cut 0' 'error 1205' 'late 1317'; do
        words='AS released'
        [ "$how" != 'late 1317' ] || words='l.freed = IF(' # interrupted behind the commit
        for kind in -x -s '--slots 2'; do
            # shellcheck disable=SC2086
            fault ${how% *} "$words" 1 ${how#* }
            # shellcheck disable=SC2086
            run run_t 9 "$DLOCK" --ttl 5 $kind "$P" true
            [ "$status" = 0 ] && [ -z "$output" ] || final "$how $kind: $status: $output" || return
            [ ! -e fault ]
            run -0 run_t 5 "$DLOCK" -n "$L" true
        done
    done
}

@test "an error behind a renewal is asked for again" {
    local how kind
    for how in 'error 1969' 'cut 0'; do
        for kind in -x -s; do
            # shellcheck disable=SC2086
            fault ${how% *} 'AS renewed' 1 ${how#* }
            at "$MY_PORT"
            DIRECT=$L L=$P
            hold $kind --ttl 3
            wait_for 5 test ! -e fault
            renewed
            let_go
            silent hold.log
            L=$DIRECT
        done
    done
}

# ---------------------------------------------------------------------- restarts ---

@test "restarts are ridden out by a hold and by a wait" {
    local how MY_SOCK=$MY_SOCK
    my_start_in own
    at "${MY_PORTS[own]}"
    MY_SOCK=${MY_SOCKS[own]}
    run -0 run_t 5 "$DLOCK" -s "$L" true
    hold --ttl 3
    waiter
    for how in stop kill; do
        my_restart own $how
        wait_for 8 waits_are 1
        renewed
        pid_alive "$HOLDER"
        run -75 run_t 5 "$DLOCK" -q -n "$L" true
    done
    hand_over 3000
    # One that stays away ends the hold in time, and its row is still there.
    hold --ttl 2
    my_kill own
    exits 79 5 "$HOLDER"
    my_restart own kill
    run -0 run_t 5 "$DLOCK" -w 4 "$L" true
}
