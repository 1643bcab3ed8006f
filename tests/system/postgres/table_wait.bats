#!/usr/bin/env bats
# table_wait.bats - waiting for a lock in PostgreSQL's lease table: calls, what they cost, and a
# server that hangs while somebody tries or waits.

# bats file_tags=long
load ../../support/pgtable

# entered FILE: when its clock was written, in ms of CLOCK_BOOTTIME.
entered() { echo $(($(cat "$1") / NS)); }
# held_by_dead TIME: the lock is held by a holder that died, for that long.
held_by_dead() {
    pgsql -c "insert into dlock_locks values ('$NAME', 7, 'dead', clock_timestamp() + '$1', 'x')
        on conflict (name) do update set owner = 'dead', expires = excluded.expires"
}

# ---------------------------------------------------------------- waiting ---

@test "a release calls a waiter at once, out of several, too" {
    local n t0 i
    for n in 1 6; do
        hold
        rm -f got*
        for i in $(seq $n); do
            waiter "$i" sh -c "[ -e got ] || '$HELPERS/clock' got"
            pids[i]=$STARTED
        done
        t0=$(now_ms)
        let_go
        wait_for 3 test -s got
        assert_between 0 $(($(entered got) - t0)) $((400 + SLOW + BUSY)) "hand-off (ms)"
        # And the chain does not break: nobody waits for a timer.
        for i in $(seq $n); do exits 0 3 "${pids[i]}"; done
    done
    wait_for 2 no_sessions
}

# bats test_tags=plain
@test "a release whose answer is lost calls the waiters" {
    local t0 tracer
    need_root # to trace a process that is not dumpable
    strace -o /dev/null true 2>/dev/null || skip "strace does not work here"
    hold --ttl 60
    start_log strace.log strace -o trace -p "$HOLDER" -e trace=recvfrom \
        -e inject=recvfrom:error=ECONNRESET:when=1
    tracer=$STARTED
    wait_for 5 file_has strace.log attached
    waiter 1 "$HELPERS/clock" got
    t0=$(now_ms)
    let_go
    wait_for 5 test -s got
    assert_between 0 $(($(entered got) - t0)) $((900 + BUSY)) "hand-off (ms)"
    grep -q INJECTED trace
    exits 0 3 "$STARTED"
    wait_for 5 pid_gone "$tracer"
}

@test "a lock without waiters is taken and left by a short statement each" {
    local from i said
    for i in 1 2 3; do
        from=$(wc -c <"$PG_LOG")
        "$DLOCK" "$L" true
        said=$(tail -c "+$((from + 1))" "$PG_LOG")
        # In front, the glance.
        [ "$(grep -c 'LOG:  execute [^:]*: \(INSERT\|UPDATE\) ' <<<"$said")" = 2 ]
        ! grep 'LOG:  execute [^:]*: .*WITH ' <<<"$said" || fail "more than take and leave"
    done
    # With a waiter in line, whose turn the next client then respects.
    hold
    waiter 1 true
    kill -STOP "$WAITER"
    let_go
    [ "$(row 'freed > now() - interval $$5 s$$')" = t ]
    kill -CONT "$WAITER"
    exits 0 3 "$WAITER"
}

# bats test_tags=plain
@test "--status tells a waiter in line that has not tried for ten seconds" {
    hold
    waiter 1 true
    is_silent() { "$DLOCK" --status "$L" | grep -q 'silent: stopped or cut off'; }
    ! is_silent || fail "a waiter that tries"
    kill -STOP "$WAITER"
    wait_for 15 is_silent
    kill -CONT "$WAITER"
    wait_for 5 eval '! is_silent'
    let_go
    exits 0 3 "$WAITER"
}

@test "neither a first try nor a release without waiters looks at the sessions" {
    local from=$(($(wc -c <"$PG_LOG") + 1)) auto=session_preload_libraries%3Dauto_explain
    local options="$auto%20-cauto_explain.log_min_duration%3D0%20-cauto_explain.log_analyze%3Don"
    "$DLOCK" "$U&options=-c$options#$NAME" true
    # Soon after a release a waiter may have its turn: is there one?
    "$DLOCK" "$U&options=-c$options#$NAME" true
    [ "$(tail -c "+$from" "$PG_LOG" | grep -c 'Insert on dlock_locks')" = 2 ]
    tail -c "+$from" "$PG_LOG" | grep -q 'Update on dlock_locks'
    ! tail -c "+$from" "$PG_LOG" | grep 'Scan on pg_stat_get_activity.*actual' ||
        fail "looked at the sessions"
}

