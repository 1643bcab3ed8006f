# mysql.bash - MariaDB servers for tests, each on a free loopback port, with a folder of its own.
#
#     load ../../support/mysql
#     my_start [--OPTION...]           MY_PORT MY_PID MY_DIR (data) MY_SOCK (a path) MY_LOG; mysql
#                                      ARG... is a client there, as the superuser, bare output
#     my_start_in NAME [ARG...]        another one; ${MY_PORTS[NAME]} ${MY_PIDS[NAME]} ...; mysql_in
#                                      NAME ARG...
#     my_stop [NAME] | my_kill [NAME]  (shutdown | kill -9); the data stays
#     my_restart NAME stop|kill [ARG...]        same port, same data, the arguments given now; also
#                                     after my_stop and my_kill (then it is only a start)
#     my_forget NAME                  a stopped one starts again, and has forgotten all
#     my_questions [NAME]              how many statements it got from clients
#     my_sessions                      of the account dl
#     my_galera_start                  n1, n2, n3: three nodes of a Galera; needs rsync
#     my_galera_restart N stop|kill
#
# There is the database app, and the account dl with the password pw, who may all in app.
# In setup_file my_start exports the variables for the tests, and teardown_file calls my_stop_all.
# In a test dlock_teardown ends them. A test that stops or restarts a server starts one of its own.

source "${BASH_SOURCE[0]%/*}/server.bash"

declare -gA MY_PORTS MY_PIDS MY_DIRS MY_SOCKS MY_LOGS
unset MYSQL_PWD MYSQL_HOST MYSQL_TCP_PORT MYSQL_UNIX_PORT

my_as=("${server_as[@]}")
MY_SERVER=/usr/sbin/mariadbd
MY_SMALL=(--innodb-log-file-size=32M --innodb-buffer-pool-size=16M --innodb-flush-method=fsync
    --aria-log-file-size=8M --performance-schema=OFF)

# ---------------------------------------------------------------- server ---

my_template() {
    [ -x "$MY_SERVER" ] || { echo "my_start: no $MY_SERVER" >&2; return 1; }
    server_template my my_install && MY_TEMPLATE=${BATS_RUN_TMPDIR:?}/my-template
}
my_install() {
    cd / && timeout -k 2 60 "${my_as[@]}" mariadb-install-db --no-defaults --datadir="$1" \
        --auth-root-authentication-method=normal --skip-test-db "${MY_SMALL[@]}" </dev/null
}

my_start() {
    my_start_in default "$@" || return
    export MY_PORT=${MY_PORTS[default]} MY_PID=${MY_PIDS[default]} MY_DIR=${MY_DIRS[default]}
    export MY_SOCK=${MY_SOCKS[default]} MY_LOG=${MY_LOGS[default]}
}

my_start_in() {
    local name=$1 dir try
    shift
    my_template || return
    my_drop "$name"
    dir=$(server_folder my) || return
    # From here on my_stop_all knows it.
    MY_DIRS[$name]=$dir/data MY_SOCKS[$name]=$dir/s MY_LOGS[$name]=$dir/log
    cp -a "$MY_TEMPLATE" "$dir/data" || return
    for try in 1 2 3 4 5 6 7 8 9 10; do
        MY_PORTS[$name]=$(some_port)
        : >"$dir/log"
        if my_launch "$name" "$@"; then
            my_account "$name"
            return
        fi
        grep -q 'Address already in use' "$dir/log" || break
    done
    echo "my_start: $name: no server after $try tries:" >&2
    cat "$dir/log" >&2
    my_drop "$name"
    return 1
}

my_account() {
    mysql_in "$1" -e "CREATE DATABASE app; CREATE USER dl@'%' IDENTIFIED BY 'pw';
        GRANT ALL ON app.* TO dl@'%'" mysql
}

my_forget() {
    rm -rf "${MY_DIRS[$1]}" && cp -a "$MY_TEMPLATE" "${MY_DIRS[$1]}" && my_launch "$1" &&
        my_account "$1"
}

my_launch() {
    local name=$1 pid
    shift
    (cd / && exec "${my_as[@]}" --pdeathsig KILL "$MY_SERVER" --no-defaults \
        --datadir="${MY_DIRS[$name]}" --port="${MY_PORTS[$name]}" --socket="${MY_SOCKS[$name]}" \
        --pid-file="${MY_SOCKS[$name]}.pid" --bind-address=127.0.0.1 --skip-name-resolve \
        --max-connections=300 "${MY_SMALL[@]}" "$@") \
        >>"${MY_LOGS[$name]}" 2>&1 </dev/null 3>&- &
    pid=$!
    until_ready 30 $pid my_ready "$name" && MY_PIDS[$name]=$pid
}
my_ready() {
    timeout 5 mariadb-admin --no-defaults -S "${MY_SOCKS[$1]}" -u root ping >/dev/null 2>&1
}

