#!/usr/bin/env bats
# hostile.bats - servers that say what no ZooKeeper server can, from the first byte on or in the middle of a hold:
# ridden out, or 76 and 79 in time; the library must not see any of it (lib/backends/zookeeper/wire/frame.c).

# bats file_tags=long
bats_require_minimum_version 1.5.0

load ../../support/common
load ../../support/fake
load ../../support/zookeeper
load ../../support/zkline

setup_file() { zk_start; }
teardown_file() { zk_stop_all; }
setup() {
    dlock_setup
    fake_setup # the command that tells what happens to it
}
teardown() { dlock_teardown; }

# ---------------------------------------------------------------- helpers ---

# liar HOW [TEXT]: P is the lock at something that is no ZooKeeper server.
liar() {
    rm -f "$T/liar"
    start_log "$T/liar" "$ROOT/tests/support/helpers/hostile_server.py" "$@"
    LIAR=$STARTED
    wait_for 5 test -s "$T/liar"
    P="zk://127.0.0.1:$(cat "$T/liar")#$NAME"
}
end_of() {
    kill "$1"
    wait_for 5 pid_gone "$1"
}

# measured ARG...: dlock; $status, $output, $took (ms), $rss (kB, of it and what it waited for).
measured() {
    run run_t 20 /usr/bin/python3 -c 'import resource, subprocess, sys, time
t = time.monotonic()
rc = subprocess.call(sys.argv[2:])
took = int((time.monotonic() - t) * 1000)
print(rc, took, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=open(sys.argv[1], "w"))' usage "$DLOCK" "$@"
    read -r status took rss <usage
}
# A sanitizer has memory of its own.
bounded() { [ -n "${SAN:-}" ] || [ "$rss" -lt 60000 ] || fail "$rss kB"; }
one_line() { [ "${#lines[@]}" = 1 ] && [[ $output == dlock:* ]] || fail "not one line of ours: $output"; }

H=0000000000000001         # a zxid
Z=00000000                 # no error
UNKNOWN=0000001031415926$H$Z # an answer to nothing
# A refusal of what was never asked: the library's segmentation fault.
REFUSAL=00000010fffffffc${H}ffffff8d
printf -v STAT '%0136d' 0
# The same behind a good one: nothing is asked then, and there the library aborts.
BEHIND=00000054xid$H$Z$STAT$UNKNOWN

# -------------------------------------------------------------------- acquire ---

@test "recognises what is not ZooKeeper, in bounded memory" {
    connected='\x00\x00\x00\x25\0\0\0\0\0\0\x0b\xb8\0\0\0\0\0\0\0\x05'
    for how in 'say HTTP/1.0\r\n' 'greet SSH-2.0-x\r\n' 'for-ever x' 'say \0\0\0\x25\0\0\0\0\0\0\x75\x30aaaaaaaaaaaaaaaaaaaaaaaaaaaaa' \
        'say \x7f\xff\xff\xff\0\0\0\0' 'for-ever \x35\xa4\xe9\0aaaaaaaaaa' 'say \xff\xff\xff\xff' 'say \0\0\0\0' \
        "say $connected\x7f\xff\xff\xff" "say \\0\\0\\0\\x25\\0\\0\\0\\0\\x7f\\xff\\xff\\xff\\0\\0\\0\\0\\0\\0\\0\\x05\\0\\0\\0\\x10"; do
        # shellcheck disable=SC2086
        liar $how
        measured --connect-timeout 5 "$P" touch "$T/ran"
        assert_rc 76 || fail "$how"
        one_line && bounded || fail "$how"
        assert_out "not ZooKeeper's protocol"
        assert_between 0 "$took" $((1000 + SLOW + BUSY)) "$how (ms)"
        measured --status --connect-timeout 5 "$P"
        assert_rc 76 || fail "$how"
        one_line && bounded || fail "$how"
        end_of "$LIAR"
    done
    [ ! -e ran ]
}

@test "passes over a server that is not ZooKeeper" {
    liar say 'HTTP/1.0\r\n'
    for i in 1 2 3 4 5 6; do
        measured --ttl 3 "zk://127.0.0.1:$(cat liar),127.0.0.1:$ZK_PORT#$NAME" true
        assert_rc 0
        assert_between 0 "$took" $((1000 + SLOW)) "time (ms)"
        [ -z "$output" ] || fail "$output"
    done
}

# garbled WHAT: what is said instead of that answer.
garbled() {
    echo $UNKNOWN
    echo 7fffffff 80000000 35a4e900 00000000 0000000f
    # Answers to what else was never asked; an event of a session.
    echo $REFUSAL "00000010fffffffe$H$Z" "00000010fffffff8$H$Z" "00000020ffffffff$H${Z}ffffffffffffff90000000042f616263"
    case $1 in
    create) echo "00000010xid$H$Z" "00000014xid$H${Z}7fffffff" "00000014xid$H${Z}ffffffff" "00000015xid$H${Z}000000012f" ;;
    ls) echo "00000010xid$H$Z" "00000014xid$H${Z}7fffffff" "00000014xid$H${Z}80000000" "00000018xid$H${Z}000000017fffffff" ;;
    set) echo "$BEHIND" "00000010xid$H$Z" "00000014xid$H${Z}7fffffff" ;;
    delete) echo "00000010xid$H$Z$UNKNOWN" "00000014xid$H${Z}00000000" ;;
    esac
}

