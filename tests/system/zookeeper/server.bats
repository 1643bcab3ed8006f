#!/usr/bin/env bats
# server.bats - locks in ZooKeeper: whom the server lets in, names, the session that it makes of a ttl, servers that are
# not there or silent; what is said.

# bats file_tags=long,thread
bats_require_minimum_version 1.5.0

load ../../support/common
load ../../support/fake
load ../../support/zookeeper
load ../../support/zkline

setup_file() {
    export BATS_NO_PARALLELIZE_WITHIN_FILE=true
    # Sessions of 2 to 3 s: for what the server makes of another ttl.
    zk_start_in narrow minSessionTimeout=2000 maxSessionTimeout=3000
    export NARROW=${ZK_PORTS[narrow]}
    zk_start
}
teardown_file() { zk_stop_all; }

setup() {
    dlock_setup
    fake_setup # the command that tells what happens to it
    H=127.0.0.1:$ZK_PORT
    L="zk://$H#$NAME"
}
teardown() { dlock_teardown; }

# ------------------------------------------------ URLs as people have them ---

@test "a URL with other programs' parameters is the same lock" {
    hold
    run -75 run_t 5 "$DLOCK" -n "zookeeper://$H?timeout=3000&client=curator#$NAME" touch ran
    run -75 run_t 5 "$DLOCK" -v --status "zookeeper://$H/?timeout=3000#$NAME"
    assert_out "zookeeper://$H: ignored the parameters of other programs: timeout"
    run -64 run_t 5 "$DLOCK" "zookeeper://$H?backup=127.0.0.1:1#$NAME" touch ran
    assert_out 'parameter "backup"'
    let_go
    [ ! -e ran ]
}

# ------------------------------------------------------------- credentials ---

@test "nodes of a user are closed to others" {
    L="zk://joe:c4nary@$H#$NAME"
    hold
    for n in "/$NAME" "$(zk_py -a joe:c4nary ls "/$NAME" 2>/dev/null || zk_py ls -a joe:c4nary "/$NAME" | sed "s|^|/$NAME/|")"; do
        run zk_py acl -a joe:c4nary "$n"
        [[ $output =~ ^rwcda\ digest\ joe:[^\ ]+$ ]] || fail "$n: $output"
    done
    for u in "zk://$H" "zk://joe:wrong@$H" "zk://ann:c4nary@$H"; do
        for what in -n --status; do
            if [ "$what" = -n ]; then run run_t 5 "$DLOCK" -n "$u#$NAME" touch ran; else run run_t 5 "$DLOCK" --status "$u#$NAME"; fi
            assert_rc 77
            [ "${#lines[@]}" = 1 ]
            assert_out "$H"
            assert_out "permission there"
            refute_out c4nary
            refute_out wrong
            wait_for 5 sessions_are 1
        done
    done
    run run_t 5 "$DLOCK" -n "zk://joe:c4nary@$H#$NAME" true
    assert_rc 75
    run run_t 5 "$DLOCK" --status "zk://joe:c4nary@$H#$NAME"
    assert_rc 75
    refute_out c4nary
    let_go
    [ ! -e ran ]
}

@test "?acl=open lets everybody in, ?acl=read lets them look" {
    L="zk://joe:pw@$H?acl=open#$NAME"
    hold
    [ "$(zk_acl "/$NAME")" = "rwcda world anyone" ]
    [ "$(zk_acl "$(node 1)")" = "rwcda world anyone" ]
    run run_t 5 "$DLOCK" -n "zk://$H#$NAME" true
    assert_rc 75
    let_go
    wait_for 5 not_there "/$NAME"
    L="zk://joe:pw@$H?acl=read#$NAME"
    hold
    run zk_acl "$(node 1)"
    [[ ${lines[0]} == "rwcda digest joe:"* && ${lines[1]} == "r world anyone" ]] || fail "$output"
    run run_t 5 "$DLOCK" --status "zk://$H#$NAME"
    assert_rc 75
    assert_out "pid $HOLDER"
    run run_t 5 "$DLOCK" -n "zk://$H#$NAME" true
    assert_rc 77
    let_go
}

