# A Redis Cluster for the contract suite, entered by a node that has a third of the names.
load "$SUPPORT/redis"
load "$SUPPORT/cluster"
STORE_SHARED=1 STORE_SLOTS=1 STORE_NUMBERS=1 STORE_TURNS=1 STORE_LEASE=1 STORE_FIFO=1 \
    STORE_FENCE=1 STORE_TELLS='fence left' STORE_TAKES=1 STORE_ONCE=1 STORE_STAYS=1 STORE_KIN=1
store_up() { cluster_start && cluster_export; }
store_down() { cluster_stop; }
store_lock() {
    [ ${#CPORT[@]} -gt 0 ] || cluster_import
    echo "redis://127.0.0.1:${CPORT[0]}#$1"
}
# Only the fence is left, and it expires.
store_clean() {
    local i keys='' left=
    cluster_import
    for i in 0 1 2; do
        keys+=$(ccli $i --raw keys "*$1*")
        left+=$(ccli $i --raw pttl "{$1}:dlock:fence" | grep '^[1-9]' || :)
    done
    [ "$keys" = "{$1}:dlock:fence" ] || [ -z "$keys" ] || fail "left in the store: $keys"
    [ -z "$keys" ] || [ -n "$left" ] || fail "the fence never expires"
}
store_take() {
    local i
    cluster_import
    for i in 0 1 2; do ccli $i del "$1"; done
}