my_end() {
    local pid=${MY_PIDS[$2]:-}
    [ -n "$pid" ] || return 0
    kill -CONT "$pid" 2>/dev/null || :
    kill -"$1" "$pid" 2>/dev/null || :
    wait_for 10 pid_gone "$pid" || kill -KILL "$pid" 2>/dev/null || :
    wait "$pid" 2>/dev/null || :
    # A crash of the server explains the failed test.
    ! grep -q 'got signal' "${MY_LOGS[$2]}" || tail -n 100 "${MY_LOGS[$2]}" >&2
    unset "MY_PIDS[$2]"
}
my_stop() { my_end TERM "${1:-default}"; }
my_kill() { my_end KILL "${1:-default}"; }

my_restart() {
    local name=$1 how=$2
    shift 2
    [ -n "${MY_DIRS[$name]:-}" ] || fail "my_restart: this shell did not start $name" || return
    "my_$how" "$name"
    my_launch "$name" "$@" || { cat "${MY_LOGS[$name]}" >&2; return 1; }
    [ "${MY_PORTS[$name]}" != "${MY_PORT:-}" ] || MY_PID=${MY_PIDS[$name]}
}

# Those that this shell started (not a server of setup_file), and their data.
my_stop_all() {
    local name
    for name in "${!MY_DIRS[@]}"; do my_drop "$name"; done
}
my_drop() {
    [ -n "${MY_DIRS[$1]:-}" ] || return 0
    my_end KILL "$1"
    rm -rf "${MY_DIRS[$1]%/data}"
    unset "MY_DIRS[$1]" "MY_PORTS[$1]" "MY_SOCKS[$1]" "MY_LOGS[$1]"
}

# ----------------------------------------------------------------- Galera ---

# Each has a copy of the first one's data, so no node asks for all of another one's.
declare -gA MY_GROUPS
my_galera_start() {
    local n dir
    for n in 1 2 3; do MY_GROUPS[n$n]=$(some_port); done
    my_start_in n1 $(my_galera n1) --wsrep-cluster-address=gcomm:// && my_stop n1 || return
    for n in n2 n3; do
        dir=$(server_folder my) || return
        MY_DIRS[$n]=$dir/data MY_SOCKS[$n]=$dir/s MY_LOGS[$n]=$dir/log MY_PORTS[$n]=$(some_port)
        cp -a "${MY_DIRS[n1]}" "$dir/data" || return
    done
    my_launch n1 $(my_galera n1) --wsrep-new-cluster && my_launch n2 $(my_galera n2) &&
        my_launch n3 $(my_galera n3) && wait_for 30 my_synced n2 && wait_for 30 my_synced n3
}
my_galera() {
    local at=127.0.0.1:${MY_GROUPS[$1]}
    echo --wsrep-on=ON --wsrep-provider=/usr/lib/galera/libgalera_smm.so --binlog-format=ROW \
        --innodb-autoinc-lock-mode=2 "--wsrep-node-name=$1" "--wsrep-node-address=$at" \
        "--wsrep-cluster-address=gcomm://$(printf '127.0.0.1:%s,' "${MY_GROUPS[@]}")" \
        --wsrep-sst-method=rsync "--wsrep-sst-receive-address=127.0.0.1:$(some_port)" \
        "--wsrep-provider-options=gmcast.listen_addr=tcp://$at;ist.recv_addr=127.0.0.1:$(
            some_port);gcache.size=32M;evs.keepalive_period=PT0.25S;\
evs.inactive_check_period=PT0.25S;evs.suspect_timeout=PT1S;evs.inactive_timeout=PT3S"
}
my_synced() {
    mysql_in "$1" -e "SHOW STATUS LIKE 'wsrep_local_state_comment'" | grep -q Synced
}
my_galera_restart() { my_restart "$1" "$2" $(my_galera "$1"); }

# --------------------------------------------------------------- clients ---

# No database is chosen; the last argument may be one.
mysql() {
    timeout -k 2 30 mariadb --no-defaults -S "$MY_SOCK" -u root -N -B --comments "$@" 3>&-
}
mysql_in() {
    local MY_SOCK=${MY_SOCKS[$1]}
    mysql "${@:2}"
}
my_questions() {
    local MY_SOCK=$MY_SOCK
    [ "${1:-default}" = default ] || MY_SOCK=${MY_SOCKS[$1]}
    mysql -e "SHOW GLOBAL STATUS LIKE 'Questions'" | cut -f 2
}
my_sessions() { mysql -e "SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'dl'"; }
