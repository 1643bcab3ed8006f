#!/usr/bin/env bats
# race.bats - races and odd servers around a lock in PostgreSQL: what a review found and proved, once.

# bats file_tags=long
bats_require_minimum_version 1.5.0
load ../../support/common
load ../../support/fake
load ../../support/postgres
load ../../support/pglock

setup_file() {
    export BATS_NO_PARALLELIZE_WITHIN_FILE=true
    pg_start
    # The table of mode=lease is there.
    "$DLOCK" -q "postgres://postgres@127.0.0.1:$PG_PORT/postgres?mode=lease#first" true 3>&-
}
teardown_file() { pg_stop_all; }

setup() {
    dlock_setup
    fake_setup # the command that tells what happens to it
    at_server
}
teardown() { dlock_teardown; }

# ---------------------------------------------------------------- helpers ---

# proxy FAULT ARG...: $P is the server's address behind it.
proxy() {
    listener pgproxy "$PG_PORT" "$@"
    P=127.0.0.1:$LISTENS
}

# Milliseconds from $1 (now_ms) until the clock's file $2 was written.
entered() { echo $(($(cat "$2") / NS - $1)); }
is_sql() { [ "$(pgsql -c "select $1")" = t ]; }

# Advisory mode.
APP='application_name like '"'dlock:%'"
in_line_are() { is_sql "count(*) = $1 from pg_locks where locktype = 'advisory' and not granted"; }
nothing_left() {
    is_sql "not exists (select 1 from pg_locks where locktype = 'advisory') and
        not exists (select 1 from pg_stat_activity where $APP)"
}

# Lease mode.
called_are() { is_sql "count(*) = $1 from pg_stat_activity where application_name like 'dlock:%:%'"; }
blocked_are() { is_sql "count(*) = $1 from pg_stat_activity where $APP and wait_event_type = 'Lock'"; }
# block_row: the lock's row is held by an open transaction, so a try is not answered; unblock_row ends that. What is
# started in between gets 8>&-.
block_row() {
    mkfifo sql
    start_log session.log bash -c '. "$0/tests/support/common.bash"; . "$0/tests/support/postgres.bash"
        pg_session <"$1"' "$ROOT" "$T/sql"
    exec 8>sql
    echo "begin; select 1 from dlock_locks where name = '$NAME' for update; \\echo blocked" >&8
    wait_for 5 file_has session.log blocked
}
unblock_row() {
    echo "rollback;" >&8
    exec 8>&-
}

# no_standby: from now on a commit waits for a standby that does not exist. Noticed by one that does.
no_standby() {
    pgsql -c "alter system set synchronous_standby_names = 'nobody'" -c "select pg_reload_conf()" >reload.log
    echo "select pg_logical_emit_message(true, 'canary', '') \\watch 0.02" >canary.sql
    start_log canary.log pg_session -f "$T/canary.sql"
    wait_for 5 is_sql "count(*) = 1 from pg_stat_activity where wait_event = 'SyncRep'"
}

# --- the server ------------------------------------------------------------------------------------------

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
    run -75 run_t 5 "$DLOCK" -vn "$L" touch ran
    assert_out restart-grace
    [ ! -e ran ]
    # It is the same postmaster, and the grace ends.
    pid_alive "${PG_PIDS[own]}"
    run -0 run_t 5 "$DLOCK" -w 4 "$L" "$HELPERS/clock" got
    assert_between 2000 "$(entered "$t0" got)" $((3500 + SLOW)) "grant after the crash (ms)"
}

@test "a waiter with a short ttl keeps its session during the restart grace" {
    own_server
    run -75 --separate-stderr run_t 6 "$DLOCK" -v -w 2.6 --ttl 1 "$U?restart-grace=20#$NAME" touch ran
    [[ $stderr == *restart-grace* ]]
    [[ $stderr != *idle-session* ]] || fail "$stderr"
    run -1 grep -F 'idle-session timeout' "$PG_LOG"
    [ ! -e ran ]
}

# --- a commit that waits for a standby ---------------------------------------------------------------------

@test "-n fails in time when no standby commits" {
    own_server -c synchronous_standby_names=nobody
    local t0
    [ "$(pgsql -c 'show synchronous_commit')" = on ]
    t0=$(now_ms)
    run -69 run_t 5 "$DLOCK" -n --ttl 3 --connect-timeout 1 "$L" touch ran
    assert_between 990 $(($(now_ms) - t0)) $((1700 + SLOW)) "time (ms)"
    wait_for 1 nothing_left
    [ ! -e ran ]
}

