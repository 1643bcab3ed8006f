FAULT_TITLE='store restarted without its data' FAULT_ORDER=44 FAULT_QUICK=1
fault_applies() { [ -n "$STORE" ]; }
fault_inject() { store_restart lose && event end-of-fault; }
