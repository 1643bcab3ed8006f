# postgres.bash - PostgreSQL servers for tests, each on a free loopback port, with a folder of its
# own, and a PgBouncer in front of one.
#
#     load ../../support/postgres
#     pg_start [-c NAME=VALUE...]      PG_PORT PG_PID PG_DIR (data) PG_SOCK (socket's folder)
#                                      PG_LOG; pgsql ARG... is psql there, as the superuser
#                                      `postgres`, bare output
#     pg_start_in NAME [ARG...]        another one; ${PG_PORTS[NAME]} ${PG_PIDS[NAME]} ...; pgsql_in
#                                      NAME ARG...
#     pg_session ARG...                for start and start_log: a psql that is $STARTED itself
#     pg_stop [NAME] | pg_kill [NAME]  (fast shutdown | kill -9, the backends, too); the data stays
#     pg_restart NAME fast|immediate [ARG...]   same port, same data, the arguments given now; also
#                                     after pg_stop and pg_kill (then it is only a start)
#     pg_standby NAME OF               a hot standby of OF (own, default); `pgsql_in NAME -c "select
#                                      pg_promote()"`
#     pgb_start [POOL_MODE [KEY=VALUE...]]      PgBouncer (transaction) before the default server:
#                                     PGB_PORT PGB_PID PGB_LOG; pgb_stop
#     pg_statements [NAME]             how many query messages it got, without those of pgsql
#     pg_backends PATTERN [NAME]       client sessions whose application_name is LIKE the pattern
#
# In setup_file pg_start exports the variables for the tests, and teardown_file calls pg_stop_all.
# In a test dlock_teardown ends them. A test that stops or restarts a server starts one of its own.
# There is one database, postgres; another one: CREATE DATABASE x TEMPLATE postgres, while no other
# session uses that.

source "${BASH_SOURCE[0]%/*}/server.bash"

declare -gA PG_PORTS PG_PIDS PG_DIRS PG_SOCKS PG_LOGS
# Not exported: what this shell has started itself.
PGB_OURS='' PGB_DIR=''

# Nothing of the caller's libpq settings; those with an underscore are ours, exported by setup_file.
for v in ${!PG*}; do
    case $v in PG_* | PGB_*) ;; *) unset "$v" ;; esac
done
unset v