@test "no password leaks, and a password file works" {
    L="zk://joe:c4nary-Right%25x@$H#$NAME"
    hold --ttl 1 -v
    OPTS=-v wait_in_line 2 env
    for pid in $HOLDER $WAITER $(children "$HOLDER") $(children "$WAITER"); do
        run grep -siaF c4nary "/proc/$pid/cmdline" "/proc/$pid/environ" # keeper's and guard's are root's alone to see
        [ -z "$output" ] || fail "$output"
    done
    run zk_py get -a 'joe:c4nary-Right%x' "/$NAME/$(zk_py ls -a 'joe:c4nary-Right%x' "/$NAME" | head -n 1)"
    assert_out dlock1
    refute_out c4nary
    let_go
    wait_exit 5 "$WAITER"
    grep -q DLOCK_NAME wait2.log
    run -1 grep -iF c4nary hold.log wait2.log "$ZK_LOG"
    printf 'c4nary-Right%%x\n' >pw
    chmod 600 pw
    run run_t 5 "$DLOCK" "zk://joe@$H?password-file=$T/pw#$NAME" true
    assert_rc 0
    printf 'c4nary-wrong\n' >pw
    zk_py create -a 'joe:c4nary-Right%x' "/$NAME-2"
    run run_t 5 "$DLOCK" "zk://joe@$H?password-file=$T/pw#$NAME-2" true
    assert_rc 77
    refute_out c4nary
    chmod 644 pw
    run run_t 5 "$DLOCK" "zk://joe@$H?password-file=$T/pw#$NAME" true
    assert_rc 77
    refute_out c4nary
    zk_py rm -a 'joe:c4nary-Right%x' "/$NAME-2"
}

@test "refuses parameters that make no sense" {
    for u in "zk://joe@$H" "zk://:c4nary@$H" "zk://$H?acl=creator" "zk://$H?acl=read" "zk://$H?acl=x" "zk://joe:c4nary@$H?acl=" \
        "zk://$H?layout=x" "zk://$H?unheard=1" "zk://"; do
        run run_t 5 "$DLOCK" "$u#$NAME" touch ran
        assert_rc 64 || fail "$u"
        [ "${#lines[@]}" = 1 ] || fail "$u: $output"
        refute_out c4nary
    done
    [ ! -e ran ]
}

# ------------------------------------------------------------------- names ---

@test "a chroot stays, the lock below it goes" {
    L="zk://$H/$NAME/b#name"
    hold
    [ "$(line "/$NAME/b/name" | wc -l)" = 1 ]
    let_go
    wait_for 5 not_there "/$NAME/b/name"
    zk_stat "/$NAME/b" version
    # Another lock's containers come and go meanwhile.
    run run_t 5 "$DLOCK" "zk://$H/$NAME/b#other" true
    assert_rc 0
    wait_for 5 not_there "/$NAME/b/other"
    zk_stat "/$NAME/b" version
    zk_rm -r "/$NAME"
}

@test "a name with parts is a lock of its own, and leaves nothing" {
    run run_t 5 "$DLOCK" "zk://$H#$NAME/a/b" "$DLOCK" -n "zk://$H#$NAME/a" "$DLOCK" -n "zk://$H#$NAME" true
    assert_rc 0
    run run_t 5 "$DLOCK" "zk://$H#$NAME/a/b" "$DLOCK" -n "zk://$H/$NAME#a/b" true
    assert_rc 75
    wait_for 8 not_there "/$NAME"
}

@test "refuses impossible names" {
    for n in .. . a/.. a//b a/ /a 'x%F0%9F%94%92' x/job0000000001 zookeeper zookeeper/x; do
        run run_t 5 "$DLOCK" "zk://$H#$n" touch ran
        assert_rc 64 || fail "$n"
        [ "${#lines[@]}" = 1 ] || fail "$n: $output"
    done
    run run_t 5 "$DLOCK" "zk://$H/$NAME#zookeeper" true
    assert_rc 0
    [ ! -e ran ]
    wait_for 5 not_there "/$NAME/zookeeper"
    zk_rm -r "/$NAME"
}

# The application's part of the tree is made by an administrator, as in any shared ensemble.
@test "rights are needed below the chroot alone" {
    /usr/bin/python3 - "$H" "$NAME" <<'PY'
import sys
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl, make_acl
zk = KazooClient(sys.argv[1])
zk.start(10)
zk.add_auth("digest", "admin:x")
admin = make_digest_acl("admin", "x", all=True)
see = make_acl("world", "anyone", read=True)
zk.create(f"/{sys.argv[2]}", b"", [admin, see])
zk.create(f"/{sys.argv[2]}/app", b"", [make_digest_acl("joe", "pw", all=True)])
zk.stop()
PY
    run run_t 5 "$DLOCK" "zk://joe:pw@$H/$NAME/app#one" true
    assert_rc 0
    run run_t 5 "$DLOCK" "zk://joe:pw@$H/$NAME/app#two/parts" true
    assert_rc 0
    run run_t 5 "$DLOCK" "zk://joe:pw@$H/$NAME#not-there/x" true
    assert_rc 77
    wait_for 5 not_there "/$NAME/app/one"
}

