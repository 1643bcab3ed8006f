#!/usr/bin/env bats
# --once, --min-hold, --forget with a scripted store: messages, records, waits, exit codes.

load ../../support/fake

TOKEN=0123456789abcdef0123456789abcdef

# record STATE STATUS [AGE_S]: one that another host has left, 300 s old.
record() {
    local now end
    now=$(date +%s)
    end=$(((now - ${3:-300}) * 1000))
    [ "$1" != running ] || end=0
    echo "dlock-run1 $1 $2 7 $TOKEN $(((now - ${3:-300}) * 1000 - 4000)) $end 3600000" \
        'dlock1 host=h9 pid=77 user=ann since=5 cmd=job.sh note=disk%202' >"$S/record"
}
# recorded STATE STATUS: what stands there now.
recorded() { [[ "$(cat "$S/record")" == "dlock-run1 $1 $2 "* ]] || fail "$(cat "$S/record")"; }
nothing_held() { [ ! -e "$S/held" ] || fail "held"; }
stays() { [[ "$(cat "$T/out")" == *"stays held for "* ]]; }

# --- skipped -----------------------------------------------------------------

@test "a run that has succeeded is skipped, and the talkative say so" {
    record succeeded 0
    run -0 run_t 5 "$DLOCK" --once "$L" touch ran
    [ -z "$output" ] || fail "$output"
    CI=1 run -0 run_t 5 "$DLOCK" --once "$L" touch ran
    by=" ago by ann@h9, pid 77 (job.sh), note \"disk 2\""
    [[ $output =~ ^"dlock: not run: fake://$S: '$NAME' succeeded "5m[0-9s]*"$by"$ ]] ||
        fail "$output"
    CI=1 run -0 run_t 5 "$DLOCK" -q --once "$L" touch ran
    [ -z "$output" ] || fail "$output"
    says 17 '"event":"end"' --once --skip-exit-code 17 --events 1 "$L" touch ran
    assert_out '"outcome":"skipped"' '"exit_code":17'
    refute_out '"event":"granted"'
    [ ! -e ran ]
    nothing_held
    # Four minutes ago would count, 300 s do not.
    run -3 run_t 5 "$DLOCK" --once=4m "$L" sh -c 'exit 3'
    recorded failed 3
}

@test "a skip in a set gives back the other locks, whatever the order" {
    local other=$T/other
    mkdir "$other"
    record succeeded 0
    for name in a z; do
        run -0 run_t 5 "$DLOCK" --once --min-hold 1h --also "fake://$other#$name-$NAME" \
            "$L" touch ran
        [ ! -e ran ]
        [ ! -e "$other/held" ]
    done
    grep -q '^clean' "$other/log"
    # The record is LOCK's alone.
    rm "$S/record"
    run -0 run_t 5 "$DLOCK" --once --also "fake://$other#a-$NAME" "$L" touch ran
    [ -e ran ]
    [ ! -e "$other/record" ]
    recorded succeeded 0
}

# --- recorded ----------------------------------------------------------------

@test "the record says how the command ended" {
    run -0 run_t 5 "$DLOCK" --once=2h --note "disk 3" "$L" grep -q '^dlock-run1 running -1 1 ' \
        "$S/record"
    recorded succeeded 0
    [[ "$(cat "$S/record")" == *" 7200000 dlock1 "*"disk%203"* ]] || fail "$(cat "$S/record")"
    run -0 run_t 5 "$DLOCK" --forget --yes "$L"
    run -143 run_t 5 "$DLOCK" --once "$L" sh -c 'kill -TERM $$'
    recorded failed 143
    # A list replaces the 0. A signal is no exit code.
    run -0 run_t 5 "$DLOCK" --once --success-codes 24,143 "$L" true
    recorded failed 0
    run -143 run_t 5 "$DLOCK" --once --success-codes 24,143 "$L" sh -c 'kill -TERM $$'
    recorded failed 143
    run -24 run_t 5 "$DLOCK" --once --success-codes 24,143 "$L" sh -c 'exit 24'
    recorded succeeded 24
    nothing_held
}

