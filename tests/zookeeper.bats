#!/usr/bin/env bats
# zookeeper.bats - locks in a real ZooKeeper server: the line, whom it lets in, what waiting costs, who excludes whom,
# what is said. Faults are in zkfaults.bats.

bats_require_minimum_version 1.5.0

load lib/common
load lib/fake
load lib/zookeeper

setup_file() {
    export BATS_NO_PARALLELIZE_WITHIN_FILE=true
    curator_build
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

# ---------------------------------------------------------------- helpers ---

# Who stands in line for $NAME, as full paths, first one first.
line() { zk_ls "${1:-/$NAME}" 2>/dev/null | sed "s|.*\(.\{10\}\)\$|\1 ${1:-/$NAME}/&|" | sort | cut -d' ' -f2; }
node() { line | sed -n "$1p"; }
line_is() { [ "$(line | wc -l)" = "$1" ]; }
owner_of() { zk_stat "$1" ephemeralOwner; }
# Each waiter has one watch; nobody else here has any.
watches_are() { [ "$(zk_mntr watch_count)" = "$1" ]; }
# Is the node PATH watched?
watched() { zk_cmd wchp | grep -qxF "$1"; }
no_node() { [ -z "$(line)" ]; }
sessions_are() { [ "$(zk_sessions | wc -l)" = "$1" ]; }
no_session() { [ -z "$(zk_sessions)" ]; }
not_there() { ! zk_stat "$1" version 2>/dev/null; }
beyond() { [ "$(now_ms)" -ge "$1" ]; }

# hold [ARG...]: dlock holds $L until the file "go" appears; returns when it does hold.
hold() {
    rm -f held go
    start_log hold.log "$DLOCK" "$@" "$L" sh -c 'echo $DLOCK_FENCE >held; "$HELPERS/await" go'
    HOLDER=$STARTED
    wait_for 5 test -s held || { cat hold.log; false; }
}
let_go() {
    echo >go
    wait_exit 5 "$HOLDER"
}
# wait_in_line N CMD...: a waiter that watches the one in front of it, with whom N nodes are in line; OPTS its options.
wait_in_line() {
    local n=$1
    shift
    # shellcheck disable=SC2086
    start_log "wait$n.log" "$DLOCK" ${OPTS:-} "$L" "$@"
    WAITER=$STARTED
    wait_for 5 watches_are $((n - 1))
}

# ------------------------------------------------------------------- line ---

# bats test_tags=thread
@test "zookeeper: the command runs under the lock, and nothing is left afterwards" {
    run run_t 5 "$DLOCK" "$L" sh -c 'echo "$DLOCK_NAME ${#DLOCK_TOKEN} $DLOCK_FENCE"'
    assert_rc 0
    [[ $output =~ ^$NAME\ 32\ [1-9][0-9]*$ ]] || fail "$output"
    no_session
    wait_for 3 not_there "/$NAME"
}

@test "zookeeper: the fence is the transaction that made the node; the token is in the node's name" {
    run run_t 5 "$DLOCK" "$L" bash -c '
        ROOT=$1; . "$ROOT/tests/lib/zookeeper.bash"
        n=$(zk_ls "/$DLOCK_NAME"); echo "$n $DLOCK_TOKEN"; [ "$(zk_stat "/$DLOCK_NAME/$n" czxid)" = "$DLOCK_FENCE" ]' - "$ROOT"
    assert_rc 0
    read -r name token <<<"$output"
    [[ $name =~ ^_c_([0-9a-f]{8})-([0-9a-f]{4})-([0-9a-f]{4})-([0-9a-f]{4})-([0-9a-f]{12})-lock-0000000000$ ]]
    [ "$token" = "${BASH_REMATCH[1]}${BASH_REMATCH[2]}${BASH_REMATCH[3]}${BASH_REMATCH[4]}${BASH_REMATCH[5]}" ]
}

# bats test_tags=slow
@test "zookeeper: 50 waiters: each release wakes exactly one, and they come in order" {
    local i n=50 pids=() before
    hold --ttl 30
    for ((i = 1; i <= n; i++)); do
        start_log "w$i.log" "$DLOCK" --ttl 30 "$L" sh -c "echo $i >>order"
        pids+=("$STARTED")
        # No process for each look, and nobody is let in unless the one before it stands in line.
        wait_for 5 watches_are $i
    done
    before=$(zk_mntr sum_node_deleted_watch_count)
    let_go
    for i in "${pids[@]}"; do wait_exit 20 "$i"; done
    [ "$(paste -sd' ' order)" = "$(seq -s' ' $n)" ]
    [ $(($(zk_mntr sum_node_deleted_watch_count) - before)) = $n ]
    watches_are 0
    no_session
}

# bats test_tags=thread
@test "zookeeper: six waiters with different ttl are served in the order they came" {
    local i pids=()
    hold
    for i in 1 2 3 4 5 6; do
        OPTS="--ttl $((7 - i))" wait_in_line $((i + 1)) sh -c "echo $i >>order"
        pids+=("$WAITER")
    done
    let_go
    for i in "${pids[@]}"; do wait_exit 10 "$i"; done
    [ "$(tr -d '\n' <order)" = 123456 ]
}

@test "zookeeper: a waiter that is killed in the middle disturbs nobody" {
    local pids=() i
    hold
    for i in 1 2 3; do
        wait_in_line $((i + 1)) sh -c "echo $i >>order"
        pids+=("$WAITER")
    done
    dead=$(node 3)
    kill -KILL "${pids[1]}"
    # The server need not notice by itself: that takes a ttl.
    zk_kill_session "$(owner_of "$dead")"
    wait_for 5 watches_are 2
    wait_for 5 watched "$(node 2)"
    [ ! -e order ]
    let_go
    wait_exit 5 "${pids[0]}"
    wait_exit 5 "${pids[2]}"
    [ "$(tr -d '\n' <order)" = 13 ]
}

@test "zookeeper: a waiter whose predecessor dies while the lock is held is not let in" {
    hold
    wait_in_line 2 touch "$T/first"
    first=$WAITER
    wait_in_line 3 touch "$T/second"
    kill -KILL "$first"
    zk_kill_session "$(owner_of "$(node 2)")"
    wait_for 5 line_is 2
    # It watches the holder now.
    wait_for 5 watched "$(node 1)"
    pid_alive "$WAITER"
    [ ! -e first ] && [ ! -e second ]
    let_go
    wait_exit 5 "$WAITER"
    [ -e second ]
}

@test "zookeeper: a killed waiter's node is gone within its ttl and two ticks" {
    hold
    OPTS="--ttl 1" wait_in_line 2 true
    kill -KILL "$WAITER"
    t0=$(now_ms)
    wait_for 5 line_is 1
    # The answer to the last heartbeat may have reached the leader half a tick later.
    assert_between 0 $(($(now_ms) - t0)) $((1000 + 400 + 500 + SLOW)) "time (ms)"
    let_go
}

# bats test_tags=thread
@test "zookeeper: TERM while waiting, and -w, leave no node and no session" {
    hold
    for how in TERM INT; do
        start_log w.log /usr/bin/python3 -c '
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])' "$DLOCK" "$L" touch "$T/ran"
        wait_for 5 watches_are 1
        kill -$how "$STARTED"
        wait_exit 5 "$STARTED" || :
        line_is 1
        wait_for 1 sessions_are 1
    done
    run run_t 5 "$DLOCK" -w 0.3 "$L" touch "$T/ran"
    assert_rc 75
    line_is 1
    run run_t 5 "$DLOCK" -n "$L" touch "$T/ran"
    assert_rc 75
    line_is 1
    wait_for 1 sessions_are 1
    let_go
    wait_for 1 no_session
    [ ! -e ran ]
}

