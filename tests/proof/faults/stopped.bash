FAULT_TITLE='wrapper stopped for 3 ttl' FAULT_ORDER=22 FAULT_QUICK=1
fault_inject() {
    stop_pid "$A_PID" || return
    pause $((3 * TTL_MS))
    kill -CONT "$A_PID"
    event end-of-fault
}
