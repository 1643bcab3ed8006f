. "$proof/faults/both.bash"
FAULT_TITLE='wrapper and guard killed; grandchild' FAULT_ORDER=27 FAULT_QUICK=1
fault_prepare() { WITNESS_A=(tree); }
