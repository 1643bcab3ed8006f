# Faults that hit the current holder, for half a minute, against a real server. See tests/support/helpers/nemesis.py.

bats_require_minimum_version 1.5.0
export BATS_TEST_TIMEOUT=300
load ../support/common
load ../support/redis

setup() { dlock_setup; }
teardown() { dlock_teardown; }

# bats test_tags=slow
@test "redis: no overlap and no smaller fence while holders are killed and stopped" {
    # A SIGSTOP in the middle of LeakSanitizer's own stopping of the process is more than it can bear.
    export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0
    redis_start
    mkdir "$T/h"
    run_t 200 "$ROOT/tests/support/helpers/nemesis.py" "$DLOCK" "redis://127.0.0.1:$REDIS_PORT#$NAME" \
        "$HELPERS/witness" "$T/h" "$REDIS_PID" "${CHAOS_SECONDS:-$([ -n "${SAN:-}" ] && echo 10 || echo 30)}" || failed=1
    "$ROOT/tests/support/helpers/check_history.py" "$T/h" 1 killed || failed=1
    [ -z "${failed:-}" ]
}
