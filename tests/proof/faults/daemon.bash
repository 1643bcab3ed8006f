. "$proof/faults/killed.bash"
FAULT_TITLE='wrapper killed; setsid grandchild' FAULT_ORDER=30
fault_prepare() { WITNESS_A=(tree); }
