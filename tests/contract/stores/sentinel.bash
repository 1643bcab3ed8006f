# A master and a replica behind three sentinels for the contract suite.
load "$SUPPORT/redis"
load "$SUPPORT/sentinel"
STORE_SHARED=1 STORE_SLOTS=1 STORE_NUMBERS=1 STORE_TURNS=1 STORE_LEASE=1 STORE_FIFO=1 \
    STORE_FENCE=1 STORE_TELLS='fence left' STORE_TAKES=1 STORE_ONCE=1 STORE_STAYS=1 STORE_KIN=1
store_up() { sentinel_start; }
store_down() { sentinel_stop; }
store_lock() { echo "$(sentinel_uri)/0#$1"; }
store_clean() { only_fence_left "$1" mcli; }
store_take() { mcli del "$1"; }
