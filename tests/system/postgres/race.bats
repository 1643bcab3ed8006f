#!/usr/bin/env bats
# race.bats - races and odd servers around a lock in PostgreSQL: what a review found and proved,
# once.

# bats file_tags=long
load ../../support/pgtests

setup_file() {
    export BATS_NO_PARALLELIZE_WITHIN_FILE=true
    pg_start
    # The table of mode=lease is there.
    "$DLOCK" -q "postgres://postgres@127.0.0.1:$PG_PORT/postgres?mode=lease#first" true 3>&-
}

# proxy FAULT ARG...: $P is the server's database behind it.
proxy() {
    listener pgproxy "$PG_PORT" "$@"
    P=postgres://postgres@127.0.0.1:$LISTENS/postgres
}

# granted_after T0 HIGH [LOW]: the clock's file got was written so many ms after T0 (ms).
granted_after() {
    assert_between "${3:-0}" $(($(cat got) / NS - $1)) $(($2 + SLOW)) "ms until the grant"
}

# Advisory mode.
APP='application_name like '"'dlock:%'"
nothing_left() {
    is_sql "not exists (select 1 from pg_locks where locktype = 'advisory') and
        not exists (select 1 from pg_stat_activity where $APP)"
}

# Lease mode.
called_are() {
    is_sql "count(*) = $1 from pg_stat_activity where application_name like 'dlock:%:%'"
}
# dead_holder: the row is held by one that died; dead_is_over: now it is free, as after a release.
dead_holder() {
    pgsql -c "insert into dlock_locks values ('$NAME', 7, 'dead', clock_timestamp() + '1 min', 'x')"
}
dead_is_over() {
    pgsql -c "update dlock_locks set expires = '-infinity', owner = '' where name = '$NAME'"
}
call_all() {
    pgsql -c "select count(pg_notify('dlock_' || substr(application_name, 7, 16) || '_' || pid, ''))
        from pg_stat_activity where application_name like 'dlock:%:%'"
}

# no_standby: from now on a commit waits for a standby that does not exist. Noticed by one that
# does.
no_standby() {
    pgsql -c "alter system set synchronous_standby_names = 'nobody'" \
        -c "select pg_reload_conf()" >reload.log
    echo "select pg_logical_emit_message(true, 'canary', '') \\watch 0.02" >canary.sql
    start_log canary.log pg_session -f "$T/canary.sql"
    wait_for 5 is_sql "count(*) = 1 from pg_stat_activity where wait_event = 'SyncRep'"
}

# --- the server -----------------------------------------------------------------------------------

# bats test_tags=plain
@test "the restart grace holds after the crash of one backend" {
    own_server
    local t0
    L="$U?restart-grace=2#$NAME"
    wait_for 5 "$DLOCK" -q -n "$L" true
    run -0 "$DLOCK" -n "$L" true
    start_log victim.log pg_session -c 'select pg_sleep(60)'
    wait_for 5 is_sql "count(*) = 1 from pg_stat_activity where wait_event = 'PgSleep'"
    t0=$(now_ms)
    kill -KILL "$(pgsql -c "select pid from pg_stat_activity where wait_event = 'PgSleep'")"
    wait_for 5 file_has "$PG_LOG" 'terminating any other active server processes'
    says 75 "(restart-grace)" -vn "$L" touch ran
    [ ! -e ran ]
    # It is the same postmaster, and the grace ends.
    pid_alive "${PG_PIDS[own]}"
    run -0 run_t 5 "$DLOCK" -w 4 "$L" "$HELPERS/clock" got
    granted_after "$t0" 3500 2000
}

@test "a waiter with a short ttl keeps its session during the restart grace" {
    own_server
    run -75 --separate-stderr run_t 6 "$DLOCK" -v -w 2.6 --ttl 1 "$U?restart-grace=20#$NAME" touch \
        ran
    [[ $stderr == *restart-grace* ]]
    [[ $stderr != *idle-session* ]] || fail "$stderr"
    run -1 grep -F 'idle-session timeout' "$PG_LOG"
    [ ! -e ran ]
}

