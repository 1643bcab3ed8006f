# zkline.bash - the queue of a lock in ZooKeeper, for the files that test it: lock.bats, server.bats,
# faults.bats, ensemble.bats, network.bats, hostile.bats. Load after common.bash, fake.bash and zookeeper.bash;
# setup gives L (the lock's URI).

# at_server PORT [HOSTS]: what the queries ask; L is there, too, unless HOSTS says more.
at_server() {
    ZK_PORT=$1
    L="zk://${2:-127.0.0.1:$1}#$NAME"
}

# own_server [ARG...]: a server for this test alone, see zk_start_in; L is there.
own_server() {
    zk_start_in own "$@" || return
    at_server "${ZK_PORTS[own]}"
}

# The queue of $NAME, as full paths, in order.
line() { zk_ls "${1:-/$NAME}" 2>/dev/null | sed "s|.*\(.\{10\}\)\$|\1 ${1:-/$NAME}/&|" | sort | cut -d' ' -f2; }
node() { line | sed -n "$1p"; }
line_is() { [ "$(line "${2:-}" | wc -l)" = "$1" ]; }
owner_of() { zk_stat "$1" ephemeralOwner; }
version() { zk_stat "$1" version; }
# watches_are N [SERVER]: each waiter has one watch, and no other client has any.
watches_are() { [ "$(zk_mntr watch_count "${2:-default}")" = "$1" ]; }
# Is the node PATH watched?
watched() { zk_cmd wchp "${2:-default}" | grep -qxF "$1"; }
sessions_are() { [ "$(zk_sessions | wc -l)" = "$1" ]; }
no_session() { [ -z "$(zk_sessions "${1:-default}")" ]; }
not_there() { ! zk_stat "$1" version 2>/dev/null; }

# wait_in_line N CMD...: a waiter that watches its predecessor; with it N nodes are in the queue; OPTS: its options.
wait_in_line() {
    local n=$1
    shift
    # shellcheck disable=SC2086
    start_log "wait$n.log" "$DLOCK" ${OPTS:-} "$L" "$@"
    WAITER=$STARTED
    wait_for 5 watches_are $((n - 1))
}

# waiter FILE [OPTION...]: see start_waiter; the second in line.
waiter() {
    start_waiter "$@"
    wait_for 5 line_is 2
}

newer() { [ "$(version "$1")" -gt "$2" ]; }
# The server has just taken a heartbeat of the node.
after_beat() {
    local v
    v=$(version "$1")
    wait_for 5 newer "$1" "$v"
}
