# As failover-sentinel, but the replica has been cut off since before the grant.
. "$proof/faults/failover-sentinel.bash"
FAULT_TITLE='Sentinel failover; key is lost' FAULT_ORDER=81
# Stopped first, so that the grant is not in its buffers.
fault_prepare() {
    stop_pid "${REDIS_PIDS[node1]}" &&
        ncli "${REDIS_PORTS[node0]}" client kill type replica >/dev/null ||
        outcome error 'the replica cannot be cut off'
}
