#!/usr/bin/env bats
# "@name": the embedded default, which needs no server and no configuration, and $DLOCK_STORE. A user of our own, and
# a /run/lock and a /tmp of our own, in a mount namespace.

bats_require_minimum_version 1.5.0
load ../../support/common

setup() { dlock_setup; }
teardown() { dlock_teardown; }

U=54321
D=/run/lock/dlock-$U

# The folder that is worked in stays reachable below what is mounted over it.
namespace() {
    [ "$EUID" = 0 ] || skip "needs root: another user, a mount namespace"
    unshare -m true 2>/dev/null || skip "no mount namespaces here"
    chmod 755 .
    mkdir -m 777 home
    install -m 755 "$DLOCK" home/dl
    start_log ns.log unshare -m --propagation private sh -c '
        mount -t tmpfs none /run/lock && chmod 1777 /run/lock && cd home && mount -t tmpfs none /tmp && chmod 1777 /tmp &&
            : >ready && exec sleep infinity'
    NS_PID=$STARTED
    wait_for 5 test -e home/ready || { cat ns.log >&2; return 1; }
}
inside() { run_t 10 nsenter -t "$NS_PID" -m -w -- "$@"; }
user() { inside setpriv --reuid=$U --regid=$U --clear-groups "$@"; }
dl() { run user ./dl -n "$@"; }

# refused TEXT...: 77, in one line with all of TEXT; nothing was run.
refused() {
    dl @n touch ran
    assert_rc 77
    [ "${#lines[@]}" = 1 ]
    for text; do assert_out "$text"; done
    [ ! -e home/ran ]
    run user ./dl --status @n
    assert_rc 77
    assert_out "$1"
}