@test "a bad answer to the acquisition is tried again" {
    for what in create ls; do
        for text in $(garbled $what); do
            proxy forge $what 1 "$text"
            rm -f ran
            measured --ttl 3 "$P" sh -c "echo ran >>'$T/ran'"
            assert_rc 0 || fail "$what $text"
            [ -z "$output" ] || fail "$what $text: $output"
            bounded || fail "$what $text"
            [ "$(cat ran)" = ran ] && struck || fail "$what $text"
            line_is 0 || fail "$what $text: left behind"
            end_of "$PROXY"
        done
    done
}

# bats test_tags=thread
@test "repeated bad answers fail within the connect time-out" {
    local timeout=0.8 # the session and the first answer fit into it
    [ "$SLOW" = 0 ] || timeout=2.8
    zk_create "/$NAME" >/dev/null
    for text in $UNKNOWN 7fffffff "00000010xid$H$Z"; do
        proxy forge ls 0 "$text"
        measured --ttl 3 --connect-timeout $timeout "$P" touch "$T/ran"
        assert_rc 76 || fail "$text"
        one_line && bounded || fail "$text"
        assert_out "not ZooKeeper's protocol"
        # It is given back, too.
        assert_between 800 "$took" $((3000 + SLOW)) "$text (ms)"
        line_is 0 || fail "$text: left behind"
        end_of "$PROXY"
    done
    proxy forge ls 0 $UNKNOWN
    measured --status --connect-timeout 0.8 "$P"
    assert_rc 76
    one_line
    [ ! -e ran ]
}

@test "does not believe an answer that names a foreign node" {
    background --ttl 30 "zk://127.0.0.1:$ZK_PORT#$NAME" $SUBJECT -u "$T/end"
    wait_for 5 running
    other=$(zk_ls "/$NAME")
    for path in x / "/$NAME/$other" "/$NAME/0000000000"; do
        proxy forge create 1 "$(printf '%08x' $((16 + 4 + ${#path} + 68)))xid$H$Z$(printf '%08x' ${#path})$(printf %s "$path" | od -An -tx1 | tr -d ' \n')$STAT"
        measured --ttl 3 -n "$P" touch "$T/ran"
        assert_rc 75 || fail "$path"
        struck
        line_is 1 || fail "$path: $(zk_ls "/$NAME")"
        end_of "$PROXY"
    done
    [ "$(zk_ls "/$NAME")" = "$other" ]
    [ ! -e ran ]
    touch end
    ended
    assert_rc 0
}

# ----------------------------------------------------------------------- hold ---

@test "a hold survives one bad answer" {
    for text in $(garbled set); do
        proxy forge set 1 "$text"
        measured --ttl 1.5 "$P" sleep 0.6 # the command's own time
        assert_rc 0 || fail "$text"
        [ -z "$output" ] || fail "$text: $output"
        bounded && struck || fail "$text"
        line_is 0 || fail "$text: left behind"
        end_of "$PROXY"
    done
}

# bats test_tags=thread
@test "permanent bad answers end the hold in time" {
    for text in $UNKNOWN 35a4e900 $REFUSAL; do
        rm -rf command/*
        proxy forge set 0 "$text"
        background --ttl 2 "$P" $SUBJECT -t -k
        wait_for 5 running 4
        started=$(seen main start '')
        ended
        assert_rc 79
        assert_out "has not been renewed for"
        assert_out "could not be renewed in time"
        [ "$(grep -c '' "$T/out")" = 2 ] || fail "$output"
        [ "$(count_seen main sig 15)" = 1 ]
        lease_times 2000 "$started"
        [ "$(last_beat)" -lt "$DEADLINE" ]
        end_of "$PROXY"
        wait_for 5 line_is 0
    done
}

@test "a bad answer to a release or a waiter does no harm" {
    for text in $(garbled delete); do
        proxy forge delete 1 "$text"
        measured --ttl 3 "$P" true
        assert_rc 0 || fail "$text"
        [ -z "$output" ] || fail "$text: $output"
        line_is 0 || fail "$text: left behind"
        end_of "$PROXY"
    done
    for text in $UNKNOWN 7fffffff "00000014xid$H${Z}7fffffff"; do
        rm -rf end command/*
        background --ttl 30 "zk://127.0.0.1:$ZK_PORT#$NAME" $SUBJECT -u "$T/end"
        wait_for 5 running
        proxy forge get 1 "$text"
        start_log w.log "$DLOCK" --ttl 3 "$P" true
        wait_for 5 struck
        wait_for 5 line_is 2
        touch end
        ended
        assert_rc 0
        wait_exit 5 "$STARTED" || fail "$text: $(cat w.log)"
        end_of "$PROXY"
    done
}

# A byte in each part of a packet: its length, number, zxid, error, body.
@test "a changed byte never crashes dlock" {
    zk_create "/$NAME" >/dev/null
    for at in 0 2 3 4 7 11 16 19 20 23 24 -1; do
        for what in create ls set; do
            # The connection may wait for bytes that never come: as long as for any other answer.
            proxy flip $what 1 $at
            # Up to the first heartbeat, where it is meant.
            case $what in set) cmd='sleep 0.4' ;; *) cmd=true ;; esac
            # shellcheck disable=SC2086
            measured --ttl 1.5 --connect-timeout 1 "$P" $cmd
            case $status in 0 | 69 | 76 | 79) ;; *) fail "$what $at: $status $output" ;; esac
            [ "${#lines[@]}" -le 1 ] && bounded || fail "$what $at: $output"
            assert_between 0 "$took" $((4500 + SLOW)) "$what $at (ms)"
            end_of "$PROXY"
        done
    done
}
