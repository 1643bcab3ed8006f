FAULT_TITLE='store stopped for 2 to 3 ttl' FAULT_ORDER=40 FAULT_QUICK=1
fault_applies() { [ -n "$STORE" ]; }
fault_inject() {
    local pids
    pids=$(store_pids)
    kill -STOP $pids
    rnd $((2 * TTL_MS)) $((3 * TTL_MS))
    pause "$RND"
    kill -CONT $pids
    event end-of-fault
}
