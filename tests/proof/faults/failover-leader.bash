# An ensemble of three ZooKeeper servers loses its leader.
FAULT_TITLE='ZooKeeper: leader killed' FAULT_ORDER=87
fault_applies() { [ "$STORE" = zookeeper ]; }
fault_setup() {
    TTL=6 TTL_MS=6000 DLOCK_OPTS=(--ttl 6)
    store_up() { zk_ensemble && ADDR=$ZK_HOSTS; }
}
fault_inject() { zk_kill "$(zk_leader)"; }