@test "zookeeper: the fence grows over containers that were reaped and made again" {
    last=0
    for i in 1 2 3; do
        fence=$(run_t 5 "$DLOCK" "$L" sh -c 'echo $DLOCK_FENCE')
        [ "$fence" -gt "$last" ] || fail "$fence is not more than $last"
        last=$fence
        wait_for 5 not_there "/$NAME"
    done
    hold
    # The sequence has begun anew.
    [[ $(node 1) == *-lock-0000000000 ]]
    let_go
}

@test "zookeeper: a heartbeat every sixth of the ttl, of a holder and of a waiter, not more" {
    hold --ttl 3
    OPTS="--ttl 3" wait_in_line 2 true
    h=$(node 1) w=$(node 2)
    h0=$(zk_stat "$h" version) t0=$(now_ms)
    w0=$(zk_stat "$w" version)
    wait_for 6 beyond $((t0 + 3000))
    h1=$(zk_stat "$h" version) t1=$(now_ms)
    w1=$(zk_stat "$w" version)
    assert_between $(((t1 - t0) / 500 - 1)) $((h1 - h0)) $(((t1 - t0) / 500 + 1)) "heartbeats of the holder"
    assert_between $(((t1 - t0) / 500 - 1)) $((w1 - w0)) $(((t1 - t0) / 500 + 1)) "heartbeats of the waiter"
    let_go
    wait_exit 5 "$WAITER"
}

