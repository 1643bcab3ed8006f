# One Redis server for the contract suite, with nothing but TLS. What the lock does is redis' own
# contract.
# bats file_tags=contract,slow
load "$SUPPORT/redis"
load "$SUPPORT/tls"
STORE_SHARED=1 STORE_SLOTS=1 STORE_NUMBERS=1 STORE_TURNS=1 STORE_LEASE=1 STORE_FIFO=1 \
    STORE_FENCE=1 STORE_TELLS='fence left' STORE_TWIN=1 STORE_ONCE=1 STORE_STAYS=1
store_up() { tls_certs && tls_redis default; }
store_down() { redis_stop; }
store_lock() { echo "rediss://localhost:$REDIS_PORT/0?cacert=$TLS/ca.crt#$1"; }
store_clean() { only_fence_left "$1" tls_cli; }
