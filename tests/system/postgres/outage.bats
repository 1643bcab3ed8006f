#!/usr/bin/env bats
# outage.bats - waiting for a lock in PostgreSQL while the server is away, refuses connections, or
# cannot be reached: the wait goes on for as long as it may. Both modes.

# bats file_tags=long
load ../../support/netns
load ../../support/pgtests
load ../../support/pgnet

setup_file() { export BATS_NO_PARALLELIZE_WITHIN_FILE=true; }
setup() {
    dlock_setup
    fake_setup # for net_dns_bounds and the like
}

# A and L are the locks of the two modes at a server of this test alone.
own_server() {
    pg_start_in own "$@"
    use_server own
    at_role postgres
    A_LOCAL=$A
    "$DLOCK" -q "$L" true 3>&- # the table is there
}
at_role() {
    A="postgres://$1@127.0.0.1:$PG_PORT/postgres#$NAME"
    L="postgres://$1@127.0.0.1:$PG_PORT/postgres?mode=lease#$NAME"
}

# hold_lease [OPTION...], hold_advisory [OPTION...]: until the file go, or go_a, is there. In
# $HOLDER, $A_HOLDER.
hold_lease() { hold --ttl 60 "$@"; }
hold_advisory() {
    rm -f held_a go_a
    start_log hold_a.log "$DLOCK" "$@" "$A_LOCAL" sh -c 'echo >held_a; "$HELPERS/await" go_a'
    A_HOLDER=$STARTED
    wait_for 5 test -s held_a || fail "$(cat hold_a.log)"
}

waiting_are() { # ADVISORY LEASE [SINCE]: in sessions that are younger than that (s)
    is_sql "count(*) filter (where query like '/* dlock1 % wait=%') = $1
        and count(*) filter (where application_name like 'dlock:%:%') = $2
        from pg_stat_activity where backend_start > to_timestamp(${3:-0})"
}
terminate() { pgsql -c "select count(pg_terminate_backend(pid)) from pg_stat_activity where $1"; }
# refused TEXT N: the server has said so N times since $FROM bytes of its log.
refused() { [ "$(tail -c "+$((FROM + 1))" "$PG_LOG" | grep -c "FATAL: .*$1")" -ge "$2" ]; }

# -------------------------------------------------------- without a server ---

# bats test_tags=slow
@test "a wait outlasts five ttls without a primary, and --retry waits for one" {
    local t0 pids=() w u
    own_server
    pgsql -c "create role joe login"
    hold_lease
    hold_advisory
    # Two in line, who keep their places; one whose time ends during the outage; one that hears of
    # the lock again.
    for w in 1 2; do
        start_log "w$w.log" "$DLOCK" --ttl 1 "$L" sh -c "echo $w >>order"
        pids[w]=$STARTED
        wait_for 5 waiting_are 0 $w
    done
    start_log a.log "$DLOCK" --ttl 1 "$A" "$HELPERS/clock" got_a
    pids[6]=$STARTED
    start_log term.log "$DLOCK" --ttl 1 "$L" touch ran
    pids[7]=$STARTED
    wait_for 5 waiting_are 1 3
    # Behind the others, for their time runs.
    start_log long.log "$DLOCK" --ttl 1 -w 10 "$L" touch ran
    pids[5]=$STARTED
    start_log short.log "$DLOCK" --ttl 1 -w 3 "$L" touch ran
    pids[3]=$STARTED
    start_log a-short.log "$DLOCK" --ttl 1 -w 3 "$A" touch ran
    pids[4]=$STARTED
    wait_for 5 waiting_are 2 5
    pg_stop own
    t0=$(now_ms)
    for u in "$A" "$L"; do run -69 run_t 5 "$DLOCK" "$u" touch ran; done
    assert_between 0 $(($(now_ms) - t0)) $((1000 + SLOW + BUSY)) "twice without --retry (ms)"
    start_log retry-a.log "$DLOCK" --retry -w 30 "$A" touch retried_a
    pids[8]=$STARTED
    start_log retry-l.log "$DLOCK" --retry -w 30 "${L}2" touch retried_l
    pids[9]=$STARTED
    start_log retry-short.log "$DLOCK" --retry -w 1.2 "$L" touch ran
    exits 69 3 "$STARTED"
    file_has retry-short.log "refused"
    exits 79 5 "$A_HOLDER" # its session has ended
    exits 69 5 "${pids[3]}"
    exits 69 5 "${pids[4]}"
    kill -TERM "${pids[7]}"
    exits 143 2 "${pids[7]}"
    # Now it can be asked, but is no primary.
    : >"${PG_DIRS[own]}/standby.signal"
    chmod 666 "${PG_DIRS[own]}/standby.signal"
    pg_restart own fast
    [ "$(pgsql -c 'select pg_is_in_recovery()')" = t ]
    wait_for 8 beyond $((t0 + 5200))
    for w in 1 2 5 6 8 9; do pid_alive "${pids[w]}" || fail "$w: $(cat ./*.log)"; done
    [ ! -e got_a ]
    waiting_are 0 0
    pgsql -c 'select pg_promote()'
    exits 0 5 "${pids[6]}"
    [ -s got_a ]
    exits 0 5 "${pids[8]}"
    exits 0 5 "${pids[9]}"
    [ -e retried_a ]
    [ -e retried_l ]
    # What no later try mends.
    hba 'host all joe all reject' 'host all all all trust'
    for u in "${A/\/postgres#//nodb#}" "${L/\/postgres\?//nodb?}"; do
        run -69 run_t 3 "$DLOCK" --retry "$u" touch ran
        assert_out '"nodb" does not exist'
    done
    run -77 run_t 3 "$DLOCK" --retry "${L/postgres@/joe@}" touch ran
    run -69 run_t 3 "$DLOCK" --retry "${L/\?/?sslmode=require\&}" touch ran
    run -69 run_t 3 "$DLOCK" --retry "${L/\?/?table=nosuch.locks\&}" touch ran
    assert_out 'schema "nosuch" does not exist'
    run -69 run_t 3 "$DLOCK" --retry "${A/\#/?options=-c%20nosuch%3D1#}" touch ran
    assert_out 'unrecognized configuration parameter "nosuch"'
    exits 75 8 "${pids[5]}"
    # The lease has held all the time.
    [ ! -e order ]
    [ ! -e ran ]
    pid_alive "$HOLDER"
    let_go
    exits 0 5 "${pids[1]}"
    exits 0 5 "${pids[2]}"
    [ "$(tr '\n' ' ' <order)" = "1 2 " ] || fail "order: $(tr '\n' ' ' <order)"
    [ ! -e ran ]
}

