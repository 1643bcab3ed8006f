. "$proof/faults/clock-server-forward.bash"
FAULT_TITLE="servers' clock 1 h back" FAULT_ORDER=93
JUMP=-3600
