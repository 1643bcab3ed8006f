FAULT_TITLE='store restarted with its data' FAULT_ORDER=42
fault_applies() { [ -n "$STORE" ]; }
fault_inject() { store_restart keep && event end-of-fault; }
