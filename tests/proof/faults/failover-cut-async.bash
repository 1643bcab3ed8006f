# As failover-cut, when the primary waits for no standby.
. "$proof/faults/failover-cut.bash"
FAULT_TITLE="cut off; asynchronous standby" FAULT_ORDER=85
STANDBY=async
