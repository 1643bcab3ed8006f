# Three independent redis-servers.
. "$proof/stores/redis.bash"
store_up() { rl_start 3 && ADDR=$(rl_hosts); }
store_pids() { for k in 1 2 3; do rl_pid $k; done; }
# All of them, at the same time.
store_restart() {
    local k aof=no
    [ "$1" = lose ] || aof=yes
    for k in 1 2 3; do redis_stop n$k; done
    for k in 1 2 3; do
        redis_launch n$k "${REDIS_DIRS[n$k]}" "${REDIS_PORTS[n$k]}" --appendonly $aof || return
    done
}
