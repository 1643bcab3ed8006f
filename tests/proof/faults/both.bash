FAULT_TITLE='wrapper and guard killed' FAULT_ORDER=26
fault_applies() { have tool_guard; }
# In one call, while neither can act: a guard that lived on for an instant would end the tree.
fault_inject() {
    local guard
    guard=$(tool_guard) && [ -n "$guard" ] || return
    kill -STOP "$guard" "$A_PID" && kill -KILL "$guard" "$A_PID"
}
