#!/usr/bin/env bats
# "@name": the embedded default, which needs no server and no configuration, and $DLOCK_STORE. A
# user of our own, and a /run and a /tmp of our own, in a mount namespace.

load ../../support/common

U=54321
D=/run/lock/dlock-$U
O=/run/dlock/dlock-$U

# The folder that is worked in stays reachable below what is mounted over it.
namespace() {
    need_mounts
    chmod 755 .
    mkdir -m 777 home
    install -m 755 "$DLOCK" home/dl
    start_log ns.log unshare -m --propagation private sh -c '
        cd home && mount -t tmpfs -o mode=755 none /run && mkdir -m 1777 /run/lock &&
        mount -t tmpfs -o mode=1777 none /tmp &&
            : >ready && exec sleep infinity'
    NS_PID=$STARTED
    wait_for 5 test -e home/ready || { cat ns.log >&2; return 1; }
}
inside() { run_t 10 nsenter -t "$NS_PID" -m -w -- "$@"; }
user() { inside setpriv --reuid=$U --regid=$U --clear-groups "$@"; }
dl() { run "-$1" user ./dl -n "${@:2}"; } # CODE ARG...

@test "the names for completion need no directory and make none" {
    namespace
    dl 0 --print-names
    [ -z "$output$(inside ls /run/lock)" ]
    dl 0 @n true
    dl 0 --print-names
    [ "$output" = @n ]
}

# refused RC TEXT...: RC, in one line with all of TEXT; nothing was run.
refused() {
    local rc=$1
    shift
    dl "$rc" @n touch ran
    [ "${#lines[@]}" = 1 ]
    for text; do assert_out "$text"; done
    [ ! -e home/ran ]
    run "-$rc" user ./dl --status @n
    assert_out "$1"
}
# uses FOLDER: @n is there.
uses() {
    dl 0 -v @n true
    assert_out "$1/n.lock"
}
# nothing_in FOLDER...: the user has no directory there.
nothing_in() {
    local found
    found=$(inside find "$@" -name "dlock-$U" 2>/dev/null)
    [ -z "$found" ] || fail "left: $found"
}

# hold NSENTER-ARG...: a holder of @n, whose command writes to the fifo in and ends by the fifo go.
hold() {
    mkfifo -m 666 home/in home/go
    start_log holder nsenter -t "$NS_PID" -m -w -- "$@" ./dl --note nightly @n sh -c \
        'echo $DLOCK_FENCE >in; read x <go'
    run_t 5 cat home/in >fence
}
let_go() {
    echo >home/go
    wait_exit 5 "$STARTED"
}

@test "@name has a private directory in /run/lock" {
    namespace
    dl 0 @n sh -c 'echo $DLOCK_FENCE $DLOCK_NAME'
    [[ $output =~ ^[1-9][0-9]*' n'$ ]]
    [ "$(inside stat -c '%a %u %g' $D)" = "700 $U $U" ]
    [ "$(inside ls $D)" = $'n.fence\nn.lock' ]
    # A umask that is meant for files must not lock the user out.
    for mask in 0 177; do
        inside rm -r $D
        run -0 user sh -c "umask $mask; exec ./dl -n @n true"
        [ "$(inside stat -c '%a %u' $D)" = "700 $U" ]
    done
    dl 0 @n true
}

@test "the environment does not change @name" {
    namespace
    hold setpriv --reuid=$U --regid=$U --clear-groups
    run -75 user env -i HOME=/ TMPDIR=/nowhere XDG_RUNTIME_DIR=/run/user/1 DLOCK_STORE= \
        DLOCK_STORE_FILE= ./dl -vn @n true
    assert_out nightly
    # Other names are other locks, and so are other users'.
    dl 0 @m true
    run -0 inside setpriv --reuid=$((U + 1)) --regid=$U --clear-groups ./dl -n @n true
    let_go
    last=0
    for i in 1 2 3 4 5; do
        dl 0 @n sh -c 'echo $DLOCK_FENCE'
        [ "$output" -gt "$last" ]
        last=$output
    done
    # A reboot empties /run/lock.
    inside rm -r $D
    dl 0 @n sh -c 'echo $DLOCK_FENCE'
    [ "$output" -gt "$last" ]
}

@test "refuses an unsafe directory of @name" {
    namespace
    dl 0 @n true
    for mode in 770 702 777 750 701; do
        inside chmod $mode $D
        refused 77 "$D is open to other users" "chmod 700"
    done
    inside chmod 700 $D
    inside chown 0 $D
    refused 77 "$D belongs to uid 0" "root remove it"
    inside chown $((U + 1)) $D
    refused 77 "$D belongs to uid $((U + 1))" "remove it" DLOCK_STORE
    inside rm -r $D
    # Links, to what is good and to what is not; nothing is made behind them.
    inside install -d -m 700 -o $U -g $U /run/lock/mine
    for to in /run/lock/mine /tmp /nowhere $D; do
        inside ln -sfn "$to" $D
        refused 77 "$D is not a plain directory" "remove it"
    done
    [ -z "$(inside ls /run/lock/mine)" ]
    for make in touch mkfifo; do
        inside rm $D
        inside $make $D
        refused 77 "$D is not a plain directory" "remove it"
    done
    # It is never made elsewhere instead: the lock in /run/lock may be held.
    nothing_in /tmp /dev/shm
}

