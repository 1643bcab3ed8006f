# As failover-cut, with what the manual says against it.
. "$proof/faults/failover-cut.bash"
FAULT_TITLE='cut off; renew=write and a grace' FAULT_ORDER=84
fault_applies() { [ "$TOOL" = dlock-advisory ]; }
eval "cut_$(declare -f fault_setup)"
fault_setup() {
    cut_fault_setup
    DLOCK_PARAMS="?renew=write&restart-grace=$TTL"
}