# ----------------------------------------------------------------- session ---

@test "warns when the server's longest session is below the ttl" {
    L="zk://127.0.0.1:$NARROW#$NAME"
    CI=1 background --ttl 30 "$L" $SUBJECT -t -k
    wait_for 5 running 4
    file_has out "sessions of 3 s, not the ttl of 30 s"
    [ "$(grep -c ^dlock: out)" = 1 ]
    stopped=$(now_ns)
    kill -STOP "$K"
    wait_for 5 tree_gone
    [ "$(last_beat)" -lt $((stopped + 3000 * NS)) ]
    kill -CONT "$K"
    ended
    assert_rc 79
    # It is kept, too: for longer than the session.
    background --ttl 30 "$L" $SUBJECT -m 3600 -r 5
    ended
    assert_rc 5
}

@test "warns when the server's shortest session is above the ttl" {
    L="zk://127.0.0.1:$NARROW#$NAME"
    CI=1 background --ttl 1 "$L" $SUBJECT -t -k
    wait_for 5 running 4
    file_has out "sessions of 2 s, not the ttl of 1 s"
    stopped=$(now_ns)
    kill -STOP "$K"
    wait_for 5 tree_gone
    assert_between $((stopped + 400 * NS)) "$(last_beat)" $((stopped + 2000 * NS)) "end of the tree"
    kill -CONT "$K"
    ended
    assert_rc 79
}

@test "refuses a grace that does not fit the server's session" {
    # A later try would change nothing.
    run run_t 5 "$DLOCK" --retry --ttl 30 --grace 4 "zk://127.0.0.1:$NARROW#$NAME" touch ran
    assert_rc 69
    assert_out "3 s"
    assert_out "30 s"
    [ "${#lines[@]}" = 1 ]
    [ ! -e ran ]
    run run_t 5 "$DLOCK" --ttl 2 "zk://127.0.0.1:$NARROW#$NAME" true
    assert_rc 0
    [ -z "$output" ]
}

# ----------------------------------------------------------------- contact ---

@test "fails at once where nothing listens" {
    t0=$(now_ms)
    run run_t 10 "$DLOCK" "zk://127.0.0.1:1#$NAME" touch ran
    assert_between 0 $(($(now_ms) - t0)) $((1000 + SLOW)) "time (ms)"
    assert_rc 69
    assert_out "127.0.0.1:1"
    [ "${#lines[@]}" = 1 ]
    t0=$(now_ms)
    run run_t 10 "$DLOCK" "zk://127.0.0.1:1,127.0.0.1:2#$NAME" touch ran
    assert_between 0 $(($(now_ms) - t0)) $((2500 + SLOW)) "time with two (ms)"
    assert_rc 69
    run run_t 10 "$DLOCK" --status "zk://127.0.0.1:1#$NAME"
    assert_rc 69
    [ ! -e ran ]
}

@test "some hosts are dead, one lives" {
    for i in 1 2 3 4 5 6; do
        t0=$(now_ms)
        run run_t 10 "$DLOCK" "zk://127.0.0.1:1,127.0.0.1:2,$H#$NAME" true
        assert_rc 0
        [ -z "$output" ]
        assert_between 0 $(($(now_ms) - t0)) $((4000 + SLOW)) "time (ms)"
    done
}

@test "a silent server fails after the connect time-out" {
    start_log proxy "$ROOT/tests/support/helpers/zkproxy.py" "$ZK_PORT" stall connect 0
    wait_for 5 test -s proxy
    P="127.0.0.1:$(head -n 1 proxy)"
    for args in "--connect-timeout 0.8" "-w 0.8"; do
        best=99999
        # The session is begun, but nobody here hears of it.
        for try in 1 2; do
            "$HELPERS/clock" before
            # shellcheck disable=SC2086
            run run_t 10 "$DLOCK" --ttl 1 $args "zk://$P#$NAME" touch ran
            "$HELPERS/clock" after
            assert_rc 69
            assert_out "$P"
            [ "${#lines[@]}" = 1 ]
            took=$((($(cat after) - $(cat before)) / NS))
            [ "$took" -ge 800 ]
            [ "$took" -ge "$best" ] || best=$took
        done
        # -w has 100 ms, the connect time-out is no promise of the end.
        assert_between 800 "$best" $((1100 + SLOW)) "$args (ms)"
    done
    # One of two: the other one is gone to.
    run run_t 10 "$DLOCK" --ttl 1 "zk://$P,$H#$NAME" true
    assert_rc 0
    run run_t 10 "$DLOCK" --ttl 1 "zk://$H,$P#$NAME" true
    assert_rc 0
    [ ! -e ran ]
    wait_for 5 no_session
}