@test "zookeeper: the command gets none of our descriptors" {
    start_log before.log ls -l /proc/self/fd
    wait_exit 5 "$STARTED"
    start_log fd.log "$DLOCK" "$L" ls -l /proc/self/fd
    wait_exit 5 "$STARTED"
    # After a wait there have been threads and connections for a while.
    hold
    start_log w.log "$DLOCK" "$L" ls -l /proc/self/fd
    wait_for 5 watches_are 1
    let_go
    wait_exit 5 "$STARTED"
    for f in fd.log w.log; do
        run -1 grep -E 'socket:|eventfd' $f
        [ "$(wc -l <$f)" -eq "$(wc -l <before.log)" ] || fail "$(cat before.log $f)"
    done
}

# --------------------------------------------------------------- interplay ---

is_held() { grep -q ^held "$1"; }
# other WHAT...: kazoo_lock or curator_lock, WHAT its kind; it holds until the file "other-go" appears.
other() {
    rm -f other-go
    start_log other.log "$@"
    OTHER=$STARTED
}
other_go() {
    echo >other-go
    wait_exit 10 "$OTHER"
}

# interplay LOCK PROGRAM KIND [TRY-ARGUMENT]
interplay() {
    L=$1
    # It is excluded: without waiting, and waiting.
    hold
    status=0
    run run_t 20 bash -c '. "$ROOT/tests/lib/zookeeper.bash"; "$@"' - "$2" "/$NAME" "$3" "$T/none" "$4"
    assert_rc 75
    assert_out refused
    line_is 1
    other "$2" "/$NAME" "$3" "$T/other-go"
    wait_for 10 line_is 2
    wait_for 5 watched "$(node 1)"
    run -1 is_held other.log
    run run_t 5 "$DLOCK" --status "$L"
    assert_rc 75
    assert_out "pid $HOLDER"
    assert_out "waiting 1: "
    assert_out "$5"
    let_go
    wait_for 5 is_held other.log
    # It excludes.
    run run_t 5 "$DLOCK" -n "$L" touch ran
    assert_rc 75
    assert_out "$5"
    line_is 1
    run run_t 5 "$DLOCK" --status --json "$L"
    assert_rc 75
    [[ $output == *'"kind":"foreign"'*"$5"* || $output == *'"kind": "foreign"'*"$5"* ]] || fail "$output"
    start_log w.log "$DLOCK" "$L" touch "$T/ran"
    wait_for 5 watched "$(node 1)"
    [ ! -e ran ]
    other_go
    wait_exit 5 "$STARTED"
    [ -e ran ]
}

@test "zookeeper: kazoo's Lock excludes ?layout=kazoo and is excluded by it" {
    interplay "zk://$H?layout=kazoo#$NAME" kazoo_lock lock --try kazoo
}
@test "zookeeper: kazoo's WriteLock excludes ?layout=kazoo and is excluded by it" {
    interplay "zk://$H?layout=kazoo#$NAME" kazoo_lock write --try kazoo
}
@test "zookeeper: Curator's InterProcessMutex excludes dlock and is excluded by it" {
    interplay "zk://$H#$NAME" curator_lock mutex try Curator
}

