. "$proof/faults/both.bash"
FAULT_TITLE='both killed; a grandchild' FAULT_ORDER=27 FAULT_QUICK=1
fault_prepare() { WITNESS_A=(tree); }
