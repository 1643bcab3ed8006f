#!/usr/bin/env bats
# list.bats - --list of a folder of lock files, and the names for completions.

load ../../support/common
load ../../support/filelock

setup() { folder_setup; }
teardown() { filelock_teardown; }

lists() { run -0 run_t 5 "$DLOCK" --list "${@:-$DIR}"; }
# waiting NAME: a dlock waits for the lock.
waiting() {
    start_log waiter.log "$DLOCK" "$DIR#$1" true
    wait_for 5 waits "$DIR#$1"
}

@test "lists who holds which lock, sorted, and not the free ones" {
    "$DLOCK" "$DIR#free" true
    hold "$DLOCK" --note "disk 2" "$DIR#web/deploy"
    first=$HOLDER
    waiting web/deploy
    start_log b.log flock -F locks/b.lock sleep 60
    wait_for 5 queued_or_held locks/b.lock
    lists
    [ "${#lines[@]}" = 2 ] || fail "$output"
    [[ ${lines[0]} == "b           held: "*", pid $STARTED (sleep 60)" ]] ||
        fail "$output"
    line="web/deploy  held, 1 waiting, fence "
    [[ ${lines[1]} == "$line"*": "*", pid $first (sh"*', note "disk 2"' ]] ||
        fail "$output"
    HOLDER=$first
    let_go
}
queued_or_held() { grep -q ":$(stat -c %i "$1") " /proc/locks; }

@test "lists shared holders and slots with their number" {
    for i in 1 2; do start_log "s$i" "$DLOCK" -s "$DIR#read" sleep 60; done
    for i in 1 2 3; do start_log "n$i" "$DLOCK" --slots 4 "$DIR#slot" sleep 60; done
    lines_are() {
        lists
        [[ ${lines[0]} == "read  shared 2: "* && ${lines[1]} == "slot  slots 3 of 4: "* ]]
    }
    wait_for 5 lines_are
    run -0 run_t 5 "$DLOCK" --list --json "$DIR#slot"
    [[ $output == '{"schema":1,"lock":"slot","state":"held","holders":3,"waiters":0,'* &&
        $output == *'"holder":{"mode":"slots","slots":4,'* ]] ||
        fail "$output"
}

@test "names the shell that keeps the descriptor after flock(1) has ended" {
    start_log shell.log sh -c 'exec 9>locks/n.lock; flock 9; read x <go'
    HOLDER=$STARTED
    is_locked() { ! flock -n locks/n.lock true; }
    wait_for 5 is_locked
    lists
    assert_out "n  held: " ", pid $HOLDER (sh -c"
    let_go
}

# Hundreds of locks of other files that come and go shift the kernel's list while it is read.
@test "lacks no lock while others come and go" {
    local i
    mkdir other
    start_log churn.log "$ROOT/tests/support/helpers/churn.py" other
    churn=$STARTED
    hold "$ROOT/tests/support/helpers/churn.py" - "$DLOCK" "$DIR#n"
    waiting n
    wait_for 5 test -e churning
    for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        lists
        [ "${#lines[@]}" = 1 ] || fail "$i: $output"
        [[ $output == "n  held, 1 waiting, "* ]] || fail "$i: $output"
    done
    let_go
    end_job TERM "$churn"
}

@test "takes a pattern, a URI, a path, or the store of @NAME" {
    for name in aa ab b; do start_log "$name.log" "$DLOCK" "$DIR#$name" sleep 60; done
    all_held() { [ "$("$DLOCK" --list "$DIR" | grep -c " held")" = 3 ]; }
    wait_for 5 all_held
    for store in "$DIR" "$T/locks" locks "$T/locks#*"; do
        lists "$store"
        [ "${#lines[@]}" = 3 ] || fail "$store: $output"
    done
    for store in "$DIR#a?" 'locks#a*' "$DIR#a[ab]"; do
        lists "$store"
        [ "${#lines[@]}" = 2 ] || fail "$store: $output"
    done
    export DLOCK_STORE=$T/locks
    for store in @ '@*' '@?*'; do
        lists "$store"
        [ "${#lines[@]}" = 3 ] || fail "$store: $output"
    done
    run -0 run_t 5 "$DLOCK" --list
    [ "${#lines[@]}" = 3 ]
    lists @b
    [[ $output == "b  held, "* ]]
    run -64 run_t 5 "$DLOCK" --list redis:/host
    assert_out "STORE "
}

