# filelock.bash - for tests of file locks, whose holders may be flock(1). Load after common.bash.
#
#     filelock_setup       a fifo "go" in $T
#     folder_setup         the same, and $DIR, the URI of the empty folder "locks" in $T
#     filelock_teardown    waiters for the fifo end; $OPEN is removed
#     hold CMD...          CMD, a lock tool with its options and LOCK, runs a command that ends with
#                          let_go; returns when the lock is held. Its pid is $HOLDER
#     queued FILE          true if a process blocks in flock(2) or fcntl(2) on the file
#     waits LOCK           true if --status shows a waiter
#     us, median N...      microseconds; the middle of measurements on a busy machine
#     preloaded SHIM CMD   CMD... with support/preload/SHIM.c
#     open_folder          $OPEN, a folder that all users can reach, unlike the folder of bats

setup_file() { export BATS_NO_PARALLELIZE_WITHIN_FILE=true; }

filelock_setup() {
    dlock_setup
    mkfifo "$T/go"
}
folder_setup() {
    filelock_setup
    mkdir locks
    DIR=file://$T/locks
}
filelock_teardown() {
    local rc=0
    [ ! -p "$T/go" ] || exec 9<>"$T/go"
    dlock_teardown || rc=$?
    [ -z "${OPEN:-}" ] || rm -rf "$OPEN"
    return $rc
}

hold() {
    rm -f held
    start_log holder.log "$@" sh -c 'echo "${DLOCK_SLOT--}" >held; read x <go'
    HOLDER=$STARTED
    wait_for 5 test -s held || fail "$(cat holder.log)"
}
let_go() {
    echo >go
    wait_exit 5 "$HOLDER"
}
queued() { grep -qE -- "-> (FLOCK|OFDLCK) .*:$(stat -c %i "$1") " /proc/locks; }
waits() { "$DLOCK" --status --json "$1" | grep -q '"place"'; }
us() { echo "${EPOCHREALTIME/[.,]/}"; }
median() { printf '%s\n' "$@" | sort -n | sed -n "$((($# + 1) / 2))p"; }
preloaded() { preload "$1" run_t 5 "${@:2}"; }
open_folder() {
    OPEN=$(mktemp -d /tmp/dlock-file.XXXXXX)
    chmod 755 "$OPEN"
}
