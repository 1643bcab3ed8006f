#!/usr/bin/env bats
# break.bats - --break on PostgreSQL: the mark, outages, other programs' holds, rights, rows that
# change meanwhile. What holds for each store is in the contract.

# bats file_tags=long,plain
load ../../support/pgtable

setup_file() {
    export BATS_NO_PARALLELIZE_WITHIN_FILE=true
    pg_start
    make_tables
}
make_tables() {
    "$DLOCK" -q -s "postgres://postgres@127.0.0.1:$PG_PORT/postgres?mode=lease#first" true 3>&-
}

MODES='lease advisory'
use_mode() { # MODE [WORD]: a lock of its own
    MODE=$1
    NAME=${BATS_TEST_NUMBER}-$1${2:+-$2}
    U="postgres://$AT/postgres?mode=$1"
    L="$U#$NAME"
}

# works ARG...: a holder, $WORKER, whose whole tree keeps the witness for a minute.
works() {
    rm -f witness counter history
    start_log works.log "$DLOCK" "$@" "$HELPERS/witness" "$T" 60000 tree
    WORKER=$STARTED
    wait_for 5 file_has history enter
}
next_waits() { start_log next.log "$DLOCK" --ttl 30 "$L" "$HELPERS/witness" "$T" 1; NEXT=$STARTED; }
next_was_alone() {
    exits 0 8 "$NEXT"
    [ ! -e violations ] || fail "$(cat violations)"
}
ME="$(id -un)@$(hostname)"
is_broken() {
    exits 79 8 "$WORKER"
    file_has works.log "was broken by $ME" || fail "$(cat works.log)"
}
is_marked() {
    case $MODE in
    lease)
        is_sql "exists (select from dlock_locks where name = '$NAME' and owner like 'break:%')
            or exists (select from dlock_locks_holders
                where name = '$NAME' and token like 'break:%')"
        ;;
    advisory) is_sql "count(*) > 0 from pg_stat_activity where application_name like '$ME%'" ;;
    esac
}
not_marked() { ! is_marked; }
is_free() { run_t 5 "$DLOCK" --status "$L"; }
foreign_holds() {
    case $MODE in
    lease)
        pgsql -c "insert into dlock_locks values
            ('$NAME', 7, 'psql', now() + interval '1 hour', 'a person')"
        ;;
    advisory) sql_hold "pg_advisory_lock($(key_of "$NAME"))" ;;
    esac
}
breaks() { run -"$1" run_t 15 "$DLOCK" --break --yes "${@:2}" "$L"; }

# ------------------------------------------------------------------ the mark ---

@test "a mark frees nothing and keeps the hold as it is" {
    local mode before
    for mode in $MODES; do
        use_mode "$mode"
        works --ttl 4 "$L"
        kill -STOP "$WORKER"
        [ "$mode" != lease ] || before=$(row expires,fence)
        start_log breaker.log "$DLOCK" --break --yes "$L"
        wait_for 5 is_marked
        [ "$mode" != lease ] || [ "$(row expires,fence)" = "$before" ]
        run -75 run_t 5 "$DLOCK" -n "$L" touch ran
        kill -CONT "$WORKER"
        is_broken
        exits 0 8 "$STARTED"
        [ ! -e ran ]
    done
}

# ------------------------------------------------------- an outage of the server ---

outage_setup() {
    own_server
    make_tables
}
# marked_in MODE SECONDS: a marked hold, whose holder is stopped before its next renewal, and a
# waiter ($NEXT). The break ($BREAKER, breaker.log) waits for so long.
marked_in() {
    use_mode "$1"
    works --ttl 6 --grace 1 "$L"
    kill -STOP "$WORKER"
    start_log breaker.log "$DLOCK" --break --yes --connect-timeout 1 -w "$2" "$L"
    BREAKER=$STARTED
    wait_for 5 is_marked
    next_waits
    wait_for 5 waiters_are 1
}

# A server that stops may first refuse new sessions, or close the connection without a word.
OUTAGE='refused\|ended the session\|shutting down\|closed the connection'
is_told() { grep -q "$OUTAGE" breaker.log; }

@test "a break outlasts a restart of the server before the holder's next renewal" {
    local mode
    outage_setup
    for mode in $MODES; do
        marked_in "$mode" 20
        pg_stop own
        kill -CONT "$WORKER"
        # An advisory lock ends with its session; a row lasts, and its holder finds the mark.
        [ "$mode" != advisory ] || exits 79 8 "$WORKER"
        wait_for 12 is_told
        pid_alive "$BREAKER"
        pg_restart own fast
        [ "$mode" != lease ] || is_broken
        exits 0 8 "$BREAKER"
        next_was_alone
        [ "$(grep -c "$OUTAGE" breaker.log)" = 1 ] || fail "$(cat breaker.log)"
        is_free
    done
}

@test "a break ends with an outage that lasts, and so does the hold" {
    local mode
    outage_setup
    for mode in $MODES; do
        marked_in "$mode" 2
        pg_stop own
        kill -CONT "$WORKER"
        exits 69 8 "$BREAKER"
        exits 79 8 "$WORKER"
        pid_alive "$NEXT"
        pg_restart own fast
        next_was_alone
        is_free
    done
}