@test "a success that the store does not confirm: 79, also with -q" {
    tell release unclear
    run -79 run_t 5 "$DLOCK" -q --once --events events "$L" true
    local end="the command succeeded, but its run is not recorded: no answer; another run may"
    end+=" follow"
    [ "$output" = "dlock: fake://$S: '$NAME': $end" ] || fail "$output"
    grep -q '"outcome":"unrecorded".*"exit_status":0,"exit_code":79' events
    recorded running -1
    rm -f "$S/held"
    # A failure needs no record: the next one may run either way.
    run -3 run_t 5 "$DLOCK" --once "$L" sh -c 'exit 3'
    assert_out "the release of '$NAME' is not confirmed: no answer; the lock ends with its ttl at"
    rm -f "$S/held"
    tell release notours
    run -79 run_t 5 "$DLOCK" --once "$L" true
    local over="was not ours any more when it was released; the command succeeded, but its run is"
    assert_out "$over not recorded"
    rm -f "$S/held"
    run -9 run_t 5 "$DLOCK" --once --lost-exit-code 9 "$L" true
    # Of a set the others are released first: a loss of one makes the run a failed one.
    mkdir other
    mv "$S/release" other
    rm -f "$S/held"
    run -79 run_t 5 "$DLOCK" --once --also "fake://$T/other#a-$NAME" "$L" true
    assert_out "'a-$NAME' was not ours any more when it was released"
    refute_out recorded
    recorded failed 0
}

@test "a success is tried until the lease ends, and a signal cuts that to a moment" {
    tell release hang
    took_ms() { # FROM: since the release began
        echo $(($(ms "$(at unclear -1)") - $(ms "$(at release "$1")")))
    }
    # The lease counts from before the command, which takes a part of it on a busy machine.
    timed --once --ttl 3 --connect-timeout 100ms "$L" true
    assert_rc 79
    assert_between 1500 "$(took_ms 1)" $((3000 + SLOW)) "ms of tries"
    rm -f "$S/held"
    # Nothing to record: as long as ever.
    timed --once --ttl 1 --connect-timeout 100ms "$L" false
    assert_rc 1
    assert_between 90 "$(took_ms 2)" $((400 + SLOW)) "ms of tries"
    rm -f "$S/held"
    background --once --ttl 60 "$L" true
    wait_for 5 store_did release 3
    kill -TERM "$K"
    ends_with 79
    assert_out "succeeded, but its run is not recorded"
    assert_between 200 "$(took_ms 4)" $((600 + SLOW)) "ms of tries"
    # One signal behind the other does not prolong it, as a key that is held down sends them.
    rm -f "$S/held"
    background --once --ttl 60 "$L" true
    wait_for 5 store_did release 5
    for _ in {1..100}; do
        kill -TERM "$K" 2>/dev/null || :
        [ "$(grep -c '^unclear' "$S/log")" -lt 4 ] || break
        sleep 0.1
    done
    [ "$(grep -c '^unclear' "$S/log")" -eq 4 ] || fail "still trying: $(cat "$S/log")"
    ends_with 79
}

# begins ARG...: dlock with a command that has begun, and ends by go.
begins() {
    rm -f began
    background "$@" "$L" sh -c 'touch began; "$0" go' "$HELPERS/await"
    wait_for 5 test -e began
}

