#!/usr/bin/env bats
# hostile.bats - what answers where PostgreSQL should, or in its name: without end, nonsense, too
# old.

# bats file_tags=long
load ../../support/pgtests

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

# --- without end ----------------------------------------------------------------------------------

# A sanitizer needs the address space that the bound takes away.
bounded() { case ${SAN:-} in *address* | *thread*) skip "no bound in sanitizer builds" ;; esac; }
# peak CMD...: CMD, the most memory of which goes to the file most (MiB); small: it was within the
# bound.
peak() { run_t 20 "$ROOT/tests/support/helpers/peak_rss.py" most "$@"; }
small() { [ "$(cat most)" -lt $MOST ] || fail "$*: $(cat most) MiB"; }
# In MiB. What is not bounded takes a gigabyte and more of the first row.
MOST=250
watched() {
    start_log out peak "$DLOCK" "$@"
    K=$STARTED
}

# bats test_tags=plain
@test "an endless answer costs bounded memory" {
    bounded
    for how in row rows notices; do
        fake $how
        for mode in '' '&mode=lease'; do
            for what in 'touch ran' ''; do
                ask=() run=($what)
                [ -n "$what" ] || ask=(--status)
                run -69 peak "$DLOCK" "${ask[@]}" --connect-timeout 1 "$P$mode#$NAME" "${run[@]}"
                [ "${#lines[@]}" = 1 ] || fail "$how $mode $what: $output"
                [ $how != row ] || assert_out memory
                small "$how $mode $what"
                [ ! -e ran ]
            done
        done
    done
}

# The library sets no limit, and the manual says so.
# bats test_tags=plain
@test "a program that bounds itself outlives an endless answer" {
    bounded
    fake row
    # It tries again and again, until a signal ends it in its own way.
    run -124 peak timeout 2 prlimit --data=100000000 "$BUILD/programs/steps" "$P#$NAME"
    assert_out "was interrupted"
    small
}

# bats test_tags=plain
@test "an endless answer to a renewal ends the hold" {
    bounded
    proxy flood fence= flood
    RUN=watched tree --ttl 3 "$P#$NAME"
    touch flood
    ends 79
    [ ! -e flood ]
    tree_gone
    small
    run -0 "$DLOCK" -n "$P#$NAME" true
}

# bats test_tags=plain
@test "a lease rides out an endless answer to a renewal" {
    bounded
    proxy flood 'UPDATE' flood
    RUN=watched job 3 -q --ttl 8 "$P?mode=lease#$NAME"
    flooded() { [ ! -e flood ]; }
    # There may be no good one among them: the lease is long enough for all four, on a busy machine,
    # too.
    for i in 1 2 3 4; do
        touch flood
        wait_for 5 flooded
    done
    job_ends_silently
    small
}

soft_data() { awk '/^Max data size/ { print $4 }' "/proc/$1/limits"; }
# bats test_tags=plain
@test "the memory bound is the keeper's alone" {
    bounded
    for limit in unlimited 5000000 90000; do
        for lock in "$L" x.lock '-o x.lock' '-F x.lock'; do
            ulimit -S -d $limit
            prlimit -o resource,soft,hard --noheadings >limits
            run -0 run_t 5 "$DLOCK" $lock sh -c 'ulimit -S -d
                prlimit -o resource,soft,hard --noheadings -p $$ >limits.command'
            [ "$output" = $limit ] || fail "$lock: $output, not $limit"
            cmp limits limits.command
        done
    done
    # Never raised; and where it is.
    ulimit -S -d unlimited
    job 0 "$L"
    find_guard
    [ "$(soft_data "$G")" = unlimited ]
    [ "$(soft_data "$K")" -lt 400000000 ]
    job_ends
}

# A cancel request is a thread, with a stack as large as the caller's limit; there is room for some.
@test "a large stack limit does no harm" {
    for size in 200000 unlimited; do
        ulimit -S -s $size 2>/dev/null || skip "the limit of the stack cannot be raised"
        L="postgres://postgres@localhost:$PG_PORT/postgres#$NAME.$size"
        hold
        for i in 1 2 3 4; do
            start_log wait.log "$DLOCK" "$L" true
            wait_for 5 locks_are 'not granted' 1
            dies_by TERM 350
        done
        let_go
    done
}

# --- nonsense -------------------------------------------------------------------------------------

@test "recognises what does not speak PostgreSQL's protocol" {
    local how mode
    # odd CODE URI: dlock ends with CODE after one line.
    odd() {
        for mode in advisory lease; do
            run run_t 10 "$DLOCK" --connect-timeout 0.5 "$2&mode=$mode#$NAME" touch ran
            [ "$status" = "$1" ] && [ "${#lines[@]}" = 1 ] || fail "$how $mode: $status: $output" ||
                return
            [ ! -e ran ] || return
        done
    }
    for how in 'say HTTP/1.0\r\n' 'greet SSH-2.0-x\r\n' 'for-ever x' \
        'for-ever R\0\0\0\x08\0\0\0\0' \
        'for-ever N\0\0\0\x08abcd' 'say \x7f\xff\xff\xff\0\0\0\0' 'say N' 'say S' \
        'say NR\0\0\0\x08\0\0\0\0Z\0\0\0\5I' nothing go reset; do
        listener hostile_server $how
        odd 69 "postgres://u@127.0.0.1:$LISTENS/x?sslmode=prefer"
    done
    how=odd
    fake odd
    odd 76 "$P"
    for mode in advisory lease; do
        says 76 "unexpected answer" --status "$P&mode=$mode#$NAME"
        says 76 "unexpected answer" --break --yes "$P&mode=$mode#$NAME"
        says 76 "unexpected answer" --list "$P&mode=$mode"
    done
}

@test "an answer with other columns grants and renews nothing" {
    for column in advisory:lsn advisory:wal advisory:main lease:fence lease:pid lease:token; do
        proxy rename "${column#*:}" "$(tr a-z x <<<"${column#*:}")"
        says 76 "unexpected answer" -n "$P?mode=${column%:*}#$NAME.${column#*:}" touch ran
        [ ! -e ran ]
    done
    for column in advisory:unmarked lease:renewed; do
        proxy rename "${column#*:}" "$(tr a-z x <<<"${column#*:}")"
        run -79 run_t 20 "$DLOCK" --ttl 3 "$P?mode=${column%:*}#$NAME" sleep 20
        assert_out "unexpected answer"
    done
}

# --- related, or old ------------------------------------------------------------------------------

@test "refuses servers before PostgreSQL 12" {
    for version in 9.6.24 11.22; do
        fake odd $version
        says 69 "PostgreSQL ${version%%.*} is too old: 12 or later" "$P#$NAME" touch ran
        [ "${#lines[@]}" = 1 ]
    done
    for version in 12.0 13.14; do
        fake odd $version
        says 76 "PostgreSQL ${version%%.*} does not end a silent session" -v "$P#$NAME" touch ran
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
        says 69 CockroachDB "$P$mode#$NAME" touch ran
        [ "${#lines[@]}" = 1 ]
        says 69 CockroachDB --status "$P$mode#$NAME"
    done
    [ ! -e ran ]
}
