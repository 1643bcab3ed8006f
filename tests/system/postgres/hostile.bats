#!/usr/bin/env bats
# hostile.bats - what answers where PostgreSQL should, or in its name: without end, nonsense, too old.

# bats file_tags=long
bats_require_minimum_version 1.5.0
load ../../support/common
load ../../support/fake
load ../../support/postgres

setup_file() {
    export BATS_NO_PARALLELIZE_WITHIN_FILE=true
    pg_start
}
teardown_file() { pg_stop_all; }
setup() {
    dlock_setup
    fake_setup # the command that tells what happens to it
}
teardown() { dlock_teardown; }

# fake HOW [VERSION [SETTING]]: P is its address.
fake() {
    listener fakepg "$@"
    P="postgres://u@127.0.0.1:$LISTENS/x?sslmode=disable"
}
# proxy FAULT...: one before the server; P is its address.
proxy() {
    listener pgproxy "$PG_PORT" "$@"
    P="postgres://postgres@127.0.0.1:$LISTENS/postgres"
}

# --- without end ---------------------------------------------------------------------------------------

# A sanitizer needs the address space that the bound takes away.
bounded() { case ${SAN:-} in *address* | *thread*) skip "no bound in sanitizer builds" ;; esac; }
# In MiB. What is not bounded takes a gigabyte and more of the first row.
MOST=250

# bats test_tags=plain
@test "an endless answer costs bounded memory" {
    bounded
    for how in row rows notices; do
        fake $how
        for mode in '' '&mode=lease'; do
            for what in 'touch ran' ''; do
                ask=() run=($what)
                [ -n "$what" ] || ask=(--status)
                run run_t 20 "$ROOT/tests/support/helpers/peak_rss.py" most "$DLOCK" "${ask[@]}" --connect-timeout 1 "$P$mode#$NAME" "${run[@]}"
                [ "$status" = 69 ] || fail "$how $mode $what: $status: $output"
                [ "${#lines[@]}" = 1 ] || fail "$how $mode $what: $output"
                [ $how != row ] || assert_out memory
                [ "$(cat most)" -lt $MOST ] || fail "$how $mode $what: $(cat most) MiB"
                [ ! -e ran ]
            done
        done
    done
}

# bats test_tags=plain
@test "an endless answer to a renewal ends the hold" {
    bounded
    proxy flood fence= flood
    start_log out "$ROOT/tests/support/helpers/peak_rss.py" most "$DLOCK" --ttl 3 "$P#$NAME" $SUBJECT -t -k
    K=$STARTED
    wait_for 5 running 4
    touch flood
    ended
    assert_rc 79
    [ ! -e flood ]
    tree_gone
    [ "$(cat most)" -lt $MOST ] || fail "$(cat most) MiB"
    run -0 "$DLOCK" -n "$P#$NAME" true
}

# bats test_tags=plain
@test "a lease rides out an endless answer to a renewal" {
    bounded
    proxy flood 'UPDATE' flood
    start_log out "$ROOT/tests/support/helpers/peak_rss.py" most "$DLOCK" -q --ttl 8 "$P?mode=lease#$NAME" $SUBJECT -u "$T/end" -r 3
    K=$STARTED
    wait_for 5 running
    flooded() { [ ! -e flood ]; }
    # There may be no good one among them: the lease is long enough for all four, on a busy machine, too.
    for i in 1 2 3 4; do
        touch flood
        wait_for 5 flooded
    done
    [ "$(count_seen main sig 15)" = 0 ]
    touch end
    ended
    assert_rc 3
    [ "$output" = "" ]
    [ "$(cat most)" -lt $MOST ] || fail "$(cat most) MiB"
}

soft_data() { awk '/^Max data size/ { print $4 }' "/proc/$1/limits"; }
# bats test_tags=plain
@test "the memory bound is the keeper's alone" {
    bounded
    for limit in unlimited 5000000 90000; do
        for lock in "postgres://postgres@127.0.0.1:$PG_PORT/postgres#$NAME" x.lock '-o x.lock' '-F x.lock'; do
            ulimit -S -d $limit
            prlimit -o resource,soft,hard --noheadings >limits
            run -0 run_t 5 "$DLOCK" $lock sh -c 'ulimit -S -d; prlimit -o resource,soft,hard --noheadings -p $$ >limits.command'
            [ "$output" = $limit ] || fail "$lock: $output, not $limit"
            cmp limits limits.command
        done
    done
    # Never raised; and where it is.
    ulimit -S -d unlimited
    background "postgres://postgres@127.0.0.1:$PG_PORT/postgres#$NAME" $SUBJECT -u "$T/end"
    wait_for 5 running
    find_guard
    [ "$(soft_data "$G")" = unlimited ]
    [ "$(soft_data "$K")" -lt 400000000 ]
    touch end
    ended
    assert_rc 0
}

