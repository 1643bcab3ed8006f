# redlockfile.bash - the frame of the files that test a Redlock: five nodes for all tests that do
# them no harm (the others start their own), and L, the lock there. A file that needs more defines
# these functions anew. Loads all that they use.

source "${BASH_SOURCE[0]%/*}/holders.bash"
source "$ROOT/tests/support/redis.bash"
source "$ROOT/tests/support/redlock.bash"

setup_file() { rl_start 5; }
teardown_file() { rl_stop_file; }
setup() {
    dlock_setup
    fake_setup # the command that tells what happens to it
    L=$(rl_uri "$NAME")
}
