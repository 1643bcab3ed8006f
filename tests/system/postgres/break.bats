#!/usr/bin/env bats
# break.bats - --break on PostgreSQL: the mark, what the holder makes of it, and --force.

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

# The manual's statement, for the name $1.
key_of() {
    pgsql -v name="$1" <<<"SELECT ('x' || substr(encode(sha256(
        convert_to(:'name', 'UTF8')), 'hex'), 1, 16))::bit(64)::bigint"
}

# work ID ARG...: a holder or waiter whose whole tree keeps the witness for a minute.
work() {
    start_log "$1.log" "$DLOCK" "${@:2}" "$HELPERS/witness" "$T" 60000 tree
    PIDS[$1]=$STARTED
}
works() { rm -f witness counter history && work "$@" && wait_for 5 file_has history enter; }
next_waits() { start_log next.log "$DLOCK" --ttl 30 "$L" "$HELPERS/witness" "$T" 1; NEXT=$STARTED; }
next_was_alone() {
    exits 0 8 "$NEXT"
    [ ! -e violations ] || fail "$(cat violations)"
}
ME="$(id -un)@$(hostname)"
is_broken() { # ID [NOTE]
    exits 79 8 "${PIDS[$1]}"
    output=$(cat "$1.log")
    assert_out "was broken by $ME${2:+, note \"$2\"}"
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
waits_for_it() { [ "$("$DLOCK" --status "$L" | grep -c waiting)" = "$1" ]; }
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

# at_prompt CMD ARG...: dlock ARG... at a terminal, where the answer is yes once CMD has run.
at_prompt() {
    run timeout 20 /usr/bin/python3 -S -c '
import os, pty, subprocess, sys
pid, fd = pty.fork()
if pid == 0:
    os.execv(sys.argv[2], sys.argv[2:])
said = b""
while b"[y/N]" not in said:
    said += os.read(fd, 4096)
subprocess.check_call(["bash", "-c", sys.argv[1]])
os.write(fd, b"y\n")
try:
    while True:
        said += os.read(fd, 4096)
except OSError:
    pass
print(said.decode())
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))' "$1" "$DLOCK" "${@:2}"
}

# ------------------------------------------------------------------ the mark ---

@test "a living holder ends its tree before the next one starts" {
    local mode
    for mode in $MODES; do
        use_mode "$mode"
        works a --ttl 5 --grace 1 --events a.events "$L"
        next_waits
        breaks 0 --note "stuck 100% of it"
        is_broken a "stuck 100% of it"
        next_was_alone
        grep '"event":"lost"' a.events | grep -F '"cause":"broken"' || fail "$(cat a.events)"
    done
}

@test "a stopped or killed holder ends at its ttl" {
    local mode signal
    for mode in $MODES; do
        for signal in STOP KILL; do
            use_mode "$mode" $signal
            works a --ttl 3 "$L"
            kill -$signal "${PIDS[a]}"
            next_waits
            breaks 0
            next_was_alone
            kill -CONT "${PIDS[a]}" 2>/dev/null || :
            wait_exit 8 "${PIDS[a]}" || :
        done
    done
}

@test "a mark frees nothing and keeps the hold as it is" {
    local mode before
    for mode in $MODES; do
        use_mode "$mode"
        works a --ttl 4 "$L"
        kill -STOP "${PIDS[a]}"
        [ "$mode" != lease ] || before=$(row expires,fence)
        start_log breaker.log "$DLOCK" --break --yes --note why "$L"
        wait_for 5 is_marked
        [ "$mode" != lease ] || [ "$(row expires,fence)" = "$before" ]
        run -75 run_t 5 "$DLOCK" -n "$L" touch ran
        kill -CONT "${PIDS[a]}"
        is_broken a why
        exits 0 8 "$STARTED"
        [ ! -e ran ]
    done
}

@test "a lock that has changed hands is left alone" {
    local mode
    for mode in $MODES; do
        use_mode "$mode"
        works a --ttl 30 --grace 1 "$L"
        work b --ttl 30 --grace 1 "$L"
        at_prompt "kill ${PIDS[a]}; until [ \$(grep -c enter history) = 2 ]; do sleep 0.05; done" \
            --break "$L"
        assert_rc 75
        assert_out "has changed hands, nothing was done: "
        assert_out "pid ${PIDS[b]}"
        ! is_marked || fail 'marked'
        at_prompt "kill ${PIDS[b]}; while kill -0 ${PIDS[b]}; do sleep 0.05; done" --break "$L"
        assert_rc 0
        [ ! -e violations ]
    done
}

@test "readers and slots are broken one by one" {
    local mode kind
    for mode in $MODES; do
        for kind in -s "--slots 3"; do
            use_mode "$mode" "${kind// /}"
            for id in a b c; do held $id --ttl 5 $kind; done
            holds writer --ttl 30
            breaks 64
            assert_out "has 3 holders: pick one"
            breaks 0 --holder "$(hostname):${PIDS[b]}"
            exits 79 8 "${PIDS[b]}"
            is_out writer
            breaks 0 --holder "$(hostname):${PIDS[a]}"
            exits 79 8 "${PIDS[a]}"
            is_out writer
            end c
            is_in writer
            end writer
        done
    done
}

