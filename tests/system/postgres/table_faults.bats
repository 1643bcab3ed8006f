#!/usr/bin/env bats
# table_faults.bats - faults around a lock in PostgreSQL's lease table: sessions ended, servers
# restarted and stopped, keepers killed and stopped, rows that others change, and what a crash of
# the server may not forget: the fence.

# bats file_tags=long
load ../../support/pgtable

# ------------------------------------------------------------ connections ---

# It may not have one just now: the row that it renewed last was renewed by the one that has been
# ended.
some_ended() { [ "$(end_sessions)" -ge 1 ]; }

@test "a lease survives the loss of its sessions, and is renewed at once" {
    local i before
    hold --ttl 60
    for i in 1 2 3 4; do
        before=$(row "$EXPIRES")
        wait_for 2 some_ended
        # Renewed by another session.
        wait_for 3 row_is_renewed "$before"
        pid_alive "$HOLDER"
    done
    end_sessions
    let_go
    row_is_free
    [ ! -s hold.log ] || fail "$(cat hold.log)"
}

@test "restarts of the server are ridden out, fast and immediate ones" {
    own_server
    local how
    hold --ttl 5
    for how in fast immediate; do
        pg_restart own $how
        renewed
        run -75 run_t 5 "$DLOCK" -q -n "$L" true
        pid_alive "$HOLDER"
    done
    let_go
    row_is_free
}

# bats test_tags=slow
@test "a lease survives the promotion of a synchronous standby" {
    local fence
    own_server
    pg_standby standby own
    pgsql -c "alter system set synchronous_standby_names = '*'" -c "select pg_reload_conf()"
    wait_for 5 is_sql "sync_state = 'sync' from pg_stat_replication"
    L="postgres://$AT,127.0.0.1:${PG_PORTS[standby]}/postgres?mode=lease#$NAME"
    job 3 --ttl 6 "$L"
    fence=$(row fence)
    pg_kill own
    use_server standby
    pgsql -c "select pg_promote()"
    # The standby has the row, and that is renewed there.
    [ "$(row fence)" = "$fence" ]
    renewed 6
    renewed 6
    run -75 run_t 5 "$DLOCK" -q -n "$L" true
    undisturbed
    job_ends
    row_is_free
    [ "$(fence)" -gt "$fence" ]
    no_overlap
}

# late PASSWORD: the server has this one, and ends its sessions; the file does not.
late() {
    FROM=$(grep -c 'password authentication failed' "$PG_LOG" || :)
    pgsql -c "alter role u password '$1'"
    end_sessions
}
refused_again() { [ "$(grep -c 'password authentication failed' "$PG_LOG")" -gt "$FROM" ]; }

@test "a lease reads its password again, and rides out a wrong or a missing one" {
    local before
    own_server
    pgsql -c "create role u login superuser password 'old'"
    hba 'host all u 127.0.0.1/32 scram-sha-256' 'host all all 127.0.0.1/32 trust'
    install -m 600 /dev/null pw
    echo old >pw
    L="postgres://u@127.0.0.1:$PG_PORT/postgres?mode=lease&password-file=$T/pw#$NAME"
    hold
    late new
    wait_for 5 refused_again
    before=$(row "$EXPIRES")
    echo new >pw
    wait_for 5 row_is_renewed "$before"
    late newer
    : >go
    wait_for 5 refused_again
    echo newer >pw
    exits 0 8 "$HOLDER"
    row_is_free
    hold --connect-timeout 1
    mv pw away
    end_sessions
    let_go 0
    file_has hold.log "is not confirmed: password-file $T/pw: No such file"
}

# read_only on|off: whether new sessions are, by the server's configuration.
read_only() {
    pgsql -c "set default_transaction_read_only = off" \
        -c "alter system set default_transaction_read_only = $1" -c "select pg_reload_conf()"
    wait_for 5 is_sql "current_setting('default_transaction_read_only') = '$1'"
}

@test "an unconfirmed release keeps the last words of the server" {
    own_server
    hold --connect-timeout 1
    read_only on
    end_sessions
    let_go 0
    file_has hold.log "is not confirmed: the database takes no writes" || fail "$(cat hold.log)"
    read_only off
    L+=2
    hold --connect-timeout 1
    pg_kill own
    let_go 0
    file_has hold.log "is not confirmed: " && file_has hold.log "Connection refused"
}

# bats test_tags=plain
@test "a server that is gone for longer ends the tree in time" {
    local gone expires offset
    own_server
    tree --ttl 3 "$L"
    # The lease of a renewal: a new session takes its time between the begin of a try and the row's
    # clock.
    renewed 6
    pg_kill own
    wait_for 5 tree_gone
    gone=$(wall_ms)
    ends 79
    assert_out "could not be renewed in time"
    pg_restart own fast
    # The row has survived, and says when somebody else may be given the lock.
    expires=$(row "$EXPIRES")
    assert_between $((expires - 700)) "$gone" $((expires + SLOW)) "end of the tree (Unix ms)"
    # TERM at term_at, on its clock.
    offset=$(($(wall_ms) - $(now_ms)))
    lease_times 3000 $(((expires - 3000 - offset) * NS))
    assert_between $(($(ms $TERM_AT) - 60)) "$(ms "$(seen main sig 15)")" \
        $(($(ms $TERM_AT) + 100)) "TERM (ms)"
    no_overlap
}

