. "$proof/faults/store-stopped.bash"
FAULT_TITLE='the same; the command ignores TERM' FAULT_ORDER=41
fault_prepare() { WITNESS_A=(noterm); }
