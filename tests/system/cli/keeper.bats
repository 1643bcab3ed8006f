#!/usr/bin/env bats
# The keeper: signals, waiting and its bounds, what it says, and how it ends.

load ../../support/fake

# timed ARG...: run dlock by itself; the start of three processes is in $took.
timed() { timed_run "$HELPERS/launch" -n "$DLOCK" "$@"; }

# --- signals while the command runs ------------------------------------------

# Sends the signal and waits until the command has it, for the N-th time.
send() {
    kill -"$1" "$K"
    wait_for 5 has_seen main sig "$1" "${2:-1}" || fail "signal $1 did not arrive"
}

@test "signals are forwarded, each once" {
    starts 1 --ttl 30 "$L" $SUBJECT -k -u "$T/end" -r 9
    for i in 1 2 3; do send 10 $i; done
    # HUP QUIT USR2 ALRM TERM WINCH CONT URG IO PWR and two real-time ones
    for sig in 1 3 12 14 15 28 18 23 29 30 34 64; do send $sig; done
    send 15 2
    send 1 2
    [ "$(count_seen main sig 10)" = 3 ]
    for sig in 3 12 14 28 18 34 64; do [ "$(count_seen main sig $sig)" = 1 ]; done
    [ "$(count_seen main sig 15)" = 2 ]
    finish 9
}

@test "without a terminal signals go to the command's own group" {
    starts 4 --ttl 30 "$L" $SUBJECT -t -k -u "$T/end"
    pgrp() { ps -o pgid= "$1" | tr -d ' '; }
    find_guard
    group=$(pgrp "$(pid_of main)")
    for pid in "$(pid_of main)" "$(pgrp "$K")" "$(pgrp "$G")"; do [ "$group" != "$pid" ]; done
    [ "$(pgrp "$(pid_of child)")" = "$group" ]
    kill -USR1 "$K"
    wait_for 5 has_seen main sig 10
    wait_for 5 has_seen child sig 10
    [ -z "$(seen session sig 10)" ]
    kill -KILL "$(pid_of child)" "$(pid_of session)" "$(pid_of daemon)"
    finish 0
}

@test "a command killed by a forwarded signal gives 128+N" {
    # 143 could also be a shell's code for dlock's death: ask for the real wait status.
    run run_t 10 /usr/bin/python3 -c '
import os, subprocess, sys, time
p = subprocess.Popen(sys.argv[2:])
while not os.path.exists(sys.argv[1]): time.sleep(0.01)
p.terminate()
print(p.wait())' "$T/go" "$DLOCK" "$L" sh -c "touch $T/go; exec sleep 20"
    assert_out 143
}

