#!/usr/bin/env bats
# memory.bats - libdlock without memory: each allocation fails once (tests/programs/memory.c).
# zookeeper/memory.bats tests the program, and ZooKeeper, whose own library ends the process.

# bats file_tags=plain
load ../../support/common
load ../../support/redis
load ../../support/postgres

setup_file() {
    redis_start
    pg_start
}
teardown_file() {
    pg_stop_all
    redis_stop
}

# lives LEAST URI ARG...: at least LEAST calls ended without memory.
lives() {
    local least=$1 url=$2
    shift 2
    run_t 60 "$BUILD/programs/memory" "$@" "$url" >out 2>&1 || fail "$url: $(cat out)"
    echo "# $url: $(cat out)" >&3
    [ "$(grep -o '[0-9]* ENOMEM' out | awk '{ n += $1 } END { print n }')" -ge "$least" ] ||
        fail "$(cat out)"
}

@test "an allocation that fails is said so, and loses no lock: files and Redis" {
    lives 5 "file://$PWD#$NAME"
    lives 5 "$PWD/$NAME"
    lives 30 "redis://127.0.0.1:$REDIS_PORT#$NAME"
    lives 5 "redis://127.0.0.1:$REDIS_PORT#$NAME.kept" -k 800 -s 5
}

@test "an allocation that fails is said so, and loses no lock: PostgreSQL" {
    local url=postgres://postgres@127.0.0.1:$PG_PORT/postgres
    lives 100 "$url#$NAME"
    lives 8 "$url#$NAME.kept" -k 800 -s 11
    lives 30 "$url?mode=lease#$NAME" -s 3
}
