# The primary is killed, its synchronous standby promoted.
FAULT_TITLE="PostgreSQL: primary killed" FAULT_ORDER=82
STANDBY=sync
fault_applies() { [ "$STORE" = postgres ]; }
fault_setup() {
    eval "primary_$(declare -f store_up)"
    store_up() {
        primary_store_up && pg_standby standby default || return
        [ $STANDBY != sync ] || pgsql -c "alter system set synchronous_standby_names = '*'" \
            -c "select pg_reload_conf()" || return
        wait_for 5 standby_is $STANDBY && ADDR+=,127.0.0.1:${PG_PORTS[standby]}
    }
}
standby_is() { [ "$(pgsql -c "select sync_state from pg_stat_replication")" = "$1" ]; }
standby_promote() { pgsql_in standby -c "select pg_promote()" && event promoted; }
fault_inject() { pg_kill && standby_promote; }