# ---------------------------------------------------------------- refusals ---

# bats test_tags=slow
@test "a wait outlasts a server that has no connection left, a refusal for good ends it" {
    local t0 u
    own_server
    pgsql -c "create role joe login" \
        -c "grant select, insert, update, delete on public.dlock_locks to joe"
    hold_lease
    hold_advisory
    at_role joe
    start_log l.log "$DLOCK" --ttl 1 "$L" touch got_l
    local lease=$STARTED
    start_log a.log "$DLOCK" --ttl 1 "$A" touch got_a
    local advisory=$STARTED
    wait_for 5 waiting_are 1 1
    FROM=$(wc -c <"$PG_LOG") t0=$(now_ms)
    pgsql -c "alter role joe connection limit 0"
    terminate "usename = 'joe'"
    wait_for 5 beyond $((t0 + 2300))
    wait_for 3 refused 'too many connections for role "joe"' 6
    pid_alive "$lease" && pid_alive "$advisory" || fail "$(cat l.log a.log)"
    pgsql -c "alter role joe connection limit -1"
    wait_for 5 waiting_are 1 1
    : >go_a
    exits 0 5 "$A_HOLDER"
    exits 0 5 "$advisory"
    [ -e got_a ]
    [ ! -e got_l ]
    # Now it is let in no more.
    hold_advisory
    start_log a.log "$DLOCK" --ttl 1 "$A" touch ran
    advisory=$STARTED
    wait_for 5 waiting_are 1 1
    hba 'host all joe all reject' 'host all all all trust'
    terminate "usename = 'joe'"
    exits 77 4 "$lease"
    exits 77 4 "$advisory"
    for u in l a; do file_has $u.log 'pg_hba.conf rejects'; done
    # A database that is gone.
    terminate "usename = 'postgres' and pid <> pg_backend_pid()"
    : >go
    exits 79 5 "$A_HOLDER"
    exits 0 5 "$HOLDER"
    pgsql -c "create database x template postgres"
    pgsql -d x -c "update dlock_locks set owner = 'dead', expires = clock_timestamp() + '60 s'
        where name = '$NAME'"
    start_log x.log "$DLOCK" --ttl 1 "postgres://postgres@127.0.0.1:$PG_PORT/x?mode=lease#$NAME" \
        touch ran
    lease=$STARTED
    wait_for 5 waiting_are 0 1
    pgsql -c "drop database x with (force)"
    exits 69 4 "$lease"
    file_has x.log '"x" does not exist'
    [ ! -e ran ]
}

# ------------------------------------------------------------- the network ---

# bats test_tags=slow
@test "a wait outlasts two ttls of a cut network and finds the server elsewhere" {
    local t0 lease advisory mended
    net_server
    echo "$SERVER pg.test" >>"$T/etc/hosts"
    A=${L/$SERVER/pg.test} A=${A/lease/advisory} A_LOCAL=${LOCAL/lease/advisory}
    L=$LOCAL hold_lease
    hold_advisory
    start_log l.log client "$DLOCK" -v --ttl 1 --connect-timeout 1 "$L" "$HELPERS/clock" "$T/got_l"
    lease=$STARTED
    start_log a.log client "$DLOCK" -v --ttl 1 --connect-timeout 1 "$A" "$HELPERS/clock" "$T/got_a"
    advisory=$STARTED
    wait_for 5 waiting_are 1 1
    net_cut
    t0=$(now_ms)
    wait_for 8 file_has l.log "without a connection"
    wait_for 8 file_has a.log "without a connection"
    wait_for 8 beyond $((t0 + 2200))
    pid_alive "$lease" && pid_alive "$advisory" || fail "$(cat l.log a.log)"
    mended=$(date +%s.%N)
    # The server has another address now, and the name follows.
    server ip addr add 10.77.0.3/24 dev link0
    server iptables -I INPUT -d 10.77.0.3 -j ACCEPT
    client iptables -I INPUT -s 10.77.0.3 -j ACCEPT
    echo "10.77.0.3 pg.test" >"$T/etc/hosts"
    wait_for 8 waiting_are 1 0 "$mended"
    net_mend
    wait_for 5 waiting_are 1 1 "$mended"
    [ ! -e got_l ]
    [ ! -e got_a ]
    : >go_a
    exits 0 5 "$A_HOLDER"
    let_go
    exits 0 5 "$lease"
    exits 0 5 "$advisory"
    [ -s got_l ] && [ -s got_a ]
}
