#!/usr/bin/env bats
# max_run.bats - --max-run: the command's whole tree, and what runs under its lock elsewhere, ends
# in time, whichever process is stopped; the exit code says so. On the scripted store, on files and
# on Redis.

load ../../support/fake
load ../../support/redis
load ../../support/clock

setup_file() { redis_start; }
teardown_file() { redis_stop; }
setup() {
    dlock_setup
    fake_setup
    R="redis://127.0.0.1:$REDIS_PORT#$NAME"
    F=$T/x.lock
    export L R F
}

# said WHAT TIME LOCK: this line, and no other.
said() { [ "$(cat out)" = "dlock: ${3}$1 has not ended within $2 (--max-run); ending it" ] ||
    fail "$(cat out)"; }
free() { run_t 5 "$DLOCK" -q -n "$1" true; }

@test "ends the whole tree by TERM, and by KILL after the grace" {
    for lock in "$L" "$F" "$R"; do
        began=$(now_ns)
        starts 4 --max-run 1 --grace 0.3 "$lock" $SUBJECT -t -k
        ends_with 124
        # The time begins between the two: a busy machine may take long to start the command.
        t0=$(seen main start "")
        for who in main child session daemon; do
            assert_between $((began + 990 * NS)) "$(seen $who sig 15)" \
                $((t0 + (1050 + BUSY) * NS)) "TERM for $who"
            [ "$(count_seen $who sig 15)" = 1 ]
        done
        assert_between $((began + 1200 * NS)) "$(last_beat)" $((t0 + (1350 + BUSY) * NS)) \
            "last sign of life"
        case $lock in
        "$L")
            said "the command under the lock '$NAME'" "1 s" "fake://$S: "
            [ "$(last_beat)" -lt "$(at release)" ]
            ;;
        "$F") said "the command under the lock '$F'" "1 s" "" ;;
        esac
        free "$lock"
    done
}

@test "the exit code is 124 whatever the command makes of TERM, and its own if it ends in time" {
    for lock in "$L" "$F"; do
        says 124 "has not ended within 200 ms" -q --max-run 0.2 "$lock" sh -c \
            'trap "exit 0" TERM; while :; do sleep 0.01; done'
        run -124 run_t 5 "$DLOCK" --max-run 0.2 "$lock" sleep 20
        run -124 run_t 5 "$DLOCK" --max-run 0.2 --grace 0 "$lock" sleep 20
        run -124 run_t 5 "$DLOCK" --max-run 0.2 "$lock" sh -c 'kill -STOP $$'
        run -124 run_t 5 "$DLOCK" --max-run 0.2 --also other "$lock" sleep 20
        run -3 run_t 5 "$DLOCK" --max-run 5 "$lock" sh -c 'exit 3'
        [ -z "$output" ] || fail "$output"
        run -127 run_t 5 "$DLOCK" --max-run 5 "$lock" /nonexistent/x
        free "$lock"
    done
}

@test "holds when the keeper is stopped" {
    for lock in "$L" "$F"; do
        starts 4 --ttl 30 --max-run 1 --grace 0.2 "$lock" $SUBJECT -t -k
        kill -STOP "$K"
        gone_by $((1250 + BUSY + SLOW)) "$(seen main start "")"
        [ "$(count_seen session sig 15)" = 1 ]
        ! free "$lock" || fail "the keeper has the lock still"
        kill -CONT "$K"
        ends_with 124
        assert_out "has not ended within 1 s"
    done
}

