. "$proof/faults/both.bash"
FAULT_TITLE='all of dlock killed; a grandchild' FAULT_ORDER=28 FAULT_QUICK=''
fault_prepare() { WITNESS_A=(tree); }
guards() { ! guard_of "$A_PID" || echo "$W $G"; }