# A terminal of so many columns reads; not what a container makes dlock say about other holders.
table() { # COLUMNS ARG...
    run -0 run_t 10 script -qec "stty cols $1; '$DLOCK' --list ${*:2} 2>/dev/null" /dev/null \
        </dev/null
    mapfile -t lines < <(printf '%s' "$output" | tr -d '\r')
}
@test "a terminal reads a table that fits, with the ends of long names cut" {
    local long=deploy-of-the-shop-in-region line
    "$DLOCK" --once=1h "$DIR#nightly" true
    hold "$DLOCK" "$DIR#$long"
    waiting "$long"
    for columns in 60 100; do
        table $columns "$DIR"
        [ "${#lines[@]}" = 2 ] || fail "$output"
        [[ ${lines[0]} == "NAME "*" STATE  HOLDER "*" SINCE  WAITERS" ]] || fail "$output"
        [[ ${lines[1]} == deploy-of-the*" held "*":"??"  1" ]] || fail "$output"
        for line in "${lines[@]}"; do [ "${#line}" -le $columns ] || fail "$columns: $line"; done
    done
    table 60 "$DIR"
    [[ ${lines[1]} == "deploy-of-"*"...  held  "*"...  "* ]] || fail "$output"
    table 160 "$DIR"
    [[ ${lines[1]} == "$long  held   "*", pid $HOLDER (sh"*")"* ]] || fail "$output"
    table 160 --all "$DIR"
    [[ ${#lines[@]} = 3 && ${lines[2]} == nightly*" free "*" succeeded: "*" (true)  "* ]] ||
        fail "$output"
    table 60 --json "$DIR"
    [[ ${lines[0]} == '{"schema":1,'* ]] || fail "$output"
    let_go
}

@test "a missing folder has no locks, and none is made" {
    lists "$T/none"
    [ -z "$output" ]
    CI=1 lists "$T/none"
    [ "$output" = "dlock: $T/none: no lock: no such directory" ]
    [ ! -e none ]
    CI=1 lists
    # In a container a line in front says that /proc/locks is not all.
    [ "${lines[-1]}" = "dlock: $T/locks: no lock is held there" ]
    : >file
    run -73 run_t 5 "$DLOCK" --list "$T/file"
    assert_out "cannot open the lock directory $T/file"
}

@test "says which folder may not be read" {
    need_root
    open_folder
    mkdir -m 711 "$OPEN/d"
    run -77 run_t 5 setpriv --reuid=nobody --regid=nogroup --clear-groups "$DLOCK" --list "$OPEN/d"
    assert_out "cannot read the lock directory $OPEN/d: Permission denied"
}

@test "says where the holders cannot be seen" {
    need_pid_namespace
    hold "$DLOCK" "$DIR#n"
    CI=1 run -0 run_t 5 unshare --pid --fork --mount-proc "$DLOCK" --list "$DIR"
    assert_out "holders outside of this container are not shown"
    CI=1 run -0 preloaded nfs "$DLOCK" --list "$DIR"
    assert_out "network file system (NFS): holders on other machines are not shown" "n  held"
    let_go
}

@test "says that /proc hides other users' processes" {
    need_mounts
    open_folder
    install -m 755 "$DLOCK" "$OPEN/dlock"
    mkdir -m 755 "$OPEN/d"
    hold flock -F "$OPEN/d/n.lock"
    chmod 644 "$OPEN/d/n.lock"
    CI=1 run -0 run_t 5 unshare -m --propagation private sh -c \
        'mount -t proc -o hidepid=2 none /proc &&
            exec setpriv --reuid=nobody --regid=nogroup --clear-groups "$@"' - \
        "$OPEN/dlock" --list "$OPEN/d"
    assert_out "of some holders only the pid is known" "pid $HOLDER"
    let_go
}

# bats test_tags=plain
@test "takes no lock and changes nothing" {
    "$DLOCK" "$DIR#free" true
    hold "$DLOCK" "$DIR#held"
    before=$(stat -c '%n %i %Y %Z' locks locks/*)
    strace -f -o trace "$DLOCK" --list "$DIR" >out 2>&1 || skip "strace does not work here"
    [ "$before" = "$(stat -c '%n %i %Y %Z' locks locks/*)" ]
    run grep -E 'flock\(|F_(OFD_)?SETLK|O_CREAT|mkdir|unlink|rename' trace
    [ -z "${COVERAGE:-}" ] || output='' # its runtime opens a file of counters
    [ -z "$output" ] || fail "$output"
    grep -q '^held  held' out
    let_go
}

# bats test_tags=plain
@test "10 000 locks: within a second, in less than 20 MB" {
    cat >many.py <<'PY'
import fcntl, os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (10100, 10100))
for i in range(10000):
    fcntl.flock(os.open('locks/l%05d.lock' % i, os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX)
open('ready', 'w').close()
open('go').read()
PY
    start_log many.log /usr/bin/python3 -S many.py
    HOLDER=$STARTED
    wait_for 20 test -e ready || fail "$(cat many.log)"
    # Of the processor: other tests run beside this one.
    run -0 run_t 20 bash -c 'TIMEFORMAT="%U %S"
        time "$ROOT/tests/support/helpers/peak_rss.py" rss "$DLOCK" --list "$0" >list' "$DIR"
    read -r user system <<<"${output//./}"
    assert_between 0 $((10#$user + 10#$system)) $((1000 + SLOW)) "processor's time (ms)"
    assert_between 0 "$(cat rss)" 19 MiB
    # The kernel tells /proc/locks page by page: locks of others that end meanwhile shift a page.
    assert_between 9900 "$(wc -l <list)" 10000 locks
    [[ $(tail -n 1 list) == "l099"*"  held: "*", pid $HOLDER "* ]] || fail "$(tail -n 1 list)"
    # The reader has enough, or no room.
    run -0 run_t 5 bash -c '"$DLOCK" --list "$1" | head -n 1' - "$DIR"
    [[ $output == "l000"*"  held: "* ]] || fail "$output"
    run -71 run_t 5 bash -c '"$DLOCK" --list "$1" >/dev/full' - "$DIR"
    [ "$output" = "dlock: cannot write to standard output: No space left on device" ]
    let_go
}

@test "the names for completions come within 0.2 s, or not at all" {
    start_log silent.log /usr/bin/python3 -S -c '
import socket
s = socket.create_server(("127.0.0.1", 0))
print(s.getsockname()[1], flush=True)
open("go").read()'
    HOLDER=$STARTED
    wait_for 5 test -s silent.log
    DLOCK_STORE=redis://127.0.0.1:$(cat silent.log) timed --print-names
    assert_rc 0
    [ -z "$output" ]
    assert_between 0 "$took" $((200 + BUSY + SLOW)) "time (ms)"
    let_go
}