# Not Debian's wrapper of psql, which takes 50 ms more; and the server is not in PATH at all.
# Found once for all tests of a file.
[ -n "${PG_BIN:-}" ] || PG_BIN=$(printf '%s\n' /usr/lib/postgresql/*/bin | sort -V | tail -n 1)
export PG_BIN

pg_as=("${server_as[@]}")

# ---------------------------------------------------------------- server ---

pg_template() {
    [ -x "$PG_BIN/initdb" ] || {
        echo "pg_start: no PostgreSQL server below /usr/lib/postgresql" >&2
        return 1
    }
    server_template pg pg_initdb && PG_TEMPLATE=${BATS_RUN_TMPDIR:?}/pg-template
}

# Little to copy: no large files of the log, no other database than "postgres".
pg_initdb() {
    cd / || return
    timeout -k 2 60 "${pg_as[@]}" "$PG_BIN/initdb" -D "$1" -U postgres -A trust -E UTF8 \
        --locale=C.UTF-8 --wal-segsize=1 --no-sync --no-instructions </dev/null || return
    timeout -k 2 60 "${pg_as[@]}" "$PG_BIN/postgres" --single -F -D "$1" postgres <<'SQL'
UPDATE pg_database SET datistemplate = false
DROP DATABASE template0
DROP DATABASE template1
SQL
}

pg_start() {
    pg_start_in default "$@" || return
    export PG_PORT=${PG_PORTS[default]} PG_PID=${PG_PIDS[default]} PG_DIR=${PG_DIRS[default]}
    export PG_SOCK=${PG_SOCKS[default]} PG_LOG=${PG_LOGS[default]}
}

pg_start_in() {
    local name=$1 dir try
    shift
    pg_template || return
    pg_drop "$name"
    dir=$(server_folder pg) || return
    # From here on pg_stop_all knows it.
    PG_SOCKS[$name]=$dir PG_DIRS[$name]=$dir/data PG_LOGS[$name]=$dir/log
    cp -a "$PG_TEMPLATE" "$dir/data" || return
    for try in 1 2 3 4 5 6 7 8 9 10; do
        PG_PORTS[$name]=$(some_port)
        : >"$dir/log"
        pg_launch "$name" "$@" && return 0
        # Another server had the port, or this one cannot start at all.
        grep -q 'Address already in use' "$dir/log" || break
    done
    echo "pg_start: $name: no server after $try tries:" >&2
    cat "$dir/log" >&2
    pg_drop "$name"
    return 1
}

# pg_launch NAME ARG...: ready when it says so in its data folder, with its own pid; 1 when it ended
# first. Every query message is logged before it is executed, with its transaction and its sender.
# dynamic_shared_memory_type: a killed one leaves nothing in /dev/shm.
pg_launch() {
    local name=$1 pid
    shift
    (cd / && exec "${pg_as[@]}" --pdeathsig QUIT "$PG_BIN/postgres" -D "${PG_DIRS[$name]}" \
        -p "${PG_PORTS[$name]}" -c listen_addresses=127.0.0.1 \
        -c unix_socket_directories="${PG_SOCKS[$name]}" -c fsync=off -c shared_buffers=16MB \
        -c max_connections=200 -c dynamic_shared_memory_type=mmap -c log_statement=all \
        -c log_line_prefix='%m [%p] %q%v [%a] ' "$@") >>"${PG_LOGS[$name]}" 2>&1 </dev/null 3>&- &
    pid=$!
    # What is replayed after a kill -9 takes its time.
    until_ready 30 $pid pg_ready "${PG_DIRS[$name]}" $pid && PG_PIDS[$name]=$pid
}

# pg_ready DIR PID: postmaster.pid is what pg_ctl waits for, too: pid, ..., state on line 8.
pg_ready() {
    local -a line
    { mapfile -t line <"$1/postmaster.pid"; } 2>/dev/null || return 1
    [ "${line[0]:-}" = "$2" ] && [[ ${line[7]:-} == ready* || ${line[7]:-} == standby* ]]
}

pg_standby() {
    local dir
    dir=$(server_folder pg) || return
    PG_SOCKS[$1]=$dir PG_DIRS[$1]=$dir/data PG_LOGS[$1]=$dir/log PG_PORTS[$1]=$(some_port)
    (cd / && "${pg_as[@]}" "$PG_BIN/pg_basebackup" -D "$dir/data" -h 127.0.0.1 \
        -p "${PG_PORTS[$2]}" -U postgres -c fast --no-sync -R) 3>&- || return
    pg_launch "$1"
}

pg_restart() {
    local name=$1 signal
    case ${2:-} in
    fast) signal=INT ;;
    immediate) signal=QUIT ;;
    *) fail "pg_restart: fast or immediate?" || return ;;
    esac
    shift 2
    [ -n "${PG_DIRS[$name]:-}" ] || fail "pg_restart: this shell did not start $name" || return
    pg_end $signal "$name"
    pg_launch "$name" "$@" || { cat "${PG_LOGS[$name]}" >&2; return 1; }
    [ "${PG_PORTS[$name]}" != "${PG_PORT:-}" ] || PG_PID=${PG_PIDS[$name]}
}

pg_stop() { pg_end INT "${1:-default}"; }

pg_end() {
    local pid=${PG_PIDS[$2]:-} p
    [ -n "$pid" ] || return 0
    # It waits for its children, which a test may have stopped.
    for p in "$pid" $(children "$pid"); do kill -CONT "$p" 2>/dev/null || :; done
    kill -"$1" "$pid" 2>/dev/null || :
    wait_for 10 pid_gone "$pid" || { pg_kill "$2"; return; }
    wait "$pid" 2>/dev/null || :
    unset "PG_PIDS[$2]"
}

# All of it at once: a backend that is busy would go on for a while without its postmaster and keep
# a new one from starting. The port is free when the last one is gone.
pg_kill() {
    local name=${1:-default} pid p
    local -a line
    pid=${PG_PIDS[$name]:-}
    [ -n "$pid" ] || return 0
    kill -STOP "$pid" 2>/dev/null || : # no new children from now on
    wait_for 5 pg_stopped_or_gone "$pid"
    local -a all=("$pid" $(children "$pid"))
    kill -KILL "${all[@]}" 2>/dev/null || :
    for p in "${all[@]}"; do wait_for 5 pid_gone "$p"; done
    wait "$pid" 2>/dev/null || :
    # It has left a System V shared memory segment, which says whether a process still uses the data
    # (line 7: key and number). None does, and perhaps the server is not started again.
    { mapfile -t line <"${PG_DIRS[$name]}/postmaster.pid" &&
        ipcrm -m "${line[6]##* }"; } 2>/dev/null || :
    unset "PG_PIDS[$name]"
}
pg_stopped_or_gone() { pid_stopped "$1" || pid_gone "$1"; }

# Those that this shell started (not a server of setup_file), and their data.
pg_stop_all() {
    local name
    pgb_stop
    for name in "${!PG_DIRS[@]}"; do pg_drop "$name"; done
}

pg_drop() {
    [ -n "${PG_DIRS[$1]:-}" ] || return 0
    pg_end QUIT "$1"
    rm -rf "${PG_SOCKS[$1]}"
    unset "PG_DIRS[$1]" "PG_PORTS[$1]" "PG_SOCKS[$1]" "PG_LOGS[$1]"
}

# --------------------------------------------------------------- clients ---

# pg_psql PORT ARG...: into ${psql[@]}. Its name in the log and in pg_stat_activity tells it from
# dlock.
pg_psql() {
    psql=(env PGAPPNAME="${PGAPPNAME:-pgsql}" PGCONNECT_TIMEOUT=10 "$PG_BIN/psql" -X -q -A
        -t -v ON_ERROR_STOP=1
        -h 127.0.0.1 -p "$1" -U postgres -d postgres "${@:2}")
}
pgsql() {
    local -a psql
    pg_psql "$PG_PORT" "$@"
    timeout -k 2 30 "${psql[@]}" 3>&-
}
pgsql_in() {
    local PG_PORT=${PG_PORTS[$1]}
    pgsql "${@:2}"
}
# In the subshell of `start`: psql gets its pid.
pg_session() {
    local -a psql
    pg_psql "$PG_PORT" "$@"
    exec "${psql[@]}" 3>&-
}

# What clients sent, from the log, one line each: "pid transaction". The log is complete and in time
# (a message is logged before it is executed), which pg_stat_database is not (a session that stays
# tells its numbers only now and then). "statement" is a message of the simple protocol, however
# many statements are in it; "execute" is the extended protocol's, and a statement each, without the
# settings in front of it. So this counts round trips.
pg_messages() {
    local log=$PG_LOG
    [ "$1" = default ] || log=${PG_LOGS[$1]}
    sed -nE '/^[^[]*\[[0-9]+\] [^ ]+ \[pgsql\] /d
        /LOG:  execute [^:]*: SELECT (pg_catalog\.)?set_config\(.(search_path|synchronous_commit)/d
        s,^[^[]*\[([0-9]+)\] ([^ ]+) \[[^]]*\] LOG:  (statement|execute [^:]*): .*,\1 \2,p' "$log"
}
pg_statements() { pg_messages "${1:-default}" | wc -l; }

pg_backends() {
    local PG_PORT=$PG_PORT
    [ "${2:-default}" = default ] || PG_PORT=${PG_PORTS[$2]}
    pgsql -v pattern="$1" <<<"select count(*) from pg_stat_activity
        where backend_type = 'client backend'
        and application_name like :'pattern' and pid <> pg_backend_pid()"
}

# -------------------------------------------------------------- pgbouncer ---

pgb_start() {
    local mode=${1:-transaction} dir try
    [ $# -eq 0 ] || shift
    pgb_stop
    dir=$(server_folder pg) || return
    PGB_DIR=$dir
    # With "trust" the names must still be known: any other is looked up by auth_user.
    echo '"postgres" ""' >"$dir/users"
    for try in 1 2 3 4 5 6 7 8 9 10; do
        PGB_PORT=$(some_port)
        : >"$dir/log"
        printf '%s\n' '[databases]' "* = host=127.0.0.1 port=$PG_PORT auth_user=postgres" \
            '[pgbouncer]' listen_addr=127.0.0.1 listen_port="$PGB_PORT" unix_socket_dir= \
            auth_type=trust \
            auth_file="$dir/users" admin_users=postgres pool_mode="$mode" max_client_conn=200 \
            "$@" >"$dir/ini"
        chmod 644 "$dir/users" "$dir/ini" # whatever the umask is: they are root's
        pgb_launch && return 0
        grep -q 'Address already in use' "$dir/log" || break
    done
    echo "pgb_start: no PgBouncer after $try tries:" >&2
    cat "$dir/log" >&2
    pgb_stop
    return 1
}

# Ready when it says so.
pgb_launch() {
    local pid
    (cd / && exec "${pg_as[@]}" --pdeathsig KILL /usr/sbin/pgbouncer "$PGB_DIR/ini") \
        >>"$PGB_DIR/log" 2>&1 </dev/null 3>&- &
    pid=$!
    until_ready 10 $pid file_has "$PGB_DIR/log" 'process up' || return
    PGB_OURS=$pid
    export PGB_PORT PGB_PID=$pid PGB_LOG=$PGB_DIR/log
}

# Only that of this shell; its folder, too.
pgb_stop() {
    [ -z "$PGB_OURS" ] || end_job TERM "$PGB_OURS"
    [ -z "$PGB_DIR" ] || rm -rf "$PGB_DIR"
    PGB_OURS='' PGB_DIR=''
}
