#!/usr/bin/env bats
# check.bats - --check of a lock in Redis: quiet about a good server, and each bad setting is found.

load ../../support/common
load ../../support/fake
load ../../support/redis
load ../../support/redislock
load ../../support/sentinel
load ../../support/cluster
load ../../support/tls
load ../../support/clock
load ../../support/check

setup() {
    dlock_setup
    # The manual's rule is for names that begin so.
    NAME=job:$NAME
}

# good_server [ARG...]: nothing about it is weak.
good_server() { own_server --appendfsync everysec "$@"; }
# finds LEVEL TEXT: the last check has this line; of its kind no other.
finds() {
    local found
    found=$(grep -v '^ok ' <<<"$output")
    [[ $found == "$1"*"$2"* ]] || fail "no $1 '$2': $output"
    [ "$(wc -l <<<"$found")" -eq 1 ] || fail "more than this: $found"
    [[ $found == *'; '* ]] || fail "does not say what to do: $found"
}

# ------------------------------------------------------------------- a good store ---

@test "is quiet about a good server, for each kind of lock" {
    good_server
    local kind version # of a Redis or Valkey
    version=$(redis-server --version | sed 's/ server v=\([^ ]*\) .*/ \1/')
    for kind in '' -s '--slots 2'; do
        # shellcheck disable=SC2086
        check 0 $kind "$L"
        quiet
        assert_out "connect: 127.0.0.1:${REDIS_PORTS[own]}, no TLS" \
            "rights: the user has all" "version: $version" "role: master" \
            "persistence: an append-only"
    done
    check 0 --json "$L"
    [ "$(/usr/bin/python3 -c 'import json, sys
f = json.load(sys.stdin)["findings"]
print({x["level"] for x in f} == {"ok"} and len(f) > 9)' <<<"$output")" = True ]
}

@test "is quiet about a server with the manual's settings" {
    local words
    words=$(sed -n '/^maxmemory-policy /,/^\.Ed/p' "$ROOT/man/dlock-redis.7" |
        sed '/^#/d; /^\.Ed/d; s/^/--/')
    # shellcheck disable=SC2086
    own_server $words --repl-diskless-sync-delay 0
    redis_start_in replica --replicaof "127.0.0.1 ${REDIS_PORTS[own]}"
    wait_for 9 eval 'own info replication | grep -q state=online'
    check 0 "$L"
    quiet
    assert_out "persistence: an append-only file" "replicas: 1" "min-replicas-max-lag: 10 s"
}

@test "changes nothing in the server" {
    good_server --enable-debug-command yes
    hold
    own set other data >/dev/null
    local before after
    before=$(own debug digest) || fail "$before"
    check 0 "$L"
    after=$(own debug digest)
    [ "$before" = "$after" ] || fail "$before is now $after"
    [ "$(own dbsize)" = 3 ] # the lock, its fence, other
    let_go
}

@test "needs no right but those of the manual's rule" {
    good_server
    local words
    words=$(sed -n '/^ACL SETUSER runner /,/^\.Ed/p' "$ROOT/man/dlock-redis.7" |
        sed -n '1,/^\.Ed/p' |
        sed '/^\.Ed/d; s/\\e$//; s/\\&//g; s/ACL SETUSER runner//' | tr '\n' ' ')
    # shellcheck disable=SC2086
    set -f && own acl setuser runner ${words/PASSWORD/$SECRET} >/dev/null && set +f
    check 0 "redis://runner:$SECRET@${L#redis://}"
    quiet
    assert_out "log-in: as user runner" "timeout: not known: CONFIG is not allowed"
}

# ------------------------------------------------------------------- connection, log-in ---

@test "tells why the server cannot be used" {
    good_server --requirepass "$SECRET"
    local port=${REDIS_PORTS[own]}
    check 77 "$L"
    finds failure "a password is needed"
    check 77 "redis://:$SECRET-wrong@127.0.0.1:$port#$NAME"
    finds failure "log-in: the user or password is wrong"
    REDISCLI_AUTH=$SECRET check 0 "$L"
    quiet
    redis_stop own
    check 69 "redis://:$SECRET@127.0.0.1:$port#$NAME"
    finds failure "connect: cannot connect"
}

@test "finds that wake-ups have no connection" {
    good_server
    own config set maxclients 1 >/dev/null
    check 1 "$L"
    # The server says why and closes at once; our own bytes may turn that into a reset.
    assert_out "warning  waiting: "
    [ "$(grep -vc '^ok ' <<<"$output")" -eq 1 ] || fail "$output"
}

@test "finds a password that the server does not ask for" {
    good_server
    check 1 "redis://:$SECRET@${L#redis://}"
    finds warning "log-in: a password was sent"
}

@test "tells TLS and the end of the certificate" {
    tls_certs
    tls_redis own --appendfsync everysec
    L="rediss://localhost:${REDIS_PORTS[own]}?cacert=$TLS/ca.crt#$NAME"
    check 1 "$L"
    assert_out "connect: 127.0.0.1:${REDIS_PORTS[own]}, TLSv1.3"
    # In a second of its making it has two days, then one.
    finds warning "certificate: ends in "
    check 1 "${L/cacert=*#/insecure=1#}"
    [[ $output == *"warning  certificate: not verified; "* ]] || fail "$output"
    check 69 "${L/cacert=*#/cacert=$TLS/stranger.crt#}"
    finds failure "the server's certificate is refused"
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 90 \
        -keyout "$TLS/long.key" -out "$TLS/long.crt" -subj /CN=long \
        -addext subjectAltName=DNS:localhost 2>/dev/null
    tls_cli -n own config set tls-cert-file "$TLS/long.crt" tls-key-file "$TLS/long.key"
    check 0 "${L/cacert=*#/cacert=$TLS/long.crt#}"
    quiet
    [[ $output == *"certificate: ends in "@(89|90)" days"* ]] || fail "$output"
}

# ------------------------------------------------------------------------- rights ---

# user RIGHT...: the user runner has all rights but these.
user() {
    own acl setuser runner reset on ">$SECRET" '~*' '&*' +@all "$@" >/dev/null
    R="redis://runner:$SECRET@${L#redis://}"
}

@test "finds each right that a lock needs" {
    good_server
    user -zadd -del
    check 77 "$R"
    finds failure "rights: the user lacks some; ACL SETUSER USER +del +zadd"
    user -eval
    check 77 "$R"
    [[ $output == *"failure  rights: "*"; ACL SETUSER USER +eval"* ]] || fail "$output"
    user resetkeys '~other*'
    check 77 "$R"
    finds failure "rights: the user lacks some; ACL SETUSER USER ~$NAME ~{$NAME}:dlock:*"
    user -zcount
    check 0 "$R"
    check 77 -s "$R"
    finds failure "rights: the user lacks some; ACL SETUSER USER +zcount"
    check 77 --slots 2 "$R"
    user -select
    check 77 "${R/\#//3#}"
    finds failure "rights: the user lacks some; ACL SETUSER USER +select"
}

@test "finds each right that a waiter needs" {
    good_server
    user -subscribe
    check 77 "$R"
    finds failure "waiting: the ACL user lacks a right; ACL SETUSER USER +subscribe"
    user resetchannels "&{$NAME*"
    check 1 "$R"
    finds warning "waiting: the server does not tell the first waiter of changes"
    user '-client|tracking'
    check 1 "$R"
    finds warning "rights: client|tracking is not allowed"
    user '-pubsub|numsub'
    check 1 "$R"
    finds warning "rights: pubsub|numsub is not allowed"
    user -evalsha
    check 1 "$R"
    finds warning "rights: evalsha is not allowed"
}

@test "needs INFO where safety depends on it" {
    good_server
    user -info
    check 1 "$R"
    finds warning "info: INFO is refused"
    check 77 "${R/\#/?restart-grace=30s#}"
    [[ $output == *"failure  rights: the user lacks some; ACL SETUSER USER +info"* ]] ||
        fail "$output"
    user -wait
    check 77 "${R/\#/?wait-replicas=1#}"
    [[ $output == *"failure  replicas: the ACL user lacks a right; ACL SETUSER USER +wait"* ]] ||
        fail "$output"
}

@test "finds renamed commands" {
    good_server --rename-command EVALSHA '' --rename-command CONFIG ''
    check 1 "$L"
    finds warning "rights: evalsha is unknown to the server"
    good_server --rename-command EVAL hidden --rename-command EVALSHA ''
    check 69 "$L"
    local old=" (too old, or disabled); use Redis 6.0 or later"
    [[ $output == *"failure  script: the server does not know EVAL$old"* ]] || fail "$output"
    # In a script, which the server does not tell; without PUBLISH a run begins, and ends with 0.
    good_server --rename-command TIME hidden --rename-command PUBLISH ''
    check 69 "$L"
    [[ $output == *"failure  commands: the server does not know TIME PUBLISH$old"* ]] ||
        fail "$output"
    run -69 run_t 10 "$DLOCK" -n "$L" touch ran
    assert_out "the server does not know TIME PUBLISH${old/;/:}"
    [ ! -e ran ]
    good_server --rename-command TYPE '' # asked for several keys
    check 69 "$L"
    [[ $output == *"failure  commands: the server does not know TYPE$old"* ]] || fail "$output"
    good_server --rename-command SUBSCRIBE ''
    check 69 "$L"
    [[ $output == *"failure  waiting: the server does not know SUBSCRIBE$old"* ]] || fail "$output"
}

@test "finds foreign data in the place of the lock" {
    good_server
    own hset "$NAME" f v >/dev/null
    check 65 "$L"
    [[ $output == *"failure  name: "* ]] || fail "$output"
}

# ----------------------------------------------------------------------- settings ---

@test "finds eviction" {
    good_server --maxmemory 100mb --maxmemory-policy volatile-ttl
    check 1 "$L"
    finds warning "eviction: this server evicts locks when its memory is full"
}

@test "finds missing persistence, unless a restart grace stands in" {
    good_server --appendonly no
    check 1 "$L"
    finds warning "persistence: a crash or restart of this server can lose the lock"
    check 0 "${L/\#/?restart-grace=30s#}"
    quiet
    good_server --appendfsync no
    check 1 "$L"
    finds warning "persistence: an append-only file with appendfsync no"
}

@test "finds idle connections that are closed too early" {
    good_server --timeout 2
    check 1 --ttl 30 "$L"
    finds warning "timeout: the server closes connections that were idle for 2 s"
    check 0 --ttl 3 "$L"
    good_server --tcp-keepalive 0
    check 1 "$L"
    finds warning "tcp-keepalive: off"
}

@test "finds a clock that differs" {
    good_server
    with_clock good_server
    check 0 "$L"
    quiet
    jump -5
    check 1 "$L"
    finds warning "behind this machine's"
    jump 3600
    check 1 "$L"
    finds warning "ahead of this machine's"
}

@test "finds a replica, and replicas that no write waits for" {
    good_server
    redis_start_in replica --appendfsync everysec --replicaof "127.0.0.1 ${REDIS_PORTS[own]}" \
        --repl-diskless-sync-delay 0
    wait_for 9 eval 'own info replication | grep -q state=online'
    check 1 "$L"
    finds warning "replicas: 1, and none has to be there for a write"
    check 0 "${L/\#/?wait-replicas=1#}"
    quiet
    own config set min-replicas-to-write 1 >/dev/null
    check 0 "$L"
    quiet
    own config set min-replicas-max-lag 60 >/dev/null
    check 1 --ttl 30 "$L"
    finds warning "min-replicas-max-lag: a master without its replicas grants locks for 60 s more"
    check 0 --ttl 60 "$L"
    quiet
    check 0 --ttl 30 "${L/\#/?wait-replicas=1#}"
    own config set min-replicas-max-lag 10 >/dev/null
    check 69 "${L/\#/?wait-replicas=2#}"
    finds failure "replicas: 1, and wait-replicas=2 needs more"
    check 69 --connect-timeout 2 "redis://127.0.0.1:${REDIS_PORTS[replica]}#$NAME"
    finds failure "role: a replica of 127.0.0.1:${REDIS_PORTS[own]}; name the master"
    redis_stop replica
    check 69 "$L"
    finds failure "replicas: none is in step"
}

# -------------------------------------------------------------- Sentinel, cluster ---

# bats test_tags=slow
@test "counts the sentinels" {
    sentinel_start 1 3 --appendfsync everysec --min-replicas-to-write 1
    L="$(sentinel_uri)#$NAME"
    check 0 "$L"
    quiet
    assert_out "sentinels: 3 of 3 name 127.0.0.1:${NODE_PORTS%% *} as the master, 2 must"
    check 1 "$(sentinel_uri "${SENT_PORTS%% *}")#$NAME"
    finds warning "sentinels: 1 of 1 name"
    local pids
    read -ra pids <<<"$SENT_PIDS"
    end_job KILL "${pids[0]}"
    check 1 "$L"
    finds warning "sentinels: 2 of 3 name"
    end_job KILL "${pids[1]}"
    check 69 --connect-timeout 2 "$L"
    finds failure "connect: 1 of 3 sentinels name"
    sentinel_stop
}

# bats test_tags=slow
@test "finds sentinels that could not fail over" {
    sentinel_start 1 4 --appendfsync everysec --min-replicas-to-write 1
    local ports pids
    read -ra ports <<<"$SENT_PORTS"
    read -ra pids <<<"$SENT_PIDS"
    L="$(sentinel_uri "${ports[@]:0:3}")#$NAME"
    check 0 "$L"
    quiet
    assert_out "failover: 3 sentinels can start it"
    scli "${ports[1]}" sentinel set svc quorum 5 >/dev/null
    check 1 "$L"
    finds warning "failover: none is possible, says sentinel 127.0.0.1:${ports[1]}: 4 usable"
    scli "${ports[1]}" sentinel set svc quorum 2 >/dev/null
    scli "${ports[1]}" acl setuser default '-sentinel|ckquorum' >/dev/null
    check 0 "$L"
    assert_out "failover: 2 sentinels can start it"
    # Half of the sentinels can name the master, and cannot choose who fails over.
    end_job KILL "${pids[2]}"
    end_job KILL "${pids[3]}"
    missed() { ! scli "${ports[0]}" sentinel ckquorum svc | grep -q '^OK'; }
    wait_for 5 missed
    check 1 "$L"
    assert_out "warning  sentinels: 2 of 3 name" "warning  failover: none is possible, says " \
        ":${ports[0]}: 2 usable"
    sentinel_stop
}

# bats test_tags=slow
@test "checks the node of a cluster that has the lock" {
    cluster_start
    local n
    for n in 0 1 2; do ccli $n config set appendfsync everysec >/dev/null; done
    NAME=$(name_on 0)
    L="redis://127.0.0.1:${CPORT[2]}#$NAME"
    check 0 "$L"
    quiet
    assert_out "connect: 127.0.0.1:${CPORT[0]}" "cluster: state ok, all slots are served"
    ccli 0 acl setuser default -asking >/dev/null
    check 1 "$L"
    finds warning "rights: asking is not allowed"
    ccli 0 acl setuser default +asking >/dev/null
    check 64 "${L/\#//3#}"
    finds failure "a cluster has no database 3, only 0"
    cluster_kill 1
    failed() { ccli 0 cluster info | grep -q '^cluster_slots_ok:109'; }
    wait_for 15 failed
    check 1 "$L"
    finds warning "cluster: state ok, 109"
    cluster_stop
}
