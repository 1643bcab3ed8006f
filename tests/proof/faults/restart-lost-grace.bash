. "$proof/faults/restart-lost.bash"
FAULT_TITLE='the same with ?restart-grace=2s' FAULT_ORDER=46 FAULT_QUICK=''
# Redlock has it without being asked.
fault_applies() { case $TOOL in dlock-redis | dlock-advisory | dlock-table) ;; *) false ;; esac; }
fault_setup() {
    B_LATE=1 DLOCK_PARAMS='?restart-grace=2s'
    [ "$TOOL" != dlock-table ] || DLOCK_PARAMS='&restart-grace=2s'
}
