#!/usr/bin/env bats
# File locks: dlock and flock(1) exclude each other; scripts with flock(1) work with dlock, too.

load ../../support/common
load ../../support/filelock

setup() {
    filelock_setup
    DIR=file://$T
}
teardown() { filelock_teardown; }

# timed RC CMD...: $output, and $ms: how long it took.
timed() {
    local rc=$1 before
    shift
    before=$(us)
    run "-$rc" run_t 10 "$@"
    ms=$((($(us) - before) / 1000))
}
# --- flock(1) -----------------------------------------------------------------------------------

@test "dlock and flock(1) exclude each other" {
    for x in '' -e -x --exclusive; do
        hold "$DLOCK" $x x
        run -1 run_t 5 flock -n x true
        run -1 run_t 5 flock -sn x true
        let_go
        run -0 run_t 5 flock -n x true
    done
    hold flock x
    says 75 "'x' is busy: held by " -vn x touch ran
    run -75 run_t 5 "$DLOCK" -sn x touch ran
    let_go
    [ ! -e ran ]
    run -0 run_t 5 "$DLOCK" -n x true
    [ ! -s x ]
}

@test "shared locks coexist, also with those of flock(1)" {
    hold "$DLOCK" -s x
    run -0 run_t 5 flock -sn x true
    run -0 run_t 5 "$DLOCK" -sn x true
    run -1 run_t 5 flock -n x true
    run -75 run_t 5 "$DLOCK" -n x true
    let_go
    hold flock -s x
    run -0 run_t 5 "$DLOCK" -sn x true
    run -75 run_t 5 "$DLOCK" -n x true
    let_go
}

@test "the last of -s and -x wins" {
    hold flock -s x
    run -0 run_t 5 "$DLOCK" -x -s -n x true
    run -75 run_t 5 "$DLOCK" -s -x -n x true
    let_go
}

# bats test_tags=thread
@test "-n and -w fail with the code that -E says, and -w ends in time" {
    hold flock x
    run -7 run_t 5 "$DLOCK" -n -E 7 x touch ran
    run -0 run_t 5 "$DLOCK" -n -E 0 x touch ran
    run -7 run_t 5 "$DLOCK" -q -w 0.05 -E 7 x touch ran
    [ -z "$output" ]
    run -75 run_t 5 "$DLOCK" -w 0 x touch ran
    timed 75 "$DLOCK" -o -w 0.3 x touch ran
    assert_between 300 $ms $((400 + BUSY)) "-o -w 0.3 in ms"
    [ ! -e ran ]
    let_go
    run -0 run_t 5 "$DLOCK" -w 5 x true
}

@test "-c runs a line of shell" {
    run -0 run_t 5 "$DLOCK" x -c 'echo "a  b" $((1 + 2)); exit 0'
    [ "$output" = "a  b 3" ]
    run -5 run_t 5 "$DLOCK" x -c 'exit 5'
    run -0 run_t 5 "$DLOCK" -n x -c "! flock -n x true"
}

@test "-F replaces dlock by the command" {
    start_log log "$DLOCK" -F x sh -c 'echo $$ >pid; exec sleep 60'
    wait_for 5 file_nonempty pid
    [ "$(cat pid)" = "$STARTED" ]
    run -1 run_t 5 flock -n x true
    kill "$STARTED"
    wait_for 5 flock -n x true
}

@test "a background process that inherits the descriptor keeps the lock" {
    run -0 run_t 5 "$DLOCK" x sh -c 'cat go >/dev/null 2>&1 &'
    run -1 run_t 5 flock -n x true
    run -75 run_t 5 "$DLOCK" -n x true
    echo >go
    wait_for 5 flock -n x true
}

@test "with -o a background process does not keep the lock" {
    run -0 run_t 5 "$DLOCK" -o x sh -c 'cat go >/dev/null 2>&1 &'
    run -0 run_t 5 flock -n x true
    echo >go
    run -0 run_t 5 "$DLOCK" -o x sh -c 'ls -l /proc/self/fd; ! flock -n x true'
    refute_out "$T/x"
}

@test "while the command runs, the directory of a named lock stays open" {
    need_root # another process's descriptors
    hold "$DLOCK" "$DIR#named" 8</dev/zero
    wait_for 5 test ! -e "/proc/$HOLDER/fd/8" # the caller's descriptors are closed in one go
    run -0 find "/proc/$HOLDER/fd" -lname "$T"
    assert_out "/proc/$HOLDER/fd/"
    let_go
}

# bare WITHOUT CMD...: run CMD in a place without WITHOUT (dev, proc), or with 70 foreign children.
bare() {
    case $1 in
    children)
        run_t 10 bash -c 'for i in {1..70}; do sleep 30 >/dev/null 2>&1 & echo $! >>children; done
            exec "$@"' - "${@:2}"
        ;;
    *) run_t 10 unshare -m sh -c 'mount -t tmpfs none "$0" && exec "$@"' "/$1" "${@:2}" ;;
    esac
}

