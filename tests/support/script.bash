# script.bash - for a script outside of bats that uses a store of the contract. Loads common.bash.
#
#     script_setup ID STORE   $tmp, a folder of its own, and the functions of that store. At the end
#                             every process that was started is gone, and so are server and folder

source "${BASH_SOURCE[0]%/*}/common.bash"

load() { . "$1.bash"; }
script_setup() {
    tmp=$(mktemp -d) || exit 73
    export BATS_RUN_TMPDIR=$tmp BATS_FILE_TMPDIR=$tmp BATS_TEST_TMPDIR=$tmp T=$tmp \
        SUPPORT=$ROOT/tests/support DLOCK_TEST_ID=$1.$$
    load "$ROOT/tests/contract/stores/$2"
    trap 'trap - EXIT; script_end; store_down; rm -rf "$tmp"' EXIT
    trap 'exit 130' INT TERM
}
# Loops of a script's own may end by a file "stop".
script_end() {
    local pid
    : >"$tmp/stop"
    for pid in $(test_pids); do kill -KILL "$pid"; done 2>/dev/null
}