@test "zookeeper: with extra_lock_patterns kazoo honours the default layout, too" {
    hold
    run run_t 20 "$ROOT/tests/helpers/kazoo_lock.py" "$H" "/$NAME" lock "$T/none" --try --extra=-lock-
    assert_rc 75
    let_go
}

@test "zookeeper: dlock waits for all of kazoo's readers" {
    kazoo_reader() { start_log "$1.log" kazoo_lock "/$NAME" read "$T/$1-go"; wait_for 10 is_held "$1.log"; }
    kazoo_reader r1
    one=$STARTED
    kazoo_reader r2
    two=$STARTED
    L="zk://$H?layout=kazoo#$NAME"
    run run_t 5 "$DLOCK" -n "$L" true
    assert_rc 75
    # Both hold it.
    run run_t 5 "$DLOCK" --status "$L"
    assert_rc 75
    [ "$(grep -c 'held.* by' <<<"$output")" = 2 ] || fail "$output"
    start_log w.log "$DLOCK" "$L" touch "$T/ran"
    wait_for 5 watched "$(node 2)"
    touch r2-go
    wait_exit 10 "$two"
    wait_for 5 watched "$(node 1)"
    [ ! -e ran ]
    touch r1-go
    wait_exit 10 "$one"
    wait_exit 5 "$STARTED"
    [ -e ran ]
}

@test "zookeeper: nodes without a sequence are not in line" {
    zk_create "/$NAME/leases" x
    zk_create "/$NAME/locks" x
    run run_t 5 "$DLOCK" -n "$L" true
    assert_rc 0
    zk_rm -r "/$NAME"
}

# ------------------------------------------------------------- credentials ---

