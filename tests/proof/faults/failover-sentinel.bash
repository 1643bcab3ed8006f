# The Redis master is killed; the sentinels promote its replica, which has all that it had.
. "$proof/../support/sentinel.bash"
FAULT_TITLE='Sentinel failover' FAULT_ORDER=80
fault_applies() { case $TOOL in dlock-redis | redis-py) ;; *) return 1 ;; esac; }
fault_setup() {
    TTL=6 TTL_MS=6000 DLOCK_OPTS=(--ttl 6)
    dlock_lock() { echo "redis+sentinel://$ADDR/svc#$NAME"; }
    store_up() {
        sentinel_start && ADDR=$(sentinel_uri) && ADDR=${ADDR#*//} && ADDR=${ADDR%/svc}
    }
}
fault_inject() {
    kill -KILL "${REDIS_PIDS[node0]}"
    kill -CONT "${REDIS_PIDS[node1]}"
    wait_for 10 promoted && event promoted
}
promoted() { [ "$(sentinel_master)" = "${REDIS_PORTS[node1]}" ]; }
fault_cleanup() { sentinel_stop; }
