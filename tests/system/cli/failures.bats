#!/usr/bin/env bats
# failures.bats - every failure once: each system call of a run, in the keeper, the guard and the
# process that becomes the command, and each allocation, also of the stores' libraries, on each
# store. `make soak` has all cases, a day of CI a part of them (see sample in amounts.bash):
#
#     SAMPLE=N          that part, as a failed test names it
#     FAILURES=REGEX    instead those cases that match, as a complaint names them: "redis call
#                       keeper:recvfrom:3", "table memory 12+"
#     STORES="redis"    only of these

# bats file_tags=long,plain
load ../../support/common
load ../../support/redis
load ../../support/redlock
load ../../support/postgres
load ../../support/mysql
load ../../support/zookeeper

# LOCKS: STORE=URI of each, whose servers run.
setup_file() {
    local store
    export BATS_TEST_TIMEOUT=${BATS_TEST_TIMEOUT:-200} LOCKS=''
    for store in ${STORES:-file guarded redis redlock postgres table mysql zookeeper}; do
        lock_of_$store
        LOCKS+=" $store=$LOCK"
    done
}
lock_of_file() { LOCK=file://DIR#; }
lock_of_guarded() { LOCK=file://DIR#o.; } # with -o
lock_of_redis() { redis_start && LOCK=redis://127.0.0.1:$REDIS_PORT#; }
lock_of_redlock() { rl_start 3 && LOCK=$(rl_uri ''); }
lock_of_postgres() { pg_start && LOCK=postgres://postgres@127.0.0.1:$PG_PORT/postgres#; }
lock_of_table() {
    [ -n "${PG_PORT:-}" ] || pg_start
    LOCK=postgres://postgres@127.0.0.1:$PG_PORT/postgres?mode=lease#
}
lock_of_mysql() { my_start && LOCK=mysql://dl:pw@127.0.0.1:$MY_PORT/app#; }
lock_of_zookeeper() { zk_start && LOCK=zk://127.0.0.1:$ZK_PORT#; }
teardown_file() {
    rl_stop_file
    zk_stop_all
    my_stop_all
    pg_stop_all
    redis_stop
}

# one STORE CASE LOCK: a run, as fail_each.py has them.
one() {
    local o=''
    [ "$1" != guarded ] || o=-o
    mkdir -p "one.$1"
    "$HELPERS/fail_call" "report.$1" "$2" "$DLOCK" $o --ttl 3 "$3$NAME" "$HELPERS/witness" \
        "one.$1" 900 tree 3>&-
    grep -q '^exit 0 ' "report.$1" || fail "$1: $(cat "report.$1")"
}
# The cases of a store: calls|allocations STORE LOCK.
calls() {
    one "$1" trace "$2"
    ! grep '^unknown ' "report.$1" || fail "fail_call.c does not know system calls of $1"
    sed -n "s/^case /$1 call /p" "report.$1"
}
# Each one alone, and with all behind it.
allocations() {
    local i n
    head -c 8 /dev/zero >"count.$1"
    NOMEMORY=1000000000 NOMEMORY_IN=${DLOCK##*/} NOMEMORY_COUNT=$T/count.$1 preload nomemory \
        one "$1" - "$2"
    n=$(($(od -An -td8 "count.$1")))
    for ((i = 1; i <= n; i++)); do printf "$1 memory %s\n" $i $i+; done
}

# every LEAST CASES: all of it, with at least so many cases of each store.
every() {
    local dir=$T/locks lock part i
    local -a locks=(${LOCKS//DIR/$dir}) jobs=()
    mkdir "$dir" sweep
    for lock in "${locks[@]}"; do
        { run_t 10 "$DLOCK" "${lock#*=}warm-$NAME" true; $2 "${lock%%=*}" "${lock#*=}"; } \
            >"cases.${lock%%=*}" &
        jobs+=($!)
    done
    for i in "${!locks[@]}"; do
        lock=${locks[i]%%=*}
        wait "${jobs[i]}" || fail "$lock: no cases" || return
        [ "$(wc -l <"cases.$lock")" -ge "$1" ] || fail "$lock: few cases" || return
        cat "cases.$lock" >>all
    done
    part="$(sample_number every_failure) of $(amount every_failure)"
    if [ -n "${FAILURES:-}" ]; then grep -E "$FAILURES" all; else sample every_failure <all; fi |
        "$ROOT/tests/support/helpers/fail_each.py" "$HELPERS" "$DLOCK" sweep "$NAME" 24 \
            "${locks[@]}" >sums 3>&-
    sed "s/^/# /; \$s/\$/, $(wc -l <all) cases, part $part/" sums >&3
    [ ! -s sweep/bad ] || fail "again with SAMPLE=${part% of *}:
$(cat sweep/bad)"
    nothing_left
}

# In the stores and beside the lock files.
no_session() {
    [ -z "${PG_PORT:-}" ] || [ "$(pg_backends 'dlock:%')" = 0 ] || return
    [ -z "${MY_PORT:-}" ] || [ "$(my_sessions)" = 0 ] || return
    [ -z "${ZK_PORT:-}" ] || [ -z "$(zk_sessions)" ]
}
nothing_left() {
    ! ls -A locks | grep -Ev '^[^.].*\.(lock|fence)$' || fail "left beside the locks"
    wait_for 6 no_session || fail "sessions are left"
}

# bats test_tags=soak
@test "a system call that fails once does no harm" { every 60 calls; }

# bats test_tags=soak
@test "an allocation that fails does no harm" {
    # In MySQL some end the process inside a library (134, 139): not looked into yet.
    LOCKS=$(tr ' ' '\n' <<<"$LOCKS" | grep -v '^mysql=')
    every 60 allocations
}