@test "zookeeper: with a user nodes are the creator's alone: another one, or none, is refused: 77" {
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
            assert_out "not allowed"
            refute_out c4nary
            refute_out wrong
            wait_for 1 sessions_are 1
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

@test "zookeeper: ?acl=open lets everybody in, ?acl=read lets them look" {
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

@test "zookeeper: the password is in no output, no argument, no environment; a password file works" {
    L="zk://joe:c4nary-Right%25x@$H#$NAME"
    hold --ttl 1 -v
    OPTS=-v wait_in_line 2 env
    for pid in $HOLDER $WAITER $(children "$HOLDER") $(children "$WAITER"); do
        run -1 grep -ciaF c4nary "/proc/$pid/cmdline" "/proc/$pid/environ"
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

@test "zookeeper: what makes no sense is refused: 64, one line" {
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

@test "zookeeper: a chroot stays, the lock below it goes" {
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

@test "zookeeper: a name with parts is a lock of its own, and leaves nothing" {
    run run_t 5 "$DLOCK" "zk://$H#$NAME/a/b" "$DLOCK" -n "zk://$H#$NAME/a" "$DLOCK" -n "zk://$H#$NAME" true
    assert_rc 0
    run run_t 5 "$DLOCK" "zk://$H#$NAME/a/b" "$DLOCK" -n "zk://$H/$NAME#a/b" true
    assert_rc 75
    wait_for 8 not_there "/$NAME"
}

@test "zookeeper: names that cannot be: 64, one line" {
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
@test "zookeeper: rights are needed below the chroot alone" {
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

@test "zookeeper: the server's longest session is shorter than the ttl: a warning with both, and that is the lease" {
    L="zk://127.0.0.1:$NARROW#$NAME"
    background --ttl 30 "$L" $SUBJECT -t -k
    wait_for 5 running 4
    file_has out "3 s" && file_has out "30 s"
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

@test "zookeeper: the server's shortest session is longer than the ttl: a warning with both, and that is the lease" {
    L="zk://127.0.0.1:$NARROW#$NAME"
    background --ttl 1 "$L" $SUBJECT -t -k
    wait_for 5 running 4
    file_has out "2 s" && file_has out "1 s"
    stopped=$(now_ns)
    kill -STOP "$K"
    wait_for 5 tree_gone
    assert_between $((stopped + 400 * NS)) "$(last_beat)" $((stopped + 2000 * NS)) "end of the tree"
    kill -CONT "$K"
    ended
    assert_rc 79
}

@test "zookeeper: a grace that does not fit into the server's session: 69, both numbers" {
    run run_t 5 "$DLOCK" --ttl 30 --grace 4 "zk://127.0.0.1:$NARROW#$NAME" touch ran
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

@test "zookeeper: nobody listens: 69 at once, with host and port" {
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

@test "zookeeper: some hosts are dead, one lives" {
    for i in 1 2 3 4 5 6; do
        t0=$(now_ms)
        run run_t 10 "$DLOCK" "zk://127.0.0.1:1,127.0.0.1:2,$H#$NAME" true
        assert_rc 0
        [ -z "$output" ]
        assert_between 0 $(($(now_ms) - t0)) $((4000 + SLOW)) "time (ms)"
    done
}

@test "zookeeper: a silent server: 69 after the connect time-out, and within -w" {
    start_log proxy "$ROOT/tests/helpers/zkproxy.py" "$ZK_PORT" stall connect 0
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

# ------------------------------------------------------------------ status ---

# bats test_tags=thread
@test "zookeeper: --status shows holder, fence, note, and the waiters in their order" {
    run run_t 5 "$DLOCK" --status "$L"
    assert_rc 0
    not_there "/$NAME"
    hold --note "the note"
    OPTS="--note first" wait_in_line 2 true
    pids=("$WAITER")
    OPTS="--note second" wait_in_line 3 true
    pids+=("$WAITER")
    OPTS="--note third" wait_in_line 4 true
    pids+=("$WAITER")
    run run_t 5 "$DLOCK" --status --json "$L"
    assert_rc 75
    [ "${#lines[@]}" = 1 ]
    /usr/bin/python3 -c '
import json, sys
s = json.loads(sys.argv[1])
h, w = s["holders"], s["waiters"]
assert s["state"] == "held" and s["lock"] == sys.argv[2], s
assert len(h) == 1 and len(w) == 3, s
assert h[0]["pid"] == int(sys.argv[4]) and h[0]["note"] == "the note" and "kind" not in h[0], s
assert h[0]["fence"] == sys.argv[3], s
assert [x["place"] for x in w] == [1, 2, 3] and [x["note"] for x in w] == ["first", "second", "third"], s
assert [x["pid"] for x in w] == [int(x) for x in sys.argv[5:]], s
assert not any("fence" in x for x in w), s
' "$output" "$NAME" "$(cat held)" "$HOLDER" "${pids[@]}"
    run run_t 5 "$DLOCK" --status "$L"
    assert_rc 75
    assert_out "pid $HOLDER"
    assert_out "fence: $(cat held)"
    [[ $output == *"waiting 1: "*"${pids[0]}"*"waiting 2: "*"${pids[1]}"*"waiting 3: "*"${pids[2]}"* ]] || fail "$output"
    # Who asks leaves nothing.
    line_is 4
    wait_for 1 sessions_are 4
    let_go
    for i in "${pids[@]}"; do wait_exit 5 "$i"; done
}

@test "zookeeper: --status of foreign nodes: escapes are not shown, others' data is a note" {
    start_log f1.log zk_hold -s "/$NAME/x-" $'red \033[31m text'
    wait_for 5 is_held f1.log
    start_log f2.log zk_hold -s "/$NAME/_c_0f8fad5b-d9cb-469f-a165-70867728950e-lock-" "10.0.0.1"
    wait_for 5 is_held f2.log
    run run_t 5 "$DLOCK" --status "$L"
    assert_rc 75
    assert_out "another program"
    assert_out "waiting 1: "
    assert_out "Curator"
    refute_out $'\033'
    run run_t 5 "$DLOCK" --status --json "$L"
    /usr/bin/python3 -c '
import json, sys
s = json.loads(sys.argv[1])
assert s["holders"][0]["kind"] == "foreign" and "red" in s["holders"][0]["note"], s
assert s["waiters"][0]["kind"] == "foreign" and s["waiters"][0]["note"] == "10.0.0.1", s' "$output"
}