@test "a release calls the waiters whatever foreign session holds the key of their line" {
    local key t0
    hold
    waiter 1 true
    key=$(pgsql -c "select classid::bigint << 32 | objid::bigint from pg_locks
        where locktype = 'advisory' and mode = 'ShareLock' and granted")
    [ -n "$key" ]
    let_go
    exits 0 3 "$WAITER"
    wait_for 2 no_sessions
    start_log psql.log pg_session -c "select 'held', pg_advisory_lock($key)" \
        -c 'select pg_sleep(60)'
    wait_for 3 file_has psql.log held
    hold
    waiter 1 "$HELPERS/clock" got
    t0=$(now_ms)
    let_go
    exits 0 3 "$WAITER"
    assert_between 0 $(($(entered got) - t0)) $((400 + SLOW + BUSY)) "hand-off (ms)"
}

@test "a waiter gets a dead holder's lock at its expiry" {
    local expires
    held_by_dead '1.2 s'
    expires=$(row "$EXPIRES")
    start_log w.log "$DLOCK" --ttl 30 "$L" sh -c 'date +%s%3N >at'
    exits 0 4 "$STARTED"
    assert_between "$expires" "$(cat at)" $((expires + 400 + SLOW)) "take-over (Unix ms)"
}

served_are() { [ -e order ] && [ "$(wc -l <order)" -ge "$1" ]; }
messages() { pg_messages default | sort -u | wc -l; }
# messages_of WAITERS HANDOFFS: in tenths, what the server is sent per hand-off.
messages_of() {
    local i before
    hold --ttl 100
    rm -f order done2
    # Those that are not to be served block the chain until they are counted.
    for i in $(seq "$1"); do
        TTL=100 waiter "$i" sh \
            -c "echo >>order; [ \$(wc -l <order) -le $2 ] || '$HELPERS/await' done2"
        pids[i]=$STARTED
    done
    before=$(messages)
    let_go
    wait_for 10 served_are $(($2 < $1 ? $2 + 1 : $2))
    [ "$2" -lt "$1" ] || wait_for 5 no_sessions
    PER=$((($(messages) - before) * 10 / $2))
    : >done2
    for i in $(seq "$1"); do exits 0 20 "${pids[i]}"; done
}

# bats test_tags=slow
@test "the cost of a hand-off does not grow with the waiters" {
    # In tenths: the release, the winner's try, and of a long line the LISTEN of the waiter that
    # comes near; of those called for later, and of the polls, some may be in it.
    messages_of 2 2
    [ "$PER" -le $((40 + SLOW / 50)) ]
    messages_of 20 10
    [ "$PER" -le $((40 + SLOW / 50)) ]
}

# explained: from now on the server writes to its log what it does for the sessions of $L.
explained() {
    local options=session_preload_libraries%3Dauto_explain%20-cauto_explain.log_min_duration%3D0
    L="$U&options=-c$options%20-cauto_explain.log_analyze%3Don#$NAME"
    EXPLAINED=$(($(wc -c <"$PG_LOG") + 1))
}
# said REGEX: how many lines the log has with it since then.
said() { tail -c "+$EXPLAINED" "$PG_LOG" | grep -c -- "$1" || :; }
said_are() { [ "$(said "$1")" -ge "$2" ]; }

# bats test_tags=slow
@test "a hand-off in a long line wakes few waiters and looks at no session" {
    local i looks
    hold --ttl 100
    explained
    for i in $(seq 20); do TTL=100 waiter "$i" true; pids[i]=$STARTED; done
    # A NOTIFY wakes all sessions that LISTEN.
    wait_for 3 said_are 'execute [^:]*: LISTEN ' 8
    [ "$(said 'execute [^:]*: LISTEN ')" = 8 ]
    looks=$(said 'Scan on pg_stat_get_activity a .*actual')
    let_go
    for i in $(seq 20); do exits 0 10 "${pids[i]}"; done
    # Of 20 releases and 20 tries only the releases with less than four waiters behind them look,
    # and where the list that was handed on has come to its end.
    looks=$(($(said 'Scan on pg_stat_get_activity a .*actual') - looks))
    assert_between 1 "$looks" 9 "looks at the sessions"
}

@test "a waiter far behind comes near when those before it have gone" {
    local i
    hold --ttl 100
    explained
    for i in $(seq 9); do TTL=100 waiter "$i" true; pids[i]=$STARTED; done
    TTL=100 waiter 10 "$HELPERS/clock" got
    wait_for 3 said_are 'execute [^:]*: /. dlock1 .* DO ' 2
    kill -TERM "${pids[@]:2}"
    for i in $(seq 2 9); do exits 143 3 "${pids[i]}"; done
    wait_for 1 said_are 'execute [^:]*: LISTEN ' 9
    hand_over $((400 + BUSY))
    exits 0 3 "${pids[1]}"
}

@test "a waiter far behind that ends is out of the line within two seconds" {
    local i
    hold --ttl 100
    for i in $(seq 10); do TTL=100 waiter "$i" true; pids[i]=$STARTED; done
    kill -KILL "${pids[10]}"
    wait_for 2 called_are 9
    let_go
    for i in $(seq 9); do exits 0 5 "${pids[i]}"; done
}

@test "a role without DO blocks waits far behind all the same" {
    local i
    own_server
    "$DLOCK" "$L" true 3>&-
    pgsql -c 'revoke usage on language plpgsql from public' -c 'create role nodo login' \
        -c 'grant select, insert, update, delete on dlock_locks to nodo'
    L=${L/postgres@/nodo@}
    hold --ttl 100
    for i in $(seq 10); do TTL=100 waiter "$i" true; pids[i]=$STARTED; done
    EXPLAINED=1
    wait_for 3 said_are "dlock:.*execute [^:]*: LISTEN" 10
    let_go
    for i in $(seq 10); do exits 0 5 "${pids[i]}"; done
}

# bats test_tags=slow
@test "waiters that nobody calls ask about every 2.4 seconds" {
    local i before n from
    hold --ttl 100
    from=$(wc -c <"$PG_LOG")
    # The server writes what it does for them to its log.
    local options=session_preload_libraries%3Dauto_explain%20-cauto_explain.log_min_duration%3D0
    L="$U&options=-c$options%20-cauto_explain.log_analyze%3Don#$NAME"
    for i in $(seq 8); do TTL=100 waiter "$i" true; pids[i]=$STARTED; done
    before=$(pg_statements)
    sleep 6 # what is measured
    n=$(($(pg_statements) - before))
    # Each of them has asked, about two or three times.
    assert_between 14 "$n" 32 "messages of 8 waiters in 6 s"
    # Only the first try looks at the line, which takes the longer the more sessions there are.
    n=$(tail -c "+$((from + 1))" "$PG_LOG" | grep -c 'Scan on pg_stat_get_activity a .*actual') || :
    [ "$n" = 8 ] || fail "8 waiters looked at the line $n times"
    let_go
    for i in $(seq 8); do exits 0 10 "${pids[i]}"; done
}

# lines HOLD_ARG...: for each number of $SILENT a lock of its own in a folder of that name, with a
# holder and its waiters, of which all but the last one are stopped. pids[N]: of the last one;
# stopped: of all others; holders.
lines() {
    local s i total=0
    stopped=() holders=()
    for s in $SILENT; do
        L="postgres://$AT/postgres?mode=lease#$NAME-$s"
        mkdir -p "$T/$s" && cd "$T/$s"
        hold "$@"
        holders+=("$HOLDER")
        for i in $(seq "$s"); do
            waiter $((total += 1)) touch late
            stopped+=("$WAITER")
        done
        waiter $((total += 1)) "$HELPERS/clock" got
        pids[s]=$WAITER
    done
    cd "$T"
    kill -STOP "${stopped[@]}"
    for i in "${stopped[@]}"; do wait_for 5 pid_stopped "$i"; done
}
# served T0 N: the last waiter behind N silent ones has the lock in time; T0: when it was free.
served() {
    local bound=$(($2 * 1200 < 3000 ? $2 * 1200 : 3000))
    exits 0 6 "${pids[$2]}"
    assert_between -2000 $(($(entered "$T/$2/got") - $1)) $((bound + 400 + SLOW)) \
        "behind $2 silent waiters (ms)"
}

# bats test_tags=slow
@test "silent waiters delay a hand-off by 3 s at most, and only once" {
    local s t0 i SILENT='0 1 2 6 10'
    lines
    t0=$(now_ms)
    for s in $SILENT; do : >"$s/go"; done
    for s in $SILENT; do served "$t0" $s; done
    # They were passed.
    hold
    rm got -f
    waiter $((${#stopped[@]} + 1)) "$HELPERS/clock" got
    hand_over $((400 + BUSY))
    # When they go on they are served.
    kill -CONT "${stopped[@]}"
    for i in "${stopped[@]}"; do exits 0 7 "$i"; done
}

# bats test_tags=slow
@test "silent waiters delay a dead holder's successor by 3 s at most" {
    local s t0=() SILENT='0 1 6'
    lines --ttl $((2 + SLOW / 500))
    kill -KILL "${holders[@]}"
    for s in $SILENT; do
        NAME=$NAME-$s
        t0[s]=$(($(row "$EXPIRES") - $(date +%s%3N) + $(now_ms)))
        NAME=${NAME%-*}
    done
    for s in $SILENT; do served "${t0[s]}" $s; done
}

# in_order N...: the waiters N... of one lock are served in this order.
in_order() {
    local i
    let_go
    for i in "$@"; do exits 0 10 "${pids[i]}"; done
    [ "$(tr '\n' ' ' <order)" = "$* " ] || fail "order: $(tr '\n' ' ' <order)"
}

@test "waiters keep their places over a restart of the server" {
    local i
    own_server
    hold --ttl 20
    for i in 1 2 3 4 5 6 7 8; do waiter $i sh -c "echo $i >>order"; pids[i]=$WAITER; done
    pg_restart own fast
    wait_for 10 called_are 8
    in_order 1 2 3 4 5 6 7 8
}

@test "a passed waiter stays behind the others when it connects anew" {
    local i first
    hold --ttl 20
    for i in 1 2 3 4; do
        waiter $i sh -c "echo $i >>order; [ $i != 2 ] || { : >second; '$HELPERS/await' go2; }"
        pids[i]=$WAITER
    done
    # The others keep theirs.
    first=$(pgsql -c "select min(application_name) from pg_stat_activity
        where application_name like 'dlock:%:%'")
    pgsql -c "select pg_terminate_backend(pid) from pg_stat_activity
        where application_name > '$first' and application_name like 'dlock:%:%'"
    kill -STOP "${pids[1]}"
    wait_for 5 called_are 4
    : >go
    wait_for 5 test -e second
    kill -CONT "${pids[1]}"
    wait_for 5 is_sql "count(*) filter (where application_name = '$first') = 0 and
        count(*) = 3 from pg_stat_activity where application_name like 'dlock:%:%'"
    end_sessions
    wait_for 5 called_are 3
    : >go2
    for i in 1 2 3 4; do exits 0 10 "${pids[i]}"; done
    [ "$(tr '\n' ' ' <order)" = "2 3 4 1 " ] || fail "order: $(tr '\n' ' ' <order)"
}

@test "a waiter that comes back passes those whom the holder knows already" {
    local i
    hold --ttl 20
    for i in $(seq 8); do
        waiter $i sh -c "echo $i >>order; [ $i != 2 ] || { : >second; '$HELPERS/await' go2; }"
        pids[i]=$WAITER
    done
    kill -STOP "${pids[1]}"
    wait_for 5 pid_stopped "${pids[1]}"
    pgsql -c "select pg_terminate_backend(pid) from pg_stat_activity
        where application_name like 'dlock:%:%' order by application_name limit 1"
    wait_for 5 called_are 7
    : >go
    wait_for 5 test -e second # the list of this one is without the first
    wait_for 5 called_are 6
    kill -CONT "${pids[1]}"
    wait_for 5 called_are 7
    : >go2
    for i in $(seq 8); do exits 0 10 "${pids[i]}"; done
    [ "$(tr '\n' ' ' <order)" = "2 1 3 4 5 6 7 8 " ] || fail "order: $(tr '\n' ' ' <order)"
}

@test "waiters of several roles stand in one line, forged names do little" {
    local i t0 role r=r${NAME//-/}
    pgsql -c "create role ${r}a login; create role ${r}b login" \
        -c "grant select, insert, update, delete on public.dlock_locks to ${r}a, ${r}b"
    hold --ttl 20
    for i in 1 2 3 4 5; do
        [ $((i % 2)) = 0 ] && role=${r}a || role=${r}b
        L="postgres://$role@127.0.0.1:$PG_PORT/postgres?mode=lease#$NAME"
        waiter $i sh -c "'$HELPERS/clock' got$i; echo $i >>order"
        pids[i]=$WAITER
    done
    # The first in line does not come.
    session -U ${r}a
    i=$(pgsql -c "select min(application_name) from pg_stat_activity
        where application_name like 'dlock:%:%'")
    echo "set application_name = '${i%:*}:0000000000000001'; \\echo forged" >&8
    wait_for 5 file_has session.log forged
    t0=$(now_ms)
    in_order 1 2 3 4 5
    session_ends commit
    assert_between 500 $(($(entered got1) - t0)) $((1200 + SLOW)) "behind a forged name (ms)"
    assert_between 0 $(($(entered got5) - $(entered got1))) $((700 + SLOW)) "four hand-offs (ms)"
}

@test "waiters survive the loss of their sessions" {
    hold
    waiter 1 "$HELPERS/clock" got
    end_sessions
    wait_for 5 called_are 1
    hand_over $((400 + BUSY))
}

# --------------------------------------------------- a server that hangs ---

@test "a try that was given up is undone when it is served" {
    local how before
    fence >/dev/null
    for how in n w TERM; do
        before=$(row fence)
        block_row
        case $how in
        n) start_log d.log "$DLOCK" -n --connect-timeout 0.6 --ttl 60 "$L" touch ran ;;
        w) start_log d.log "$DLOCK" -w 0.6 --ttl 60 "$L" touch ran ;;
        TERM) start_log d.log "$DLOCK" --connect-timeout 9 --ttl 60 "$L" touch ran ;;
        esac 8>&-
        wait_for 5 blocked_are 1
        case $how in
        TERM)
            kill -TERM "$STARTED"
            exits 143 2 "$STARTED" ;;
        *)
            exits 69 3 "$STARTED"
            file_has d.log 'no answer' ;;
        esac
        unblock_row
        # It has been granted (the fence says so), and given back.
        wait_for 2 is_sql "fence > $before from dlock_locks where name = '$NAME'"
        wait_for 1 row_is_free
        run -0 run_t 2 "$DLOCK" --status "$L"
        [ ! -e ran ]
    done
}

@test "a waiter undoes an unanswered try and gets the lock later" {
    held_by_dead "$((900 + SLOW)) ms"
    TTL=6 waiter 1 "$HELPERS/clock" got
    block_row
    # That of the first try, and of the next one, which has another connection.
    wait_for 5 blocked_are 2
    unblock_row
    exits 0 5 "$WAITER"
    [ -e got ]
    wait_for 2 row_is_free
    wait_for 5 no_sessions
    row_is_free
}

@test "a try that is served late changes nothing" {
    local pid
    held_by_dead "$((900 + SLOW)) ms"
    TTL=6 waiter 1 sh -c 'echo >held; "$HELPERS/await" go'
    HOLDER=$STARTED
    pid=$(pgsql -c "select pid from pg_stat_activity where application_name like 'dlock:%:%'")
    STOPPED=("$pid")
    kill -STOP "$pid"
    wait_for 5 test -e held
    is_sql "count(*) = 1 from pg_stat_activity where pid = $pid"
    go_on
    # It has read the try, its undo, and the end.
    wait_for 5 is_sql "count(*) = 0 from pg_stat_activity where pid = $pid"
    [ "$(grep -c "\[$pid\].*execute" "$PG_LOG")" -ge 3 ]
    run -75 run_t 5 "$DLOCK" -n "$L" true
    let_go
    row_is_free
}
