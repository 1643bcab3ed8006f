#!/usr/bin/env bats
# syslog.bats - --syslog: what cron would not show, to a log that may be absent or stuck.

load ../../support/fake

# with_log SCRIPT [MODE]: SCRIPT in a mount namespace whose /dev/log is the socket of a program that
# writes what it gets to the file log, or (MODE stuck) reads nothing; MODE none: there is no log.
with_log() {
    need_mounts
    export T C L S NAME SUBJECT MODE=${2:-read}
    cat >log.py <<'PY'
import os, socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind("/dev/log")
if sys.argv[1] == "stuck":  # full: one more would wait
    c = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    try:
        while True: c.sendto(b"x", "/dev/log")
    except BlockingIOError: pass
open("ready", "w").close()
while True:
    line = s.recv(65536) if sys.argv[1] == "read" else os.read(0, 1)
    with open("log", "ab") as f: f.write(line + b"\n")
    if not line or line == b"end": break
PY
    cat >script <<'END'
mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && ln -s /proc/self/fd /dev/fd || exit 99
if [ $MODE != none ]; then
    mkfifo wait
    sleep 20 >wait & keeps=$!
    /usr/bin/python3 log.py $MODE <wait 3>&- & reader=$!
    "$HELPERS/await" ready
fi
END
    cat >>script <<<"$1"
    cat >>script <<'END'
[ $MODE != none ] || exit 0
[ $MODE != read ] || /usr/bin/python3 -c 'import socket
socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"end", "/dev/log")'
kill $keeps
wait $reader
END
    run -0 run_t 30 unshare -m bash script
}

# logged LINE...: the log has just these; PID stands for a number.
logged() {
    sed -E 's/^(<[0-9]+>)[A-Z][a-z]{2} [ 0-9][0-9] [0-9:]{8} dlock\[[0-9]+\]: /\1/; /^end$/d
        s/after [0-9.]+ m?s$/after TIME/' log | diff -u <(printf '%s\n' "$@") - ||
        fail "$(cat log)"
}

@test "--syslog: the grant, a busy and a skipped run, a loss, and each end with its code" {
    local at="fake://$S: '$NAME'"
    export ODD=$T/$'a\nb\e[1m'
    with_log '
        "$DLOCK" --syslog "$L" sh -c "exit 3"
        "$DLOCK" --syslog=local3 --once "$L" true
        "$DLOCK" --syslog --once --skip-exit-code 5 "$L" false
        echo busy >$S/acquire; "$DLOCK" --syslog -n "$L" false; "$DLOCK" --syslog -w 0.1 "$L" false
        rm $S/acquire
        "$DLOCK" --syslog --ttl 1 "$L" sh -c ": >$S/lost; sleep 10"
        "$DLOCK" --syslog redi://u:geheim@h#x true
        "$DLOCK" --syslog "$ODD" true
        true'
    logged "<78>got $at; after TIME" "<77>end $at; exit code 3" \
        "<158>got $at; after TIME" "<158>end $at; exit code 0" \
        "<77>skipped $at; exit code 5" \
        "<77>busy $at; exit code 75" "<77>timeout $at; exit code 75" \
        "<78>got $at; after TIME" "<75>lost $at; lost unasked" \
        "<77>end $at; exit code 79: lost unasked" \
        "<77>error; exit code 64: unknown store \"redi://\"; did you mean redis://? (a file of \
that name: ./redi:...)" \
        "<78>got '$T/a?b?[1m'; after TIME" "<78>end '$T/a?b?[1m'; exit code 0"
}

@test "--syslog: a log that is absent or reads nothing delays no renewal and no end" {
    local mode
    for mode in none stuck; do
        rm -f "$S"/log ready wait
        with_log '
            "$DLOCK" --syslog --ttl 1 "$L" $SUBJECT -m 1500 || exit 1
            t=$(date +%s%N)
            "$DLOCK" --syslog x sh -c "exit 7"
            [ $? = 7 ] && [ $((($(date +%s%N) - t) / 1000000)) -lt $((600 + SLOW)) ] || exit 2
            "$DLOCK" --syslog -F x true' $mode
        [ "$(grep -c ^ok "$S/log")" -ge 4 ] || fail "$(cat "$S/log")"
    done
    no_violations
}

@test "--syslog needs a command, and a facility that exists" {
    says 64 "--syslog is not for --status, but for a command" --syslog --status x
    says 64 '"kern" is not a facility' --syslog=kern x true
}
