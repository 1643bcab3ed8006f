#!/usr/bin/env bats
# machine_faults.bats - what befalls our processes and clocks around a lock in PostgreSQL, in both
# modes: keeper and guard killed, a machine that slept, a server whose clock is set.

# bats file_tags=long
load ../../support/pgtable
load ../../support/clock
load ../../support/keeper_killed

MODES='advisory lease'

lock_of() { echo "postgres://postgres@127.0.0.1:$PG_PORT/postgres?mode=$1#$NAME.$1${2:+.$2}"; }

# --- killed ---------------------------------------------------------------------------------------

@test "the guard keeps the session of each lock of a set" {
    local one two
    one=$(lock_of advisory 1) two=$(lock_of advisory 2)
    start_log set.log "$DLOCK" --ttl 20 --also "$one" --also "$T/file" "$two" "$HELPERS/witness" \
        "$T" 60000 tree
    wait_for 5 file_has history enter
    local K=$STARTED lock
    find_guard
    kill -STOP "$G"
    kill -KILL "$K"
    for lock in "$one" "$two" "$T/file"; do run -75 run_t 5 "$DLOCK" -w 0.2 -q "$lock" true; done
    kill -CONT "$G"
    for lock in "$one" "$two" "$T/file"; do
        run -0 run_t 5 "$DLOCK" -w 4 "$lock" flock -sn witness true
    done
}

# bats test_tags=plain
@test "a session that dlock gives up holds the lock until the tree is gone" {
    need_root # to trace a process that is not dumpable
    strace -o /dev/null true 2>/dev/null || skip "strace does not work here"
    L=$(lock_of advisory)
    start_log held.log "$DLOCK" --ttl 6 "$L" "$HELPERS/witness" "$T" 60000 tree
    local K=$STARTED
    wait_for 5 file_has history enter
    find_guard
    kill -STOP "$G"
    start_log strace.log strace -o trace -p "$K" -e trace=recvfrom \
        -e inject=recvfrom:error=ENOMEM:when=1
    wait_for 5 file_has held.log "is lost"
    run -75 run_t 5 "$DLOCK" -n -q "$L" true
    kill -CONT "$G"
    exits 79 5 "$K"
    run -0 run_t 5 "$DLOCK" -w 4 "$L" flock -sn witness true
}

# A process that is killed makes no report: nothing for a sanitizer.
# bats test_tags=plain,slow,soak
@test "no tree survives a keeper killed at its system calls" { kill_at_points $MODES; }

# --- clocks ---------------------------------------------------------------------------------------

# clocked_server: one of this test, whose clock jumps. Its user can reach neither the helpers nor
# $T.
clocked_server() {
    local dir
    dir=$(server_folder pg)
    install -m 644 "$HELPERS/wallclock.so" "$dir/"
    CLOCK_FILE=$dir/offset
    HELPERS=$dir with_clock pg_start_in own
    use_server own
    CLOCK_DIR=$dir
}
server_is_ahead() { # SECONDS
    local d
    d=$(pgsql -c "select round(extract(epoch from clock_timestamp()))")
    assert_between $(($(date +%s) + $1 - 2)) "$d" $(($(date +%s) + $1 + 2)) "the server's clock"
}

# bats test_tags=plain
@test "a lease ends when the server's clock jumps forward, not back" {
    clocked_server
    L=$(lock_of lease)
    tree --ttl 3 "$L"
    jump -60
    server_is_ahead -60
    lasts 3100
    pid_alive "$K"
    run -75 "$DLOCK" -q -n "$L" true
    [ "$(count_seen main sig 15)" = 0 ]
    jump 0
    server_is_ahead 0
    t0=$(now_ms)
    killed 1 "is lost: the lease expired"
    # Renewals are 0.74 s apart.
    assert_between 0 $(($(now_ms) - t0)) $((1100 + SLOW)) "time until it is noticed (ms)"
    wait_for 2 tree_gone
    run -0 "$DLOCK" -n "$L" true
    rm -rf "$CLOCK_DIR"
}

# PostgreSQL times a session by the wall clock: if its timer goes off between the jump and the next
# renewal, the session has been idle for a minute.
# bats test_tags=soak,plain
@test "an advisory lock survives a clock jump or ends with its session" {
    clocked_server
    L=$(lock_of advisory)
    tree --ttl 3 "$L"
    jump -60
    server_is_ahead -60
    lasts 3100
    pid_alive "$K" || fail "$(cat out)"
    run -75 "$DLOCK" -q -n "$L" true
    local died=0 lived=0
    for i in $(seq "$(amount clock_rounds)"); do
        jump $((i * 60 - 60))
        lasts 3100
        if pid_alive "$K"; then
            lived=$((lived + 1))
            run -75 "$DLOCK" -q -n "$L" true
        else
            died=$((died + 1))
            ends 79
            assert_out "idle-session timeout"
            wait_for 2 tree_gone
            run -0 "$DLOCK" -n "$L" true
            # Killed, not asked.
            [ "$(count_seen main sig 15)" = 0 ]
            tree --ttl 3 "$L"
        fi
    done
    echo "# $died died, $lived lived on" >&3
    kill -KILL "$K"
    wait_for 2 tree_gone
    rm -rf "$CLOCK_DIR"
}
