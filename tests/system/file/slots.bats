#!/usr/bin/env bats
# Slots of a file: beside flock(1) -s, not beside -x, never more than N, the lowest free slot first.

load ../../support/common
load ../../support/filelock
load ../../support/fake

setup() {
    filelock_setup
    fake_setup
    cd "$T"
}
teardown() { filelock_teardown; }

@test "slots exclude flock(1) -x and stand beside -s, in both directions" {
    echo data >x
    hold "$DLOCK" --slots 2 x
    [ "$(cat held)" = 0 ]
    run -1 run_t 5 flock -xn x true
    run -0 run_t 5 flock -sn x true
    run -75 run_t 5 "$DLOCK" -n x touch ran
    run -0 run_t 5 "$DLOCK" -sn x true
    run -0 run_t 5 "$DLOCK" -n --slots 2 x sh -c 'echo $DLOCK_SLOT'
    [ "$output" = 1 ]
    let_go
    hold flock -s x
    run -0 run_t 5 "$DLOCK" -n --slots 1 x sh -c 'echo $DLOCK_SLOT'
    [ "$output" = 0 ]
    let_go
    for tool in flock "$DLOCK"; do
        hold "$tool" -x x
        run -75 run_t 5 "$DLOCK" -n --slots 2 x touch ran
        run -75 run_t 5 "$DLOCK" -w 0.1 --slots 2 x touch ran
        start_log waiter "$DLOCK" --slots 2 x sh -c 'echo $DLOCK_SLOT'
        local waiter=$STARTED
        wait_for 5 waits x
        let_go
        exits 0 5 "$waiter"
        [ "$(cat waiter)" = 0 ]
    done
    run -0 run_t 5 flock -xn x true
    [ ! -e ran ]
    [ "$(cat x)" = data ]
}

@test "-w ends a wait for a slot in time, and a signal ends it" {
    hold "$DLOCK" --slots 1 x
    local before
    before=$(us)
    run -75 run_t 5 "$DLOCK" -w 0.3 --slots 1 x touch ran
    assert_between 300 $((($(us) - before) / 1000)) $((400 + BUSY)) "-w 0.3 in ms"
    # nohup(1) may have started the tests, and dlock leaves an ignored HUP ignored.
    start_log waiter.log "$HELPERS/launch" -d "$DLOCK" --slots 1 x touch ran
    wait_for 5 waits x
    kill -HUP "$STARTED"
    exits 129 5 "$STARTED"
    run ! waits x
    let_go
    [ ! -e ran ]
}

@test "a slot is free only without a killed keeper's tree, and left-over processes keep none" {
    background --slots 1 x $SUBJECT -t -k
    wait_for 5 running 4
    find_guard
    start_log next "$DLOCK" --slots 1 x sh -c 'flock -sn command/witness true; echo $? >in'
    local next=$STARTED
    wait_for 5 waits x
    kill -KILL "$K"
    wait_for 5 file_nonempty in
    [ "$(cat in)" = 0 ] || final "the next holder has the slot while the tree lives"
    exits 0 5 "$next"
    wait_for 2 pid_gone "$G"
    settle 2
    # What a command leaves behind does not keep the slot.
    local inner
    for inner in env "$DLOCK -s x"; do
        run -0 run_t 5 "$DLOCK" --slots 1 x $inner \
            sh -c 'cat go >/dev/null 2>&1 & ls -l /proc/self/fd'
        refute_out "$T/x"
        run -0 run_t 5 "$DLOCK" -n --slots 1 x true
        run -0 run_t 5 "$DLOCK" -n x true
        echo >go
        settle 2
    done
}

@test "slots need a regular file of this machine that can be written" {
    local where
    run -64 preloaded nfs "$DLOCK" --slots 2 x touch ran
    assert_out "network file system (NFS)"
    run -64 run_t 5 "$DLOCK" --fcntl --slots 2 x touch ran
    says 73 "$T cannot be a lock with slots: it is not a regular file" --slots 2 "$T" touch ran
    run -73 run_t 5 "$DLOCK" --slots 2 /dev/null touch ran
    [ ! -e ran ]
    need_mounts
    open_folder
    install -m 755 "$DLOCK" "$OPEN/dlock"
    install -m 644 /dev/null "$OPEN/x"
    local needs="(slots need a file that can be read and written)"
    for where in "$OPEN/x" /proc/version; do
        run -77 run_t 5 setpriv --reuid=nobody --regid=nogroup --clear-groups \
            "$OPEN/dlock" --slots 2 "$where" true
        assert_out "cannot open the lock file $where: Permission denied $needs"
        [ "${#lines[@]}" -eq 1 ]
    done
    # A file system without exec, and one that cannot be written.
    run -0 run_t 5 unshare -m sh -c '
        mount -t tmpfs -o noexec none "$0" && cd "$0" && exec "$@"' "$OPEN" \
        "$DLOCK" -n --slots 2 x "$DLOCK" --no-reentrant -n --slots 2 x \
        sh -c 'echo $DLOCK_SLOT; ! flock -n x true'
    [ "$output" = 1 ]
    run -73 run_t 5 unshare -m sh -c '
        mount -t tmpfs none "$0" && cd "$0" && : >x && mount -o remount,ro "$0" && exec "$@"' \
        "$OPEN" "$DLOCK" -n --slots 2 x true
    assert_out "Read-only file system (slots need a file"
}

@test "works in another PID namespace and without /proc, and --status counts all" {
    [ -z "${SAN:-}" ] || return 0 # sanitizers need /proc: the plain build shows it
    need_mounts
    local no_proc=(unshare -m sh -c 'mount -t tmpfs none /proc && exec "$@"' -)
    local namespace=(unshare -fp --mount-proc)
    hold "$DLOCK" --slots 2 x
    start_log other.log "${namespace[@]}" -m --kill-child "$DLOCK" --slots 2 x \
        sh -c 'echo $DLOCK_SLOT >other; "$HELPERS/await" end'
    local other=$STARTED
    wait_for 5 test -s other
    [ "$(cat other)" = 1 ]
    local here=(env)
    for in in here namespace no_proc; do
        local -n prefix=$in
        run -75 run_t 5 "${prefix[@]}" "$DLOCK" --status x
        assert_out "x (x): held, 2 of 2 slots"
        assert_out "held (slot 0 of 2)"
        assert_out "held (slot 1 of 2)"
    done
    run -75 run_t 5 "${no_proc[@]}" "$DLOCK" -n --slots 2 x touch ran
    start_log waiter.log "${no_proc[@]}" "$DLOCK" --slots 2 x sh -c 'echo $DLOCK_SLOT'
    local waiter=$STARTED
    wait_for 5 waits x
    let_go
    exits 0 5 "$waiter"
    [ "$(cat waiter.log)" = 0 ]
    : >end
    exits 0 5 "$other"
    [ ! -e ran ]
}
