#!/usr/bin/env bats
# shared.bats - shared advisory locks and slots in a real PostgreSQL server: foreign clients, a
# writer among readers, what a hand-off costs, what is left on the server. What every store has is
# in the contract suite.

# bats file_tags=long,slow
load ../../support/pgtests

setup() {
    dlock_setup
    fake_setup # the command that tells what happens to it
    at_server
    KEY=$((0x$(printf %s "$NAME" | sha256sum | cut -c 1-16)))
}

# After each way out. The server may not have seen yet that a psql with a lock is gone.
nothing_left() { wait_for 3 sessions_are 0 && wait_for 3 locks_are true 0; }
# sql_try EXPR: t or f
sql_try() { pgsql -c "select pg_try_advisory_lock$1"; }

# key FORMAT: of SHA-256 of the name and that, for printf.
key() { echo $((0x$(printf "%s$1" "$NAME" | sha256sum | cut -c 1-16))); }

@test "psql's shared and exclusive locks stand beside and exclude those of dlock" {
    local kind key
    for key in "$KEY" 42; do
        [ "$key" = "$KEY" ] || L="$U?key=42#$NAME"
        for kind in -s '--slots 2'; do
            held a $kind
            [ "$(sql_try "_shared($key)") $(sql_try "($key)")" = "t f" ]
            end a
            wait_for 3 sessions_are 0
        done
        for kind in '_shared' ''; do
            sql_hold "pg_advisory_lock$kind($key)"
            for mode in -s '--slots 2'; do
                run run_t 5 "$DLOCK" -q -n $mode "$L" true
                assert_rc "$([ -n "$kind" ] && echo 0 || echo 75)"
            done
            run -75 run_t 5 "$DLOCK" -q -n "$L" true
            sql_let_go
        done
    done
    nothing_left
}

keys_are_expected() {
    pgsql -c "select mode, granted, objsubid, classid::bigint << 32 | objid::bigint from pg_locks
        where locktype = 'advisory'" | sort >is
    cmp -s expected is
}

@test "the keys are those in the manual" {
    local main size
    main=$(key '') size=$((($(key '\0slots') & ~0xffff) + 1))
    held a --slots 1
    holds b --slots 1
    wait_for 5 waiters_are 1
    wait_for 5 locks_are "granted and classid::bigint << 32 | objid::bigint = $(key '\0gate')" 1
    wait_for 5 locks_are "granted and classid::bigint << 32 | objid::bigint = $main" 2
    holds c
    wait_for 5 locks_are 'not granted' 1
    {
        echo "ExclusiveLock|t|1|$(key '\0slot\0000')"
        echo "ExclusiveLock|t|1|$(key '\0gate')"
        echo "ExclusiveLock|t|1|$(key '\0turnstile')"
        echo "ExclusiveLock|f|1|$main"
        for i in 1 2; do
            echo "ShareLock|t|1|$main"
            echo "ShareLock|t|1|$size"
        done
    } | sort >expected
    # Between two waits for the main key the writer is not in line for it.
    wait_for 5 keys_are_expected || fail "$(diff expected is)"
    end a b c
}

@test "users of one key= share its slots, whatever the name" {
    L="$U?key=42#one"
    held a --slots 1
    run -75 run_t 5 "$DLOCK" -q -n --slots 1 "$U?key=042#two" true
    run -65 run_t 5 "$DLOCK" -n --slots 2 "$U?key=42#two" true
    run -0 run_t 5 "$DLOCK" -n --slots 1 "$U?key=0,42#one" true
    end a
}

@test "of two numbers of slots that race only one is granted" {
    local n first
    # Both are stopped before they look.
    sql_hold "pg_advisory_lock($(key '\0sizes'))"
    for n in 2 3; do
        start_log "race$n.log" "$DLOCK" -n --slots $n "$L" sh \
            -c 'echo $1 >>granted; "$HELPERS/await" go.race' - $n
        PIDS[$n]=$STARTED
    done
    wait_for 5 locks_are 'not granted' 2
    sql_let_go
    wait_for 5 test -s granted
    first=$(cat granted)
    exits 65 5 "${PIDS[$((5 - first))]}"
    : >go.race
    exits 0 5 "${PIDS[$first]}"
    [ "$(wc -l <granted)" -eq 1 ]
    nothing_left
}

entered_are() { [ "$(cat in.b in.c 2>/dev/null | wc -l)" -eq "$1" ]; }
# The holder and the first one in line are idle; that one has looked again since it listens.
listens() {
    is_sql "count(*) = 2 from pg_stat_activity a
        where state = 'idle' and query like '% slots=1 %*/ %tcp_keepalives_idle%'
        and exists (select from pg_locks l where l.pid = a.pid and l.mode = 'ExclusiveLock')"
}

