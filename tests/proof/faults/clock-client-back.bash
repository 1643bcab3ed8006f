. "$proof/faults/clock-client-forward.bash"
FAULT_TITLE="clock of A's machine set back by 1 h" FAULT_ORDER=91
JUMP=-3600