@test "@name is in /run/dlock where users cannot use /run/lock" {
    namespace
    inside mkdir -m 1777 /run/dlock
    for how in "chmod 755 /run/lock" "chmod 777 /run/lock" "rmdir /run/lock"; do
        inside $how
        uses $O
        [ "$(inside stat -c '%a %u' $O)" = "700 $U" ]
    done
    nothing_in /tmp /dev/shm
    # The same rules there.
    inside chmod 777 $O
    refused 77 "$O is open to other users" "chmod 700"
    inside rm -r $O
    inside ln -s /run $O
    refused 77 "$O is not a plain directory"
}

@test "services with a private /tmp exclude each other by @name" {
    namespace
    inside chmod 755 /run/lock
    inside mkdir -m 1777 /run/dlock
    private=(unshare -m --propagation private sh -c
        'mount -t tmpfs -o mode=1777 none /tmp &&
            exec setpriv --reuid=$0 --regid=$0 --clear-groups "$@"' $U)
    hold "${private[@]}"
    run -75 inside "${private[@]}" ./dl -vn @n touch ran
    assert_out nightly
    dl 75 @n touch ran
    [ ! -e home/ran ]
    let_go
}

@test "the groups of a process do not change @name" {
    namespace
    inside chown 0:54399 /run/lock
    inside chmod 1775 /run/lock
    inside mkdir -m 1777 /run/dlock
    hold setpriv --reuid=$U --regid=$U --groups=54399
    dl 75 @n touch ran
    let_go
    nothing_in /run/lock
}

@test "refuses @name without a directory that users can share" {
    namespace
    inside chmod 755 /run/lock
    refused 73 "/run/dlock is missing" "install -d -m 1777 -o root /run/dlock" DLOCK_STORE
    nothing_in /run /tmp /dev/shm
    # The command in the message does what it is for, whatever was there.
    for how in "mkdir -m 755" "mkdir -m 777" "mkdir -m 1770" "install -d -m 1777 -o $U"; do
        inside $how /run/dlock
        refused 77 "/run/dlock is not root's with mode 1777" DLOCK_STORE
        [[ $output =~ run\ \"([^\"]*)\" ]]
        inside ${BASH_REMATCH[1]}
        dl 0 @n true
        inside rm -r /run/dlock
    done
    for to in /tmp /nowhere; do
        inside ln -s $to /run/dlock
        refused 77 "/run/dlock is not a plain directory" "remove it"
        inside rm /run/dlock
    done
    inside touch /run/dlock
    refused 77 "/run/dlock is not a plain directory" "remove it"
    nothing_in /tmp
}

@test "no other directory replaces a read-only, full or hidden /run/lock" {
    namespace
    inside mkdir -m 1777 /run/dlock
    # mode=0: as InaccessiblePaths= of systemd does.
    for row in "mode=1777,ro 73 $D: Read-only" "mode=1777,nr_inodes=1 73 $D: No space left" \
        "mode=0 77 /run/lock has mode 0"; do
        read -r mode code text <<<"$row"
        inside mount -t tmpfs -o $mode none /run/lock
        refused $code "$text" DLOCK_STORE
        inside umount /run/lock
    done
    nothing_in /run /tmp /dev/shm
}

@test "root's @name is in /run/dlock-0, whatever users make in /run/lock" {
    namespace
    user mkdir -m 777 /run/lock/dlock-0
    run -0 inside ./dl -n -v @n sh -c 'echo $DLOCK_FENCE'
    assert_out /run/dlock-0/n.lock
    [ "$(inside stat -c '%a %u' /run/dlock-0)" = "700 0" ]
    [ -z "$(inside ls /run/lock/dlock-0)" ]
    run -1 user mkdir /run/dlock-1
    # A read-only /run, as in a sandbox: nothing else is used.
    inside rm -r /run/dlock-0
    inside mount -o remount,ro /run
    run -73 inside ./dl -n @n touch ran
    assert_out "/run/dlock-0: Read-only" DLOCK_STORE
    [ ! -e home/ran ]
}

@test "a change of the mode of /run/lock does not move @name" {
    namespace
    inside mkdir -m 1777 /run/dlock
    dl 0 @n true
    # As an upgrade of systemd does.
    inside chmod 755 /run/lock
    uses $D
    [ -z "$(inside ls /run/dlock)" ]
    inside rm -r "$D"
    uses $O
    inside chmod 1777 /run/lock
    uses $O
    # But not by a directory that another user could have moved there.
    inside chmod 775 /run/lock
    inside install -d -m 700 -o $U $D
    uses $O
    inside rmdir "$D"
    # Nor by one that belongs to another user.
    inside chmod 755 /run/lock
    inside mkdir "$D"
    uses $O
}

@test "root of a user namespace is not told to remove root's directory" {
    namespace
    user unshare -r true 2>/dev/null || skip "no user namespaces here"
    inside ./dl -n @n true
    run -77 user unshare -r ./dl -n @n touch ran
    assert_out "/run/dlock-0 belongs to uid" "set DLOCK_STORE"
    [[ $output != *remove* ]]
    [ ! -e home/ran ]
}

@test "DLOCK_STORE can be a directory" {
    export DLOCK_STORE=$T/'a ?%41 dir'
    mkdir "$DLOCK_STORE"
    mkfifo go
    start_log holder "$DLOCK" @n sh -c 'echo $DLOCK_FENCE >in; read x <go'
    wait_for 5 file_nonempty in
    says 75 ", pid $STARTED (" -vn @n touch ran
    run -1 flock -n "$DLOCK_STORE/n.lock" true
    # The same lock, spelt as a URI.
    run -75 run_t 5 "$DLOCK" -n "file://$T/a%20%3F%2541%20dir#n" true
    run -75 run_t 5 "$DLOCK" --status @n
    run -0 run_t 5 "$DLOCK" -n @m%2Fn true
    [ -z "$output" ] && [ -e "$DLOCK_STORE/m%2Fn.lock" ]
    run -0 run_t 5 "$DLOCK" -v --status @m%2Fn
    [ "${lines[0]}" = "dlock: the lock is the file $DLOCK_STORE/m%2Fn.lock" ]
    echo >go
    wait_exit 5 "$STARTED"
    run -0 run_t 5 "$DLOCK" -n @n sh -c 'echo $DLOCK_FENCE'
    [ "$output" -gt "$(cat in)" ]
    [ ! -e ran ]
    # Not made for the user: a typing error would be a lock of its own.
    DLOCK_STORE=$T/missing says 73 "$T/missing" -n @n touch ran
    DLOCK_STORE=$T/a#b run -64 run_t 5 "$DLOCK" -n @n touch ran
    DLOCK_STORE=relative run -64 run_t 5 "$DLOCK" -n @n touch ran
    # A file is no directory.
    : >file
    DLOCK_STORE=$T/file says 73 "$T/file" -n @n touch ran
    [ ! -e ran ] && [ ! -e missing ]
}

@test "a store can be required, and a lock of this machine says so where output is talkative" {
    local line='dlock: @n is on this machine only'
    namespace
    dl 0 @n true
    [ -z "$output" ]
    export CI=1
    dl 0 --also @m @n true
    [ "$output" = "$line"$'\n'"${line/@n/@m}" ] || fail "$output"
    dl 0 -q @n true
    [ -z "$output" ]
    dl 0 "$D/n.lock" true
    [ -z "$output" ]
    inside mkdir -m 777 /run/store
    DLOCK_STORE=/etc dl 77 @n true
    refute_out "$line"
    # As root leaves it for all users of a host; DLOCK_STORE_FILE names it here.
    inside install -m 644 /dev/stdin /run/required <<<require
    export DLOCK_STORE_FILE=/run/required
    refused 64 DLOCK_STORE "$DLOCK_STORE_FILE"
    for option in --list --status; do
        dl 64 $option
    done
    DLOCK_STORE=/run/store dl 0 @n true
    [ -z "$output" ]
}

@test "a name that ends as with an empty variable is told where output is talkative" {
    export DLOCK_STORE=$T
    told() { echo "dlock: the lock's name \"$1\" ends in '${1: -1}': an unset variable?"; }
    for end in - _ . : /; do
        run -0 run_t 5 "$DLOCK" "@deploy$end" true
        [ -z "$output" ] || fail "$output"
        CI=1 run -0 run_t 5 "$DLOCK" "@deploy$end" true
        [ "$output" = "$(told "deploy$end")" ] || fail "$output"
    done
    CI=1 run -0 run_t 5 "$DLOCK" --also "fake://$T/store#a%2D" "@main" true
    [ "$output" = "$(told a-)" ] || fail "$output"
    # The end of a path is no variable, and one within a name is not seen.
    mkdir folder-
    for lock in ./x- "$T/folder-/" @-x @deploy-prod; do
        CI=1 run -0 run_t 5 "$DLOCK" "$lock" true
        [ -z "$output" ] || fail "$output"
    done
    CI=1 run -0 run_t 5 "$DLOCK" -q @deploy- true
    [ -z "$output" ] || fail "$output"
}
