. "$proof/faults/killed.bash"
FAULT_TITLE='wrapper killed; the command forked twice, setsid' FAULT_ORDER=30
fault_prepare() { WITNESS_A=(tree); }