@test "a break waits for a server that is stopped before the holder's next renewal" {
    local mode
    outage_setup
    for mode in $MODES; do
        marked_in "$mode" 20
        stop_server
        kill -CONT "$WORKER"
        # No answer comes, so the holder ends its tree within its lease.
        exits 79 8 "$WORKER"
        pid_alive "$BREAKER"
        go_on
        exits 0 8 "$BREAKER"
        next_was_alone
        is_free
    done
}

# ------------------------------------------------------------------- by force ---

@test "a foreign holder goes by force alone" {
    local mode
    for mode in $MODES; do
        use_mode "$mode"
        foreign_holds
        breaks 69
        assert_out "use --force"
        run -75 run_t 5 "$DLOCK" -n "$L" touch ran
        breaks 0 --force
        wait_for 5 is_free
        [ "$mode" != advisory ] || sql_let_go || :
        run -0 run_t 5 "$DLOCK" -n "$L" touch ran
    done
}

# ------------------------------------------------------------- the lease table ---

@test "a marked hold ends with its command, in spite of --min-hold" {
    use_mode lease
    for kind in -x -s; do
        held a --min-hold 60 --ttl 20 $kind
        kill -STOP "${PIDS[a]}"
        start_log breaker.log "$DLOCK" --break --yes "$L"
        wait_for 5 is_marked
        : >go.a
        kill -CONT "${PIDS[a]}"
        wait_exit 8 "${PIDS[a]}" || :
        exits 0 8 "$STARTED"
        run -0 run_t 5 "$DLOCK" -n "$L" true
    done
}

@test "a role without the right to the table is refused, and breaks nothing" {
    use_mode lease
    held a --ttl 30
    role_named reader
    pgsql -c "grant select on dlock_locks to reader"
    local root=$L
    L="postgres://reader@${AT#*@}/postgres?mode=lease#$NAME"
    breaks 77
    breaks 77 --force
    L=$root
    ! is_marked || fail 'marked'
    end a
}

# --------------------------------------------------------------- advisory locks ---

@test "a role without pg_signal_backend frees nothing by force" {
    use_mode advisory
    held a --ttl 30
    role_named other
    local root=$L
    L="postgres://other@${AT#*@}/postgres#$NAME"
    breaks 77 --force
    L=$root
    end a
}

@test "a break that is ended takes the mark with it" {
    use_mode advisory
    held a --ttl 10
    kill -STOP "${PIDS[a]}"
    start_log breaker.log "$DLOCK" --break --yes "$L"
    wait_for 5 is_marked
    kill -TERM "$STARTED"
    wait_exit 5 "$STARTED" || :
    file_has breaker.log "the mark ends with this process"
    wait_for 5 not_marked
    kill -CONT "${PIDS[a]}"
    end a
}

@test "a mark costs a run no message" {
    use_mode advisory
    local beat="\\[dlock: $NAME\\] LOG:  statement: /. dlock1 .* fence="
    held a --ttl 1.5
    beats() { [ "$(grep -c "$beat" "$PG_LOG")" -ge 3 ]; }
    wait_for 8 beats
    end a
    # Behind two settings, a heartbeat is a single statement.
    ! grep "$beat" "$PG_LOG" | grep -v \
        "warning; SELECT pg_try_advisory_xact_lock_shared('[-0-9]*') AS unmarked$" ||
        fail "other statements"
    ! grep "dlock: $NAME\]" "$PG_LOG" | grep -F "a.application_name FROM pg_locks" ||
        fail "asked for a breaker"
}

# ------------------------------------------------------- a row that just changes ---

JOE='dlock1 host=elsewhere pid=4711 user=joe since=1 cmd=x note='

# between_looks CMD ARG...: a reader holds, dlock ARG... has read the name's row, and is about to
# read the second table; then the lock is JOE's alone.
between_looks() {
    hold -s --ttl 60
    session
    echo "begin; lock table dlock_locks_holders; \\echo blocked" >&8
    wait_for 5 file_has session.log blocked
    start_log look.log "$DLOCK" "$@" "$L" 8>&-
    wait_for 5 blocked_are 1
    pgsql -c "update dlock_locks set owner = repeat('a', 32), holder = '$JOE' where name = '$NAME'"
    session_ends commit
}

@test "a holder that comes between two looks is shown, and can be broken" {
    use_mode lease
    between_looks --status
    exits 75 5 "$STARTED"
    output=$(cat look.log)
    assert_out joe@elsewhere
    refute_out shared
    let_go 79
    use_mode lease break
    between_looks --break --yes -w 0.1
    exits 75 5 "$STARTED"
    is_marked || fail "$(cat look.log)"
    let_go 79
}

@test "a row that no dlock wrote is wrong only if it stays as it is" {
    use_mode lease
    local this="where name = '$NAME'"
    foreign_holds
    pgsql -c "update dlock_locks set owner = repeat('x', 40) $this"
    breaks 69
    assert_out "no dlock wrote the holder's row: correct the row in"
    another_holds() { pgsql -c "update dlock_locks set owner = repeat('a', 32) $this"; }
    says_yes 75 'has changed hands' another_holds --break "$L"
    pgsql -c "update dlock_locks set owner = repeat('x', 40) $this"
    is_over() { pgsql -c "update dlock_locks set expires = '-infinity' $this"; }
    says_yes 0 '' is_over --break "$L"
}
