#!/usr/bin/env bats
# check.bats - --check of a Redlock: each server is checked as a single Redis is, and the servers
# are compared.

load ../../support/common
load ../../support/fake
load ../../support/redis
load ../../support/redlock
load ../../support/clock
load ../../support/check

setup() { dlock_setup; }

# finds LINE...: the last check has these lines besides the good ones, whose beginnings are given.
finds() {
    local found line
    mapfile -t found < <(grep -v '^ok ' <<<"$output")
    [ ${#found[@]} -eq $# ] || fail "not $# lines: $output"
    for line in "${found[@]}"; do
        [[ $line == "$1"* ]] || fail "no '$1': $output"
        [[ $line == *'; '* ]] || fail "does not say what to do: $line"
        shift
    done
}
nodes() { # N [ARG...]
    rl_start "$@"
    L=$(rl_uri "$NAME" -)
}
at() { echo "127.0.0.1:$(rl_port "$1")"; }

@test "is quiet about good servers, and changes nothing in them" {
    nodes 3 --enable-debug-command yes
    on_all set other data
    local before
    before=$(on_all debug digest)
    check 0 "$L"
    quiet
    assert_out "$(at 3) rights: the user has all that this lock needs" \
        "servers: all 3 can be used, 2 are needed"
    [ "$(on_all debug digest)" = "$before" ]
    [ "$(rl 1 dbsize)" = 1 ]
}

@test "warns of a server that cannot be used, while a majority can" {
    nodes 3
    rl_die 2
    check 1 "$L"
    finds "warning  $(at 2) connect: cannot connect" "warning  servers: 2 of 3 can be used"
    [ -z "$stderr" ] || fail "$stderr"
    rl_die 3
    check 69 "$L"
    finds "failure  $(at 2) connect" "failure  $(at 3) connect" "failure  servers: 1 of 3"
}

@test "tells a silent server within the time to connect" {
    nodes 3
    rl_freeze 2
    check 1 --connect-timeout 1 "$L"
    finds "warning  $(at 2) connect: no answer" "warning  servers: 2 of 3 can be used"
    rl_thaw 2
}

@test "finds a server where wake-ups have no connection" {
    nodes 3
    rl 2 config set maxclients 1
    check 1 "$L"
    assert_out "warning  $(at 2) waiting: "
    [ "$(grep -vc '^ok ' <<<"$output")" -eq 1 ] || fail "$output"
}

@test "finds a missing right on one server and on a majority" {
    nodes 3
    local k
    for k in 1 2 3; do rl "$k" acl setuser runner on ">$SECRET" '~*' '&*' +@all; done
    L=${L/\/\///\/runner:$SECRET@}
    check 0 "$L"
    finds
    rl 2 acl setuser runner -zadd
    check 1 "$L"
    finds "warning  $(at 2) rights: the user lacks some; ACL SETUSER USER +zadd" \
        "warning  servers: 2 of 3"
    rl 3 acl setuser runner -zadd
    check 77 "$L"
    finds "failure  $(at 2) rights" "failure  $(at 3) rights" "failure  servers: 1 of 3"
    rl 3 acl setuser runner '>another' "<$SECRET" +zadd
    check 77 "$L"
    finds "failure  $(at 2) rights" "failure  $(at 3) log-in" "failure  servers: 1 of 3"
}

@test "advises an odd number of at least three servers" {
    nodes 2
    check 1 "$L"
    finds "warning  servers: 2, and none may fail; name at least three"
    nodes 4
    check 1 "$L"
    finds "warning  servers: 4, and no more may fail than of 3; name an odd number"
}

@test "finds two names of one server" {
    nodes 3 --bind 0.0.0.0
    check 64 "redlock://127.0.0.2:$(rl_port 1),${L#redlock://}"
    finds "failure  servers: 127.0.0.2:$(rl_port 1) and $(at 1) are one server"
}

@test "finds servers that differ" {
    nodes 3
    rl 2 config set maxmemory-policy allkeys-lru
    check 1 "$L"
    finds "warning  maxmemory-policy: $(at 1) has noeviction, $(at 2) has allkeys-lru"
    with_clock redis_start_in late
    rl_put 2 "${REDIS_PORTS[late]}"
    jump 3
    check 1 "$(rl_uri "$NAME" -)"
    finds "warning  $(at 2) clock: " "warning  clocks: $(at 2) is "
    assert_out "s ahead of this machine's" "s ahead of 127.0.0.1:"
}