@test "@name has a private directory in /run/lock" {
    namespace
    dl @n sh -c 'echo $DLOCK_FENCE $DLOCK_NAME'
    assert_rc 0
    [[ $output =~ ^[1-9][0-9]*' n'$ ]]
    run inside stat -c '%a %u %g' $D
    [ "$output" = "700 $U $U" ]
    run inside ls $D
    [ "$output" = "n.fence
n.lock" ]
    inside rm -r $D
    run user sh -c 'umask 0; exec ./dl -n @n true'
    assert_rc 0
    [ "$(inside stat -c '%a %u' $D)" = "700 $U" ]
    inside rm -r $D
    # One that is meant for files must not lock the user out.
    run user sh -c 'umask 177; exec ./dl -n @n true'
    assert_rc 0
    [ "$(inside stat -c '%a %u' $D)" = "700 $U" ]
    dl @n true
    assert_rc 0
}

@test "the environment does not change @name" {
    namespace
    start_log holder nsenter -t "$NS_PID" -m -w -- setpriv --reuid=$U --regid=$U --clear-groups ./dl --note nightly @n sh -c ': >in; read x <go'
    mkfifo -m 666 home/go
    wait_for 5 test -e home/in
    run user env -i HOME=/ TMPDIR=/nowhere XDG_RUNTIME_DIR=/run/user/1 DLOCK_STORE= ./dl -n @n true
    assert_rc 75
    assert_out nightly
    # Other names are other locks, and so are other users'.
    dl @m true
    assert_rc 0
    run inside setpriv --reuid=$((U + 1)) --regid=$U --clear-groups ./dl -n @n true
    assert_rc 0
    echo >home/go
    wait_exit 5 "$STARTED"
    last=0
    for i in 1 2 3 4 5; do
        dl @n sh -c 'echo $DLOCK_FENCE'
        [ "$output" -gt "$last" ]
        last=$output
    done
    # A reboot empties /run/lock.
    inside rm -r $D
    dl @n sh -c 'echo $DLOCK_FENCE'
    [ "$output" -gt "$last" ]
}

@test "refuses an unsafe directory of @name" {
    namespace
    dl @n true
    assert_rc 0
    for mode in 770 702 777; do
        inside chmod $mode $D
        refused "others may write to $D" "chmod 700"
    done
    inside chmod 700 $D
    inside chown 0 $D
    refused "$D belongs to uid 0" "remove it"
    inside chown $((U + 1)) $D
    refused "$D belongs to uid $((U + 1))" "remove it"
    inside rm -r $D
    # Links, to what is good and to what is not; nothing is made behind them.
    inside mkdir /run/lock/mine
    inside chown $U:$U /run/lock/mine
    inside chmod 700 /run/lock/mine
    for to in /run/lock/mine /tmp /nowhere $D; do
        inside ln -sfn "$to" $D
        refused "$D is not a plain directory" "remove it"
    done
    [ -z "$(inside ls /run/lock/mine)" ]
    inside rm $D
    inside touch $D
    refused "$D is not a plain directory" "remove it"
    inside rm $D
    inside mkfifo $D
    refused "$D is not a plain directory" "remove it"
    # It is never made in /tmp instead: the lock in /run/lock may be held.
    [ -z "$(inside find /tmp -name "dlock-*")" ]
}

@test "@name is in /tmp where users cannot write to /run/lock" {
    namespace
    inside chmod 755 /run/lock
    dl @n sh -c 'echo $DLOCK_FENCE'
    assert_rc 0
    first=$output
    [ "$(inside stat -c '%a %u' /tmp/dlock-$U)" = "700 $U" ]
    [ -z "$(inside ls /run/lock)" ]
    dl @n sh -c 'echo $DLOCK_FENCE'
    [ "$output" -gt "$first" ]
    # The same rules there.
    inside chmod 777 /tmp/dlock-$U
    refused "others may write to /tmp/dlock-$U" "chmod 700"
    inside rm -r /tmp/dlock-$U
    inside ln -s /run /tmp/dlock-$U
    refused "/tmp/dlock-$U is not a plain directory"
    inside rm /tmp/dlock-$U
    # One that is there already, made by root for the user, counts.
    inside mkdir -m 700 $D
    inside chown $U $D
    dl @n true
    assert_rc 0
    [ -z "$(inside find /tmp -name "dlock-*")" ]
    inside rm -r $D
    # No place at all.
    inside chmod 755 /tmp
    refused "/tmp/dlock-$U" DLOCK_STORE
    inside chmod 1777 /tmp /run/lock
    # A sandbox that shows it read-only: what a shell beside it uses is not in /tmp.
    inside mount -o remount,ro /run/lock
    dl @n touch ran
    assert_rc 73
    assert_out "Read-only"
    assert_out DLOCK_STORE
    [ -z "$(inside find /tmp -name "dlock-*")" ]
    [ ! -e home/ran ]
}

@test "DLOCK_STORE can be a directory" {
    export DLOCK_STORE=$T/'a ?%41 dir'
    mkdir "$DLOCK_STORE"
    mkfifo go
    start_log holder "$DLOCK" @n sh -c 'echo $DLOCK_FENCE >in; read x <go'
    wait_for 5 file_nonempty in
    run -75 run_t 5 "$DLOCK" -n @n touch ran
    assert_out "held by pid $STARTED"
    run -1 flock -n "$DLOCK_STORE/n.lock" true
    # The same lock, spelt as a URI.
    run -75 run_t 5 "$DLOCK" -n "file://$T/a%20%3F%2541%20dir#n" true
    run -75 run_t 5 "$DLOCK" --status @n
    run -0 run_t 5 "$DLOCK" -n @m true
    [ -e "$DLOCK_STORE/m.lock" ]
    echo >go
    wait_exit 5 "$STARTED"
    run -0 run_t 5 "$DLOCK" -n @n sh -c 'echo $DLOCK_FENCE'
    [ "$output" -gt "$(cat in)" ]
    [ ! -e ran ]
    # Not made for the user: a typing error would be a lock of its own.
    DLOCK_STORE=$T/missing run -73 run_t 5 "$DLOCK" -n @n touch ran
    assert_out "$T/missing"
    [ ! -e ran ] && [ ! -e missing ]
    DLOCK_STORE=$T/a#b run -64 run_t 5 "$DLOCK" -n @n touch ran
    DLOCK_STORE=relative run -64 run_t 5 "$DLOCK" -n @n touch ran
    # A file is no directory.
    : >file
    DLOCK_STORE=$T/file run -73 run_t 5 "$DLOCK" -n @n touch ran
    assert_out "$T/file"
}
