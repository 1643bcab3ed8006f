# Nodes that die, lose their data, hang and return while 40 processes contend for one lock. See
# tests/support/helpers/redlock_nemesis.py. Faults of the holder are in grants.bats.

export BATS_TEST_TIMEOUT=300
load ../support/common

# bats test_tags=slow,soak
@test "Redlock holders never overlap while nodes are killed, emptied and stopped" {
    local want secs
    want=$(amount redlock_chaos_grants) secs=$(amount redlock_chaos_seconds)
    mkdir "$T/h"
    "$ROOT/tests/support/helpers/redlock_nemesis.py" "$DLOCK" "$NAME" "$HELPERS/witness" "$T/h" \
        "$secs" $want >nemesis.log || failed=1
    cat nemesis.log
    sed -n 's/.* acquisitions in .*/# &/p' nemesis.log >&3
    "$ROOT/tests/support/helpers/check_history.py" "$T/h" 1 killed || failed=1
    [ -z "${failed:-}" ] || tail -n 50 "$T/h/faults"
    [ -z "${failed:-}" ]
}
