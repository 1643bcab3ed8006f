. "$proof/faults/restart-lost.bash"
FAULT_TITLE='store lost its data; B comes then' FAULT_ORDER=45 FAULT_QUICK=''
fault_setup() { B_LATE=1; }
