# zkline.bash - the queue of a lock in ZooKeeper, and the frame of the files that test it: one
# server for all tests of a file, which run one after the other. A file that needs more defines
# these functions anew. Loads all that they use.

bats_require_minimum_version 1.5.0
source "${BASH_SOURCE[0]%/*}/holders.bash"
source "$ROOT/tests/support/zookeeper.bash"

setup_file() {
    export BATS_NO_PARALLELIZE_WITHIN_FILE=true
    zk_start
}
teardown_file() { zk_stop_all; }
setup() {
    dlock_setup
    fake_setup # the command that tells what happens to it
    at_server "$ZK_PORT"
}
teardown() {
    kill -CONT ${ZK_PID:+"$ZK_PID"} 2>/dev/null || :
    dlock_teardown
}

# at_server PORT [HOSTS]: what the queries ask; U is there, too, unless HOSTS says more; L is the
# lock at U.
at_server() {
    ZK_PORT=$1
    H=${2:-127.0.0.1:$1}
    U="zk://$H"
    L="$U#$NAME"
}

# own_server [ARG...]: a server for this test alone, see zk_start_in; L is there.
own_server() {
    zk_start_in own "$@" || return
    zk_export own
    at_server "$ZK_PORT"
}
# freeze, thaw: the server in use.
freeze() {
    kill -STOP "$ZK_PID"
    wait_for 5 pid_stopped "$ZK_PID"
}
thaw() { kill -CONT "$ZK_PID"; }

# What a server tells without a session, and without a process of ours that takes 50 ms: sessions
# and ephemeral nodes. On a busy machine it may need longer than zk_cmd waits.
dump() {
    local try
    for try in 1 2 3 4 5; do zk_cmd dump && return; done
    return 1
}
# line [PATH]: the queue of $NAME, or below PATH, as full paths, in order.
line() {
    dump | sed -nE "s|^\t(${1:-/$NAME}/[^/]*(.{10}))\$|\2 \1|p" | sort | cut -d' ' -f2
}
node() { line | sed -n "$1p"; }
line_is() { # N [PATH]
    local all
    all=$(dump) && [ "$(grep -cE $'^\t'"${2:-/$NAME}/[^/]{10,}\$" <<<"$all")" = "$1" ]
}
owner_of() {
    dump | awk -v node=$'\t'"$1" '/^0x/ { id = substr($0, 1, length - 1) } $0 == node { print id }'
}
version() { zk_stat "$1" version; }
# watches_are N: each waiter has one watch, and no other client has any.
watches_are() { [ "$(zk_mntr watch_count)" = "$1" ]; }
# Is the node PATH watched?
watched() { zk_cmd wchp "${2:-default}" | grep -qxF "$1"; }
sessions_are() { [ "$(zk_sessions | wc -l)" = "$1" ]; }
no_session() { [ -z "$(zk_sessions)" ]; }
not_there() { ! zk_stat "$1" version 2>/dev/null; }

# wait_in_line N CMD...: a waiter that watches its predecessor; with it N nodes are in the queue;
# OPTS: its options.
wait_in_line() {
    # shellcheck disable=SC2086
    start_log "wait$1.log" "$DLOCK" ${OPTS:-} "$L" "${@:2}"
    WAITER=$STARTED
    wait_for 5 watches_are $(($1 - 1))
}

# waiter FILE [OPTION...]: see start_waiter; the second in line.
waiter() {
    start_waiter "$@"
    wait_for 5 line_is 2
}

# foreign_hold FILE ARG...: another program's node in the queue, see zk_hold; it is there. Ends with
# $STARTED.
is_held() { grep -q ^held "$1"; }
foreign_hold() {
    start_log "$1" zk_hold "${@:2}"
    wait_for 5 is_held "$1"
}

# The words of dlock's nodes in the queue, in order; of another program's, an empty one.
words() {
    local path
    for path in $(line); do zk_get "$path" |
        sed -nE 's/^dlock1 .* state=([a-z]+)$/\1/p'; echo; done |
        paste -sd' '
}
words_are() { [ "$(words)" = "$*" ]; }
newer() { [ "$(version "$1")" -gt "$2" ]; }
# The server has just taken a heartbeat of the node.
after_beat() {
    local v
    v=$(version "$1")
    wait_for 5 newer "$1" "$v"
}
