# The clients' PgBouncer is restarted.
FAULT_TITLE="PgBouncer restarted" FAULT_ORDER=98
# Advisory locks of dlock refuse a pooler; psql needs one session for all it does.
fault_applies() { case $TOOL in dlock-table | psql) ;; *) return 1 ;; esac; }
fault_missing() { [ -x /usr/sbin/pgbouncer ] || echo 'PgBouncer is not installed'; }
fault_setup() {
    eval "server_$(declare -f store_up)"
    store_up() {
        local mode=transaction
        [ "$TOOL" != psql ] || mode=session
        server_store_up && pgb_start $mode && ADDR=127.0.0.1:$PGB_PORT
    }
}
fault_inject() { end_job TERM "$PGB_PID" && pgb_launch && event end-of-fault; }
