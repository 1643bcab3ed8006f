. "$proof/faults/restart-lost.bash"
FAULT_TITLE='data lost; B comes only then' FAULT_ORDER=45 FAULT_QUICK=''
fault_setup() { B_LATE=1; }
