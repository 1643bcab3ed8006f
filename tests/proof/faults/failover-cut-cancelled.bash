# As failover-cut-write, and in the lease table, while a person cancels each commit that waits for
# the standby: the primary then answers success, with a warning.
. "$proof/faults/failover-cut-write.bash"
FAULT_TITLE='cut off; the waits are cancelled' FAULT_ORDER=86
fault_applies() { case $TOOL in dlock-advisory | dlock-table) ;; *) return 1 ;; esac; }
eval "write_$(declare -f fault_setup)"
fault_setup() {
    write_fault_setup
    [ "$TOOL" = dlock-advisory ] || DLOCK_PARAMS=''
}
fault_inject() {
    echo "select pg_cancel_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'
        \\watch 0.02" >cancel.sql
    start_log cancel.log pg_session -f "$D/cancel.sql"
    standby_promote
}
