#!/usr/bin/env bats
# Run records of --once for file locks: their place, foreign data, crashes, full disks, the sweep.

load ../../support/common
load ../../support/record_folder

setup() {
    dlock_setup
    DISK=$(disk_folder "$T")
    D=$DISK/locks
    mkdir "$D"
    L=file://$D#n
}
teardown() {
    : >go # whatever waits for that may end
    disk_done "${DISK:-}"
    dlock_teardown
}

# once RC ARG...: a run that prints nothing.
once() {
    run "-$1" run_t 10 "$DLOCK" -q --once "${@:2}"
    [ -z "$output" ] || fail "$output"
}
TOKEN=0123456789abcdef0123456789abcdef
# record STATE KEPT: a record of dlock's, whose run has begun and ended in 2020. KEPT: ms.
record() {
    echo "dlock-run1 $1 0 1 $TOKEN 1600000000000 1600000000001 $2" \
        "dlock1 host=h pid=1 user=u since=1 waited=0 cmd=c note="
}
nothing_left() {
    local left
    left=$(find "$DISK" -name '.dlock*')
    [ -z "$left" ] || fail "left: $left"
}
need_strace() { command -v strace >/dev/null || skip "no strace"; }
# keeper CALL EFFECT K: a run whose keeper's K-th CALL goes wrong.
keeper() {
    rm -f ran
    run run_t 10 strace -o trace.log -e "trace=$1" -e "inject=$1:$2:when=$3" \
        "$DLOCK" -n --once "$L" touch ran
}

@test "the record is one line beside the lock" {
    once 0 "$L" true
    local words="dlock-run1 succeeded 0 [1-9][0-9]* [0-9a-f]{32} [0-9]{13} [0-9]{13} 2592000000"
    grep -qE "^$words dlock1 host=.* cmd=true note=$" "$D/n.once"
    [ "$(wc -l <"$D/n.once")" -eq 1 ]
    [ "$(ls -A "$D")" = "n.fence
n.lock
n.once" ]
    [ "$(stat -c '%a %u %g' "$D/n.once")" = "$(stat -c '%a %u %g' "$D/n.fence")" ]
    # Its fence is that of the run.
    [ "$(cut -d ' ' -f 4 "$D/n.once")" = "$(sed -n '1s/.* \([0-9]*\) .*/\1/p' "$D/n.fence")" ]
    # A name that fills a directory entry has one as well.
    long=$(printf 'x%.0s' {1..250})
    once 0 "file://$D#$long" true
    once 0 "file://$D#$long" touch no
    [ ! -e no ]
    says 0 "last run: succeeded " --status "file://$D#$long"
}

@test "a bare file and a directory in memory have no records" {
    says 64 "file:///DIRECTORY#NAME" --once "$D/bare" touch ran
    [ ! -e "$D/bare" ]
    run -64 run_t 5 "$DLOCK" --forget --yes "$D/bare"
    [ "$(stat -f -c %T /dev/shm)" = tmpfs ] || skip "/dev/shm is not in memory here"
    mem=$(mktemp -d /dev/shm/dlock-test.XXXXXX)
    says 64 "$mem: a reboot empties this directory" --once "file://$mem#n" touch ran
    assert_out "on disk"
    run -0 run_t 5 "$DLOCK" --status "file://$mem#n"
    run -64 run_t 5 env DLOCK_STORE="$mem" "$DLOCK" --once @n touch ran
    [ -z "$(ls -A "$mem")" ]
    rmdir "$mem"
    [ ! -e ran ]
}

@test "a record of one's own counts where any user can add a file" {
    chmod 1777 "$D"
    record succeeded 1000 >"$D/n.once"
    says 0 "last run: succeeded" --status "$L"
}

@test "a keeper killed at any step leaves a record that is true" {
    [ -z "${SAN:-}" ] || return 0 # no strace with LeakSanitizer: the plain build shows it
    need_strace
    local step killed=0 state
    run_t 5 "$DLOCK" -q "$L" true
    # The begin, and the end; the fence is written in place.
    for step in unlinkat:{1,2} fsync:{1..4} renameat:{1,2}; do
        rm -f "$D/n.once"
        keeper "${step%:*}" signal=SIGKILL "${step#*:}"
        [ "$status" -ne 137 ] || killed=$((killed + 1))
        state=$(cut -d ' ' -f 2 "$D/n.once" 2>/dev/null) || :
        case $state in
        '' | running | succeeded) ;;
        *) fail "$step: $state" ;;
        esac
        [ "$state" != succeeded ] || [ -e ran ] || final "$step: a success that was none"
        # The guard may need a moment to exit.
        wait_for 2 flock -n "$D/n.lock" true
        rm -f again
        once 0 "$L" touch again
        [ -e again ] || [ "$state" = succeeded ] || fail "$step: no run after '$state'"
        [ ! -e again ] || [ "$state" != succeeded ] || final "$step: run again after a success"
        nothing_left
    done
    [ $killed -eq 8 ]
}

