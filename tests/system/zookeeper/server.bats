#!/usr/bin/env bats
# server.bats - locks in ZooKeeper: whom the server lets in, names, the session that it makes of a
# ttl, servers that are not there or silent; what is said.

# bats file_tags=long,thread
load ../../support/zkline

setup_file() {
    export BATS_NO_PARALLELIZE_WITHIN_FILE=true
    # Sessions of 2 to 3 s: for what the server makes of another ttl.
    zk_start_in narrow minSessionTimeout=2000 maxSessionTimeout=3000
    export NARROW=${ZK_PORTS[narrow]}
    zk_start
}

# ------------------------------------------------------------- credentials ---

@test "nodes of a user are closed to others" {
    L="zk://joe:c4nary@$H#$NAME"
    hold
    for n in "/$NAME" "$(node 1)"; do
        run zk_acl -a joe:c4nary "$n"
        [[ $output =~ ^rwcda\ digest\ joe:[^\ ]+$ ]] || fail "$n: $output"
    done
    for u in "zk://$H" "zk://joe:wrong@$H" "zk://ann:c4nary@$H"; do
        for what in -n --status; do
            cmd=(touch ran)
            [ $what = -n ] || cmd=()
            run -77 run_t 5 "$DLOCK" $what "$u#$NAME" "${cmd[@]}"
            [ "${#lines[@]}" = 1 ]
            assert_out "$H"
            assert_out "permission there"
            refute_out c4nary
            refute_out wrong
            wait_for 5 sessions_are 1
        done
    done
    run -75 run_t 5 "$DLOCK" -n "zk://joe:c4nary@$H#$NAME" true
    run -75 run_t 5 "$DLOCK" --status "zk://joe:c4nary@$H#$NAME"
    refute_out c4nary
    let_go
    [ ! -e ran ]
}

@test "?acl=open lets everybody in, ?acl=read lets them look" {
    L="zk://joe:pw@$H?acl=open#$NAME"
    hold
    [ "$(zk_acl "/$NAME")" = "rwcda world anyone" ]
    [ "$(zk_acl "$(node 1)")" = "rwcda world anyone" ]
    run -75 run_t 5 "$DLOCK" -n "zk://$H#$NAME" true
    let_go
    zk_gone "/$NAME" 5
    L="zk://joe:pw@$H?acl=read#$NAME"
    hold
    run zk_acl "$(node 1)"
    [[ ${lines[0]} == "rwcda digest joe:"* && ${lines[1]} == "r world anyone" ]] || fail "$output"
    says 75 "pid $HOLDER" --status "zk://$H#$NAME"
    run -77 run_t 5 "$DLOCK" -n "zk://$H#$NAME" true
    let_go
}

@test "no password leaks, and a password file works" {
    L="zk://joe:c4nary-Right%25x@$H#$NAME"
    hold --ttl 4 -v
    OPTS=-v wait_in_line 2 env
    for pid in $HOLDER $WAITER $(children "$HOLDER") $(children "$WAITER"); do
        # keeper's and guard's are root's alone to see
        run grep -siaF c4nary "/proc/$pid/cmdline" "/proc/$pid/environ"
        [ -z "$output" ] || fail "$output"
    done
    run zk_get -a 'joe:c4nary-Right%x' "$(node 1)"
    assert_out dlock1
    refute_out c4nary
    let_go
    wait_exit 5 "$WAITER"
    grep -q DLOCK_NAME wait2.log
    run -1 grep -iF c4nary hold.log wait2.log "$ZK_LOG"
    printf 'c4nary-Right%%x\n' >pw
    chmod 600 pw
    run -0 run_t 5 "$DLOCK" "zk://joe@$H?password-file=$T/pw#$NAME" true
    printf 'c4nary-wrong\n' >pw
    zk_create -a 'joe:c4nary-Right%x' "/$NAME-2"
    run -77 run_t 5 "$DLOCK" "zk://joe@$H?password-file=$T/pw#$NAME-2" true
    refute_out c4nary
    chmod 644 pw
    run -77 run_t 5 "$DLOCK" "zk://joe@$H?password-file=$T/pw#$NAME" true
    refute_out c4nary
    zk_rm -a 'joe:c4nary-Right%x' "/$NAME-2"
}

# ------------------------------------------------------------------- names ---

