#!/usr/bin/env bats
# unconfirmed_commit.bats - a commit that never reaches the synchronous standby: a person cancels
# the wait, or ends the session that waits, and the server answers success with a warning.

# bats file_tags=long
load ../../support/pgtests

setup_file() { export BATS_NO_PARALLELIZE_WITHIN_FILE=true; }
at_server() {
    AT=postgres@127.0.0.1:${PG_PORT:-}
    U="postgres://$AT/postgres"
    L="$U?mode=lease#$NAME"
}
setup() {
    dlock_setup
    fake_setup
}

# cut_off: from now on a commit waits for a standby that does not exist, until standby_back.
# Noticed by one that does wait.
cut_off() {
    pgsql -c "alter system set synchronous_standby_names = 'nobody'" -c "select pg_reload_conf()" \
        >reload.log
    echo "select pg_logical_emit_message(true, 'canary', '') \\watch 0.02" >canary.sql
    start_log canary.log pg_session -f "$T/canary.sql"
    CANARY=$STARTED
    wait_for 5 is_sql "count(*) = 1 from pg_stat_activity
        where wait_event = 'SyncRep' and application_name = 'pgsql'"
}
standby_back() {
    end_job TERM "$CANARY"
    pgsql -c "alter system set synchronous_standby_names = ''" -c "select pg_reload_conf()" \
        >reload.log
}

# waits_end FUNCTION: each wait of dlock is cancelled (pg_cancel_backend), or its session ended
# (pg_terminate_backend), until a person stops it.
waits_end() {
    echo "select $1(pid) from pg_stat_activity where wait_event = 'SyncRep'
        and application_name like 'dlock:%' \\watch 0.02" >ends.sql
    start_log ends.log pg_session -f "$T/ends.sql"
    ENDS=$STARTED
}
waits_ended() { [ "$(grep -c t ends.log)" -gt "$1" ]; }
end_no_more() { end_job TERM "$ENDS"; }

# for_both CMD...: with $end. not_renewed PARAMS OPTION...: such a hold ends in time.
for_both() { for end in pg_cancel_backend pg_terminate_backend; do "$@"; done; }
not_renewed() {
    local lost
    tree --ttl 3 "${@:2}" "$U$1#$NAME"
    cut_off
    lost=$(now_ms)
    waits_end "$end"
    ends 79
    waits_ended 0 || fail "no wait was ended"
    assert_out "could not be renewed in time"
    # Nothing was confirmed after that.
    lease_times 3000 $((lost * NS))
    [ "$(last_beat)" -lt "$DEADLINE" ] || final "the tree lived until $(last_beat), after $DEADLINE"
    end_no_more
    standby_back
}

@test "a cancelled wait does not renew a lease" {
    own_server
    for_both not_renewed '?mode=lease'
    end=pg_cancel_backend
    not_renewed '?mode=lease&restart-grace=1' --once
    not_renewed '?mode=lease' -s
    not_renewed '?mode=lease' --slots 2
}

@test "a cancelled wait does not renew an advisory lock with renew=write" {
    own_server
    end=pg_cancel_backend not_renewed '?renew=write&restart-grace=1'
}

# not_granted PARAMS OPTION...: no command starts before the standby is back.
not_granted() {
    local waiter ended
    waits_end "$end"
    run -69 run_t 5 "$DLOCK" -n --connect-timeout 1 "${@:2}" "$U$1#$NAME" touch ran
    [ "$end $#" != "pg_cancel_backend 1" ] ||
        assert_out "did not confirm the commit: canceling wait"
    start_log w.log "$DLOCK" -w 20 --retry --ttl 2 "${@:2}" "$U$1#$NAME" touch ran
    waiter=$STARTED
    ended=$(grep -c t ends.log)
    wait_for 15 waits_ended "$ended"
    [ ! -e ran ] || final "$1 ${*:2}: the command ran"
    # Before the standby is back: one that is seen to wait at that moment would end as a holder.
    end_no_more
    standby_back
    exits 0 10 "$waiter"
    [ -e ran ]
    rm ran
    cut_off
}

@test "a cancelled wait grants nothing" {
    own_server
    "$DLOCK" -q "$L" true
    "$DLOCK" -q -s "$L" true
    "$DLOCK" -q --once "$L" true
    cut_off
    for end in pg_terminate_backend pg_cancel_backend; do
        not_granted '?mode=lease'
        not_granted ''
    done
    NAME+=once not_granted '?mode=lease' --once --ttl 3
    not_granted '?mode=lease' -s
    not_granted '?mode=lease' --slots 2
    not_granted '' -s
}

