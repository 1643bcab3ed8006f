# One Redis server for the contract suite.
# bats file_tags=contract,long
load "$SUPPORT/redis"
STORE_SHARED=1 STORE_SLOTS=1 STORE_NUMBERS=1 STORE_TURNS=1 STORE_LEASE=1 STORE_FIFO=1 STORE_FENCE=1 STORE_TELLS='fence left' STORE_PAUSES=1 STORE_TAKES=1 STORE_ONCE=1 STORE_STAYS=1
store_up() { redis_start; }
store_down() { redis_stop; }
store_lock() { echo "redis://127.0.0.1:$REDIS_PORT/0#$1"; }
# A server with the configuration that Debian and Redis itself ship: snapshots, and no append-only file.
store_as_shipped() {
    redis_start_in own --save '3600 1 300 100 60 10000' --appendonly no
    L="redis://127.0.0.1:${REDIS_PORTS[own]}/0#$NAME"
    CI=1 run -0 run_t 5 "$DLOCK" "$L" true
    assert_out "no append-only file"
}
# Only the fence is left, and it expires.
store_clean() {
    local keys
    keys=$(rcli --raw keys "*$1*")
    [ "$keys" = "{$1}:dlock:fence" ] || [ -z "$keys" ] || fail "left in the store: $keys"
    [ -z "$keys" ] || [ "$(rcli pttl "$keys")" -gt 0 ] || fail "the fence never expires"
}
store_pids() { echo "$REDIS_PID"; }
store_take() { rcli del "$1"; }