@test "a chroot stays, the lock below it goes" {
    L="zk://$H/$NAME/b#name"
    hold
    [ "$(line "/$NAME/b/name" | wc -l)" = 1 ]
    let_go
    zk_gone "/$NAME/b/name" 5
    zk_stat "/$NAME/b" version
    # Another lock's containers come and go meanwhile.
    run -0 run_t 5 "$DLOCK" "zk://$H/$NAME/b#other" true
    zk_gone "/$NAME/b/other" 5
    zk_stat "/$NAME/b" version
    zk_rm -r "/$NAME"
}

@test "a name with parts is a lock of its own, and leaves nothing" {
    run -0 run_t 5 "$DLOCK" "zk://$H#$NAME/a/b" "$DLOCK" -n "zk://$H#$NAME/a" "$DLOCK" \
        -n "zk://$H#$NAME" true
    run -75 run_t 5 "$DLOCK" "zk://$H#$NAME/a/b" "$DLOCK" -n "zk://$H/$NAME#a/b" true
    zk_gone "/$NAME" 8
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
    run -0 run_t 5 "$DLOCK" "zk://joe:pw@$H/$NAME/app#one" true
    run -0 run_t 5 "$DLOCK" "zk://joe:pw@$H/$NAME/app#two/parts" true
    run -77 run_t 5 "$DLOCK" "zk://joe:pw@$H/$NAME#not-there/x" true
    zk_gone "/$NAME/app/one" 5
}

# ----------------------------------------------------------------- session ---

# narrow TTL SESSION [LOW]: dlock warns that the narrow server makes that session of the ttl (s),
# and a stopped keeper's tree is gone within the session.
narrow() {
    local stopped
    L="zk://127.0.0.1:$NARROW#$NAME"
    CI=1 tree --ttl "$1" "$L"
    file_has out "sessions of $2 s, not the ttl of $1 s"
    [ "$(grep -c ^dlock: out)" = 1 ]
    stopped=$(now_ns)
    kill -STOP "$K"
    wait_for 5 tree_gone
    assert_between $((stopped + ${3:-0} * NS)) "$(last_beat)" $((stopped + $2 * 1000 * NS)) \
        "end of the tree"
    kill -CONT "$K"
    ends 79
}

@test "warns when the server's longest session is below the ttl" {
    narrow 30 3
    # It is kept, too: for longer than the session.
    background --ttl 30 "$L" $SUBJECT -m 3600 -r 5
    ends 5
}

@test "warns when the server's shortest session is above the ttl" { narrow 1 2 400; }

@test "refuses a grace that does not fit the server's session" {
    # A later try would change nothing.
    says 69 "3 s" --retry --ttl 30 --grace 4 "zk://127.0.0.1:$NARROW#$NAME" touch ran
    assert_out "30 s"
    [ "${#lines[@]}" = 1 ]
    [ ! -e ran ]
    run -0 run_t 5 "$DLOCK" --ttl 2 "zk://127.0.0.1:$NARROW#$NAME" true
    [ -z "$output" ]
}

# ----------------------------------------------------------------- contact ---

# bats test_tags=plain
@test "says that it gets no thread for the library" {
    local k
    for k in 1 2; do
        run -0 run_t 10 "$HELPERS/fail_call" report keeper:clone3:$k:11 "$DLOCK" "$L" touch ran
        grep -q '^exit 71 ' report || fail "$(cat report)"
        assert_out "Resource temporarily unavailable"
        [ ${#lines[@]} = 1 ] && [ ! -e ran ] || fail "$output"
    done
}

@test "fails at once where nothing listens" {
    takes 0 1000 69 "$DLOCK" "zk://127.0.0.1:1#$NAME" touch ran
    assert_out "127.0.0.1:1"
    [ "${#lines[@]}" = 1 ]
    takes 0 2500 69 "$DLOCK" "zk://127.0.0.1:1,127.0.0.1:2#$NAME" touch ran
    run -69 run_t 10 "$DLOCK" --status "zk://127.0.0.1:1#$NAME"
    [ ! -e ran ]
}

@test "a silent server fails after the connect time-out" {
    proxy stall connect 0
    P=127.0.0.1:$(head -n 1 proxy)
    for args in "--connect-timeout 0.8" "-w 0.8"; do
        best=99999
        # The session is begun, but nobody here hears of it.
        for try in 1 2; do
            "$HELPERS/clock" before
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
    run -0 run_t 10 "$DLOCK" --ttl 1 "zk://$P,$H#$NAME" true
    run -0 run_t 10 "$DLOCK" --ttl 1 "zk://$H,$P#$NAME" true
    [ ! -e ran ]
    wait_for 5 no_session
}
