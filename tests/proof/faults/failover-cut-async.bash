# As failover-cut, when the primary waits for no standby.
. "$proof/faults/failover-cut.bash"
FAULT_TITLE='PostgreSQL primary only cut off, asynchronous standby promoted' FAULT_ORDER=85
STANDBY=async