@test "counts the time of a suspend, and sends TERM after it" {
    export WALLCLOCK_SUSPEND=1
    for lock in "$L" "$F"; do
        rm -rf "$C"/*
        with_clock background --ttl 10m --max-run 60 "$lock" $SUBJECT -t -m 600000
        wait_for 5 running 4
        jump 61
        # The kernel's timers do not know of it.
        kill -USR1 "$K"
        ends_with 124 3
        for who in main child session daemon; do [ "$(count_seen $who sig 15)" = 1 ]; done
    done
}

@test "holds when the guard is stopped, or killed in the grace, or before" {
    starts 4 --max-run 1 --grace 15 "$F" $SUBJECT -t -k
    find_guard
    kill -STOP "$G"
    gone_by $((2000 + BUSY + SLOW)) "$(seen main start "")"
    ends_with 124
    said "the command under the lock '$F'" "1 s" ""
    for lock in "$L" "$F"; do
        rm -rf "$C"/*
        background --ttl 30 --grace 4 --max-run 0.3 "$lock" $SUBJECT -t -k
        wait_for 5 has_seen daemon sig 15
        kill_guard
        gone_by $((500 + SLOW)) "$(now_ns)"
        ends_with 124
        # Before the time it is no overrun.
        rm -rf "$C"/*
        starts 4 --ttl 30 --max-run 30 "$lock" $SUBJECT -t -k
        kill_guard
        gone_by $((500 + SLOW)) "$(now_ns)"
        ends_with 71
        free "$lock"
    done
}

@test "holds when the guard is stopped while it ends what a signal has left" {
    background --max-run 1 --grace 1 "$F" sh -c '
        sh -c "trap \"\" TERM; echo \$\$ >left; exec \"\$0\" go" "$0" &
        trap "exit 0" TERM; echo $$ >main; while :; do sleep 0.01; done' "$HELPERS/await"
    wait_for 5 test -s left
    wait_for 5 test -s main
    find_guard
    kill -TERM "$K"
    wait_for 5 pid_gone "$(cat main)"
    kill -STOP "$G"
    ends_with 124 5
    pid_gone "$(cat left)"
    free "$F"
}

# The sweep of a dead guard's tree does not end: a tracer keeps the dead command from being reaped.
@test "a guard that is killed beside a process that stays: inner dlocks end in time" {
    background --ttl 30 --max-run 2 --grace 0.3 "$L" \
        sh -c 'echo "$DLOCK_HELD" >env; echo $$ >pid; exec "$0" go' "$HELPERS/await"
    wait_for 5 test -s pid
    start_log tracer.log /usr/bin/python3 -c '
import ctypes, sys, time
libc = ctypes.CDLL(None, use_errno=True)
assert libc.ptrace(0x4206, int(sys.argv[1]), None, None) == 0  # PTRACE_SEIZE
print("traced", flush=True)
time.sleep(60)' "$(cat pid)"
    tracer=$STARTED
    wait_for 5 file_has tracer.log traced
    DLOCK_HELD=$(cat env) start_log inner.log "$HELPERS/launch" -d "$DLOCK" "$L" \
        sh -c 'echo $$ >in; exec "$HELPERS/await" go'
    inner=$STARTED
    wait_for 5 test -s in
    kill -STOP "$inner" # it cannot act on the loss that it is told
    kill_guard
    exits 137 4 "$inner"
    kill -KILL "$tracer"
    ends_with 71
}

@test "the exit code is 79 when the lock was lost, before or after the time" {
    # warn: the loss does not end the command, the time does.
    began=$(now_ns)
    starts 4 --on-lost warn --max-run 1.5 "$L" $SUBJECT -t
    : >"$S/lost"
    ends_with 79
    assert_out "(--max-run); ending it"
    assert_between $((began + 1490 * NS)) "$(seen session sig 15)" \
        $(($(seen main start "") + (1550 + BUSY) * NS)) TERM
    rm -rf "$S"/* "$C"/*
    background --ttl 30 --max-run 0.3 --grace 4 "$L" $SUBJECT -k
    wait_for 5 has_seen main sig 15
    : >"$S/lost"
    ends_with 79 3
    rm -rf "$S"/* "$C"/*
    # The lease is over first.
    tell renew hang
    background --ttl 1 --max-run 20 "$L" $SUBJECT -t
    ends_with 79
    refute_out max-run
}

@test "a file: the guard has the descriptor, the command has none, what it leaves is left alone" {
    run -0 run_t 5 "$DLOCK" --max-run 20 "$F" sh -c \
        'ls -l /proc/self/fd; ls -l "/proc/$PPID/fd" >guard 2>/dev/null || :'
    refute_out "$F"
    # The guard's are closed to other users.
    [ "$(id -u)" -ne 0 ] || grep -qF -- "-> $F" guard || fail "$(cat guard)"
    run -0 run_t 5 "$DLOCK" --max-run 1 "$F" sh -c '"$HELPERS/await" go >left 2>&1 & echo $! >pid'
    flock -n "$F" true
    nap 1.1
    pid_alive "$(cat pid)"
}

@test "tells programs of it" {
    run_t 5 "$DLOCK" --events ev --max-run 1 --grace 0.2 "$F" sh -c \
        'trap "" TERM; while :; do sleep 0.01; done' || :
    [ "$(jq -r .event ev | tr '\n' ' ')" = "start granted term kill released end " ] ||
        fail "$(cat ev)"
    jq -es '.[2].kill_in_ms == 200 and
        (.[-1] | .outcome == "overrun" and .exit_code == 124 and .signal == 9)' ev
    run_t 5 "$DLOCK" --events ev2 --max-run 1 "$F" sh -c \
        'trap "exit 4" TERM; while :; do sleep 0.01; done' || :
    jq -es '(map(.event) | index("kill") | not) and
        (.[-1] | .outcome == "overrun" and .exit_status == 4)' ev2
}

@test "an inner dlock that outlives the command is ended, and may have a time of its own" {
    for lock in "$L" "$F"; do
        rm -rf "$C"/*
        # It ignores TERM.
        background --max-run 1.5 --grace 0.3 "$lock" sh -c '
            setsid "$DLOCK" "$1" "$HELPERS/subject" "$2" -k &
            until [ -s "$2/events" ]; do sleep 0.02; done' - "$lock" "$C"
        ends_with 124
        assert_out "a dlock under the lock '"
        tree_gone || final "it runs on"
        [ "$lock" = "$F" ] || [ "$(count_seen main sig 15)" = 1 ]
        free "$lock"
        says 1 "has not ended within 200 ms" --max-run 20 "$lock" sh -c \
            '"$DLOCK" --max-run 0.2 "$1" sleep 20; [ $? -eq 124 ] && exit 1' - "$lock"
    done
}

@test "an inner dlock that is no descendant is ended as well" {
    for signal in TERM KILL; do
        rm -f in env
        background --ttl 30 --max-run 1.5 --grace 0.3 "$L" sh -c \
            'echo "$DLOCK_HELD" >env; until [ -s in ]; do sleep 0.02; done; exit 0'
        wait_for 5 test -s env
        ignored=
        [ $signal = TERM ] || ignored='trap "" TERM;'
        DLOCK_HELD=$(cat env) start_log inner.log "$HELPERS/launch" -d "$DLOCK" "$L" sh -c \
            "$ignored"' echo $$ >in; exec "$HELPERS/await" go'
        ends_with 124
        assert_out "a dlock under the lock '$NAME'"
        wait_for 1 pid_gone "$(cat in)" || final "it runs on"
        exits $([ $signal = TERM ] && echo 143 || echo 137) 2 "$STARTED"
    done
}

@test "an inner dlock that comes while --min-hold keeps the lock is ended in time, too" {
    CI=1 background --ttl 30 --min-hold 1h --max-run 1.5 --grace 0.2 "$L" sh -c \
        '"$0" later &&
            exec "$1" -n "$2" sh -c "trap \"\" TERM; echo \$\$ >in; exec \"\$0\" go" "$0" &
        exit 0' "$HELPERS/await" "$DLOCK" "$L"
    wait_for 5 file_has out "stays held"
    : >later
    wait_for 5 test -s in
    wait_for 5 pid_gone "$(cat in)" || final "it runs on"
    # The lock stays held all the same.
    run -75 run_t 5 "$DLOCK" -qn "$L" true
    kill -INT "$K"
    ends_with 124
    assert_out "a dlock under the lock '$NAME' has not ended within 1.5 s (--max-run); ending it"
}

@test "ends all of it, and nothing else, beside children of the caller's" {
    run -124 run_t 10 bash -c 'for i in {1..70}; do "$HELPERS/await" go >left 2>&1 & done
        exec "$DLOCK" --max-run 0.3 --grace 0.2 "$F" sh -c "
            (trap \"\" TERM; echo \$\$ >in; while :; do sleep 0.1; done) & wait"'
    pid_gone "$(cat in)"
    [ "$(pgrep -cf "^$HELPERS/await go")" -ge 70 ]
    : >go
}