# --- a commit that waits for a standby ------------------------------------------------------------

@test "-n fails in time when no standby commits" {
    own_server -c synchronous_standby_names=nobody
    [ "$(pgsql -c 'show synchronous_commit')" = on ]
    takes 990 1700 69 "$DLOCK" -n --ttl 3 --connect-timeout 1 "$L" touch ran
    wait_for 1 nothing_left
    [ ! -e ran ]
}

# waits_for_standby CODES OPTION...: a waiter is handed the lock when nothing can be committed any
# more. It gives up (69), unless it meets the session that it has just left: then it waits on (75).
waits_for_standby() {
    local code=$1 waiter
    shift
    own_server
    hold
    start_log w.log env ${LATE:+LD_PRELOAD="$LATE"} "$DLOCK" "$@" "$L" touch ran
    waiter=$STARTED
    wait_for 5 locks_are 'not granted' 1
    no_standby
    let_go
    rc=0
    wait_exit 7 "$waiter" || rc=$?
    [[ $rc =~ ^($code)$ ]] || fail "exit code $rc, not $code: $(cat w.log)"
    wait_for 1 nothing_left
    [ ! -e ran ]
}
@test "a waiter gives up a grant that no standby commits" {
    waits_for_standby '69|75' -w 5 --ttl 2 --connect-timeout 1
}
@test "a slow cancel request leaves no session" {
    # Not under a sanitizer, which wants to be loaded first.
    [ -n "${SAN:-}" ] || LATE=$HELPERS/slow_connect.so
    waits_for_standby '69|75' -w 5 --ttl 1 --connect-timeout 1
}
@test "-w ends in time while a grant waits for a standby" {
    waits_for_standby 75 -w 2.5 --ttl 30 --connect-timeout 10
}

@test "with renew=write a hold ends when no standby commits" {
    own_server
    local lost
    tree --ttl 3 "$U?renew=write#$NAME"
    no_standby
    lost=$(now_ms)
    ends 79
    assert_out "could not be renewed in time"
    # Nothing was confirmed after that.
    lease_times 3000 $((lost * NS))
    [ "$(last_beat)" -lt "$DEADLINE" ]
    tree_gone
    wait_for 1 nothing_left
    assert_between 0 $(($(now_ms) - lost)) $((4000 + SLOW)) "until it is free (ms)"
}

# --- advisory mode --------------------------------------------------------------------------------

