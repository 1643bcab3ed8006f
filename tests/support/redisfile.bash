# redisfile.bash - the frame of the files that test locks in one redis-server: a server for all
# tests of a file, and L, the lock there. A file that needs more defines these functions anew. Loads
# all that they use.

source "${BASH_SOURCE[0]%/*}/holders.bash"
source "$ROOT/tests/support/redis.bash"
source "$ROOT/tests/support/redislock.bash"

setup_file() { redis_start; }
teardown_file() { redis_stop; }
setup() {
    dlock_setup
    fake_setup # the command that tells what happens to it
    L="redis://127.0.0.1:$REDIS_PORT#$NAME"
}