# waits_for_standby CODES OPTION...: a waiter is handed the lock when nothing can be committed any more. It gives up
# (69), unless it meets the session that it has just left: then it waits on (75).
waits_for_standby() {
    local code=$1 waiter
    shift
    own_server
    hold
    start_log w.log env ${LATE:+LD_PRELOAD="$LATE"} "$DLOCK" "$@" "$L" touch ran
    waiter=$STARTED
    wait_for 5 in_line_are 1
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
    [ -n "${SAN:-}" ] || export LATE=$HELPERS/latecancel.so
    waits_for_standby '69|75' -w 5 --ttl 1 --connect-timeout 1
}
@test "-w ends in time while a grant waits for a standby" {
    waits_for_standby 75 -w 2.5 --ttl 30 --connect-timeout 10
}

@test "with renew=write a hold ends when no standby commits" {
    own_server
    local lost
    background --ttl 3 "$U?renew=write#$NAME" $SUBJECT -t -k
    wait_for 5 running 4
    no_standby
    lost=$(now_ms)
    ended
    assert_rc 79
    assert_out "could not be renewed in time"
    # Nothing was confirmed after that.
    lease_times 3000 $((lost * NS))
    [ "$(last_beat)" -lt "$DEADLINE" ]
    tree_gone
    wait_for 1 nothing_left
    assert_between 0 $(($(now_ms) - lost)) $((4000 + SLOW)) "until it is free (ms)"
}

# --- advisory mode ----------------------------------------------------------------------------------------