@test "works as flock(1) without /dev, without /proc and with 70 inherited children" {
    [ -z "${SAN:-}" ] || return 0 # sanitizers need /proc: the plain build shows it
    need_mounts
    local without why code opts
    for without in dev proc children; do
        : >children
        for opts in "-n" "-n -o" "-n -F" "-w 1 -s"; do
            [ $without != children ] || [ "$opts" = -n ] || [ "$opts" = "-n -o" ] || continue
            # Held, by the command itself or not, and its exit code.
            run -7 bare $without "$DLOCK" $opts x sh -c 'flock -n x true || exit 7'
            [ -z "$output" ] || fail "$without $opts: $output"
            run -0 run_t 5 flock -n x true
            # A signal, and what the command makes of it.
            mkfifo in
            start_log log bare $without env sh -c 'echo $$ >keeper; exec "$@"' - "$DLOCK" $opts x \
                bash -c 'trap "exit 9" TERM; echo >in; while :; do read -r x <go; done'
            read -r <in
            kill -TERM "$(cat keeper)"
            exits 9 5 "$STARTED"
            rm in
        done
        if [ $without != children ]; then
            run -75 bare $without "$DLOCK" -n x "$DLOCK" --no-reentrant -vn x true
            [[ $output == *"'x' is busy: "*"held by "* ]] || fail "$output"
            run -0 bare $without sh -c '"$0" -n 9 && "$0" -u 9 && flock -n x true' "$DLOCK" 9>x
            run -3 bare $without sh -c 'exec "$0" x sh -c "exit 3" <&- >&-' "$DLOCK"
        fi
        # A lease must be able to end all of it.
        code=71
        case $without in
        dev) why="cannot use /dev/null, which a lease needs: No such file" ;;
        proc) why="mount /proc" ;;
        children) why="Connection refused" code=69 ;; # a lease can
        esac
        run -$code bare $without "$DLOCK" redis://127.0.0.1:1#n touch ran
        assert_out "$why"
        [ "${#lines[@]}" = 1 ]
        [ ! -s children ] || kill $(cat children)
    done
    [ ! -e ran ]
    # What is missing for a tree is said where more is to be said.
    run -0 bare proc "$DLOCK" -v -o x true
    assert_out "signals go to the command only, and its descendants will not be ended: /proc"
}

# --- util-linux's own tests ---------------------------------------------------------------------
# The subtests of tests/ts/misc/flock, by their names, without the sleep of 3 s. 2.38 has six of
# them; 2.41 adds "fd" and "fcntl-vs-flock", and repeats all with --fcntl. The original:
# TS_CMD_FLOCK=dlock, CI unset.

# subtest NAME RC TEXT CMD...: RC, TEXT on stdout, and nothing on stderr.
subtest() {
    local rc=0
    run_t 10 "${@:4}" >out 2>err </dev/null || rc=$?
    [ $rc = "$2" ] && [ "$(cat out)" = "$3" ] && [ ! -s err ] || fail "$api $1: $rc, $(cat out err)"
}

