# A full stderr, or a stopped guard, must not endanger the lock.

load ../../support/fake

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

@test "gives the lock back when the guard is stopped before the start" {
    tell acquire wait
    start_log "$T/out" "$DLOCK" --ttl 2 "$L" touch "$T/ran"
    K=$STARTED
    wait_for 5 store_did acquire
    wait_for 5 guard_is_there
    kill -STOP "$G"
    tell acquire grant
    rc=0
    wait_exit 8 "$K" || rc=$?
    [ "$rc" -eq 71 ] || [ "$rc" -eq 79 ]
    [ ! -e "$T/ran" ]
    store_did clean
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

@test "refuses leases, not file locks, when /proc hides processes" {
    need_mounts
    [ -z "${SAN:-}" ] || return 0 # a sanitizer cannot start without /proc; the plain build shows it
    run -71 run_t 5 unshare -m sh -c 'mount -t tmpfs none /proc && exec "$@"' - "$DLOCK" \
        "$L" touch "$T/ran"
    assert_out "mount /proc"
    [ ! -e "$T/ran" ]
    [ ! -e "$S/log" ]
    run -0 run_t 5 unshare -m sh -c 'mount -t tmpfs none /proc && exec "$@"' - "$DLOCK" \
        "$T/x.lock" true
}
