# A's command runs under a second dlock, which is no descendant of the first.
FAULT_TITLE='outer killed, inner dlock stopped' FAULT_ORDER=29
fault_applies() { have dlock_lock; }
fault_setup() {
    eval "lone_$(declare -f tool_run)"
    eval "lone_$(declare -f a_runs)"
    tool_run() {
        [ "$1" = A ] || lone_tool_run "$@"
        lone_tool_run A sh -c 'echo "$DLOCK_HELD" >held; exec "$HELPERS/await" go'
    }
    a_runs() {
        local ADDR=$ADDR_A
        wait_for 30 test -s held 2>/dev/null || outcome error "no outer dlock: $(tail -n 3 A.log)"
        DLOCK_HELD=$(<held) "$DLOCK" "$(dlock_lock)" "$HELPERS/lives" "$D" A 60000 \
            >>A.log 2>&1 </dev/null 3>&- &
        INNER_PID=$!
        lone_a_runs
    }
}
fault_inject() {
    stop_pid "$INNER_PID" && kill -KILL "$A_PID" || return
    : >go # else the outer command would keep a file's lock
    pause $((3 * TTL_MS))
    kill -CONT "$INNER_PID"
    event end-of-fault
}
