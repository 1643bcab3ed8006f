# A's machine is suspended, for the tool and for its command: the store and B go on.
. "$proof/../support/freezer.bash"
FAULT_TITLE="machine suspended for 3 ttl" FAULT_ORDER=96
fault_missing() {
    if freezer_open; then freezer_close; else echo "needs the right to make control groups"; fi
}
fault_prepare() {
    freezer_open || outcome error 'no control group'
    VIA_A=("${FREEZER[@]}")
    about "note frozen by control groups, $FREEZER_KIND"
}
fault_inject() {
    freezer_freeze && event frozen || return
    pause $((3 * TTL_MS))
    event thawed
    freezer_thaw
}
fault_cleanup() {
    freezer_thaw
    kill -KILL $(cat "$FREEZER_DIR/cgroup.procs") 2>/dev/null
    wait_for 5 freezer_close
}
