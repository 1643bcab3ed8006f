# One ZooKeeper server for the contract suite.
# bats file_tags=contract,long,thread
load "$SUPPORT/zookeeper"
STORE_LEASE=1 STORE_FIFO=1 STORE_FENCE=1 STORE_TELLS=fence STORE_PAUSES=1 STORE_TAKES=1 STORE_ONCE=1
STORE_SHARED=1 STORE_SLOTS=1 STORE_TURNS=1 STORE_TICKS=1
store_up() { zk_start; }
store_down() { zk_stop_all; }
store_lock() { echo "zk://127.0.0.1:$ZK_PORT#$1"; }
no_session() { [ -z "$(zk_sessions)" ]; }
# Nothing is left: the parent is a container, which the server removes soon after its last child.
# (From outside it cannot be told from a persistent one, except by waiting. One that never had a
# child stays indefinitely.)
store_clean() {
    zk_gone -c "/$1" 3 || fail "left in the store: /$1 $(zk_tree "/$1")" || return
    wait_for 2 no_session && return
    # It must not fail the tests behind this one, too.
    local left
    left=$(zk_cmd dump)
    wait_for 40 no_session || :
    fail "sessions are left: $left"
}
# Of clients that have gone while the server was silent.
store_end_sessions() {
    local session
    for session in $(zk_sessions); do zk_kill_session "$session" || :; done
    wait_for 5 no_session
}
store_pids() { echo "$ZK_PID"; }
store_take() { zk_rm "/$1/$(zk_ls "/$1")"; }

# The record's node: it stays in $RECORD where it was removed.
record() { zk_tree /dlock-once/r | grep -m1 "/$NAME\$"; }
store_has_run() { [ "$(zk_get "$(record)" | cut -d' ' -f2)" = "$1" ]; }
store_record() { zk_stat "$RECORD" | grep -E 'mzxid|numChildren'; }
store_ends() {
    local record
    record=$(record)
    zk_get "$record" | ended_at "$1" | zk_set "$record" -
}
store_spoil() {
    local what="a node with other data"
    RECORD=${RECORD:-$(record)}
    case $1 in
    0) zk_set "$RECORD" '' && what="an empty node" ;;
    1) zk_set "$RECORD" 192.0.2.1 ;;
    2)
        printf 'dlock-run1 succeeded 0 1 \e[31m%032d 1 1 1 dlock1 host=\a' 0 | zk_set "$RECORD" - ;;
    3) { printf 'dlock-run1 succeeded 0 1 '; head -c 1000000 /dev/zero | tr '\0' x; } |
        zk_set "$RECORD" - ;;
    4) zk_create "$RECORD/child" >/dev/null && what="a node with children" ;;
    5)
        zk_rm -r "$RECORD"
        start_log spoiler zk_hold "$RECORD"
        SPOILER=$STARTED what="an ephemeral node"
        wait_for 5 test -s spoiler ;;
    *)
        kill "$SPOILER"
        wait_for 5 pid_gone "$SPOILER"
        return 1 ;;
    esac
    WHAT="$what ($RECORD) is in the place of the run record"
}
# The keeper connects again after two thirds of this ttl, and learns what it has written.
STORE_UNANSWERED_TTL=4
store_unanswered() {
    local n=1
    [ "$1" = begin ] || n=2
    proxy stall multi $n
}
store_own() {
    zk_start_in own
    L="zk://127.0.0.1:${ZK_PORTS[own]}#$NAME"
}
store_restart() {
    [ "$1" = kill ] || zk_stop own
    zk_restart own
}
