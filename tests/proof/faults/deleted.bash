FAULT_TITLE='lock deleted by hand' FAULT_ORDER=60
fault_applies() { have tool_delete; }
# Who waits for a file has it open: only a newcomer is misled.
fault_setup() { [ -n "$STORE" ] || B_LATE=1; }
fault_inject() { tool_delete; }
