# One Redis server for the contract suite.
# bats file_tags=contract,long
load "$SUPPORT/redis"
STORE_LEASE=1 STORE_FIFO=1 STORE_FENCE=1 STORE_TELLS='fence left'
store_up() { redis_start; }
store_down() { redis_stop; }
store_lock() { echo "redis://127.0.0.1:$REDIS_PORT/0#$1"; }
# Only the fence is left, and it expires.
store_clean() {
    local keys
    keys=$(rcli --raw keys "*$1*")
    [ "$keys" = "{$1}:dlock:fence" ] || [ -z "$keys" ] || fail "left in the store: $keys"
    [ -z "$keys" ] || [ "$(rcli pttl "$keys")" -gt 0 ] || fail "the fence never expires"
}