@test "a slot that is given back reaches the first waiter without a poll" {
    local i sent now=a
    held a --slots 1
    holds b --slots 1
    holds c --slots 1
    wait_for 5 waiters_are 2
    for i in 1 2; do
        wait_for 5 listens
        sent=$(now_ms)
        end $now
        wait_for 5 entered_are $i
        case $now in
        a) now=$([ -s in.b ] && echo b || echo c) ;;
        b) now=c ;;
        c) now=b ;;
        esac
        assert_between 0 $(($(cat in.$now) / NS - sent)) $((400 + SLOW + BUSY)) "hand-off (ms)"
    done
    end $now
    nothing_left
}

@test "a stopped holder's slot is free within ttl + 1 s" {
    held a --slots 1 --ttl 2
    holds b --slots 1
    wait_for 5 waiters_are 1
    t0=$(now_ms)
    kill -STOP "${PIDS[a]}"
    is_in b
    assert_between 0 $(($(cat in.b) / NS - t0)) $((3000 + SLOW)) "until it is free (ms)"
    end b
    kill -CONT "${PIDS[a]}"
    wait_exit 5 "${PIDS[a]}" || :
    nothing_left
}

@test "a stopped waiter holds up the others by 4 s at most" {
    local args
    for args in -x '--slots 1'; do
        held a $args
        holds b $args
        wait_for 5 waiters_are 1
        kill -STOP "${PIDS[b]}"
        holds c $args
        wait_for 5 waiters_are 2
        t0=$(now_ms)
        end a
        is_in c
        assert_between 0 $(($(cat in.c) / NS - t0)) $((4000 + SLOW)) "$args: hand-off (ms)"
        end c
        kill -CONT "${PIDS[b]}"
        is_in b
        end b
    done
    nothing_left
}

@test "CREATE INDEX CONCURRENTLY does not wait for those that wait for a turn or a slot" {
    local t0
    indexing --slots=1
    for i in 1 2 3; do start_log "s$i.log" "$DLOCK" --slots 1 "$L" true; done
    wait_for 5 waiters_are 3
    start_log w.log "$DLOCK" "$L" true
    wait_for 5 waiters_are 4
    for i in -x -s -s; do start_log "w$i.log" "$DLOCK" $i "$L" true; done
    wait_for 5 waiters_are 7
    t0=$(now_ms)
    let_go
    assert_between 0 $(($(now_ms) - t0)) $((4500 + SLOW)) "time (ms)"
    wait_for 10 sessions_are 0
}

@test "a grant takes one statement, and waiting logs nothing" {
    local kind n0 lines0
    for kind in -s '--slots 3'; do
        n0=$(pg_statements)
        run -0 run_t 5 "$DLOCK" $kind "$L" true
        [ $(($(pg_statements) - n0)) -eq 2 ] || fail "$kind: $(($(pg_statements) - n0)) statements"
    done
    own_server -c log_statement=none -c log_lock_waits=on -c log_checkpoints=off \
        -c deadlock_timeout=100s
    lines0=$(wc -l <"$PG_LOG")
    held w
    holds a --slots 1
    holds b --slots 1
    holds c -s
    wait_for 5 waiters_are 3
    start_log gone.log "$DLOCK" --slots 1 -w 1.5 "$L" true
    exits 75 5 "$STARTED"
    end w
    is_in c
    end a b c
    nothing_left
    [ "$(wc -l <"$PG_LOG")" = "$lines0" ] || fail "$(tail -n +$((lines0 + 1)) "$PG_LOG")"
}

@test "nothing is left on a session, whichever way a waiter or a holder leaves" {
    local kind blocker i
    for kind in -x -s '--slots 1'; do
        for blocker in -x '--slots 1'; do
            held a $blocker
            [ "$kind$blocker" != '-s--slots 1' ] || { end a && continue; }
            # Refused, out of time, cancelled, killed, granted.
            run -75 run_t 5 "$DLOCK" -q -n $kind "$L" true
            run -75 run_t 5 "$DLOCK" -q -w 1.2 $kind "$L" true
            for i in b c d; do holds $i $kind; done
            wait_for 5 waiters_are 3
            kill -TERM "${PIDS[b]}"
            kill -KILL "${PIDS[c]}"
            exits 143 5 "${PIDS[b]}"
            end a
            is_in d
            # What is held beside the main key: a slot, and how many there are.
            i=$([ "$kind" = '--slots 1' ] && echo 3 || echo 1)
            wait_for 3 locks_are true "$i" ||
                fail "$kind behind $blocker: $(pgsql -c 'select * from pg_locks')"
            end d
            nothing_left || fail "$kind behind $blocker"
        done
    done
}
