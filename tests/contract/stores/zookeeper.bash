# One ZooKeeper server for the contract suite.
# bats file_tags=contract,long,thread
load "$SUPPORT/zookeeper"
STORE_LEASE=1 STORE_FIFO=1 STORE_FENCE=1 STORE_TELLS=fence STORE_PAUSES=1 STORE_TAKES=1 STORE_ONCE=1
STORE_SHARED=1 STORE_SLOTS=1 STORE_TURNS=1 STORE_TICKS=1
store_up() { zk_start; }
store_down() { zk_stop_all; }
store_lock() { echo "zk://127.0.0.1:$ZK_PORT#$1"; }
# Nothing is left: the parent is a container, which the server removes soon after its last child. (From outside it
# cannot be told from a persistent one, except by waiting. One that never had a child stays indefinitely.)
parent_gone() { ! zk_stat "/$1" cversion 2>/dev/null || [ "$(zk_tree "/$1" 2>&1)$(zk_stat "/$1" cversion)" = 0 ]; }
no_session() { [ -z "$(zk_sessions)" ]; }
store_clean() {
    wait_for 3 parent_gone "$1" || fail "left in the store: /$1 $(zk_tree "/$1")" || return
    wait_for 2 no_session && return
    # It must not fail the tests behind this one, too.
    local left
    left=$(zk_cmd dump)
    wait_for 40 no_session || :
    fail "sessions are left: $left"
}
store_pids() { echo "$ZK_PID"; }
store_take() { zk_rm "/$1/$(zk_ls "/$1")"; }
