#!/usr/bin/env bats
# check.bats - --check of a lock in ZooKeeper: each weakness is found, a good ensemble is not
# blamed, and the nodes stay as they are.

# bats file_tags=long,thread
load ../../support/zkline

setup_file() {
    export BATS_NO_PARALLELIZE_WITHIN_FILE=true
    zk_ensemble
}
setup() {
    dlock_setup
    fake_setup
    at_server "$ZK_PORT" "$ZK_HOSTS"
}

# checks RC ARG...
checks() { run "-$1" run_t 20 "$DLOCK" --check "${@:2}"; }
# finds RC LEVEL TEXT ARG...: that finding, and no other of that level.
finds() {
    checks "$1" "${@:4}"
    assert_out "$2" || return
    [ "$(grep -c "^$2 .*$3" <<<"$output")" = 1 ] && [ "$(grep -c "^$2 " <<<"$output")" = 1 ] ||
        fail "not one '$2 $3': $output"
}
nodes() { zk_tree / | grep -v ^/zookeeper; }

@test "a good ensemble gets no warning, and nothing is written" {
    local before args
    run -0 run_t 5 "$DLOCK" --once "$U#$NAME.once" true
    wait_for 5 not_there "/$NAME.once"
    hold --ttl 30
    before=$(nodes)
    for args in "" -s "--slots 3" --once; do
        # shellcheck disable=SC2086
        checks 0 $args "$L"
        [ "$(grep -vc '^ok ' <<<"$output")" = 0 ] || fail "$output"
    done
    assert_out "session: 30 s, as the ttl" "rights: create and delete below /$NAME" \
        "run records: /dlock-once/r/" "ensemble: 3 servers" "round trip"
    [ "$(grep -cE '^ok +server 127.0.0.1:[0-9]+: ZooKeeper 3[.0-9]+, (leader|follower)$' \
        <<<"$output")" = 3 ] || fail "$output"
    [ "$(nodes)" = "$before" ] || fail "$(nodes)"
    checks 0 "$U/new/chroot#deep/$NAME"
    assert_out "rights: /new does not exist yet; a run makes it"
    [ "$(nodes)" = "$before" ] || fail "$(nodes)"
    checks 0 --json "$L"
    assert_out '"schema":1' '"level":"ok"'
    let_go
}

@test "one server of an ensemble, and a server that stands alone" {
    finds 1 warning "ensemble: the URI names one server" "zk://127.0.0.1:$ZK_PORT#$NAME"
    own_server
    finds 1 warning "ensemble: a single server" "$L"
    # Two of them are no ensemble.
    zk_start_in second
    finds 1 warning "ensemble: 2 of the 2 servers stand alone" \
        "zk://127.0.0.1:$ZK_PORT,127.0.0.1:${ZK_PORTS[second]}#$NAME"
}

@test "a server that is down" {
    finds 1 warning "server 127.0.0.1:1: Connection refused" "zk://127.0.0.1:1,$H#$NAME"
}

@test "sessions that are shorter or longer than the ttl" {
    finds 1 warning "session: the server grants 40 s, not the ttl of 60 s" --ttl 60 "$L"
    finds 69 failure "session: the server grants 40 s .*this grace needs" --ttl 600 --grace 150 "$L"
    own_server minSessionTimeout=4000
    checks 1 --ttl 1 "$L"
    assert_out "session: the server grants 4 s, not the ttl of 1 s"
}

@test "rights that are missing" {
    zk_create -p rd "/$NAME.c" >/dev/null
    finds 77 failure "rights: this user may not create nodes below /$NAME.c; give it CREATE" \
        "$U#$NAME.c"
    zk_create -p rc "/$NAME.d" >/dev/null
    finds 1 warning "rights: this user may not delete nodes below /$NAME.d" "$U#$NAME.d"
    zk_create -p cd "/$NAME.r" >/dev/null
    finds 77 failure "rights: this user may not read /$NAME.r; give it READ" "$U#$NAME.r"
    # A chroot of another user's.
    zk_create -p r "/$NAME.chroot" >/dev/null
    finds 77 failure "create nodes below /$NAME.chroot;" "$U/$NAME.chroot#x"
    zk_create "/$NAME.once" >/dev/null
    zk_create -p r "/$NAME.once/dlock-once" >/dev/null
    finds 77 failure "run records: this user may not create nodes below /$NAME.once/dlock-once" \
        --once "$U/$NAME.once#x"
}

@test "a user and a password: the name is told, the password is not" {
    checks 0 "zk://me:secret@$H#$NAME"
    assert_out "login: me, by digest"
    refute_out secret
}

@test "clients whose names do not count ours" {
    foreign_hold foreign.log -s "/$NAME/0123456789abcdef0123456789abcdef__lock__"
    finds 1 warning "queue: a client with names as of kazoo .*?layout=kazoo" "$L"
    checks 0 "$U?layout=kazoo#$NAME"
}

@test "few connections from one address" {
    own_server maxClientCnxns=8
    checks 1 "$L"
    assert_out "it takes 8 connections from one address"
}

@test "a word that is not allowed is no fault" {
    own_server 4lw.commands.whitelist=ruok
    [[ $(zk_cmd conf) == *"not in the whitelist"* ]]
    finds 1 warning "ensemble: a single server" "$L"
}

# says_so TEXT: a server on $FAKE answers that to whatever it is asked.
says_so() {
    start_log "$T/fake" /usr/bin/python3 -ISc 'import socket, sys
s = socket.create_server(("127.0.0.1", 0))
print(s.getsockname()[1], flush=True)
while True:
    c = s.accept()[0]
    c.recv(4096)
    c.sendall(sys.argv[1].encode())
    c.close()' "$1"
    wait_for 5 test -s "$T/fake"
    FAKE=127.0.0.1:$(cat "$T/fake")
}

@test "an old server, one without a quorum, one that says nothing" {
    says_so $'Zookeeper version: 3.4.14-4c25d480, built on 03/06/2019\nMode: follower\n'
    finds 69 failure "server $FAKE: ZooKeeper 3.4.14; install 3.5" "zk://$FAKE,$H#$NAME"
    says_so "This ZooKeeper instance is not currently serving requests"
    finds 1 warning "server $FAKE: it has no quorum" "zk://$FAKE,$H#$NAME"
    says_so ""
    finds 1 warning "server $FAKE: no answer to srvr" "zk://$FAKE,$H#$NAME"
    says_so "srvr is not executed because it is not in the whitelist."
    checks 0 "zk://$FAKE,$H#$NAME"
    assert_out "server $FAKE: up; its version is not told"
}

@test "without any server: as a run" {
    checks 69 --connect-timeout 1 "zk://127.0.0.1:1#$NAME"
    assert_out "Connection refused"
}
