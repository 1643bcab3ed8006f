#!/usr/bin/env bats
# --fcntl: locks that exclude fcntl(2) locks, and not flock(1). The foreign program is in Python.

load ../../support/common
load ../../support/filelock

setup() { filelock_setup; }
teardown() { filelock_teardown; }

# other posix|ofd r|w FILE [CMD...]: that program; exit code 1: the lock is held.
other() { run_t 5 /usr/bin/python3 "$ROOT/tests/support/helpers/fcntl_lock.py" "$@"; }
hold_other() { hold /usr/bin/python3 "$ROOT/tests/support/helpers/fcntl_lock.py" "$@"; }

@test "--fcntl excludes fcntl(2) locks of both kinds, and not flock(1)" {
    for opts in "" -o "-w 5"; do
        hold "$DLOCK" --fcntl $opts x
        grep -q "OFDLCK .* WRITE .*:$(stat -c %i x) 0 EOF" /proc/locks
        for kind in posix ofd; do
            run -1 other $kind w x
            run -1 other $kind r x
        done
        run -75 run_t 5 "$DLOCK" --fcntl -n x touch ran
        run -75 run_t 5 "$DLOCK" --fcntl -sn x touch ran
        run -0 run_t 5 flock -n x true
        run -0 run_t 5 "$DLOCK" -n x true
        let_go
        run -0 other ofd w x
    done
    [ ! -e ran ]
    [ ! -s x ]
    for kind in posix ofd; do
        hold_other $kind w x
        run -75 run_t 5 "$DLOCK" --fcntl -n x touch ran
        run -75 run_t 5 "$DLOCK" --fcntl -sn x touch ran
        run -7 run_t 5 "$DLOCK" --fcntl -E 7 -w 0.05 x touch ran
        run -0 run_t 5 "$DLOCK" -n x true
        let_go
    done
    [ ! -e ran ]
    run -0 run_t 5 "$DLOCK" --fcntl -n x true
}

@test "shared --fcntl locks coexist, and -F keeps the lock" {
    hold "$DLOCK" --fcntl -s -F x
    [ ! "/proc/$HOLDER/exe" -ef "$DLOCK" ]
    run -0 run_t 5 "$DLOCK" --fcntl -sn x true
    run -0 other posix r x
    run -75 run_t 5 "$DLOCK" --fcntl -n x true
    run -1 other posix w x
    let_go
    run -0 run_t 5 "$DLOCK" --fcntl -n x true
}

# bats test_tags=thread
@test "a descriptor is waited for with --fcntl, and unlocked" {
    hold_other ofd w x
    exec 8<>x
    run -75 run_t 5 "$DLOCK" --fcntl -w 0.2 8
    start_log waiter.log "$DLOCK" --fcntl 8
    wait_for 5 queued x
    let_go
    exits 0 5 "$STARTED"
    run -1 other posix r x
    run -0 run_t 5 "$DLOCK" -u 8 # of flock(2): it changes nothing here
    run -1 other posix r x
    run -0 run_t 5 "$DLOCK" --fcntl -u 8
    run -0 other posix w x
    exec 8>&-
}

@test "--fcntl names what it cannot lock" {
    # A directory cannot be written. It can be shared.
    run -73 run_t 5 "$DLOCK" --fcntl . true
    local needs="(an exclusive fcntl(2) lock needs a file that can be written)"
    assert_out "cannot open the lock file .: Is a directory $needs"
    run -0 run_t 5 "$DLOCK" --fcntl -s . true
    # A descriptor must be open the right way.
    : >x
    exec 7<x 8>x
    says 64 "--fcntl" --fcntl 7
    run -0 run_t 5 "$DLOCK" --fcntl -s 7
    run -0 run_t 5 "$DLOCK" --fcntl -u 7
    run -64 run_t 5 "$DLOCK" --fcntl -s 8
    run -0 run_t 5 "$DLOCK" --fcntl 8
    exec 7<&- 8>&-
    # Dlock's own files, whose holders must all exclude each other; and stores that are no file.
    for lock in "file://$T#n" @n redis://127.0.0.1:1#n; do
        DLOCK_STORE=$T run -64 run_t 5 "$DLOCK" --fcntl "$lock" touch ran
        DLOCK_STORE=$T run -64 run_t 5 "$DLOCK" --fcntl --status "$lock"
    done
    [ ! -e ran ]
    [ ! -e n.lock ]
    # The file of a URI is a file.
    run -0 run_t 5 "$DLOCK" --fcntl "file://$T/x" true
    if [ "$EUID" = 0 ]; then
        chmod 755 . && chmod 444 x
        run -77 run_t 5 setpriv --reuid=54321 --regid=54321 --clear-groups "$DLOCK" --fcntl x true
        assert_out "Permission denied $needs"
        run -0 run_t 5 setpriv --reuid=54321 --regid=54321 --clear-groups "$DLOCK" --fcntl -s x true
    fi
}

@test "--status --fcntl names the holder of an fcntl(2) lock" {
    for kind in posix ofd; do
        hold_other $kind w x
        run -0 run_t 5 "$DLOCK" --status x
        says 75 ", pid $HOLDER (/usr/bin/python3 " --fcntl --status x
        says 75 "pid $HOLDER (/usr/bin/python3 " -v --fcntl -n x true
        let_go
    done
    # Of two open files nothing tells whose lock is which: one process is named, for one of them.
    hold "$DLOCK" --fcntl -s x
    start_log second.log "$DLOCK" --fcntl -s x sh -c 'echo >held2; read x <go'
    wait_for 5 test -e held2
    run -75 run_t 5 "$DLOCK" --fcntl --status x
    [ "$(grep -c "held (shared) by .*, pid " <<<"$output")" = 1 ]
    [ "$(grep -c "held (shared) by a" <<<"$output")" = 1 ]
    # Two readers: the second line must not wait for one of them to open the fifo.
    exec 9<>go
    printf '\n\n' >&9
    exits 0 5 "$STARTED"
    wait_exit 5 "$HOLDER"
    exec 9>&-
    run -0 run_t 5 "$DLOCK" --fcntl --status x
    # In another PID namespace, where /proc/locks is not believed to be complete.
    if [ "$EUID" = 0 ] && unshare -pf --mount-proc true 2>/dev/null; then
        hold_other posix r x
        run -75 run_t 10 unshare -pf --mount-proc "$DLOCK" --fcntl --status x
        assert_out "held (shared)"
        let_go
        run -0 run_t 10 unshare -pf --mount-proc "$DLOCK" --fcntl --status x
        run -0 other posix w x
    fi
}