@test "a signal between grant and start is not swallowed" {
    for i in 1 2 3 4 5 6; do
        rm -rf "$S"/* "$C"/*
        background "$L" sleep 20
        wait_for 5 file_nonempty "$S/fence"
        kill -TERM "$K"
        ends_with 143 5
        [ ! -e "$S/held" ]
    done
}

# --- signals while waiting ---------------------------------------------------

# dies_by SIG [LAUNCH-OPTION...]: a waiting dlock that is sent SIG leaves the queue and dies by it.
dies_by() {
    /usr/bin/python3 - "$1" "$S/log" "$HELPERS/launch" -d "${@:2}" "$DLOCK" "$L" touch \
        "$T/ran" <<'PY'
import os, subprocess, sys, time
sig, log = int(sys.argv[1]), sys.argv[2]
p = subprocess.Popen(sys.argv[3:])
end = time.monotonic() + 5
while time.monotonic() < end and not (os.path.exists(log) and 'acquire' in open(log).read()):
    time.sleep(0.005)
time.sleep(0.01)
p.send_signal(sig)
code = p.wait(10)
if code != -sig:
    sys.exit('signal %d: ended with %d' % (sig, code))
PY
}

@test "a signal ends a wait and leaves the queue" {
    tell acquire wait
    for sig in 1 2 3 15 10 12 14 13; do
        rm -f "$S/log"
        dies_by $sig
        store_did release
        [ ! -e "$T/ran" ]
        ! compgen -G 'core*' >/dev/null || fail "found"
    done
}

@test "a signal ends dlock although the store does not answer" {
    tell acquire hang
    tell release hang
    start=$(now_ms)
    dies_by 15
    assert_between 0 $(($(now_ms) - start)) $((2000 + SLOW)) "time (ms)"
    store_did release
}

@test "other signals, and those that the caller ignored, do not end a wait" {
    tell acquire wait
    start_log "$T/out" "$HELPERS/launch" -d -s -i 1 -i 15 "$DLOCK" "$L" true
    K=$STARTED
    wait_for 5 store_did acquire
    for sig in CONT WINCH URG CHLD IO HUP TERM; do kill -$sig "$K"; done
    tell acquire grant
    ends_with 0
}

@test "a second TERM ends a hanging release, and the leaving of a queue" {
    local start
    tell release hang
    for acquire in grant wait; do
        rm -f "$S/log"
        tell acquire $acquire
        background --connect-timeout 20 "$L" $SUBJECT
        if [ $acquire = grant ]; then wait_for 5 running; else wait_for 5 store_did acquire; fi
        kill -TERM "$K"
        wait_for 5 store_did release
        start=$(now_ms)
        kill -TERM "$K"
        ends_with 143
        assert_between 0 $(($(now_ms) - start)) $((400 + SLOW + BUSY)) "time (ms)"
    done
}

# --- the bounds of a wait ----------------------------------------------------

@test "-w ends in time when others hold the lock, the store is silent, or leaving the queue hangs" {
    local row acquire release code text
    for row in "wait grant 75 held by fakehost, pid 4711 (fakecommand)" "hang hang 69 no answer" \
        "wait hang 75 fakehost"; do
        read -r acquire release code text <<<"$row"
        rm -f "$S/log"
        tell acquire "$acquire"
        tell release "$release"
        timed -w 0.3 "$L" true
        assert_rc "$code"
        assert_out "$NAME" "$text"
        assert_between 300 $took $((430 + SLOW + BUSY)) "-w 0.3 (ms)"
        store_did release
    done
}

@test "-w ends in time although the guard is stopped" {
    tell acquire wait
    before=$(now_ms)
    start_log "$T/out" "$DLOCK" -w 1 "$L" true
    K=$STARTED
    wait_for 5 guard_is_there
    kill -STOP "$G"
    exits 75 5 "$K"
    assert_between 1000 $(($(now_ms) - before)) $((1400 + BUSY)) "wait in ms"
}

@test "-w does not bound the command" {
    run -6 run_t 10 "$DLOCK" -w 0.1 "$L" sh -c 'sleep 0.4; exit 6'
}

@test "--connect-timeout bounds the first contact with a silent store, with -n too, and only that" {
    tell acquire hang
    for n in '' -n; do
        timed $n --connect-timeout 300ms "$L" true
        assert_rc 69
        assert_out "no answer"
        # Then it is undone, for half a second at most.
        assert_between 300 $took $((1000 + SLOW)) "time (ms)"
    done
    tell acquire wait
    background --connect-timeout 200ms "$L" sh -c 'exit 4'
    wait_for 5 store_did acquire
    lives_for 500
    tell acquire grant
    ends_with 4
}

@test "a broken stderr does not change the exit code" {
    tell release unclear
    for broken in '>&-' '>/dev/full'; do
        run run_t 10 bash -c '"$@" 2'"$broken; echo \$?" - "$DLOCK" "$L" sh -c 'exit 5'
        [ "$output" = 5 ]
        rm "$S/held"
    done
    run run_t 10 bash -c '{ "$@"; echo $? >'"$T/code"'; } 2>&1 >/dev/null | { :; }' - \
        "$DLOCK" "$L" sh -c 'sleep 0.1; exit 5'
    wait_for 5 file_nonempty "$T/code"
    [ "$(cat "$T/code")" = 5 ]
}

# mute ARG...: dlock in the background, its stderr a full pipe that is not read; pid in $K.
mute() {
    start /usr/bin/python3 -c '
import fcntl, os, signal, sys
r, w = os.pipe()
fcntl.fcntl(w, fcntl.F_SETFL, os.O_NONBLOCK)
try:
    while True:
        os.write(w, b"x" * 4096)
except BlockingIOError:
    fcntl.fcntl(w, fcntl.F_SETFL, 0)
os.dup2(w, 2)
os.set_inheritable(r, True)  # so that it is never broken, only full
signal.pthread_sigmask(signal.SIG_SETMASK, [])
os.execv(sys.argv[1], sys.argv[1:])' "$DLOCK" "$@" </dev/null
    K=$STARTED
}

@test "a full stderr delays the end of a tree neither by a lost lock nor by the guard's death" {
    for code in 79 71; do
        rm -rf "$S"/* history
        mute --ttl 10 "$L" "$HELPERS/witness" "$T" 60000 tree
        wait_for 5 file_has "$T/history" enter
        if [ $code = 79 ]; then touch "$S/lost"; else kill_guard; fi
        wait_for 1 flock -sn "$T/witness" true
        exits $code 5 "$K"
    done
}

@test "a full stderr does not delay the end of a wait" {
    tell acquire wait
    before=$(now_ms)
    mute -v -w 1.5 "$L" true
    exits 75 5 "$K"
    assert_between 1500 $(($(now_ms) - before)) $((2500 + BUSY)) "wait in ms"
    store_did release
}
