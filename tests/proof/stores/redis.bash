# One redis-server with an append-only file.
store_missing() { command -v redis-server >/dev/null || echo 'redis-server is not installed'; }
store_version() { redis-server --version | sed -n 's/.* v=\([^ ]*\).*/redis-server \1/p'; }
store_up() { redis_start && ADDR=127.0.0.1:$REDIS_PORT; }
store_pids() { echo "${REDIS_PIDS[default]}"; }
store_restart() {
    case $1 in
    keep) redis_restart default --appendonly yes --appendfsync no ;;
    lose) redis_restart ;;
    esac
}
