#!/usr/bin/env bats
# break.bats - --break of a file lock: who gets which signal, and what is left alone.

load ../../support/fake
load ../../support/filelock

setup() {
    filelock_setup
    fake_setup
    mkdir locks
    DIR=file://$T/locks
}
teardown() { filelock_teardown; }

breaks() { run "-$1" run_t 10 "$DLOCK" --break --yes "${@:2}"; } # CODE ARG...
is_free() { run -0 run_t 5 "$DLOCK" --status "$1"; }
host() { uname -n; }

@test "a dlock passes TERM on to its command, and the lock is free" {
    for lock in x "$DIR#n"; do
        hold_by "$DLOCK" "$lock" sh -c 'trap "echo term >term; exit 3" TERM; echo >held
            while :; do sleep 0.05; done'
        CI=1 breaks 0 "$lock"
        assert_out "held by " ", pid $HOLDER (" "dlock: broken: "
        is_free "$lock"
        exits 3 5 "$HOLDER"
        [ "$(cat term)" = term ]
        rm term
    done
}
hold_by() {
    rm -f held
    start_log holder.log "$@"
    HOLDER=$STARTED
    wait_for 5 test -s held || fail "$(cat holder.log)"
}

@test "the command of a flock(1) that has ended is next" {
    hold_by flock x sh -c 'echo $$ >held; exec sleep 60'
    command=$(cat held)
    breaks 0 x
    pid_gone "$command"
    wait_for 5 pid_gone "$HOLDER"
    is_free x
}

@test "a stopped holder obeys" {
    hold_by "$DLOCK" x sh -c 'echo >held; exec sleep 60'
    kill -STOP "$HOLDER"
    wait_for 5 pid_stopped "$HOLDER"
    breaks 0 x
    exits 143 5 "$HOLDER"
}

@test "a command that ignores TERM keeps the lock until --force" {
    hold_by "$DLOCK" --min-hold 1s "$DIR#n" sh -c 'trap "" TERM; echo >held; sleep 60'
    breaks 75 -w 0.3 "$DIR#n"
    assert_out "'n' is still held by pid $HOLDER; TERM was sent to the holder"
    pid_alive "$HOLDER"
    breaks 0 --force "$DIR#n"
    exits 137 5 "$HOLDER"
    settle 5
    is_free "$DIR#n"
}

# Hundreds of locks of other files that come and go shift the kernel's list while it is read.
@test "a holder that ignores TERM is found among locks that come and go" {
    local i
    mkdir others
    start_log churn.log "$ROOT/tests/support/helpers/churn.py" others
    churn=$STARTED
    hold_by "$ROOT/tests/support/helpers/churn.py" - "$DLOCK" "$DIR#n" \
        sh -c 'trap "" TERM; echo >held; sleep 60'
    wait_for 5 test -e churning
    for i in 1 2 3 4 5; do breaks 75 -w 0.3 "$DIR#n"; done
    breaks 0 --force "$DIR#n"
    exits 137 5 "$HOLDER"
    end_job TERM "$churn"
}

@test "a free lock needs no break" {
    breaks 0 x
    assert_out "free (no such file)"
    [ ! -e x ]
}

@test "the next holder is left alone, with fcntl(2) locks, too" {
    for kind in "" --fcntl; do
        hold_by "$DLOCK" $kind x sh -c 'echo >held; exec sleep 60'
        start_log next.log "$DLOCK" $kind x sh -c 'echo >next; exec sleep 60'
        next=$STARTED
        wait_for 5 queued x
        breaks 0 $kind x
        exits 143 5 "$HOLDER"
        wait_for 5 test -e next
        breaks 75 --holder "$(host):1" $kind x
        pid_alive "$next"
        end_job TERM "$next"
        rm next
    done
}

@test "nothing is done to another user's process" {
    need_root
    open_folder
    hold_by "$DLOCK" "$OPEN/x" sh -c 'echo >held; exec sleep 60'
    install -m 755 "$DLOCK" "$OPEN/dlock"
    run -77 run_t 5 setpriv --reuid=nobody --regid=nogroup --clear-groups \
        "$OPEN/dlock" --break --yes "$OPEN/x"
    assert_out "cannot signal its holder, pid $HOLDER: Operation not permitted; nothing was done"
    pid_alive "$HOLDER"
}

@test "a holder elsewhere is named, with its machine" {
    need_pid_namespace
    hold_by "$DLOCK" "$DIR#n" sh -c 'echo >held; exec sleep 60'
    run -69 run_t 5 unshare --pid --fork --mount-proc "$DLOCK" --break --yes "$DIR#n"
    assert_out "its holder cannot be signalled from here: run \"kill $HOLDER\" on $(host)"
    hold_by "$DLOCK" x sh -c 'echo >held; exec sleep 60'
    run -69 run_t 5 unshare --pid --fork --mount-proc "$DLOCK" --break --yes x
    assert_out "its holder cannot be seen from here"
    pid_alive "$HOLDER"
}

# asks LOCK: the Python program on stdin; j is dlock --break, which has asked.
asks() {
    {
        echo "j = t.start([DLOCK, '--break', '$1'])"
        echo 't.until(lambda: "break? [y/N]" in t.output, name="the question")'
        cat
    } | at_terminal
}

@test "it asks at a terminal, and only yes is a yes" {
    hold_by "$DLOCK" x sh -c 'echo >held; exec sleep 60'
    run -64 run_t 5 "$DLOCK" --break x
    [ "$output" = "dlock: --break asks at a terminal, and there is none: use --yes" ]
    asks x <<'PY'
t.type(b'n\n')
check(j.status(), 'exit 1', 'dlock')
PY
    pid_alive "$HOLDER"
    asks x <<'PY'
check('held by' in t.output, True, t.output)
t.type(b'y\n')
check(j.status(), 'exit 0', 'dlock')
check('broken: ' in t.output, True, t.output)
PY
    exits 143 5 "$HOLDER"
}

@test "Ctrl-C leaves the holder with TERM, and says so" {
    hold_by "$DLOCK" x sh -c 'trap "echo >term" TERM; echo $$ >held; while :; do sleep 0.05; done'
    asks x <<'PY'
t.type(b'y\n')
t.until(lambda: os.path.exists('term'), name='TERM')
j.interrupt()
t.until(lambda: 'TERM was sent to the holder' in t.output, name='the message')
PY
    pid_alive "$HOLDER"
    kill -KILL "$(cat held)"
    exits 137 5 "$HOLDER"
}

@test "a status at a terminal ends with how to end it" {
    hold_by "$DLOCK" "it's" sh -c 'echo >held; exec sleep 60'
    at_terminal <<'PY'
j = t.start([DLOCK, '--status', "it's"])
check(j.status(), 'exit 75', 'dlock')
check(t.output.rstrip().splitlines()[-1], "  to end it: dlock --break 'it'\\''s'", 'last line')
PY
    run -75 run_t 5 "$DLOCK" --status "it's"
    refute_out "to end it"
}
