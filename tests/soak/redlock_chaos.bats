# Nodes that die, forget, hang and come back under 40 processes that want one lock. See tests/support/helpers/redlock_nemesis.py.
# CHAOS_SECONDS: longer runs. (What hits a holder is chaos.bats.)

bats_require_minimum_version 1.5.0
export BATS_TEST_TIMEOUT=${CHAOS_TIMEOUT:-300}
load ../support/common

setup() { dlock_setup; }
teardown() { dlock_teardown; }

# bats test_tags=slow
@test "redlock: 40 processes, 2000 acquisitions while nodes are killed, emptied and stopped: no overlap, fences grow" {
    local want=2000 secs=${CHAOS_SECONDS:-$([ -n "${SAN:-}" ] && echo 10 || echo 60)}
    [ "$secs" -ge 60 ] || want=$((secs * 2))
    mkdir "$T/h"
    "$ROOT/tests/support/helpers/redlock_nemesis.py" "$DLOCK" "$NAME" "$HELPERS/witness" "$T/h" "$secs" $want || failed=1
    "$ROOT/tests/support/helpers/check_history.py" "$T/h" 1 killed || failed=1
    [ -z "${failed:-}" ] || tail -n 50 "$T/h/faults"
    [ -z "${failed:-}" ]
}
