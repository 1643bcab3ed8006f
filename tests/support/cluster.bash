# cluster.bash - a Redis Cluster for tests: three masters on free loopback ports, replicas where
# asked for.
#
#     load ../../support/redis
#     load ../../support/cluster
#     cluster_start [M]           masters 0 1 2 with a third of the slots each; M: 3 is M's replica
#     cluster_stop
#     ccli N ARG...               redis-cli to server N; ${CPORT[N]} ${CPID[N]}
#     cluster_kill N; cluster_again N    kill -9; the same server again, with its data
#     name_on N                   a lock name that no other test uses, on master N
#     slot_of NAME
#
# A slot by hand:
#     slot_open SLOT FROM TO      it is being moved
#     slot_keys FROM TO KEY...    these keys go over
#     slot_shut SLOT FROM TO      it has been moved
#
# In setup_file: cluster_start, then cluster_export; in setup: cluster_import.

declare -ga CPORT CPID CDIR

cluster_server() {
    local i=$1 try
    CDIR[i]=$(mktemp -d "${BATS_FILE_TMPDIR:?}/node-$i.XXXXXX") || return
    for try in 1 2 3 4 5 6 7 8 9 10; do
        # The bus has the port plus 10000.
        cluster_launch "$i" "$(some_port 10000)" && return 0
        grep -q 'Address already in use' "${CDIR[i]}/log" || break
    done
    cat "${CDIR[i]}/log" >&2
    return 1
}

cluster_launch() {
    redis_launch "node$1" "${CDIR[$1]}" "$2" --appendonly yes --appendfsync no \
        --cluster-enabled yes --cluster-node-timeout 500 --cluster-require-full-coverage no \
        --cluster-replica-validity-factor 0 --cluster-allow-replica-migration no \
        --repl-diskless-sync-delay 0 || return
    CPORT[$1]=$2 CPID[$1]=${REDIS_PIDS[node$1]}
    disown "${CPID[$1]}" # the shell would tell of its death
}

ccli() { redis-cli -h 127.0.0.1 -p "${CPORT[$1]}" "${@:2}" 3>&-; }

cluster_sees() { # N COUNT: server N knows COUNT servers well
    local nodes
    nodes=$(ccli "$1" cluster nodes)
    [ "$(grep -c ' connected' <<<"$nodes")" -eq "$2" ] &&
        [ "$(grep -c 'handshake\|noaddr\|fail' <<<"$nodes")" -eq 0 ]
}
cluster_up() { ccli "$1" cluster info | grep -q cluster_state:ok; }
in_sync() { [ "$(ccli "$1" role | sed -n 4p)" = connected ]; }
is_master() { [ "$(ccli "$1" role | head -1)" = master ]; }

cluster_start() {
    local i n=3 ends=(0 5462 10923 16384)
    [ $# -eq 0 ] || n=4
    for ((i = 0; i < n; i++)); do
        cluster_server $i || return
        ccli $i cluster set-config-epoch $((i + 1))
        [ $i -eq 3 ] || ccli $i cluster addslotsrange "${ends[i]}" $((ends[i + 1] - 1))
        [ $i -eq 0 ] || ccli 0 cluster meet 127.0.0.1 "${CPORT[i]}"
    done >/dev/null
    for ((i = 0; i < n; i++)); do
        wait_for 15 cluster_sees $i $n || return
    done
    if [ $n -eq 4 ]; then
        ccli 3 cluster replicate "$(ccli "$1" cluster myid)" >/dev/null
        wait_for 15 in_sync 3 || return
    fi
    # A server is not "ok" in its first two seconds.
    for ((i = 0; i < n; i++)); do
        wait_for 15 cluster_up $i || return
    done
}

cluster_export() {
    export CLUSTER_PORTS="${CPORT[*]}" CLUSTER_PIDS="${CPID[*]}" CLUSTER_DIRS="${CDIR[*]}"
}
cluster_import() {
    read -ra CPORT <<<"$CLUSTER_PORTS"
    read -ra CPID <<<"$CLUSTER_PIDS"
    read -ra CDIR <<<"$CLUSTER_DIRS"
}

# By the servers' own pid files: a test may have started one again.
cluster_stop() {
    local pid pids
    pids=$(cat "${BATS_FILE_TMPDIR:?}"/node-*/pid 2>/dev/null)
    # shellcheck disable=SC2086
    kill -TERM $pids 2>/dev/null
    for pid in $pids; do
        kill -CONT "$pid" 2>/dev/null || continue
        wait_for 5 pid_gone "$pid" || kill -KILL "$pid"
    done
}

cluster_kill() {
    kill -KILL "${CPID[$1]}"
    wait_for 5 pid_gone "${CPID[$1]}"
}
# Not the test's to end: the file's.
cluster_again() {
    cluster_launch "$1" "${CPORT[$1]}" || return
    unset "REDIS_PIDS[node$1]"
}

slot_of() { ccli 0 cluster keyslot "$1"; }
name_on() {
    local k slot
    for ((k = 0; k < 200; k++)); do
        slot=$(slot_of "$NAME-$k")
        [ $((slot * 3 / 16384)) -eq "$1" ] || continue
        echo "$NAME-$k"
        return
    done
    return 1
}

slot_open() {
    ccli "$3" cluster setslot "$1" importing "$(ccli "$2" cluster myid)" >/dev/null
    ccli "$2" cluster setslot "$1" migrating "$(ccli "$3" cluster myid)" >/dev/null
}
slot_keys() {
    local key
    for key in "${@:3}"; do
        [[ $(ccli "$1" migrate 127.0.0.1 "${CPORT[$2]}" "$key" 0 5000) =~ ^(OK|NOKEY)$ ]] || return
    done
}
# The owner first, then the others, as redis-cli --cluster reshard does it.
slot_shut() {
    local id i keys
    id=$(ccli "$3" cluster myid)
    keys=$(ccli "$2" cluster getkeysinslot "$1" 100)
    # shellcheck disable=SC2086
    [ -z "$keys" ] || slot_keys "$2" "$3" $keys || return
    for i in "$3" "$2"; do
        ccli "$i" cluster setslot "$1" node "$id" >/dev/null || return
    done
}
