# pgnet.bash - a PostgreSQL server on the second machine of netns.bash. Load after netns.bash and postgres.bash.
#
#     net_server [PARAMS]   L is its lock $NAME, with these parameters in the URI ("?mode=lease"); AT is user, address and
#                           port. This machine has it by its Unix socket: pgsql, and a rival at $LOCAL

net_server() {
    local params=${1:-} more
    net_up
    local -a was=("${pg_as[@]}")
    pg_as=(env -u DLOCK_TEST_ID nsenter -t "$NET_S" -n -- "${pg_as[@]}")
    pg_start_in own -c listen_addresses='*' # it may move
    pg_as=("${was[@]}")
    echo 'host all all all trust' >>"${PG_DIRS[own]}/pg_hba.conf"
    PG_PORT=${PG_PORTS[own]} PG_LOG=${PG_LOGS[own]} PG_SOCK=${PG_SOCKS[own]}
    PORT=$PG_PORT # netns.bash drops what comes from it
    kill -HUP "${PG_PIDS[own]}"
    wait_for 5 file_has "$PG_LOG" "reloading configuration"
    AT=postgres@$SERVER:$PG_PORT
    L="postgres://$AT/postgres$params#$NAME"
    more=${params:+&${params#\?}}
    LOCAL="postgres://postgres@/postgres?host=${PG_SOCK//\//%2F}&port=$PG_PORT$more#$NAME"
    pgsql() { command timeout -k 2 30 "$PG_BIN/psql" -X -q -A -t -v ON_ERROR_STOP=1 -h "$PG_SOCK" -p "$PG_PORT" -U postgres "$@" 3>&-; }
}