# released CODE TEXT PARAMS OPTION...
released() {
    L="$U$3#$NAME-$end"
    hold "${@:4}"
    cut_off
    waits_end "$end"
    let_go "$1"
    file_has hold.log "$2" || fail "$(cat hold.log)"
    end_no_more
    standby_back
    # Cut off only for a moment: confirmed at last.
    L+=2
    hold "${@:4}"
    cut_off
    waits_end "$end"
    : >go
    wait_for 5 waits_ended 0
    standby_back
    exits 0 8 "$HOLDER"
    end_no_more
    [ ! -s hold.log ] || fail "$(cat hold.log)"
}

@test "a release behind a cancelled wait is not confirmed" {
    own_server
    for_both released 0 'is not confirmed' '?mode=lease'
    end=pg_cancel_backend
    released 0 'is not confirmed' '?mode=lease' -s
}

@test "a success behind a cancelled wait is not recorded" {
    own_server
    for_both released 79 'is not recorded' '?mode=lease' --once --ttl 3
}

@test "the wait ends in any language, and where the role hides warnings" {
    local mo=/usr/share/locale/de/LC_MESSAGES/postgres-$(basename "${PG_BIN%/bin}").mo
    [ -e "$mo" ] && command -v localedef >/dev/null || skip "needs localedef and $mo"
    german=$(server_folder pg)
    localedef --no-archive -i de_DE -f UTF-8 "$german/de_DE.UTF-8" || skip "needs locales"
    LOCPATH=$german own_server -c lc_messages=de_DE.UTF-8
    pgsql -c "alter role postgres set client_min_messages = error"
    end=pg_cancel_backend not_renewed '?mode=lease'
    cut_off
    waits_end pg_cancel_backend
    run -69 run_t 5 "$DLOCK" -n --connect-timeout 1 "$L" touch ran
    assert_out 'synchrone Replikation'
    run -69 run_t 5 "$DLOCK" -n --connect-timeout 1 "$U#$NAME" touch ran
    assert_out 'synchrone Replikation'
    [ ! -e ran ]
}

# What dlock does not know may be about the commit.
@test "any other warning is no success, either" {
    own_server -c session_preload_libraries=auto_explain -c auto_explain.log_min_duration=0 \
        -c auto_explain.log_level=warning
    run -69 run_t 5 "$DLOCK" -n --connect-timeout 1 "$L" touch ran
    assert_out 'did not confirm the commit: duration:'
    [ ! -e ran ]
}

@test "warnings of our own statements change nothing" {
    # Of a key that the session has not; of an old database; of a long NOTIFY queue. Only the
    # function differs.
    local function
    own_server
    for function in LockRelease GetNewTransactionId GetNewMultiXactId asyncQueueFillWarning; do
        listener pgproxy "$PG_PORT" warn "$function"
        for mode in '' '&mode=lease'; do
            run -0 run_t 5 "$DLOCK" \
                "postgres://postgres@127.0.0.1:$LISTENS/postgres?sslmode=disable$mode#$NAME" true
            [ -z "$output" ] || fail "$output"
        done
    done
    listener pgproxy "$PG_PORT" warn SyncRepWaitForLSN
    for mode in '' '&mode=lease'; do
        run -69 run_t 8 "$DLOCK" -n --connect-timeout 2 \
            "postgres://postgres@127.0.0.1:$LISTENS/postgres?sslmode=disable$mode#$NAME" touch ran
        assert_out 'did not confirm the commit: Text'
        [ ! -e ran ]
    done
}

# bats test_tags=slow
@test "what the promoted standby grants excludes the old holder" {
    local old params grace
    for params in '?mode=lease' '?renew=write&restart-grace=3'; do
        own_server
        pg_standby standby own
        pgsql -c "alter system set synchronous_standby_names = '*'" -c "select pg_reload_conf()"
        wait_for 5 is_sql "sync_state = 'sync' from pg_stat_replication"
        U="postgres://$AT/postgres"
        run -0 run_t 8 "$DLOCK" -w 7 "$U$params#$NAME" true
        L="$U$params#$NAME"
        start_log old.log "$DLOCK" --ttl 3 "$L" "$HELPERS/witness" "$T" 60000 tree
        old=$STARTED
        wait_for 10 file_has history enter
        kill -STOP "$(pgsql -c "select pid from pg_stat_replication")"
        waits_end pg_cancel_backend
        pgsql_in standby -c "select pg_promote()"
        run -0 run_t 20 "$DLOCK" --ttl 3 -w 18 \
            "postgres://postgres@127.0.0.1:${PG_PORTS[standby]}/postgres$params#$NAME" \
            "$HELPERS/witness" "$T" 3000
        exits 79 5 "$old"
        [ ! -e violations ] || final "two commands ran"
        pg_kill own
        pg_stop_all
        rm -f history
    done
}