@test "settings named dlock.got give nobody a lock" {
    local r=r${NAME//-/} i
    local -a pids
    role_named ${r}1 dlock.got=1
    role_named ${r}2 dlock.got=
    hold
    odd() { # NUMBER OPTION...: a waiter with each of them
        local n=$1 at=127.0.0.1:$PG_PORT/postgres
        shift
        start_log "$n.1.log" "$DLOCK" "$@" "postgres://${r}1@$at#$NAME" touch ran
        pids=("$STARTED")
        start_log "$n.2.log" "$DLOCK" "$@" "postgres://${r}2@$at#$NAME" touch ran
        pids+=("$STARTED")
        start_log "$n.3.log" env PGOPTIONS='-c dlock.got=1' "$DLOCK" "$@" "$L" touch ran
        pids+=("$STARTED")
        start_log "$n.4.log" "$DLOCK" "$@" "$U?options=-cdlock.got%3D1#$NAME" touch ran
        pids+=("$STARTED")
    }
    odd 1 -w 2
    for i in "${pids[@]}"; do exits 75 5 "$i"; done
    [ ! -e ran ]
    # Nor do they keep anybody from it.
    odd 2 -w 5
    wait_for 3 locks_are 'not granted' 4
    let_go
    for i in "${pids[@]}"; do exits 0 5 "$i"; done
    [ -e ran ]
}

@test "-n fails at once when the connection ends at the holder query" {
    hold
    proxy cut 'AS MATERIALIZED'
    takes 0 $((500 + BUSY)) 75 "$DLOCK" -n --ttl 30 "$P#$NAME" touch ran
    [ ! -e ran ]
    let_go
}

@test "-n does not repeat an unanswered holder query" {
    hold
    proxy mute 'AS MATERIALIZED'
    run -75 run_t 5 "$DLOCK" -n --ttl 3 --connect-timeout 4 "$P#$NAME" touch ran
    [ ! -e ran ]
    # The holder's and this one.
    [ "$(grep -F "[$(app_of "$NAME")] " "$PG_LOG" | grep -c pg_try_advisory_lock)" = 2 ]
    let_go
}

@test "a stopped waiter that is granted the lock keeps it for its ttl at most" {
    local t0 stopped
    hold --ttl 20
    start_log w1.log "$DLOCK" --ttl 1.5 "$L" true
    stopped=$STARTED
    wait_for 5 locks_are 'not granted' 1
    start_log w2.log "$DLOCK" --ttl 20 "$L" "$HELPERS/clock" got
    wait_for 5 locks_are 'not granted' 2
    kill -STOP "$stopped"
    t0=$(now_ms)
    hand_over
    granted_after "$t0" 2500
    kill -CONT "$stopped"
    exits 0 8 "$stopped"
}

# --- lease mode -----------------------------------------------------------------------------------

@test "a waiter follows at the ttl when the called winner dies" {
    local i t0 winner
    local -a pids
    L="$U?mode=lease#$NAME"
    dead_holder
    for i in 1 2; do
        start_log "w$i.log" "$DLOCK" --ttl 3 "$L" sh -c \
            'mkdir won 2>/dev/null && echo "$1" >won/who && exec sleep 60; exec "$2" got' - $i \
            "$HELPERS/clock"
        pids[i]=$STARTED
        wait_for 5 called_are $i
    done
    # A release, as far as the row is concerned; then the two are called.
    dead_is_over
    block_row
    [ "$(call_all)" = 2 ]
    wait_for 2 blocked_are 2
    unblock_row
    wait_for 2 test -s won/who
    winner=$(cat won/who)
    t0=$(now_ms)
    kill -KILL "${pids[winner]}"
    exits 0 6 "${pids[3 - winner]}"
    granted_after "$t0" 4000 2000
}

@test "a call that comes with the last answer is heard" {
    L="$U?mode=lease#$NAME"
    hold --ttl 30
    # The server's word that somebody calls has the channel's name in it, no answer has.
    proxy gather 'LISTEN ' dlock_
    start_log w.log "$DLOCK" --ttl 30 "$P?mode=lease#$NAME" "$HELPERS/clock" got
    # Its last try is answered.
    wait_for 5 is_sql "count(*) = 1 from pg_stat_activity where application_name like 'dlock:%:%'
        and state = 'idle'
        and query like '%h AS MATERIALIZED%'"
    hand_over 1000
}

@test "a grant whose answer was lost is granted anew" {
    L="$U?mode=lease#$NAME"
    hold --ttl 30
    proxy lose 'INSERT INTO' "$T/lose"
    start_log w.log "$DLOCK" --ttl 30 "$P?mode=lease#$NAME" "$HELPERS/clock" got
    wait_for 5 called_are 1
    : >lose
    hand_over 2000
    [ ! -e lose ]
    is_sql "expires = '-infinity' from dlock_locks where name = '$NAME'"
}

@test "a grant to a lost connection is undone" {
    local t0 waiter
    L="$U?mode=lease#$NAME"
    dead_holder
    proxy drop 'INSERT INTO' "$T/drop"
    start_log w.log "$DLOCK" --ttl 30 "$P?mode=lease#$NAME" "$HELPERS/clock" got
    waiter=$STARTED
    wait_for 5 called_are 1
    dead_is_over
    block_row
    : >drop
    call_all >notify.log
    # The one that nobody hears any more, and the next one.
    wait_for 3 blocked_are 2
    t0=$(now_ms)
    unblock_row
    exits 0 5 "$waiter"
    granted_after "$t0" 2000
}
