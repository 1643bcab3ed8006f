FAULT_TITLE='wrapper and guard killed' FAULT_ORDER=26
fault_applies() { have tool_guard; }
# While none can act: the wrapper first, which continues a stopped witness.
fault_inject() {
    local guards
    guards=$(guards) && [ -n "$guards" ] || return
    kill -STOP "$A_PID" $guards && kill -KILL "$A_PID" $guards
}
guards() { tool_guard; }