# A cancel request is a thread, with a stack as large as the caller's limit; there is room for some.
waits() { [ "$(pgsql -c "select count(*) from pg_locks where locktype = 'advisory' and not granted")" = 1 ]; }
@test "a large stack limit does no harm" {
    for size in 200000 unlimited; do
        ulimit -S -s $size 2>/dev/null || skip "the limit of the stack cannot be raised"
        start_log hold.log "$DLOCK" "postgres://postgres@localhost:$PG_PORT/postgres#$NAME.$size" sh -c 'echo >held; exec sleep 30'
        HOLDER=$STARTED
        wait_for 5 test -e held
        for i in 1 2 3 4; do
            start_log wait.log "$DLOCK" "postgres://postgres@localhost:$PG_PORT/postgres#$NAME.$size" true
            wait_for 5 waits
            t0=$(now_ms)
            kill "$STARTED"
            wait_exit 5 "$STARTED" || [ $? = 143 ]
            assert_between 0 $(($(now_ms) - t0)) $((350 + SLOW + BUSY)) "the waiter's end (ms)"
        done
        kill "$HOLDER"
        wait_exit 5 "$HOLDER" || [ $? = 143 ]
        rm held
    done
}

# --- nonsense ------------------------------------------------------------------------------------------

@test "recognises what does not speak PostgreSQL's protocol" {
    for how in 'say HTTP/1.0\r\n' 'greet SSH-2.0-x\r\n' 'for-ever x' 'for-ever R\0\0\0\x08\0\0\0\0' 'for-ever N\0\0\0\x08abcd' \
        'say \x7f\xff\xff\xff\0\0\0\0' 'say N' 'say S' 'say NR\0\0\0\x08\0\0\0\0Z\0\0\0\5I' nothing go reset; do
        set -- $how
        listener hostile_server "$@"
        for mode in '' '?mode=lease'; do
            run run_t 10 "$DLOCK" --connect-timeout 0.5 "postgres://u@127.0.0.1:$LISTENS/x$mode#$NAME" touch ran
            [ "$status" = 69 ] || fail "$how $mode: $status: $output"
            [ "${#lines[@]}" = 1 ] || fail "$how $mode: $output"
            [ ! -e ran ]
        done
    done
    fake odd
    for mode in '' '&mode=lease'; do
        run run_t 10 "$DLOCK" --connect-timeout 0.5 "$P$mode#$NAME" touch ran
        [ "$status" = 76 ] || fail "$mode: $status: $output"
        [ "${#lines[@]}" = 1 ] || fail "$mode: $output"
        [ ! -e ran ]
    done
}

# --- related, or old -----------------------------------------------------------------------------------------------

@test "refuses servers before PostgreSQL 12" {
    for version in 9.6.24 11.22; do
        fake odd $version
        run run_t 5 "$DLOCK" "$P#$NAME" touch ran
        assert_rc 69
        assert_out "PostgreSQL ${version%%.*} is too old: 12 or later"
        [ "${#lines[@]}" = 1 ]
    done
    for version in 12.0 13.14; do
        fake odd $version
        run run_t 5 "$DLOCK" -v "$P#$NAME" touch ran
        assert_rc 76
        assert_out "PostgreSQL ${version%%.*} does not end a silent session"
        run run_t 5 "$DLOCK" "$P#$NAME" touch ran
        refute_out "silent session"
    done
    fake odd 14.0
    run run_t 5 "$DLOCK" -v "$P#$NAME" touch ran
    refute_out "silent session"
    [ ! -e ran ]
}

@test "refuses CockroachDB, whose advisory locks exclude no client" {
    fake odd 13.0.0 'crdb_version=CockroachDB CCL v23.1.11'
    for mode in '' '&mode=lease'; do
        run run_t 5 "$DLOCK" "$P$mode#$NAME" touch ran
        assert_rc 69
        assert_out CockroachDB
        [ "${#lines[@]}" = 1 ]
        run run_t 5 "$DLOCK" --status "$P$mode#$NAME"
        assert_rc 69
        assert_out CockroachDB
    done
    [ ! -e ran ]
}
