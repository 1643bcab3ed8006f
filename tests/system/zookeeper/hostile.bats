#!/usr/bin/env bats
# hostile.bats - servers that say what no ZooKeeper server can, from the first byte on or in the
# middle of a hold: ridden out, or 76 and 79 in time; the library must not see any of it
# (lib/backends/zookeeper/wire/frame.c).

# bats file_tags=long
load ../../support/zkline

setup_file() { zk_start; }

# liar HOW [TEXT]: P is the lock at something that is no ZooKeeper server.
liar() {
    listener hostile_server "$@"
    PROXY=$LISTENER
    P="zk://127.0.0.1:$LISTENS#$NAME"
}

# measured ARG...: dlock; $status, $output, $took (ms), $rss (kB, of it and what it waited for).
measured() {
    run run_t 20 /usr/bin/python3 -c 'import resource, subprocess, sys, time
t = time.monotonic()
rc = subprocess.call(sys.argv[2:])
took = int((time.monotonic() - t) * 1000)
most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print(rc, took, most, file=open(sys.argv[1], "w"))' usage "$DLOCK" "$@"
    read -r status took rss <usage
}
# A sanitizer has memory of its own.
bounded() { [ -n "${SAN:-}" ] || [ "$rss" -lt 60000 ] || fail "$rss kB"; }
one_line() {
    [ "${#lines[@]}" = 1 ] && [[ $output == dlock:* ]] || fail "not one line of ours: $output"
}

X=0000000000000001         # a zxid
Z=00000000                 # no error
UNKNOWN=0000001031415926$X$Z # an answer to nothing
# A refusal of what was never asked: the library's segmentation fault.
REFUSAL=00000010fffffffc${X}ffffff8d
printf -v STAT '%0136d' 0
# The same behind a good one: nothing is asked then, and there the library aborts.
BEHIND=00000054xid$X$Z$STAT$UNKNOWN

# -------------------------------------------------------------------- acquire ---

@test "recognises what is not ZooKeeper, in bounded memory" {
    connected='\x00\x00\x00\x25\0\0\0\0\0\0\x0b\xb8\0\0\0\0\0\0\0\x05'
    for how in 'say HTTP/1.0\r\n' 'greet SSH-2.0-x\r\n' 'for-ever x' \
        'say \0\0\0\x25\0\0\0\0\0\0\x75\x30aaaaaaaaaaaaaaaaaaaaaaaaaaaaa' \
        'say \x7f\xff\xff\xff\0\0\0\0' 'for-ever \x35\xa4\xe9\0aaaaaaaaaa' \
        'say \xff\xff\xff\xff' 'say \0\0\0\0' "say $connected\x7f\xff\xff\xff" \
        'say \0\0\0\x25\0\0\0\0\x7f\xff\xff\xff\0\0\0\0\0\0\0\x05\0\0\0\x10'; do
        liar $how
        measured --connect-timeout 5 "$P" touch "$T/ran"
        assert_rc 76 || fail "$how"
        one_line && bounded || fail "$how"
        assert_out "not ZooKeeper's protocol"
        assert_between 0 "$took" $((1000 + SLOW + BUSY)) "$how (ms)"
        measured --status --connect-timeout 5 "$P"
        assert_rc 76 || fail "$how"
        one_line && bounded || fail "$how"
        end_proxy
    done
    [ ! -e ran ]
}

@test "passes over a server that is not ZooKeeper" {
    liar say 'HTTP/1.0\r\n'
    for i in 1 2 3 4 5 6; do
        measured --ttl 3 "zk://127.0.0.1:$LISTENS,127.0.0.1:$ZK_PORT#$NAME" true
        assert_rc 0
        assert_between 0 "$took" $((1000 + SLOW)) "time (ms)"
        [ -z "$output" ] || fail "$output"
    done
}

# harmless WHAT TEXT TTL CMD...: the first one of these requests is answered with TEXT; dlock
# succeeds, says nothing, and leaves nothing.
harmless() {
    local what=$1 text=$2
    proxy forge "$what" 1 "$text"
    measured --ttl "$3" "$P" "${@:4}"
    [ "$status" = 0 ] && [ -z "$output" ] || fail "$what $text: $status: $output"
    bounded && struck || fail "$what $text"
    line_is 0 || fail "$what $text: left behind"
    end_proxy
}

# garbled WHAT: what is said instead of that answer, of all that the sample of the day.
garbled() { all_garbled "$1" | tr ' ' '\n' | sample hostile_points; }
all_garbled() {
    echo $UNKNOWN
    echo 7fffffff 80000000 35a4e900 00000000 0000000f
    # Answers to what else was never asked; an event of a session.
    echo $REFUSAL "00000010fffffffe$X$Z" "00000010fffffff8$X$Z" \
        "00000020ffffffff$X${Z}ffffffffffffff90000000042f616263"
    case $1 in
    create) echo "00000010xid$X$Z" "00000014xid$X${Z}7fffffff" "00000014xid$X${Z}ffffffff" \
        "00000015xid$X${Z}000000012f" ;;
    ls) echo "00000010xid$X$Z" "00000014xid$X${Z}7fffffff" "00000014xid$X${Z}80000000" \
        "00000018xid$X${Z}000000017fffffff" ;;
    set) echo "$BEHIND" "00000010xid$X$Z" "00000014xid$X${Z}7fffffff" ;;
    delete) echo "00000010xid$X$Z$UNKNOWN" "00000014xid$X${Z}00000000" ;;
    esac
}

