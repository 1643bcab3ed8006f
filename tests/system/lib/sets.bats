#!/usr/bin/env bats
# sets.bats - sets of libdlock as other programs use them.

# bats file_tags=long,thread
load ../../support/common
load ../../support/redis

PROG=$BUILD/programs

setup_file() { redis_start; }
teardown_file() { redis_stop; }

# states WANT URI URI [TAKE]
states() {
    local want=$1
    shift
    run_t 30 "$PROG/states" set "$@" >got 2>log || fail "$(cat log)"
    diff "$want" got || fail "another result"
}

@test "every call on a set in every state: files" {
    grep -v '^LOST' "$ROOT/tests/programs/set_states.expected" >want
    states want "file://$PWD#$NAME-a" "file://$PWD#$NAME-b"
}

@test "every call on a set in every state: Redis" {
    local url=redis://127.0.0.1:$REDIS_PORT
    states "$ROOT/tests/programs/set_states.expected" "$url#$NAME-a" "$url#$NAME-b" \
        "redis-cli -p $REDIS_PORT del '$NAME-b' >/dev/null"
}
