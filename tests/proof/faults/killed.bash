FAULT_TITLE='wrapper killed (-9)' FAULT_ORDER=20 FAULT_QUICK=1
fault_inject() { kill -KILL "$A_PID"; }
