# The network between A's machine and the store drops all packets, silently.
. "$proof/../support/far.bash"
FAULT_TITLE="packets lost both ways for 3 ttl" FAULT_ORDER=72
LOST=both
fault_applies() { [ -n "$STORE" ]; }
fault_missing() { far_missing; }
fault_setup() { far_namespace "$proof/cell" "$FAULT" "$TOOL" "$SEED" "$D"; }
fault_prepare() {
    far_up || outcome error 'no second machine'
    VIA_A=("${FAR[@]}")
}
fault_inject() {
    far_lose $LOST
    pause $((3 * TTL_MS))
    far_mend
    event end-of-fault
}
