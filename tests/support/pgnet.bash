# pgnet.bash - a PostgreSQL server on the second machine of netns.bash. Load after netns.bash and
# postgres.bash.
#
#     net_server [MODE]   (lease) L is its lock $NAME in that mode; AT is user, address and port.
#                         This machine has it by its Unix socket: pgsql, and a rival at $LOCAL
#     net_mode MODE       L and LOCAL in the other mode

net_server() {
    net_up
    local -a was=("${pg_as[@]}")
    pg_as=(env -u DLOCK_TEST_ID nsenter -t "$NET_S" -n -- "${pg_as[@]}")
    pg_start_in own -c listen_addresses='*' # it may move
    pg_as=("${was[@]}")
    echo 'host all all all trust' >>"${PG_DIRS[own]}/pg_hba.conf"
    use_server own
    PORT=$PG_PORT # netns.bash drops what comes from it
    kill -HUP "$PG_PID"
    wait_for 5 file_has "$PG_LOG" "reloading configuration"
    AT=postgres@$SERVER:$PG_PORT
    net_mode "${1:-lease}"
    pgsql() {
        timeout -k 2 30 "$PG_BIN/psql" -X -q -A -t -v ON_ERROR_STOP=1 -h "$PG_SOCK" -p "$PG_PORT" \
            -U postgres -d postgres "$@" 3>&-
    }
}
net_mode() {
    L="postgres://$AT/postgres?mode=$1#$NAME"
    LOCAL="postgres://postgres@/postgres?host=${PG_SOCK//\//%2F}&port=$PG_PORT&mode=$1#$NAME"
}
