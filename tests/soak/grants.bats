# Random operations with a fault each second: a few on Redis and the store of the day. `make soak`
# has 10 000 grants on each store, by the script grants beside this file.

export BATS_TEST_TIMEOUT=300
load ../support/common

# bats test_tags=slow
@test "random operations under faults each second keep to the model" {
    local stores=(file redis redlock postgres pgtable mysql zookeeper) store rc=0
    # LeakSanitizer stops the process itself and does not survive a SIGSTOP meanwhile.
    export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0
    [ -z "${SAN:-}" ] || export TTL=4
    # Redis each day, and another store in six of seven.
    for store in $(printf '%s\n' redis "${stores[$(date +%s) / 86400 % 7]}" | sort -u); do
        run_t 140 "$ROOT/tests/soak/grants" --grants "$(amount soak_grants)" "$store" \
            >>grants.log 2>&1 || rc=1
    done
    sed -n 's/.* grants in .*/# &/p' grants.log >&3
    [ $rc -eq 0 ] || fail "$(cat grants.log)"
}

# bats test_tags=soak,slow
@test "the storm finds commands that go on when their lock is lost" {
    [ -n "${DLOCK_SOAK:-}" ] || return 0
    printf '%s\n' '#!/bin/sh' 'case "$*" in *" --grace "*) set -- --on-lost warn "$@" ;; esac' \
        "exec $DLOCK \"\$@\"" >warns
    chmod +x warns
    DLOCK=$T/warns run -1 run_t 280 "$ROOT/tests/soak/grants" --grants 4000 redis
    [[ $output != *" 0 overlaps"* && $output == *"of another one still runs"* ]] ||
        fail "${output//FINAL:/final:}"
}
