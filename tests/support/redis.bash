# redis.bash - redis servers for tests, each on a free loopback port, in a folder of its own.
#
#     load ../../support/redis
#     redis_start [ARG...]            REDIS_PORT REDIS_PID REDIS_DIR; rcli ARG... talks to it
#     redis_start_in NAME [ARG...]    a further server; ${REDIS_PORTS[NAME]} ${REDIS_PIDS[NAME]};
#                                     rcli_in NAME ARG...
#     redis_stop [NAME] | redis_kill [NAME]     (shutdown without saving | kill -9)
#     redis_restart [NAME] [ARG...]   same port, same folder, the arguments given now: without
#                                     --appendonly yes its data is lost
#
# A server is started with an append-only file, since dlock warns of one without; it is lost in a
# restart all the same, unless the test says otherwise. In setup_file the variables must be exported
# for the tests (redis_export does it for the default server), and teardown_file calls redis_stop.
# In a test dlock_teardown ends them.

declare -F dlock_setup >/dev/null || source "${BASH_SOURCE[0]%/*}/common.bash"

declare -gA REDIS_PORTS REDIS_PIDS REDIS_DIRS

redis_start() {
    redis_start_in default "$@" || return
    redis_export
}

redis_export() {
    export REDIS_PORT=${REDIS_PORTS[default]} REDIS_PID=${REDIS_PIDS[default]} \
        REDIS_DIR=${REDIS_DIRS[default]}
}

# redis_warm [LOCK]: its server knows the scripts of an acquire and a release, so each is one
# request.
redis_warm() { timeout 10 "$DLOCK" -q "${1:-redis://127.0.0.1:$REDIS_PORT#warm}" true; }

# sends_again [CMD...]: $L is held and given back although the kernel once has no memory (ENOBUFS)
# for the keeper's first send, second, third. CMD: what is true after each.
sends_again() {
    local k
    for k in 1 2 3; do
        run -0 run_t 4 "$HELPERS/fail_call" report keeper:sendto:$k:105 "$DLOCK" --ttl 30 "$L" true
        grep -qx struck report && grep -q "^exit 0 " report && [ -z "$output" ] ||
            fail "$k: $(cat report) $output" || return
        [ $# -eq 0 ] || "$@" || fail "$k: not so: $*" || return
    done
}

# count_evals [PREFIX]: in INFO commandstats from stdin, the calls of scripts (PREFIX: rejected_,
# failed_).
count_evals() {
    tr -d '\r' | awk -v field="${1:-}calls" -F '[:=,]' '
        /^cmdstat_eval(sha)?:/ { for (i = 2; i < NF; i += 2) if ($i == field) n += $(i + 1) }
        END { print n + 0 }'
}

redis_start_in() {
    local name=$1 dir try
    shift
    dir=$(mktemp -d "${BATS_TEST_TMPDIR:-${BATS_FILE_TMPDIR:?}}/redis-$name.XXXXXX") || return
    for try in 1 2 3 4 5 6 7 8 9 10; do
        redis_launch "$name" "$dir" "$(some_port)" --appendonly yes --appendfsync no "$@" &&
            return 0
        # Another server had the port, or this one cannot start at all.
        grep -q 'Address already in use' "$dir/log" || break
    done
    echo "redis_start: $name: no server after $try tries:" >&2
    cat "$dir/log" >&2
    return 1
}

# redis_launch NAME DIR PORT ARG...: ready when it answers PONG with its own pid; 1 when it ended
# first.
redis_launch() {
    redis_spawn "$@"
    redis_ready "$1"
}
redis_spawn() {
    local name=$1 dir=$2 port=$3
    shift 3
    # A test that has nodes of its own replaces those of its setup.
    [ -z "${REDIS_PIDS[$name]:-}" ] || redis_kill "$name"
    : >"$dir/log"
    # It belongs to the file or test that ends it by pid: no leak marker.
    env -u DLOCK_TEST_ID redis-server --port "$port" --bind 127.0.0.1 --save '' --appendonly no \
        --daemonize no \
        --dir "$dir" --pidfile "$dir/pid" --logfile '' "$@" >"$dir/log" 2>&1 </dev/null 3>&- &
    REDIS_PORTS[$name]=$port REDIS_PIDS[$name]=$! REDIS_DIRS[$name]=$dir
}
redis_ready() {
    local dir=${REDIS_DIRS[$1]}
    until_ready 10 "${REDIS_PIDS[$1]}" "${REDIS_READY:-redis_answers}" "${REDIS_PORTS[$1]}" || {
        unset "REDIS_PIDS[$1]"
        return 1
    }
}

# Its log says it listens, and something talks RESP there (+PONG, or an error such as -NOAUTH).
redis_answers() {
    local line fd
    grep -q 'eady to accept connections' "${dir:?}/log" || return 1
    { exec {fd}<>"/dev/tcp/127.0.0.1/$1"; } 2>/dev/null || return 1
    printf 'PING\r\n' >&"$fd"
    read -r -t 1 line <&"$fd"
    exec {fd}>&-
    case $line in +PONG* | -*) return 0 ;; *) return 1 ;; esac
}

redis_restart() {
    local name=${1:-default}
    [ $# -eq 0 ] || shift
    redis_stop "$name"
    redis_launch "$name" "${REDIS_DIRS[$name]}" "${REDIS_PORTS[$name]}" "$@" || return
    [ "$name" != default ] || redis_export
}

redis_stop() { redis_end TERM "${1:-default}"; }
redis_kill() { redis_end KILL "${1:-default}"; }

redis_end() {
    local pid=${REDIS_PIDS[$2]:-}
    # After a setup_file the arrays are not there any more, the exported variables are.
    [ -n "$pid" ] || [ "$2" != default ] || pid=${REDIS_PID:-}
    [ -z "$pid" ] || end_job "$1" "$pid"
    unset "REDIS_PIDS[$2]"
}

# Those that this shell started (not a server of setup_file).
redis_stop_all() {
    local name
    for name in "${!REDIS_PIDS[@]}"; do redis_kill "$name"; done
}

stop_pid() { kill -STOP "$1" && wait_for 5 pid_stopped "$1"; }

# only_fence_left NAME CLI: of the lock's keys only the fence is left, and it expires.
only_fence_left() {
    local keys
    keys=$("$2" --raw keys "*$1*")
    [ "$keys" = "{$1}:dlock:fence" ] || [ -z "$keys" ] || fail "left in the store: $keys"
    [ -z "$keys" ] || [ "$("$2" pttl "$keys")" -gt 0 ] || fail "the fence never expires"
}

# many_locks N CLI...: the locks lock1, lock2, ... lockN of one holder, by this client.
many_locks() {
    "${@:2}" eval "for i = 1, $1 do
        local n = 'lock' .. i
        redis.call('SET', n, string.format('%032x', i) .. ' dlock1 host=web1 pid=123 user=root'
            .. ' since=1790000000000 waited=0 cmd=backup.sh note= ttl=3600000', 'PX', 3600000)
        redis.call('SET', '{' .. n .. '}:dlock:fence', 1790000000000000, 'PX', 86400000)
    end" 0 >/dev/null
}

rcli() { redis-cli -h 127.0.0.1 -p "$REDIS_PORT" "$@" 3>&-; }
rcli_in() { redis-cli -h 127.0.0.1 -p "${REDIS_PORTS[$1]}" "${@:2}" 3>&-; }