@test "passes util-linux's own tests of flock(1)" {
    unset CI
    local never="You will never see this!" code="--conflict-exit-code 123" api waiter
    local echo="echo Have shared lock" both="flock vs fcntl"
    for api in '' --fcntl; do
        start_log general "$DLOCK" $api --shared lockfile \
            bash -c 'echo Locking; : >held; read x <go; echo Unlocking'
        HOLDER=$STARTED
        wait_for 5 test -e held
        # --nonblocking and --nb are in 2.41.
        for try in "non-block --nonblock" "non-block --nonblocking" \
            "no-fork --no-fork --nonblock" "exclusive --nonblock --exclusive" \
            "exclusive --nb --exclusive"; do
            subtest "${try%% *}" 123 "" "$DLOCK" $api ${try#* } $code lockfile echo "$never"
        done
        subtest shared 0 "Have shared lock" "$DLOCK" $api --shared lockfile $echo
        exec 4<>lockfile
        subtest fd 123 "" "$DLOCK" $api --nonblocking --exclusive $code 4
        exec 4>&-
        [ ! -e 4 ]
        [ -z "$api" ] ||
            subtest fcntl-vs-flock 0 "$both" "$DLOCK" --nonblock --exclusive lockfile echo "$both"
        # timeout and time-check: not before the holder has ended, and then soon.
        start_log waiter "$DLOCK" $api --timeout 5 --conflict-exit-code 5 lockfile \
            echo "After timeout."
        waiter=$STARTED
        wait_for 5 queued lockfile
        [ ! -s waiter ]
        let_go
        exits 0 5 "$waiter"
        [ "$(cat waiter)" = "After timeout." ]
        [ "$(cat general)" = $'Locking\nUnlocking' ]
        rm held
    done
}

# --- the descriptor form ------------------------------------------------------------------------

@test "dlock locks the caller's descriptor" {
    (
        "$DLOCK" -n 9 || exit 1
        run -1 flock -n x true
        run -75 "$DLOCK" -n x true
        "$DLOCK" -s -n 9 # a conversion, as with flock(1)
        flock -sn x true
        run -1 flock -n x true
        "$DLOCK" -u 9
        flock -n x true
    ) 9>x
    flock -n x true
}

# bats test_tags=thread
@test "-n, -E, -w and signals work with a descriptor" {
    hold flock x
    exec 8>x
    says 75 "descriptor 8 is busy: held by " -vn 8
    assert_out "(flock x"
    run -75 run_t 5 "$DLOCK" -n 8
    [ -z "$output" ]
    run -7 run_t 5 "$DLOCK" -q -E 7 -n 8
    [ -z "$output" ]
    timed 75 "$DLOCK" -w 0.3 8
    assert_between 300 $ms $((400 + BUSY)) "-w 0.3 in ms"
    assert_out "descriptor 8 is still busy after 300ms: held by "
    assert_out "(flock x"
    CI=1 start_log progress.log "$DLOCK" 8
    wait_for 5 file_has progress.log $'\n' # a whole line
    local line
    line=$(cat progress.log)
    [[ $line == "dlock: waiting for descriptor 8: 1s; held by "*", pid $HOLDER (flock x"*")" ]] ||
        fail "$line"
    progress=$STARTED
    start_log waiter.log "$DLOCK" 8
    wait_for 5 queued x
    kill -TERM "$STARTED"
    exits 143 5 "$STARTED"
    start_log waiter.log "$DLOCK" -w 5 8
    wait_for 5 queued x
    let_go
    wait_exit 5 "$STARTED"
    wait_exit 5 "$progress"
    file_has progress.log $'\ndlock: got descriptor 8 after '
    run -1 run_t 5 flock -n x true
    exec 8>&-
    run -0 run_t 5 flock -n x true
}

@test "a wait with a descriptor can be stopped and continued" {
    hold flock x
    exec 8>x
    start_log waiter.log "$DLOCK" 8
    wait_for 5 queued x
    kill -TSTP "$STARTED"
    wait_for 5 pid_stopped "$STARTED"
    kill -CONT "$STARTED"
    let_go
    exits 0 5 "$STARTED"
    run -75 run_t 5 "$DLOCK" -n x true
}

@test "--status N is the open file with that descriptor, else a file of that name" {
    exec 8>x
    run -0 run_t 5 "$DLOCK" --status 8
    [ "$output" = "descriptor 8 ($T/x): free" ]
    hold flock x
    says 75 "descriptor 8 ($T/x): held" --status 8
    assert_out ", pid $HOLDER (flock x"
    run -75 run_t 5 "$DLOCK" --status --json 8
    assert_out "\"lock\":\"descriptor 8\",\"store\":\"$T/x\",\"state\":\"held\""
    # Its path may name another file by now.
    mv x y
    : >x
    run -75 run_t 5 "$DLOCK" --status 8
    exec 8>&-
    says 0 "8 (8): free" --status 8
    let_go
}

@test "refuses a descriptor that is not open" {
    for fd in 3 7 77; do
        for u in '' -u; do
            # (bats keeps 3 for itself)
            run -64 run_t 5 sh -c 'exec 3>&- 7>&-; exec "$0" '"$u $fd" "$DLOCK"
            assert_out "descriptor $fd"
            [ ${#lines[@]} -eq 1 ]
        done
    done
}

# --- which files --------------------------------------------------------------------------------

@test "a directory, a symbolic link and a script can be locks" {
    mkdir d
    run -1 run_t 5 "$DLOCK" d flock -n d true
    ln -s target link
    run -1 run_t 5 "$DLOCK" link flock -n target true
    [ -L link ]
    printf '#!/bin/sh\nexec "$DLOCK" --no-reentrant -n "$0" true\n' >script
    chmod +x script
    run -0 run_t 5 ./script
    run -75 run_t 5 "$DLOCK" script ./script
}

@test "a read-only file system needs an existing lock file" {
    need_mounts
    mkdir ro
    run -0 run_t 10 unshare -m sh -e -c '
        mount -t tmpfs none ro
        : >ro/x
        mount -o remount,ro ro
        "$DLOCK" -n ro/x sh -c "! flock -n ro/x true"
        rc=0; "$DLOCK" -n ro/new true || rc=$?
        test $rc -eq 73'
    assert_out "ro/new"
}

@test "warns once of a lock file on NFS" {
    mkdir locks
    for lock in x.lock "file://$T/locks#n"; do
        run -0 preloaded nfs "$DLOCK" "$lock" sh -c 'echo ran'
        [ "${#lines[@]}" = 2 ]
        [[ ${lines[0]} == "dlock: "*"network file system (NFS)"*"local_lock"* ]] || fail "$output"
        [ "${lines[1]}" = ran ]
        run -0 run_t 5 "$DLOCK" "$lock" true # it is the file system, not the lock
        [ -z "$output" ]
        run -75 preloaded nfs "$DLOCK" -q "$lock" "$DLOCK" --no-reentrant -q -n "$lock" true
        refute_out ran
    done
    # A wait says it once, too.
    hold "$DLOCK" x.lock
    run -75 preloaded nfs "$DLOCK" -w 0.2 x.lock touch ran
    [ "$(grep -c NFS <<<"$output")" = 1 ]
    # Where /proc/locks is not believed --status tries the lock.
    run -75 preloaded nfs "$DLOCK" --status x.lock
    assert_out held
    let_go
    run -0 preloaded nfs "$DLOCK" --status x.lock
    assert_out free
    [ ! -e ran ]
}

# on_block CMD...: the file x is a block device (preload/block_device.c), and refuses a writer.
on_block() { BLOCK=${BLOCK:-x} preloaded block_device "$@"; }

@test "a block device can be a lock, is opened to read and not written to" {
    echo text >x
    chmod 640 x
    for opts in -n "-n -s" "-n -o" "-n -F"; do
        run -7 on_block "$DLOCK" $opts x env -u LD_PRELOAD sh -c 'flock -n x true || exit 7'
        [ -z "$output" ]
    done
    hold flock x
    run -75 on_block "$DLOCK" -vn x touch ran
    assert_out ", pid $HOLDER ("
    run -75 on_block "$DLOCK" --status x
    let_go
    [ "$(cat x)" = text ]
    [ "$(stat -c %a x)" = 640 ]
    # Not the file of a named lock.
    ln x n.lock
    BLOCK=n.lock run -73 on_block "$DLOCK" "$DIR#n" touch ran
    assert_out "n.lock cannot be a lock: it is not a regular file"
    [ ! -e ran ]
    # A refusal that has NFS opened to write.
    [ -z "${SAN:-}" ] && command -v strace >/dev/null || return 0
    run -71 on_block strace -o trace.log -e trace=flock -e inject=flock:error=EBADF \
        "$DLOCK" -n x touch ran
    assert_out "cannot lock x"
    # A real one, where we may make one: its node is the lock.
    mknod disk b 7 0 2>/dev/null && { : <disk; } 2>/dev/null || return 0
    run -7 run_t 5 strace -f -o trace.log -e trace=openat \
        "$DLOCK" -n disk sh -c 'flock -n disk true || exit 7'
    grep -q '"disk", O_RDONLY' trace.log
    run ! grep -E '"disk", O_(WRONLY|RDWR)' trace.log
}

# bats test_tags=thread
@test "-v tells which file the lock is, and how long it took to get the lock" {
    local after='after [0-9.]+ ms$'
    ln -s x link
    run -0 --separate-stderr run_t 5 "$DLOCK" -v link echo ran
    [ "$output" = ran ]
    [[ $stderr =~ ^"dlock: the lock is the file $T/x"$'\n'"dlock: got 'link' "$after ]] ||
        fail "$stderr"
    for opts in -F -o "-w 5"; do
        run -0 run_t 5 "$DLOCK" -v $opts "$DIR#n" true
        [ "${lines[0]}" = "dlock: the lock is the file $T/n.lock" ]
        [[ ${lines[1]} =~ ^"dlock: got 'n' "$after ]] || fail "$output"
    done
    run -0 run_t 5 "$DLOCK" -qv x true
    [ -z "$output" ]
    exec 8>x
    run -0 run_t 5 "$DLOCK" -v 8
    [[ $output =~ ^"dlock: descriptor 8 is $T/x"$'\n'"dlock: got descriptor 8 "$after ]] ||
        fail "$output"
    run -0 run_t 5 "$DLOCK" -vu 8
    [ -z "$output" ]
    hold flock x
    start_log waiter.log "$DLOCK" -v x true
    waiter=$STARTED
    wait_for 5 queued x
    nap 0.1
    let_go
    exits 0 5 "$waiter"
    after=$(sed -n "s/^dlock: got 'x' after \([0-9]*\) ms$/\1/p" waiter.log)
    [ "$after" -ge 90 ] || fail "$(cat waiter.log)"
}

@test "refuses a FIFO, a device and a socket without opening them" {
    mkfifo fifo
    timed 73 "$DLOCK" fifo touch ran
    assert_out "fifo"
    assert_between 0 $ms 500 "refusal in ms"
    run -73 run_t 5 "$DLOCK" /dev/null touch ran
    assert_out "/dev/null cannot be a lock: it is not a regular file, directory or block device"
    /usr/bin/python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("sock")'
    run -73 run_t 5 "$DLOCK" sock touch ran
    says 73 "none/x" none/x touch ran
    [ ! -e ran ]
}

# lease FILE: a process has a lease on the file, as Samba has for a client, and ignores requests to
# give up the lease until `echo >go`.
lease() {
    rm -f leased
    start_log lease.log /usr/bin/python3 -c '
import fcntl, os, signal, sys
signal.signal(signal.SIGIO, lambda *_: open("asked", "w").close())
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
open("leased", "w").close()
open("go").read()
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
while True: signal.pause()' "$1"
    LEASE=$STARTED
    wait_for 5 test -e leased || fail "$(cat lease.log)"
}

# bats test_tags=thread
@test "a lease on the file is waited for like the lock" {
    lease x
    says 75 ", pid $LEASE (" --status x
    [ ! -e asked ]
    CI=1 timed 75 "$DLOCK" -n x touch ran
    assert_between 0 $ms $((150 + BUSY)) "-n in ms"
    [[ $output == "dlock: 'x' is busy: held "*"pid $LEASE (/usr/bin/python3 "* ]] || fail "$output"
    wait_for 5 test -e asked
    run -75 run_t 5 "$DLOCK" -vn x touch ran
    assert_out "cannot open the lock file x: another process has a lease on the file (F_SETLEASE)"
    says 75 ", pid $LEASE (" --status x # the kernel has asked for it
    timed 75 "$DLOCK" -w 0.3 x touch ran
    assert_between 300 $ms $((400 + BUSY)) "-w 0.3 in ms"
    assert_out "'x' is still busy after 300ms: held "
    assert_out ", pid $LEASE ("
    [ ! -e ran ]
    start_log waiter.log "$DLOCK" -v x flock -n x true
    waiter=$STARTED
    wait_for 5 grep -q "a lease on the file" waiter.log
    run -143 run_t 5 timeout --foreground --preserve-status 0.1 "$DLOCK" x touch ran # a signal
    echo >go
    exits 1 5 "$waiter"
}

@test "a lease on the fence is waited for without the lock" {
    run_t 5 "$DLOCK" "$DIR#n" true
    lease n.fence
    run -75 run_t 5 "$DLOCK" -vn "$DIR#n" touch ran
    assert_out "fencing token in $T/n.fence: another process has a lease on the file (F_SETLEASE)"
    start_log waiter.log "$DLOCK" -v "$DIR#n" true
    waiter=$STARTED
    wait_for 5 grep -q "a lease on the file" waiter.log
    wait_for 5 flock -n n.lock true
    echo >go
    exits 0 5 "$waiter"
    [ ! -e ran ]
}

# need_nobody: $OPEN, and as_nobody CMD...
need_nobody() {
    need_root
    open_folder
    as_nobody "$DLOCK" --version >/dev/null || skip "nobody cannot run $DLOCK"
}
as_nobody() { run_t 5 setpriv --reuid=nobody --regid=nogroup --clear-groups "$@"; }

@test "a read-only file can be a lock" {
    need_nobody
    echo text >"$OPEN/x"
    chmod 444 "$OPEN/x"
    run -1 as_nobody "$DLOCK" "$OPEN/x" flock -n "$OPEN/x" true
    # Somebody else's file in a sticky directory, where the kernel refuses O_CREAT.
    chmod 1777 "$OPEN"
    chmod 666 "$OPEN/x"
    run -1 as_nobody "$DLOCK" "$OPEN/x" flock -n "$OPEN/x" true
    [ "$(cat "$OPEN/x")" = text ]
}

@test "refuses a file without permission" {
    need_nobody
    mkdir -m 700 "$OPEN/secret"
    : >"$OPEN/secret/x"
    : >"$OPEN/x"
    chmod 600 "$OPEN/x"
    for lock in x secret/x new; do
        run -77 as_nobody "$DLOCK" -n "$OPEN/$lock" true
        assert_out "$OPEN/$lock"
        [ ${#lines[@]} -eq 1 ]
    done
    run -77 as_nobody "$DLOCK" -n "file://$OPEN#n" true
    assert_out "$OPEN/n.lock"
    # The lock may be taken, the fence not be written: then it is let go.
    : >"$OPEN/n.lock"
    run -77 as_nobody "$DLOCK" -n "file://$OPEN#n" true
    assert_out "n.fence"
    run -0 flock -n "$OPEN/n.lock" true
}

# One for signals, one for the lock. With a guard: eleven.
@test "needs five or eleven descriptors, and runs nothing with fewer" {
    [ -z "${SAN:-}" ] || return 0 # sanitizers need descriptors: the plain build shows it
    local opts least n
    for opts in 5: 5:-F 11:-o 11:--slots=2; do
        least=${opts%%:*} opts=${opts#*:}
        for n in 4 6 8 10; do
            [ $n -lt "$least" ] || continue
            run -71 few_fds $n "$DLOCK" $opts x touch ran
            run -0 run_t 5 "$DLOCK" -n x true
        done
        [ ! -e ran ]
        run -0 few_fds "$least" "$DLOCK" $opts x touch ran
        rm ran
    done
}

# --- named locks --------------------------------------------------------------------------------

@test "only a named lock's fence is in the environment" {
    local last
    last=$(run_t 5 "$DLOCK" "$DIR#n" sh -c 'echo $DLOCK_FENCE')
    [ "$last" -gt 1700000000000000 ]
    run -0 run_t 5 env DLOCK_FENCE=1 "$DLOCK" x sh -c 'echo "${DLOCK_FENCE-unset}"'
    [ "$output" = unset ]
    # A shared holder has the last one, and none before there was one.
    run -0 run_t 5 "$DLOCK" -s "$DIR#n" sh -c 'echo "${DLOCK_FENCE-unset}"'
    [ "$output" = "$last" ]
    run -0 run_t 5 "$DLOCK" -s "$DIR#never" sh -c 'echo "${DLOCK_FENCE-unset}"'
    [ "$output" = unset ]
    [ "$(ls -A | grep -c fence)" -eq 1 ]
    [ -z "$(ls -A | grep dlock- || :)" ]
    # No digit gets lost.
    echo "dlock-fence1 9007199254740992 0123456789abcdef0123456789abcdef" >n.fence
    run -0 run_t 5 "$DLOCK" "$DIR#n" sh -c 'echo "$DLOCK_FENCE"'
    [ "$output" = 9007199254740993 ]
}

@test "named lock files are private" {
    umask 022
    run_t 5 "$DLOCK" "$DIR#n" true
    [ "$(stat -c %a n.lock)" = 640 ]
    [ "$(stat -c %a n.fence)" = 640 ]
}

# sh -c "$USE_UP" - FILE: the next fence is above the limit, and is written by rename.
export USE_UP='f=$(sed -n "1s/^dlock-fence1 \([0-9]*\).*/\1/p" "$1")
    t=$(sed "s/^until [0-9]*/until $f/" "$1"); printf "%s\n" "$t" >"$1"'

@test "a full disk leaves the lock free and no file behind" {
    need_mounts
    mkdir full
    run -0 run_t 20 unshare -m sh -e -c '
        mount -t tmpfs -o size=16k,nr_inodes=3 none full
        "$DLOCK" -n "$1#n" true
        "$DLOCK" -n "$1#n" true
        sh -c "$USE_UP" - full/n.fence
        rc=0; "$DLOCK" -n "$1#n" touch ran || rc=$?
        test $rc -eq 73
        flock -n full/n.lock true
        rc=0; "$DLOCK" -n full/bare touch ran || rc=$?
        test $rc -eq 73
        "$DLOCK" -n full/n.lock true
        ls -A full
        mount -o remount,nr_inodes=10 full
        head -c 20000 /dev/zero >full/fill 2>/dev/null || :
        rc=0; "$DLOCK" -n "$1#n" touch ran || rc=$?
        test $rc -eq 73
        ls -A full' sh "file://$T/full"
    assert_out "n.fence" "cannot open the lock file full/bare: No space left"
    refute_out ".dlock-"
    [ ! -e ran ]
}

# inject CALL EFFECT K: dlock -F on the named lock, where the K-th CALL goes wrong.
inject() {
    run_t 10 strace -f -o trace.log -e "trace=$1" -e "inject=$1:$2:when=$3" \
        "$DLOCK" -F "$DIR#n" sh -c 'echo $DLOCK_FENCE'
}
need_strace() { command -v strace >/dev/null || skip "no strace"; }

@test "a kill while the fence is written does not harm the next holder" {
    [ -z "${SAN:-}" ] || return 0 # no strace with LeakSanitizer: the plain build shows it
    need_strace
    local last=0 fence killed=0 step rc
    run_t 5 "$DLOCK" "$DIR#n" true
    for step in pwrite64:1 openat:{1..9} flock:1 write:1 fsync:1 close:{1..6} unlinkat:1 \
        renameat:1; do
        rc=0
        [ "$step" = pwrite64:1 ] || sh -c "$USE_UP" - n.fence
        inject "${step%:*}" signal=SIGKILL "${step#*:}" >/dev/null 2>&1 || rc=$?
        [ $rc -ne 137 ] || killed=$((killed + 1))
        fence=$(run_t 5 "$DLOCK" -n "$DIR#n" sh -c 'echo $DLOCK_FENCE')
        [ "$fence" -gt "$last" ] || fail "$step: $fence after $last"
        last=$fence
        [ -z "$(find . -name '.dlock-*')" ] || fail "$step: a temporary file is left"
    done
    [ $killed -ge 12 ]
}

@test "an error while the fence is written frees the lock" {
    [ -z "${SAN:-}" ] || return 0 # no strace with LeakSanitizer: the plain build shows it
    need_strace
    local step
    run_t 5 "$DLOCK" "$DIR#n" true
    # In place is quick; by rename is what counts.
    run -0 inject pwrite64 error=EIO 1
    grep -q INJECTED trace.log
    sh -c "$USE_UP" - n.fence
    cp n.fence before
    for step in write:ENOSPC write:EIO fsync:EIO fsync:EDQUOT renameat:EIO; do
        run -73 inject "${step%:*}" "error=${step#*:}" 1
        assert_out "n.fence"
        [ ${#lines[@]} -eq 1 ]
        cmp n.fence before
        [ -z "$(find . -name '.dlock-*')" ]
        flock -n n.lock true
    done
    run -0 inject fsync error=EINTR 2
    run -71 inject flock error=ENOLCK 1
    assert_out "n.lock"
}

# --- the holder ---------------------------------------------------------------------------------

# calls ARG...: run dlock under strace; $calls: the number of system calls, $looked: whether dlock
# looked for the holder.
calls() {
    run -75 run_t 10 strace -f -o trace.log "$DLOCK" "$@"
    calls=$(wc -l <trace.log)
    looked=$(grep -c '"/proc/locks"' trace.log || :)
}

@test "looks for the holder only when a line names it, and not for long" {
    [ -z "${SAN:-}" ] || return 0 # no strace with LeakSanitizer: the plain build shows it
    need_strace
    need_root # dlock's memory is closed to another one's strace, so no path would be in the trace
    # It has the file open so often that to look at each descriptor takes 11 000 calls.
    start_log holder.log /usr/bin/python3 -c '
import fcntl, os, resource
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
fds = [os.open("x", os.O_RDWR | os.O_CREAT) for i in range(1900)]
fcntl.flock(fds[-1], fcntl.LOCK_EX)
open("held", "w").close()
open("go").read()'
    HOLDER=$STARTED
    wait_for 5 test -e held
    exec 8>x
    for how in "-n x true" "-w 0.1 x true" "-n 8" "-w 0.1 8"; do
        calls -q $how
        assert_between 1 "$calls" 250 "system calls of -q $how"
        [ "$looked" = 0 ]
        [ -z "$output" ]
        CI=1 calls $how
        assert_out ", pid $HOLDER (/usr/bin/python3"
        assert_between 1 "$calls" 2500 "system calls of $how"
        [ "$looked" = 1 ]
    done
    # A wait that nobody reads about, and one that does not last.
    start_log waiter.log strace -f -o trace.log "$DLOCK" -v x true
    waiter=$STARTED
    wait_for 5 queued x
    : >go &
    wait_exit 5 "$waiter"
    run ! grep -q '"/proc/locks"' trace.log
    [ "$(grep -c 'held by' waiter.log)" = 0 ]
}

# --- status -------------------------------------------------------------------------------------

@test "--status names the holder and changes nothing" {
    # A typo is not taken for a free lock, and makes no file.
    run -0 run_t 5 "$DLOCK" --status ./typo
    [ "$output" = "./typo (./typo): free (no such file)" ]
    for lock in "$T/none/x" "$DIR#typo" "file://$T/none#n"; do
        run -0 run_t 5 "$DLOCK" --status "$lock"
        [[ $output == *": free (no such file)" ]]
        says 0 '"state":"free","reason":"no such file","holders":[]' --status --json "$lock"
    done
    [ -z "$(ls | grep -e typo -e none)" ]
    : >there
    for opt in '' --json; do
        run -0 run_t 5 "$DLOCK" --status $opt there
        refute_out "such file"
    done
    hold "$DLOCK" --note "the nightly run" "$DIR#n"
    says 75 "$HOLDER" --status "$DIR#n"
    assert_out "the nightly run"
    let_go
    # The record stays; the kernel says that it is free.
    run -0 run_t 5 "$DLOCK" --status "$DIR#n"
    hold flock x
    says 75 "flock x" --status x
    let_go
}

# shell_holds: a shell has the lock x by a descriptor; the dlock that took the lock has ended.
shell_holds() {
    start_log holder.log bash -c '"$0" 9 && echo >held && read x <go' "$DLOCK" 9>x
    HOLDER=$STARTED
    wait_for 5 test -e held
}
# held_by PID WORD: --status and a refusal name that process, and show its command.
held_by() {
    for how in "--status $3" "-vn $3 true"; do
        says 75 ", pid $1 (" $how
        assert_out "$2"
    done
}

@test "names a process that has the lock now, not one that has ended" {
    shell_holds
    held_by "$HOLDER" bash x
    let_go
    run -0 run_t 5 "$DLOCK" --status x
    # A command's background process.
    run -0 run_t 5 "$DLOCK" --note nightly "$DIR#n" sh -c 'cat go >/dev/null 2>&1 & echo $! >pid'
    is_cat() { [ "$(tr '\0' ' ' <"/proc/$(cat pid)/cmdline")" = "cat go " ]; }
    wait_for 5 is_cat
    held_by "$(cat pid)" "cat go" "$DIR#n"
    assert_out ', note "nightly"'
    echo >go
    wait_for 5 flock -n n.lock true
}

@test "in a PID namespace, too, the process that has the lock now is named" {
    need_pid_namespace
    start_log holder.log unshare --pid --fork --mount-proc --kill-child sh -c '
        flock x sh -c "echo >held; read x <go" &
        until [ -e held ]; do sleep 0.01; done
        kill -KILL $!
        wait $!
        "$DLOCK" --status x >status
        "$DLOCK" --break --yes x >break 2>&1
        echo $? >>break'
    exits 0 10 "$STARTED"
    grep -q 'held by .*, pid [0-9]* (sh -c echo >held' status || fail "$(cat status)"
    [ "$(tail -n 1 break)" = 0 ] || fail "$(cat break)"
}

@test "a holder that nobody may look into has no pid once the locker has ended" {
    need_root
    chmod 755 "$T"
    shell_holds
    run -75 run_t 5 setpriv --reuid 65534 --clear-groups "$DLOCK" --status x
    # In a PID namespace /proc/locks lacks the lock: dlock finds only that the file is locked.
    assert_out "held by a"
    refute_out "pid"
    let_go
}

@test "a locker that has ended is not named before its parent has asked for it, either" {
    need_root
    chmod 755 "$T"
    mkfifo lock
    start_log holder.log bash -c '
        exec 9>x; (read -r <lock; exec "$0" 9) & echo $! >pid; exec sleep 60' "$DLOCK"
    is_sleep() { grep -qz '^sleep' "/proc/$STARTED/cmdline"; }
    is_zombie() { grep -q '^State:.Z' "/proc/$(cat pid)/status"; }
    wait_for 5 is_sleep
    echo >lock
    wait_for 5 is_zombie
    run -75 run_t 5 setpriv --reuid 65534 --clear-groups "$DLOCK" --status x
    assert_out "held by a process that cannot be seen from here"
    kill "$STARTED"
    wait_for 5 flock -n x true
}

@test "--status tells when the holder got the lock and how long it had waited" {
    hold "$DLOCK" "$DIR#n"
    start_log waiter "$DLOCK" "$DIR#n" true
    wait_for 5 waits "$DIR#n"
    # As if the wait had been long, and over three days ago.
    since=$(($(date +%s) - 3 * 86400 - 5))
    sed -i "s/ since=[0-9]* waited=[0-9]* / since=${since}123 waited=200000 /" n.fence
    run -75 run_t 5 "$DLOCK" --status "$DIR#n"
    assert_out "since $(date -d "@$since" '+%F %T') +0000 ("
    assert_out " ago, waited 3m20s)"
    run -75 run_t 5 "$DLOCK" --status --json "$DIR#n"
    assert_out "\"since_ms\":${since}123,\"waited_ms\":200000"
    run -75 run_t 5 "$DLOCK" -vn "$DIR#n" true
    [[ $output == *"is busy: held for 3d"*" by "*", pid $HOLDER (sh"*")" ]] || fail "$output"
    # The waiter has none: its wait goes on.
    [ "$("$DLOCK" --status --json "$DIR#n" | grep -o waited_ms | wc -l)" = 1 ]
    let_go
}

@test "says that the lock file was removed during the run" {
    local says="was removed or replaced during the run: another run may have been beside this one"
    for lock in x "-o x" "$DIR#n" "-x --also $DIR#m x"; do
        # shellcheck disable=SC2086
        run -3 run_t 5 "$DLOCK" $lock sh -c 'rm -f x n.lock; exit 3'
        assert_out "$says"
        [ "$(wc -l <<<"$output")" = 1 ]
        # shellcheck disable=SC2086
        run -0 run_t 5 "$DLOCK" -q $lock rm -f x n.lock
        [ -z "$output" ]
        # shellcheck disable=SC2086
        run -0 run_t 5 "$DLOCK" $lock true
        [ -z "$output" ]
    done
}

@test "a run that makes the file tells who holds a removed one" {
    hold flock -F x
    rm x
    run -0 run_t 5 env -u CI "$DLOCK" x true
    [ -z "$output" ]
    rm x
    CI=1 run -0 run_t 5 "$DLOCK" x true
    assert_out "the lock file x is new: pid $HOLDER (sh) holds a removed one, and both run now: let"
    # The file is there now.
    CI=1 run -0 run_t 5 "$DLOCK" x true
    [ -z "$output" ]
    let_go
    rm x
    CI=1 run -0 run_t 5 "$DLOCK" x true
    [ -z "$output" ]
}

@test "--status copes with a holder in another PID namespace" {
    need_pid_namespace
    hold "$DLOCK" --note "seen from inside" "$DIR#n"
    run -75 run_t 5 unshare -p -f --mount-proc "$DLOCK" --status "$DIR#n"
    assert_out "seen from inside"
    run -75 run_t 5 unshare -p -f --mount-proc "$DLOCK" -n "$DIR#n" true
    let_go
    run -0 run_t 5 unshare -p -f --mount-proc "$DLOCK" --status "$DIR#n"
}

@test "says unknown, not foreign, of a bare file's holder in another PID namespace" {
    need_pid_namespace
    for holder in "$DLOCK" flock; do
        hold "$holder" x
        run -75 run_t 5 unshare -p -f --mount-proc "$DLOCK" --status x
        assert_out "held by a process that cannot be seen from here"
        refute_out "not dlock"
        run -75 run_t 5 unshare -p -f --mount-proc "$DLOCK" --status --json x
        assert_out '"kind":"unknown"'
        let_go
    done
    hold flock -F x
    run -75 run_t 5 "$DLOCK" --status --json x
    assert_out '"kind":"foreign"'
    let_go
}