# --------------------------------------------------------- lost for certain ---

# stolen SQL TEXT: the row is changed during a hold: the tree is killed, not asked, at the next
# renewal.
stolen() {
    local t0
    tree --ttl 3 "$L"
    t0=$(now_ms)
    pgsql -c "$1"
    ends 79
    # The next renewal is due after usable/3, 0.74 s.
    assert_between 0 $(($(now_ms) - t0)) $((1300 + SLOW)) "until its end (ms)"
    [ "$(count_seen main sig 15)" = 0 ]
    tree_gone
    assert_out "$2"
    [ "$(grep -c . out)" -le 2 ] || fail "$output"
}

# TAKES: SQL by which another holder takes the row.
takes_row() {
    TAKES="update dlock_locks set owner = 'other', expires = clock_timestamp() + '2 s'::interval,
        holder = 'dlock1 host=elsewhere pid=4711 user=joe since=1 cmd=x note=' where name = '$NAME'"
}

@test "the next renewal notices a row that was lost" {
    takes_row
    stolen "delete from dlock_locks where name = '$NAME'" 'is lost: the lease expired'
    [ -z "$(row 1)" ]
    stolen "update dlock_locks set expires = clock_timestamp() - '1 s'::interval
        where name = '$NAME'" 'is lost: the lease expired'
    stolen "$TAKES" 'is lost: joe@elsewhere, pid 4711 holds the lock now'
    # Another's row is as it was.
    [ "$(row owner)" = other ]
    pgsql -c "update dlock_locks set expires = '-infinity' where name = '$NAME'"
    stolen "update dlock_locks set fence = fence + 1
    where name = '$NAME'" 'is lost: the lease expired'
}

@test "the release reports a loss although the command succeeded" {
    local kind
    takes_row
    says 79 'not ours any more' "$L" "${PSQL[@]}" -c "delete from dlock_locks where name = '$NAME'"
    for kind in -s "--slots 2"; do
        says 79 'not ours any more' $kind "$L.x" "${PSQL[@]}" -c "delete from dlock_locks_holders
            where name = '$NAME.x'"
    done
    run -79 run_t 5 "$DLOCK" "$L" "${PSQL[@]}" -c "update dlock_locks set expires = 'epoch'
    where name = '$NAME'"
    run -79 run_t 5 "$DLOCK" "$L" "${PSQL[@]}" -c "$TAKES"
    assert_out joe@elsewhere
    [ "$(row "owner = 'other' and expires > clock_timestamp()")" = t ]
}

# ------------------------------------------------------------------ fence ---

@test "the fence grows even after its row was deleted" {
    local i f last=0
    for i in $(seq 12); do
        f=$(fence)
        [ "$f" -gt "$last" ] || fail "$f after $last"
        # It is the server's clock in microseconds while nothing is ahead of that.
        assert_between $(($(wall_ms) - 3000)) $((f / 1000)) $(($(wall_ms) + 1)) "fence (ms)"
        last=$f
        [ $((i % 4)) -ne 0 ] || pgsql -c "delete from dlock_locks where name = '$NAME'"
    done
    fence >/dev/null
    pgsql -c "update dlock_locks set fence = 5000000000000000 where name = '$NAME'"
    [ "$(fence)" = 5000000000000001 ]
    [ "$(fence)" = 5000000000000002 ]
    # Also when it is taken from a dead holder.
    pgsql -c "update dlock_locks set expires = clock_timestamp() + '300 ms', owner = 'dead'
    where name = '$NAME'"
    [ "$(fence)" = 5000000000000003 ]
}

# The log is written by nobody but the commits: what a commit did not wait for is lost in the crash.
@test "a crash right after the grant forgets nothing" {
    local what f now
    for what in "database postgres" "role postgres"; do
        own_server -c wal_writer_delay=10s -c bgwriter_delay=10s -c autovacuum=off
        fence >/dev/null
        pgsql -c "alter $what set synchronous_commit = off"
        [ "$(pgsql -c 'show synchronous_commit')" = off ]
        pgsql -c checkpoint
        hold --ttl 20
        now=$(row fence)
        pg_restart own immediate -c autovacuum=off
        [ "$(row fence)" = "$now" ] || fail "fence $(row fence) after the crash, $now before"
        [ "$(row 'expires > clock_timestamp()')" = t ]
        run -75 run_t 5 "$DLOCK" -q -n "$L" true
        let_go
        f=$(fence)
        [ "$f" -gt "$now" ]
        # And so is a release: the row is free after the crash.
        pgsql -c checkpoint
        fence >/dev/null
        pg_restart own immediate -c autovacuum=off
        row_is_free
        pg_stop_all
    done
}