# bats test_tags=soak
@test "a bad answer to the acquisition is tried again" {
    for what in create ls; do
        for text in $(garbled $what); do
            rm -f ran
            harmless $what "$text" 3 sh -c "echo ran >>'$T/ran'"
            [ "$(cat ran)" = ran ] || fail "$what $text"
        done
    done
}

# bats test_tags=thread,plain
@test "repeated bad answers fail within the connect time-out" {
    local timeout=0.8 # the session and the first answer fit into it
    [ "$SLOW" = 0 ] || timeout=2.8
    zk_create "/$NAME" >/dev/null
    for text in $UNKNOWN 7fffffff "00000010xid$X$Z"; do
        proxy forge ls 0 "$text"
        measured --ttl 3 --connect-timeout $timeout "$P" touch "$T/ran"
        assert_rc 76 || fail "$text"
        one_line && bounded || fail "$text"
        assert_out "not ZooKeeper's protocol"
        # It is given back, too.
        assert_between 800 "$took" $((3000 + SLOW)) "$text (ms)"
        line_is 0 || fail "$text: left behind"
        end_proxy
    done
    proxy forge ls 0 $UNKNOWN
    measured --status --connect-timeout 0.8 "$P"
    assert_rc 76
    one_line
    measured --ttl 3 -w $timeout "$P" touch "$T/ran"
    assert_rc 76
    one_line
    [ ! -e ran ]
}

@test "does not believe an answer that names a foreign node" {
    job 0 --ttl 30 "$L"
    other=$(zk_ls "/$NAME")
    for path in x / "/$NAME/$other" "/$NAME/0000000000"; do
        hex=$(printf '%08x' ${#path})$(printf %s "$path" | od -An -tx1 | tr -d ' \n')
        proxy forge create 1 "$(printf '%08x' $((16 + 4 + ${#path} + 68)))xid$X$Z$hex$STAT"
        measured --ttl 3 -n "$P" touch "$T/ran"
        assert_rc 75 || fail "$path"
        struck
        line_is 1 || fail "$path: $(zk_ls "/$NAME")"
        end_proxy
    done
    [ "$(zk_ls "/$NAME")" = "$other" ]
    [ ! -e ran ]
    job_ends
}

# ----------------------------------------------------------------------- hold ---

# bats test_tags=soak
@test "a hold survives one bad answer" {
    for text in $(garbled set); do
        harmless set "$text" 1.5 sh -c "$UNTIL_STRUCK"
    done
}

# bats test_tags=thread
@test "permanent bad answers end the hold in time" {
    for text in $UNKNOWN 35a4e900 $REFUSAL; do
        proxy forge set 0 "$text"
        tree --ttl 2 "$P"
        times_out 2000 "$(seen main start '')"
        end_proxy
        wait_for 5 line_is 0
    done
}

# bats test_tags=soak
@test "a bad answer to a release or a waiter does no harm" {
    for text in $(garbled delete); do
        harmless delete "$text" 3 true
    done
    for text in $UNKNOWN 7fffffff "00000014xid$X${Z}7fffffff"; do
        job 0 --ttl 30 "$L"
        proxy forge get 1 "$text"
        start_log w.log "$DLOCK" --ttl 3 "$P" true
        wait_for 5 struck
        wait_for 5 line_is 2
        job_ends
        wait_exit 5 "$STARTED" || fail "$text: $(cat w.log)"
        end_proxy
    done
}

# A byte in each part of a packet: its length, number, zxid, error, body.
# bats test_tags=soak
@test "a changed byte never crashes dlock" {
    zk_create "/$NAME" >/dev/null
    printf '%s\n' {create,ls,set}' '{0,2,3,4,7,11,16,19,20,23,24,-1} | sample hostile_points >points
    while read -r what at; do
        # The connection may wait for bytes that never come: as long as for any other answer.
        proxy flip $what 1 $at
        # Up to the first heartbeat, where it is meant.
        case $what in set) cmd=$UNTIL_STRUCK ;; *) cmd=: ;; esac
        measured --ttl 1.5 --connect-timeout 1 "$P" sh -c "$cmd"
        case $status in 0 | 69 | 76 | 79) ;; *) fail "$what $at: $status $output" ;; esac
        [ "${#lines[@]}" -le 1 ] && bounded || fail "$what $at: $output"
        assert_between 0 "$took" $((4500 + SLOW)) "$what $at (ms)"
        end_proxy
    done <points
}