@test "a set is lost with one of its locks" {
    local mode
    for mode in $MODES; do
        use_mode "$mode"
        works a --ttl 5 --also "$L-2" "$L"
        breaks 0
        is_broken a
        run -0 run_t 5 "$DLOCK" -n --also "$L-2" "$L" "$HELPERS/witness" "$T" 1
        [ ! -e violations ]
    done
}

@test "an inner dlock ends with the broken one" {
    local mode
    for mode in $MODES; do
        use_mode "$mode"
        works a --ttl 5 "$L" "$DLOCK" "$L"
        breaks 0
        exits 79 8 "${PIDS[a]}"
        next_waits
        next_was_alone
    done
}

@test "--on-lost warn ends a broken command all the same" {
    local mode
    for mode in $MODES; do
        use_mode "$mode"
        works a --ttl 5 --on-lost warn "$L"
        breaks 0
        is_broken a
    done
}

@test "waiters are served in order after a break" {
    local mode
    for mode in $MODES; do
        use_mode "$mode"
        held a --ttl 5
        holds b --ttl 30
        wait_for 5 waits_for_it 1
        holds c --ttl 30
        wait_for 5 waits_for_it 2
        breaks 0
        exits 79 8 "${PIDS[a]}"
        is_in b
        is_out c
        end b
        is_in c
        end c
    done
}

# ------------------------------------------------------- an outage of the server ---

outage_setup() {
    own_server
    make_tables
}
# marked_in MODE SECONDS: a marked hold, whose holder (a) is stopped before its next renewal, and a
# waiter ($NEXT). The break ($BREAKER, breaker.log) waits for so long.
marked_in() {
    use_mode "$1"
    works a --ttl 6 --grace 1 "$L"
    kill -STOP "${PIDS[a]}"
    start_log breaker.log "$DLOCK" --break --yes --connect-timeout 1 -w "$2" "$L"
    BREAKER=$STARTED
    wait_for 5 is_marked
    next_waits
    wait_for 5 waits_for_it 1
}

OUTAGE='refused\|ended the session'
is_told() { grep -q "$OUTAGE" breaker.log; }

@test "a break outlasts a restart of the server before the holder's next renewal" {
    local mode
    outage_setup
    for mode in $MODES; do
        marked_in "$mode" 20
        pg_stop own
        kill -CONT "${PIDS[a]}"
        # An advisory lock ends with its session; a row lasts, and its holder finds the mark.
        [ "$mode" != advisory ] || exits 79 8 "${PIDS[a]}"
        wait_for 12 is_told
        pid_alive "$BREAKER"
        pg_restart own fast
        [ "$mode" != lease ] || is_broken a
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
        kill -CONT "${PIDS[a]}"
        exits 69 8 "$BREAKER"
        exits 79 8 "${PIDS[a]}"
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
        kill -CONT "${PIDS[a]}"
        # No answer comes, so the holder ends its tree within its lease.
        exits 79 8 "${PIDS[a]}"
        pid_alive "$BREAKER"
        go_on
        exits 0 8 "$BREAKER"
        next_was_alone
        is_free
    done
}

# ------------------------------------------------------------------- by force ---

@test "--force frees at once, and only the hold that was shown" {
    local mode kind
    for mode in $MODES; do
        for kind in -x -s "--slots 2"; do
            use_mode "$mode" "force${kind// /}"
            held a --ttl 5 $kind
            holds b --ttl 30 -x
            wait_for 5 waits_for_it 1
            kill -STOP "${PIDS[a]}"
            breaks 0 --force
            assert_out "freed by force"
            is_in b
            kill -CONT "${PIDS[a]}"
            exits 79 8 "${PIDS[a]}"
            end b
        done
    done
}

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

@test "a hold that is over is freed" {
    use_mode lease
    for kind in -x -s; do
        run -0 run_t 5 "$DLOCK" --min-hold 60 $kind "$L" true
        run -75 run_t 5 "$DLOCK" -n "$L" touch ran
        breaks 0
        run -0 run_t 5 "$DLOCK" -n "$L" true
    done
}

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
    foreign_holds
    pgsql -c "update dlock_locks set owner = repeat('x', 40) where name = '$NAME'"
    breaks 69
    assert_out "no dlock wrote the holder's row: correct the row in"
    local psql="${PSQL[*]} -c"
    at_prompt "$psql \"update dlock_locks set owner = repeat('a', 32) where name = '$NAME'\"" \
        --break "$L"
    [ "$status" = 75 ] && assert_out 'has changed hands' || fail "$status: $output"
    pgsql -c "update dlock_locks set owner = repeat('x', 40) where name = '$NAME'"
    at_prompt "$psql \"update dlock_locks set expires = '-infinity' where name = '$NAME'\"" \
        --break "$L"
    [ "$status" = 0 ] || fail "$status: $output"
}