@test "a disk that does not take the record refuses before the run, and reports after it" {
    [ -z "${SAN:-}" ] || return 0 # no strace with LeakSanitizer: the plain build shows it
    need_strace
    run_t 5 "$DLOCK" -q "$L" true
    local step
    for step in fsync:ENOSPC:1 fsync:EIO:2 renameat:EDQUOT:1 renameat:EROFS:1; do
        IFS=: read -r call errno k <<<"$step"
        keeper "$call" "error=$errno" "$k"
        assert_rc 73
        assert_out "cannot write the run record $D/n.once: "
        [ ${#lines[@]} -eq 1 ]
        [ ! -e ran ] || final "$step: the command ran"
        nothing_left
        flock -n "$D/n.lock" true
    done
    rm -f "$D/n.once"
    for step in fsync:ENOSPC:3 renameat:EDQUOT:2; do
        IFS=: read -r call errno k <<<"$step"
        keeper "$call" "error=$errno" "$k"
        assert_rc 79
        [ -e ran ]
        assert_out "succeeded, but its run is not recorded: cannot write the run record $D/n.once: "
        [ ${#lines[@]} -eq 1 ]
        nothing_left
        flock -n "$D/n.lock" true
        says 0 "last run: began " --status "$L"
    done
    once 0 "$L" touch again
    [ -e again ]
}

@test "what is not ours any more at the end is not written" {
    local what
    for what in lock once; do
        rm -f "$D/n.once"
        hold --once
        rm "$D/n.$what"
        [ "$what" = lock ] || record failed 1000 >"$D/n.once"
        cp "$D/n.once" before
        let_go 79
        file_has hold.log "replaced" || fail "$(cat hold.log)"
        cmp before "$D/n.once"
    done
    hold --once
    rm "$D/n.once"
    mkdir "$D/n.once"
    let_go 79
    file_has hold.log "succeeded, but its run is not recorded" || fail "$(cat hold.log)"
    rmdir "$D/n.once"
    # Of a run that has failed: the lock is free, and has no ttl.
    run -3 run_t 5 "$DLOCK" --once "$L" sh -c 'rm "$0/n.once" && mkdir "$0/n.once" && exit 3' "$D"
    assert_out "'n': the end of the run is not recorded: the directory n.once is in the place of"
    [[ $output != *ttl* ]]
    flock -n "$D/n.lock" true
    rmdir "$D/n.once"
    # A record that was removed is written again.
    hold --once
    rm "$D/n.once"
    let_go
    once 0 "$L" touch no
    [ ! -e no ]
}

@test "a record is not forgotten while others hold the lock" {
    once 0 "$L" true
    hold
    run -75 run_t 5 "$DLOCK" -q --forget --yes "$L"
    let_go
    [ -e "$D/n.once" ]
    run -0 run_t 5 "$DLOCK" --forget --yes "$L"
    [ ! -e "$D/n.once" ]
}

# ------------------------------------------------------------------ sweep ---

@test "a run waits for the sweeper of its record" {
    once 0 "$L" true
    start_log claim.log /usr/bin/python3 -c '
import fcntl, os, sys
f = open(sys.argv[1], "r+b")
fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 1 << 61)
open("claimed", "w").close()
os.system("\"$HELPERS/await\" go")' "$D/n.lock"
    wait_for 5 test -e claimed
    run -75 run_t 5 "$DLOCK" -q -n --once "$L" touch ran
    # Without a record the lock is free.
    run -0 run_t 5 "$DLOCK" -n "$L" true
    start_log waiter.log "$DLOCK" -q --once=1ms "$L" touch ran
    waiter=$STARTED
    [ ! -e ran ]
    : >go
    exits 0 5 "$waiter"
    [ -e ran ]
}

# dated N: the records of N names, expired, with their locks.
dated() {
    local i text
    text=$(record succeeded 1000)
    for ((i = 0; i < $1; i++)); do
        echo "$text" >"$D/report-$i.once"
        : >"$D/report-$i.lock"
    done
}
# others N: so many records that count still.
others() {
    local i text
    text=$(record succeeded 9000000000000)
    for ((i = 0; i < $1; i++)); do echo "$text" >"$D/kept-$i.once"; done
}
left() { find "$DISK" -name "$1*.once" | wc -l; }
# sweeps N: so many runs of other names.
sweeps() {
    local i
    for ((i = 0; i < $1; i++)); do
        run_t 5 "$DLOCK" -q --once "file://$D#new-$((i % 3))" false || [ $? -eq 1 ]
    done
}

# bats test_tags=plain
@test "dated names leave no records behind, at a constant cost" {
    local n
    n=$(amount once_dated)
    dated "$n"
    others $((n * 3))
    echo "somebody's" >"$D/mine.once"
    touch -d '2 days ago' "$D/.dlock-4711.tmp"
    touch "$D/.dlock-4712.tmp"
    # Not one that is in use, or whose file another program may have made.
    L=file://$D#long hold --once=1ms
    record succeeded 1000 >"$D/no-lock.once"
    # A plain holder does not use the record.
    start_log plain.log flock "$D/report-0.lock" "$HELPERS/await" go
    once 0 "file://$D#new" true
    [ "$(left report)" -ge $((n - 20)) ]
    sweeps $((n / 20 + n * 5 / 200 + 5))
    [ "$(left report)" -eq 0 ] || fail "$(left report) are left"
    [ "$(left kept)" -eq $((n * 3)) ]
    for f in mine.once long.once no-lock.once .dlock-4712.tmp; do
        [ -e "$D/$f" ] || final "$f was removed"
    done
    [ ! -e "$D/.dlock-4711.tmp" ]
    # Only the amount of an ordinary run leaves that many.
    if [ "$n" -ge 300 ] && command -v strace >/dev/null; then
        # Those of 400 records at most, 6 each, and the run's own.
        strace -f -o trace.log "$DLOCK" -q --once "file://$D#new-0" false || [ $? -eq 1 ]
        assert_between 2000 "$(grep -c '(' trace.log)" 3500 "system calls"
    fi
    let_go
    # Where one run sees all, no position is kept.
    rm "$D"/kept-* "$D"/report-*
    sweeps 3
    rm "$D/.dlock-4712.tmp"
    nothing_left
}

@test "a position that is none is no harm" {
    dated 3
    local text
    for text in '' x -5 99999999999999999999 9223372036854775807; do
        echo "$text" >"$D/.dlock-sweep"
        sweeps 1
    done
    sweeps 2
    [ "$(left report)" -eq 0 ]
    ln -s /dev/null "$D/.dlock-sweep"
    sweeps 1
    rm "$D/.dlock-sweep"
    mkdir "$D/.dlock-sweep"
    sweeps 1
}

# ------------------------------------------------------------------ @name ---

U=54321
# Our own /run, /etc/passwd and /var/lib. The user's home directory is $DISK/home, as /mnt.
namespace() {
    need_mounts
    chmod 755 . "$DISK"
    mkdir "$DISK/var" "$DISK/home"
    chown $U:$U "$DISK/home"
    mkdir -m 755 bin
    install -m 755 "$DLOCK" bin/dl
    { cat /etc/passwd; echo "other:x:$U:$U::/mnt:/bin/sh"; } >passwd
    start_log ns.log unshare -m --propagation private sh -c '
        mount --bind passwd /etc/passwd && mount --bind "$0/home" /mnt &&
            mount --bind "$0/var" /var/lib && mount -t tmpfs -o mode=755 none /run &&
            mkdir -m 1777 /run/lock &&
            : >ready && exec sleep infinity' "$DISK"
    NS_PID=$STARTED
    wait_for 5 test -e ready || { cat ns.log >&2; return 1; }
}
root() { run_t 10 nsenter -t "$NS_PID" -m -w -- "$@"; }
user() { root setpriv --reuid=$U --regid=$U --clear-groups "$@"; }
reboot() { root sh -c 'rm -rf /run/dlock-0 /run/lock/*'; }

# kept_in WHO DIRECTORY LOCKS: @name of root or of the user.
kept_in() {
    local who=$1 state=$2 key=$3
    run -3 "$who" ./bin/dl --once @n sh -c 'exit 3'
    run -0 "$who" env HOME=/nowhere XDG_STATE_HOME=/nowhere ./bin/dl --once @n true
    reboot
    CI=1 run -0 "$who" ./bin/dl -n --once @n false
    assert_out "not run: "
    run -0 "$who" ./bin/dl --status @n
    assert_out "last run: succeeded"
    run -0 root find "$state" -type f
    [[ $output =~ ^"$state/$key/"[0-9a-f]{2}/n.once$ ]] || fail "$output"
    run -0 root find "$state" -type d ! -perm 700
    [ -z "$output" ]
    # As beside the locks: those that have expired go, and the locks of a reboot's.
    for i in {1..12}; do
        "$who" ./bin/dl -q --once=1ms "@old$i" true
    done
    reboot
    for i in {1..9}; do
        "$who" ./bin/dl -q --once @new true
        "$who" ./bin/dl --forget --yes @new >/dev/null
    done
    for i in {1..200}; do
        [ -n "$(root find "$state" -name 'old*')" ] || break
        "$who" ./bin/dl -q --once @new false || :
    done
    [ -z "$(root find "$state" -name 'old*')" ]
    "$who" ./bin/dl --forget --yes @n >/dev/null
    [ -z "$(root find "$state" -name 'n.once')" ]
}

@test "root's @name keeps its records in /var/lib/dlock" {
    namespace
    kept_in root /var/lib/dlock run%2Fdlock-0
    # The same lock by its path.
    root ./bin/dl --once @n true
    CI=1 run -0 root ./bin/dl --once file:///run/dlock-0#n true
    assert_out "not run: "
}

@test "a user's @name keeps its records in the home directory of the user database" {
    namespace
    kept_in user /mnt/.local/state/dlock "run%2Flock%2Fdlock-$U"
}

@test "refuses an unsafe state directory, and one that a reboot empties" {
    namespace
    S=/mnt/.local/state/dlock
    user ./bin/dl --once @n true
    root chmod 750 $S
    run -77 user ./bin/dl --once @n touch /mnt/ran
    assert_out "$S is open to other users"
    root chmod 700 $S
    root chown 0 $S
    run -77 user ./bin/dl --once @n touch /mnt/ran
    assert_out "$S belongs to uid 0"
    root mv $S $S.old
    root ln -s $S.old $S
    run -77 user ./bin/dl --once @n touch /mnt/ran
    assert_out "$S is not a plain directory"
    root rm $S
    root chmod 500 /mnt/.local/state
    run -77 user ./bin/dl --once @n touch /mnt/ran
    assert_out "cannot make $S"
    assert_out DLOCK_STORE
    # Not in the database.
    run -64 root setpriv --reuid=$((U + 1)) --regid=$U --clear-groups ./bin/dl --once @n true
    assert_out "uid $((U + 1)) has no home directory in /etc/passwd"
    root sh -c 'mount -t tmpfs none /var/lib'
    run -64 root ./bin/dl --once @n touch /mnt/ran
    assert_out "/var/lib/dlock: a reboot empties this directory"
    # /run too, where it is on disk.
    mkdir "$DISK/run"
    root mount --bind "$DISK/run" /run/lock
    run -64 root ./bin/dl --once file:///run/lock#n touch /mnt/ran
    [ ! -e "$DISK/home/ran" ]
}
