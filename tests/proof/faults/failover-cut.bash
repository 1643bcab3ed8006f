# The standby is promoted while the primary runs on: the network is cut, A is on the primary's side,
# B on the other one.
. "$proof/faults/failover-killed.bash"
FAULT_TITLE="PostgreSQL: primary only cut off" FAULT_ORDER=83
fault_prepare() {
    ADDR_A=127.0.0.1:${PG_PORTS[default]} ADDR_B=127.0.0.1:${PG_PORTS[standby]} B_LATE=1
}
fault_inject() { standby_promote; }
