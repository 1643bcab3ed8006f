. "$proof/faults/clock-server-forward.bash"
FAULT_TITLE="clock of all servers set back by 1 h" FAULT_ORDER=93
JUMP=-3600