@test "settings named dlock.got give nobody a lock" {
    local r=r${NAME//-/} i
    local -a pids
    pgsql -c "create role ${r}1 login" -c "alter role ${r}1 set dlock.got = '1'" \
        -c "create role ${r}2 login" -c "alter role ${r}2 set dlock.got = ''"
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
    wait_for 3 in_line_are 4
    let_go
    for i in "${pids[@]}"; do exits 0 5 "$i"; done
    [ -e ran ]
    pgsql -c "drop role ${r}1, ${r}2"
}

@test "-n fails at once when the connection ends at the holder query" {
    local t0
    hold
    proxy cut 'AS MATERIALIZED'
    t0=$(now_ms)
    run -75 run_t 5 "$DLOCK" -n --ttl 30 "postgres://postgres@$P/postgres#$NAME" touch ran
    assert_between 0 $(($(now_ms) - t0)) $((500 + SLOW + BUSY)) "time (ms)"
    [ ! -e ran ]
    let_go
}

@test "-n does not repeat an unanswered holder query" {
    hold
    proxy mute 'AS MATERIALIZED'
    run -75 run_t 5 "$DLOCK" -n --ttl 3 --connect-timeout 4 "postgres://postgres@$P/postgres#$NAME" touch ran
    [ ! -e ran ]
    said() { grep -F "[dlock:$(printf %s "$NAME" | sha256sum | cut -c 1-16)] " "$PG_LOG" | grep -c "$@" || :; }
    [ "$(said pg_try_advisory_lock)" = 2 ] # the holder's and this one
    let_go
}

@test "a stopped waiter that is granted the lock keeps it for its ttl at most" {
    local t0 stopped
    hold --ttl 20
    start_log w1.log "$DLOCK" --ttl 1.5 "$L" true
    stopped=$STARTED
    wait_for 5 in_line_are 1
    start_log w2.log "$DLOCK" --ttl 20 "$L" "$HELPERS/clock" got
    wait_for 5 in_line_are 2
    kill -STOP "$stopped"
    t0=$(now_ms)
    let_go
    exits 0 5 "$STARTED"
    assert_between 0 "$(entered "$t0" got)" $((2500 + SLOW)) "take-over (ms)"
    kill -CONT "$stopped"
    exits 0 8 "$stopped"
}

# --- lease mode -------------------------------------------------------------------------------------------

@test "a waiter follows at the ttl when the called winner dies" {
    local i t0 winner
    local -a pids
    L="$U?mode=lease#$NAME"
    pgsql -c "insert into dlock_locks values ('$NAME', 7, 'dead', clock_timestamp() + '1 min', 'x')"
    for i in 1 2; do
        start_log "w$i.log" "$DLOCK" --ttl 3 "$L" sh -c \
            'mkdir won 2>/dev/null && echo "$1" >won/who && exec sleep 60; exec "$2" got' - $i "$HELPERS/clock"
        pids[i]=$STARTED
        wait_for 5 called_are $i
    done
    # A release, as far as the row is concerned; then the two are called.
    pgsql -c "update dlock_locks set expires = '-infinity', owner = '' where name = '$NAME'"
    block_row
    [ "$(pgsql -c "select count(pg_notify('dlock_' || substr(application_name, 7, 16) || '_' || pid, ''))
        from pg_stat_activity where application_name like 'dlock:%:%'")" = 2 ]
    wait_for 2 blocked_are 2
    unblock_row
    wait_for 2 test -s won/who
    winner=$(cat won/who)
    t0=$(now_ms)
    kill -KILL "${pids[winner]}"
    exits 0 6 "${pids[3 - winner]}"
    assert_between 2000 "$(entered "$t0" got)" $((4000 + SLOW)) "take-over (ms)"
}

@test "a call that comes with the last answer is heard" {
    local t0 waiter
    L="$U?mode=lease#$NAME"
    hold --ttl 30
    # The server's word that somebody calls has the channel's name in it, no answer has.
    proxy gather 'LISTEN ' dlock_
    start_log w.log "$DLOCK" --ttl 30 "postgres://postgres@$P/postgres?mode=lease#$NAME" "$HELPERS/clock" got
    waiter=$STARTED
    # Its last try is answered.
    wait_for 5 is_sql "count(*) = 1 from pg_stat_activity where application_name like 'dlock:%:%' and state = 'idle'
        and query like '%h AS MATERIALIZED%'"
    t0=$(now_ms)
    let_go
    exits 0 7 "$waiter"
    assert_between 0 "$(entered "$t0" got)" $((1000 + SLOW)) "hand-off (ms)"
}

@test "a role's lock_timeout only repeats the try" {
    local r=r${NAME//-/} t0
    pgsql -c "create role $r login" -c "alter role $r set lock_timeout = '50ms'" \
        -c "grant select, insert, update, delete on public.dlock_locks to $r" \
        -c "insert into dlock_locks values ('$NAME', 7, '', '-infinity', '')"
    block_row
    start_log w.log "$DLOCK" -w 5 "postgres://$r@127.0.0.1:$PG_PORT/postgres?mode=lease#$NAME" "$HELPERS/clock" got 8>&-
    # Three time-outs, or it has given up.
    timed_out() { [ "$(grep -c 'canceling statement due to lock timeout' "$PG_LOG")" -ge 3 ] || pid_gone "$STARTED"; }
    wait_for 3 timed_out
    pid_alive "$STARTED" || fail "it has ended: $(cat w.log)"
    t0=$(now_ms)
    unblock_row
    exits 0 5 "$STARTED"
    assert_between 0 "$(entered "$t0" got)" $((1500 + SLOW)) "grant (ms)"
    pgsql -c "drop owned by $r; drop role $r"
}

@test "a grant whose answer was lost is granted anew" {
    local t0 waiter
    L="$U?mode=lease#$NAME"
    hold --ttl 30
    proxy lose 'INSERT INTO' "$T/lose"
    start_log w.log "$DLOCK" --ttl 30 "postgres://postgres@$P/postgres?mode=lease#$NAME" "$HELPERS/clock" got
    waiter=$STARTED
    wait_for 5 called_are 1
    : >lose
    t0=$(now_ms)
    let_go
    exits 0 5 "$waiter"
    [ ! -e lose ]
    assert_between 0 "$(entered "$t0" got)" $((2000 + SLOW)) "grant (ms)"
    is_sql "expires = '-infinity' from dlock_locks where name = '$NAME'"
}

@test "a grant to a lost connection is undone" {
    local t0 waiter
    L="$U?mode=lease#$NAME"
    pgsql -c "insert into dlock_locks values ('$NAME', 7, 'dead', clock_timestamp() + '1 min', 'x')"
    proxy drop 'INSERT INTO' "$T/drop"
    start_log w.log "$DLOCK" --ttl 30 "postgres://postgres@$P/postgres?mode=lease#$NAME" "$HELPERS/clock" got
    waiter=$STARTED
    wait_for 5 called_are 1
    pgsql -c "update dlock_locks set expires = '-infinity', owner = '' where name = '$NAME'"
    block_row
    : >drop
    pgsql -c "select pg_notify('dlock_' || substr(application_name, 7, 16) || '_' || pid, '')
        from pg_stat_activity where application_name like 'dlock:%:%'" >notify.log
    # The one that nobody hears any more, and the next one.
    wait_for 3 blocked_are 2
    t0=$(now_ms)
    unblock_row
    exits 0 5 "$waiter"
    assert_between 0 "$(entered "$t0" got)" $((2000 + SLOW)) "grant (ms)"
}
