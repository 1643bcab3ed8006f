# The wall clock of all servers of the store jumps by an hour.
. "$proof/faults/clock-client-forward.bash"
FAULT_TITLE="servers' clock 1 h forward" FAULT_ORDER=92
fault_applies() { [ -n "$STORE" ]; }
fault_missing() { clock_missing "$STORE"; }
# PostgreSQL's server is of another user, who must be able to read both files.
fault_setup() {
    CLOCK_DIR=$(mktemp -d /tmp/dlock-clock.XXXXXX) && chmod 755 "$CLOCK_DIR" &&
        cp "$HELPERS/wallclock.so" "$CLOCK_DIR" || return
    CLOCK_FILE=$CLOCK_DIR/offset
    clock_servers
}
clock_servers() {
    eval "plain_$(declare -f store_up)"
    store_up() { clocked plain_store_up; }
}
clocked() { HELPERS=$CLOCK_DIR with_clock "$@"; }
fault_prepare() { :; }
fault_cleanup() { rm -rf "$CLOCK_DIR"; }
