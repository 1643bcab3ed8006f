. "$proof/faults/store-stopped.bash"
FAULT_TITLE='store stopped; TERM is ignored' FAULT_ORDER=41
fault_prepare() { WITNESS_A=(noterm); }
