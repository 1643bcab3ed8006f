# Faults that hit the current holder, with a real server. See tests/support/helpers/nemesis.py.

export BATS_TEST_TIMEOUT=300
load ../support/common
load ../support/redis

# bats test_tags=slow,soak
@test "Redis holders never overlap while they are killed and stopped" {
    local secs
    secs=$(amount chaos_seconds)
    # LeakSanitizer stops the process itself and does not survive a SIGSTOP meanwhile.
    export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0
    redis_start
    mkdir "$T/h"
    run_t $((5 * secs + 100)) "$ROOT/tests/support/helpers/nemesis.py" "$DLOCK" \
        "redis://127.0.0.1:$REDIS_PORT#$NAME" \
        "$HELPERS/witness" "$T/h" "$REDIS_PID" "$secs" "$(amount chaos_workers)" >nemesis.log ||
        failed=1
    cat nemesis.log
    sed -n 's/.* faults on holders/# &/p' nemesis.log >&3
    "$ROOT/tests/support/helpers/check_history.py" "$T/h" 1 killed || failed=1
    [ -z "${failed:-}" ]
}
