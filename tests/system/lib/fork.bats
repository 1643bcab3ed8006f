#!/usr/bin/env bats
# fork.bats - libdlock in programs with children and threads, on every kind of store.

# bats file_tags=thread
load ../../support/common
load ../../support/redis
load ../../support/tls
load ../../support/redlock
load ../../support/postgres
load ../../support/mysql
load ../../support/zookeeper

PROG=$BUILD/programs

setup_file() {
    tls_certs
    redis_start
    tls_redis tls
    export TLS_PORT=${REDIS_PORTS[tls]}
    rl_start 3
    pg_start
    install -m 600 "$TLS/server.key" "$TLS/server.crt" "$PG_DIR/"
    [ "$(id -u)" -ne 0 ] || chown nobody:nogroup "$PG_DIR/server.key" "$PG_DIR/server.crt"
    pg_restart default fast -c ssl=on
    my_start
    zk_start
}
teardown_file() {
    zk_stop_all
    my_stop_all
    pg_stop_all
    rl_stop_file
    redis_stop tls
    redis_stop
}
setup() {
    dlock_setup
    # ThreadSanitizer lets each process sleep for a second before it ends. In a child it misses the
    # join of a thread of the parent that had ended before the fork.
    export TSAN_OPTIONS=${TSAN_OPTIONS:-}:atexit_sleep_ms=0:report_thread_leaks=0
}

# on STORE: L is a lock there. One server has several kinds: each has a name of its own.
on() {
    local N=$NAME-$1
    case $1 in
    file) L=file://$PWD#$N ;;
    bare) L=$PWD/$N ;;
    redis) L=redis://127.0.0.1:$REDIS_PORT#$N ;;
    rediss) L="rediss://localhost:$TLS_PORT?cacert=$TLS/ca.crt#$N" ;;
    redlock) L=$(rl_uri "$N") ;;
    advisory) L=postgres://postgres@127.0.0.1:$PG_PORT/postgres#$N ;;
    tls)
        L=postgres://postgres@localhost:$PG_PORT/postgres
        L+="?sslmode=verify-full&sslrootcert=$TLS/ca.crt#$N"
        ;;
    table) L="postgres://postgres@127.0.0.1:$PG_PORT/postgres?mode=lease#$N" ;;
    mysql) L=mysql://dl:pw@127.0.0.1:$MY_PORT/app#$N ;;
    zookeeper) L=zk://127.0.0.1:$ZK_PORT#$N ;;
    esac
}
# on_each PROGRAM ARG...: on each store, all at the same time.
on_each() {
    local store all='file bare redis rediss redlock advisory tls table mysql zookeeper' bad=''
    local -A pids=()
    for store in $all; do
        on "$store"
        run_t 30 "$@" "$L" >"log.$store" 2>&1 &
        pids[$store]=$!
    done
    for store in $all; do wait "${pids[$store]}" || bad+="$store: $(cat "log.$store")"$'\n'; done
    [ -z "$bad" ] || fail "$bad"
}

# ---------------------------------------------------------------- children ---

@test "a child takes nothing from a parent that holds the lock, or waits for it" {
    local phase
    for phase in held waits; do
        on_each "$PROG/fork" $phase
        run -0 run_t 10 "$PROG/fork" fcntl $phase "$PWD/$NAME"
    done
}

@test "a child takes nothing from a parent with a set of locks" {
    local sets=('redis advisory' 'rediss zookeeper' 'file table' 'mysql redis') pair phase first
    for pair in "${sets[@]}"; do
        for phase in held waits; do
            NAME=$NAME-1 on "${pair% *}"
            first=$L
            NAME=$NAME-2 on "${pair#* }"
            run_t 10 "$PROG/fork" $phase "$first" "$L" 2>log || fail "$pair: $phase: $(cat log)"
        done
    done
}

@test "a child can be forked at any moment of an acquire" {
    on_each "$PROG/fork" any
}

@test "a released lock is free while a child has all descriptors open" {
    on_each "$PROG/fork" idles
    run -0 run_t 10 "$PROG/fork" fcntl idles "$PWD/$NAME"
}

@test "a child that got the descriptor of a file keeps its lock" {
    run -0 run_t 10 "$PROG/fork" given "$PWD/$NAME"
    run -0 run_t 10 "$PROG/fork" fcntl given "$PWD/$NAME"
    run -0 run_t 10 "$PROG/fork" given "file://$PWD#$NAME"
}

@test "a child of a parent that waits for a silent server, or for a name" {
    local at at2
    listener hostile_server nothing
    at=127.0.0.1:$LISTENS
    listener hostile_server nothing
    at2=127.0.0.1:$LISTENS
    for L in "redis://$at" "rediss://$at" "redlock://$at,$at2,127.0.0.1:1" "postgres://$at/x" \
        "postgres://$at/x?mode=lease" "zk://$at"; do
        run_t 10 "$PROG/fork" connects "$L#$NAME" 2>log || fail "$L: $(cat log)"
    done
    for L in redis://slow.test:1 "redlock://slow.test:1,slow.test:2,$at" postgres://slow.test:1/x \
        mysql://slow.test:1/x zk://slow.test:1; do
        run_t 10 "$PROG/fork" names "$L#$NAME" 2>log || fail "$L: $(cat log)"
    done
}

# ----------------------------------------------------------------- threads ---

@test "handles go from thread to thread, and threads have handles of their own" {
    on_each "$PROG/threads"
}
