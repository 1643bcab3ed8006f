# zkline.bash - who stands in line for a lock in ZooKeeper, for zookeeper.bats and zkserver.bats. Load after common.bash
# and zookeeper.bash; setup gives L (the lock's URI).

# Who stands in line for $NAME, as full paths, first one first.
line() { zk_ls "${1:-/$NAME}" 2>/dev/null | sed "s|.*\(.\{10\}\)\$|\1 ${1:-/$NAME}/&|" | sort | cut -d' ' -f2; }
node() { line | sed -n "$1p"; }
line_is() { [ "$(line | wc -l)" = "$1" ]; }
owner_of() { zk_stat "$1" ephemeralOwner; }
# Each waiter has one watch; nobody else here has any.
watches_are() { [ "$(zk_mntr watch_count)" = "$1" ]; }
# Is the node PATH watched?
watched() { zk_cmd wchp | grep -qxF "$1"; }
sessions_are() { [ "$(zk_sessions | wc -l)" = "$1" ]; }
no_session() { [ -z "$(zk_sessions)" ]; }
not_there() { ! zk_stat "$1" version 2>/dev/null; }
beyond() { [ "$(now_ms)" -ge "$1" ]; }

# hold [ARG...]: dlock holds $L until the file "go" appears; returns when it does hold.
hold() {
    rm -f held go
    start_log hold.log "$DLOCK" "$@" "$L" sh -c 'echo $DLOCK_FENCE >held; "$HELPERS/await" go'
    HOLDER=$STARTED
    wait_for 5 test -s held || { cat hold.log; false; }
}
let_go() {
    echo >go
    wait_exit 5 "$HOLDER"
}
# wait_in_line N CMD...: a waiter that watches the one in front of it, with whom N nodes are in line; OPTS its options.
wait_in_line() {
    local n=$1
    shift
    # shellcheck disable=SC2086
    start_log "wait$n.log" "$DLOCK" ${OPTS:-} "$L" "$@"
    WAITER=$STARTED
    wait_for 5 watches_are $((n - 1))
}