@test "a lost lock is a failure, whatever the command says, and so is a killed guard" {
    begins --once --on-lost warn --ttl 2
    touch "$S/lost"
    wait_for 5 grep -q 'is lost' "$T/out"
    : >go
    ends_with 79
    recorded running -1
    rm -rf go "$S"/*
    begins --once --ttl 5
    kill_guard
    ends_with 71
    recorded failed -1
    nothing_held
}

# --- least time --------------------------------------------------------------

@test "--min-hold: dlock stays after a quick command, -w or not, with its exit code" {
    timed --min-hold 700ms --once -w 0.2 "$L" sh -c 'exit 4'
    assert_rc 4
    assert_between 700 "$took" $((1400 + SLOW)) ms
    recorded failed 4
    nothing_held
    # Counted from the grant: a longer command waits for nothing.
    CI=1 begins --min-hold 300ms
    wait_for 5 beyond $(($(now_ms) + 320))
    : >go
    ends_with 0
    [ -z "$output" ] || fail "$output"
    # Nothing has run: no wait.
    run -127 run_t 5 "$DLOCK" --min-hold 1h "$L" "$T/nothing"
    nothing_held
}

@test "--min-hold: a signal ends the wait, and is said to" {
    CI=1 background --min-hold 1h "$L" sh -c 'exit 4'
    wait_for 5 stays
    run -75 run_t 5 "$DLOCK" -qn "$L" true
    kill -USR1 "$K"
    kill -TERM "$K"
    ends_with 4
    text=" (--min-hold); a signal ends this wait"
    [[ $output =~ "dlock: fake://$S: '$NAME' stays held for "(1h|59m59s)"$text"$ ]] ||
        fail "$output"
    nothing_held
    # One that has ended the command does not have to be sent twice.
    begins --min-hold 1h
    kill -TERM "$K"
    ends_with 143
    # The keeper was cancelled in its wait: nothing is kept.
    rm -f began
    tell acquire wait
    background --min-hold 1h --also "fake://$S#z-$NAME" "$L" touch began
    wait_for 5 store_did acquire -1
    kill -TERM "$K"
    ends_with 143
    nothing_held
}

@test "--min-hold: Ctrl-Z stops the wait, Ctrl-C ends it" {
    at_terminal <<'PY'
j = t.start([DLOCK, '--min-hold', '1h', LOCK, 'sh', '-c', 'exit 4'])
t.until(lambda: 'stays held for' in t.output, name='the wait')
j.suspend()
j.foreground()
t.type(b'\x03')
check(j.status(), 'exit 4', 'dlock')
PY
    nothing_held
}

guard_is_gone() { ! guard_is_there; }
# inner_in_the_wait DURATION: the wait of --min-hold, and a process that the command has left behind
# runs dlock for the same lock, until go.
inner_in_the_wait() {
    CI=1 background --min-hold "$1" --ttl 30 "$L" sh -c \
        '"$0" later && "$1" -n "$2" sh -c "touch in; \"$0\" go" & exit 0' "$HELPERS/await" \
        "$DLOCK" "$L"
    wait_for 5 stays
    : >later
    wait_for 5 test -e in
}

@test "--min-hold: an inner dlock does not end the wait" {
    inner_in_the_wait 1h
    : >go
    # Nothing is guarded any more.
    wait_for 5 guard_is_gone
    run -75 run_t 5 "$DLOCK" -qn "$L" true
    kill -INT "$K"
    ends_with 0
    refute_out "the guard"
    [ "$(grep -c "stays held" "$T/out")" = 1 ]
    nothing_held
}

@test "--min-hold: an inner dlock that outlasts it keeps the lock, without a busy loop" {
    inner_in_the_wait 1s
    wait_for 5 beyond $(($(now_ms) + 1100))
    run -75 run_t 5 "$DLOCK" -qn "$L" true
    before=$(cpu_ticks)
    nap 0.3
    [ $(($(cpu_ticks) - before)) -lt 10 ] || fail "$(($(cpu_ticks) - before)) ticks of 30"
    : >go
    ends_with 0
    nothing_held
}
cpu_ticks() { sed 's/.*) //' "/proc/$K/stat" | awk '{ print $12 + $13 }'; }

@test "--min-hold: a signal for the inner dlocks that are left is for the wait after them, too" {
    background --min-hold 1h --ttl 30 "$L" sh -c '
        "$1" -n "$2" sh -c "touch in; exec \"\$0\" go" "$0" &
        until [ -e in ]; do sleep 0.02; done; echo $$ >main; exit 4' "$HELPERS/await" "$DLOCK" "$L"
    wait_for 5 test -s main
    wait_for 5 pid_gone "$(cat main)"
    kill -TERM "$K"
    ends_with 4 5
    nothing_held
}

@test "--min-hold: a loss ends the wait: 79" {
    # What the command leaves behind is left alone.
    CI=1 background --min-hold 1h --ttl 2 "$L" sh -c '"$0" go & exit 0' "$HELPERS/await"
    wait_for 5 stays
    touch "$S/lost"
    ends_with 79
    assert_out "is lost: lost unasked; the command has ended"
    refute_out "ending the command"
}

@test "--min-hold in a store that keeps the lock by itself: dlock goes at once" {
    touch "$S/stays"
    # So long that it is not over yet when it has been looked at three times.
    timed --min-hold 4s --ttl 1 --once "$L" true
    assert_rc 0
    assert_between 0 "$took" $((1500 + SLOW)) ms
    recorded succeeded 0
    CI=1 run -75 run_t 5 "$DLOCK" -n "$L" true
    assert_out "fakehost, pid 4711 (fakecommand), ended, kept until its --min-hold is over"
    says 75 "    ended, kept until its --min-hold is over" --status "$L"
    says 75 '"over":true' --status --json "$L"
    run -0 run_t 10 "$DLOCK" "$L" true
    # An order to end at once is no reason to shorten it; a command that never ran is.
    run -127 run_t 5 "$DLOCK" --min-hold 1h "$L" "$T/nothing"
    nothing_held
}

# --- shown and forgotten -----------------------------------------------------

@test "--status shows the record, in text and as JSON" {
    for json in '' --json; do
        run -0 run_t 5 "$DLOCK" --status $json "$L"
        refute_out "last run" last_run
    done
    record failed 3
    run -0 run_t 5 "$DLOCK" --status "$L"
    by=" ago with status 3 by ann@h9, pid 77 (job.sh), note \"disk 2\""
    [[ $output == *"  last run: failed 5m"*"$by"* ]] || fail "$output"
    run -0 run_t 5 "$DLOCK" --status --json "$L"
    echo "$output" | /usr/bin/python3 -c '
import json, sys
d = json.load(sys.stdin)
assert d["schema"] == 1 and d["state"] == "free", d
r = d["last_run"]
age = r.pop("age_ms")
assert 300000 <= age < 310000, age
assert r.pop("end_ms") - r.pop("begin_ms") == 4000
assert r == {"state": "failed", "exit_status": 3, "kept_ms": 3600000, "host": "h9", "pid": 77,
             "user": "ann", "command": "job.sh", "note": "disk 2", "fence": "7"}, r'
    record running -1
    run -0 run_t 5 "$DLOCK" --status "$L"
    [[ $output == *"  last run: began 5m"*" ago and did not end: crashed; by ann@h9, pid 77"* ]] ||
        fail "$output"
    says 0 '"last_run":{"state":"crashed","begin_ms":' --status --json "$L"
    # Under a lock that another run holds it has crashed, too.
    hold
    says 75 "did not end: crashed" --status "$L"
    let_go
    hold --once
    run -75 run_t 5 "$DLOCK" --status "$L"
    refute_out crashed
    [[ $output =~ "last run: began "[0-9]"s ago by " ]] || fail "$output"
    says 75 '"last_run":{"state":"running","begin_ms":' --status --json "$L"
    let_go
}

@test "--forget --yes: cleared, nothing there, running, crashed; without a terminal it is needed" {
    says 0 "'$NAME' has no record of a run" --forget --yes "$L"
    refute_out held
    run -0 run_t 5 "$DLOCK" -q --forget --yes "$L"
    [ -z "$output" ] || fail "$output"
    record succeeded 0
    run -64 run_t 5 "$DLOCK" --forget "$L"
    [ "$output" = "dlock: --forget asks at a terminal, and there is none: use --yes" ] ||
        fail "$output"
    [ -e "$S/record" ]
    CI=1 run -0 --separate-stderr run_t 5 "$DLOCK" --forget --yes "$L"
    [ -z "$output" ]
    [[ $stderr == "dlock: forgotten: fake://$S: '$NAME' succeeded 5m"*" ago by ann@h9, "* ]] ||
        fail "$stderr"
    [ ! -e "$S/record" ]
    hold --once
    run -75 run_t 5 "$DLOCK" --forget --yes "$L"
    text="dlock: cannot forget: the run is still in progress: fake://$S: '$NAME' began "
    [[ $output == "$text"* ]] || fail "$output"
    run -75 run_t 5 "$DLOCK" -q --forget --yes "$L"
    [ -z "$output" ]
    run -12 run_t 5 "$DLOCK" -q -E 12 --forget --yes "$L"
    recorded running -1
    let_go
    record running -1
    run -0 run_t 5 "$DLOCK" --forget --yes "$L"
    [ ! -e "$S/record" ]
}

# ask: the same; j is dlock --forget, which asks.
ask() {
    {
        echo 'j = t.start([DLOCK, "--forget", LOCK])'
        echo 't.until(lambda: "[y/N]" in t.output, name="the question")'
        cat
    } | at_terminal
}

@test "--forget asks at a terminal, and only yes is a yes" {
    for answer in n '' nonsense; do
        record succeeded 0
        echo "t.type(b'$answer\n'); check(j.status(), 'exit 1', 'dlock')" | ask
        [ -e "$S/record" ]
    done
    ask <<'PY'
t.type(b'\x04')
check(j.status(), 'exit 1', 'dlock')
PY
    [ -e "$S/record" ]
    for answer in y Yes; do
        record succeeded 0
        ask <<PY
check('succeeded 5m' in t.output and "by ann@h9, pid 77 (job.sh)" in t.output, True, t.output)
t.type(b'$answer\n')
check(j.status(), 'exit 0', 'dlock')
PY
        [ ! -e "$S/record" ]
    done
}

@test "--forget: a signal while it asks ends it, and a stop asks again" {
    record succeeded 0
    ask <<'PY'
j.interrupt()
PY
    ask <<'PY'
j.suspend()
before = t.output.count('[y/N]')
j.foreground()
t.until(lambda: t.output.count('[y/N]') > before, name='the question again')
t.type(b'n\n')
check(j.status(), 'exit 1', 'dlock')
PY
    [ -e "$S/record" ]
}

@test "--forget asks at a terminal of another session" {
    record succeeded 0
    timeout 10 /usr/bin/python3 - "$DLOCK" "$L" 3>&- <<'PY'
import os, pty, subprocess, sys
ours, theirs = pty.openpty()
os.write(ours, b'y\n')
job = subprocess.Popen([sys.argv[1], '--forget', sys.argv[2]], stdin=theirs, stderr=theirs,
                       preexec_fn=os.setpgrp)
try:
    sys.exit(job.wait(5))
finally:
    job.kill()
PY
    [ ! -e "$S/record" ]
}

# --- refused -----------------------------------------------------------------

@test "an inner dlock of the same lock has no record, and may have a least time" {
    run -64 run_t 5 "$DLOCK" "$L" "$DLOCK" --once "$L" touch ran
    assert_out "run records (once) are not available for a nested dlock: one above it holds the "
    assert_out " same lock, so give --once to that one, or name another lock"
    [ ! -e ran ]
    # What a dlock that has ended has left of its variables is no lock.
    "$DLOCK" "$L" sh -c 'echo "$DLOCK_HELD"' >stale
    DLOCK_HELD=$(cat stale) run -0 run_t 5 "$DLOCK" --once "$L" true
    recorded succeeded 0
    timed "$L" "$DLOCK" --min-hold 500ms "$L" true
    assert_rc 0
    assert_between 500 "$took" $((1500 + SLOW)) ms
    nothing_held
}

