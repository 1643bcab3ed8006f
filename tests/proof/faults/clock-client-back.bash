. "$proof/faults/clock-client-forward.bash"
FAULT_TITLE="clock of A's machine 1 h back" FAULT_ORDER=91
JUMP=-3600
