# pgtests.bash - the frame of a file that tests locks in PostgreSQL, advisory ones where nothing
# else is said: one server for all its tests, which run one after the other. A file that needs more
# defines these functions anew. Loads all that they use; pgtable.bash is the same for the lease
# table.

bats_require_minimum_version 1.5.0
source "${BASH_SOURCE[0]%/*}/holders.bash"
source "$ROOT/tests/support/postgres.bash"
source "$ROOT/tests/support/pglock.bash"

setup_file() {
    export BATS_NO_PARALLELIZE_WITHIN_FILE=true
    pg_start
}
teardown_file() { pg_stop_all; }
setup() {
    dlock_setup
    fake_setup # the command that tells what happens to it
    at_server
}
teardown() {
    go_on
    : >go # whatever waits for that may end
    dlock_teardown
}
