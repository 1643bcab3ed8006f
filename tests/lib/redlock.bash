# redlock.bash - N independent redis servers for tests, nodes 1...N. Load after common.bash and redis.bash.
#
#     rl_start [N [ARG...]]     N (5) new nodes; in setup_file or in a test, which then does not see the file's
#     rl_uri NAME [PARAMS]      redlock://node,node,...?PARAMS#NAME; without PARAMS restart-grace=0, "-": none at all
#     rl K ARG...               redis-cli on node K          on_all ARG...   on every node      on "K..." ARG...
#     rl_count CMD WANT         on how many nodes `redis-cli CMD` prints WANT (CMD is split at spaces)
#     rl_freeze K... rl_thaw K... rl_die K... rl_revive K...    (SIGSTOP, SIGCONT; kill -9, back without its data)
#     rl_put K PORT             something else stands at the place of node K
#     rl_left                   the keys that are left, but for fences that expire
#
# What is stopped or killed in a test must be nodes of that test. teardown_file calls rl_stop_file.

# rl_start must not be in a subshell: the ports are in RL_PORTS, words 1...N, and the pids in RL_PIDS (the first ones).
rl_start() {
    local n=${1:-5} k dir
    [ $# -eq 0 ] || shift
    RL_PORTS='' RL_PIDS=''
    dir=$(mktemp -d "${BATS_TEST_TMPDIR:-${BATS_FILE_TMPDIR:?}}/nodes.XXXXXX") || return
    # All at once, then see: one whose port somebody has starts again with another.
    for ((k = 1; k <= n; k++)); do
        mkdir "$dir/$k"
        redis_spawn "n$k" "$dir/$k" "$(redis_some_port)" "$@"
    done
    for ((k = 1; k <= n; k++)); do
        redis_ready "n$k" || redis_start_in "n$k" "$@" || return
        RL_PORTS+="${RL_PORTS:+ }${REDIS_PORTS[n$k]}" RL_PIDS+="${RL_PIDS:+ }${REDIS_PIDS[n$k]}"
    done
    export RL_PORTS RL_PIDS
}
# Those of setup_file, whose arrays are gone.
rl_stop_file() {
    local pid
    for pid in $RL_PIDS; do kill -KILL "$pid" 2>/dev/null || :; done
    for pid in $RL_PIDS; do wait "$pid" 2>/dev/null || :; done
}

rl_port() { local -a ports=($RL_PORTS); echo "${ports[$1 - 1]}"; }
rl_all() { local -a ports=($RL_PORTS); seq ${#ports[@]}; }
rl_put() {
    local -a ports=($RL_PORTS)
    ports[$1 - 1]=$2
    RL_PORTS=${ports[*]}
}
rl_hosts() {
    local -a ports=($RL_PORTS)
    local hosts
    hosts=$(printf ',127.0.0.1:%s' "${ports[@]}")
    echo "${hosts#,}"
}
rl_uri() {
    local params=${2:-restart-grace=0}
    [ "$params" != - ] || params=''
    echo "redlock://$(rl_hosts)${params:+?$params}#$1"
}

rl() { redis-cli -h 127.0.0.1 -p "$(rl_port "$1")" "${@:2}" 3>&-; }
on() {
    local k
    for k in $1; do rl "$k" "${@:2}" || return; done
}
on_all() { on "$(rl_all)" "$@"; }
rl_count() {
    local k n=0
    for k in $(rl_all); do
        # shellcheck disable=SC2086
        [ "$(rl "$k" $1 2>/dev/null)" != "$2" ] || n=$((n + 1))
    done
    echo $n
}
# rl_holds NAME: nodes that have the key. As conditions: rl_on NAME N, at least; rl_gone NAME, nowhere.
rl_holds() { rl_count "exists $1" 1; }
rl_on() { [ "$(rl_holds "$1")" -ge "$2" ]; }
rl_gone() { [ "$(rl_count "exists $1" 0)" -eq "$(rl_all | wc -l)" ]; }

# Nodes of the test itself.
rl_pid() { echo "${REDIS_PIDS[n$1]}"; }
rl_freeze() {
    local k
    for k; do kill -STOP "$(rl_pid "$k")"; done
    for k; do wait_for 5 pid_stopped "$(rl_pid "$k")" || return; done
}
rl_thaw() { local k; for k; do kill -CONT "$(rl_pid "$k")"; done; }
rl_die() { local k; for k; do redis_kill "n$k" 2>/dev/null; done; }
rl_revive() {
    local k
    for k; do redis_launch "n$k" "${REDIS_DIRS[n$k]}" "${REDIS_PORTS[n$k]}" || return; done
}

# rl_left [K...]: on these nodes (all).
rl_left() {
    local k key
    for k in ${*:-$(rl_all)}; do
        rl "$k" --scan | while read -r key; do
            case $key in
            *:dlock:fence) [ "$(rl "$k" pttl "$key")" -gt 0 ] || echo "node $k: $key, which never expires" ;;
            *) echo "node $k: $key" ;;
            esac
        done
    done
}
