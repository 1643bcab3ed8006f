# sentinel.bash - a Redis master with replicas, and sentinels that watch it.
#
#     load ../../support/redis
#     load ../../support/sentinel
#     sentinel_start [REPLICAS [SENTINELS [redis ARG...]]]   1, 3; all know each other on return
#     sentinel_uri [PORT...]          redis+sentinel://127.0.0.1:PORT,.../svc for all or these
#     sentinel_master                 the port named by a majority; mcli ARG... talks to it
#     sentinel_agree                  all name the same live master, its replicas in step
#     sentinel_stop
#
# SENT_PORTS SENT_PIDS (sentinels), NODE_PORTS NODE_PIDS (servers; [0] begins as the master),
# SENT_PASS SENT_AUTH (set before: the sentinels' password, the servers' password). Plain strings,
# so that they can be exported.

sentinel_conf() {
    local dir=$1 port=$2
    cat >"$dir/sentinel.conf" <<CONF
port $port
bind 127.0.0.1
dir $dir
sentinel monitor svc 127.0.0.1 ${NODE_PORTS%% *} 2
sentinel down-after-milliseconds svc ${SENT_DOWN:-500}
sentinel failover-timeout svc ${SENT_FAILOVER:-4000}
sentinel parallel-syncs svc 2
${SENT_PASS:+requirepass $SENT_PASS
sentinel sentinel-pass $SENT_PASS}
${SENT_AUTH:+sentinel auth-pass svc $SENT_AUTH}
CONF
}

sentinel_launch() {
    local dir try port
    dir=$(mktemp -d "${BATS_TEST_TMPDIR:-${BATS_FILE_TMPDIR:?}}/sentinel.XXXXXX") || return
    for try in 1 2 3 4 5; do
        port=$(some_port)
        sentinel_conf "$dir" "$port"
        env -u DLOCK_TEST_ID redis-server "$dir/sentinel.conf" --sentinel >"$dir/log" 2>&1 \
            </dev/null 3>&- &
        until_ready 5 $! file_has "$dir/log" '+monitor master' && {
            SENT_PORTS+="$port " SENT_PIDS+="$! "
            return 0
        }
    done
    cat "$dir/log" >&2
    return 1
}

sentinel_start() {
    local replicas=${1:-1} sentinels=${2:-3} i
    shift $(($# < 2 ? $# : 2))
    SENT_PORTS='' SENT_PIDS='' NODE_PORTS='' NODE_PIDS=''
    local args=(--repl-diskless-sync-delay 0 --repl-ping-replica-period 1 --enable-debug-command yes
        ${SENT_AUTH:+--requirepass "$SENT_AUTH" --masterauth "$SENT_AUTH"} "$@")
    for ((i = 0; i <= replicas; i++)); do
        local role=()
        [ $i -eq 0 ] || role=(--replicaof "127.0.0.1 ${NODE_PORTS%% *}")
        redis_start_in "node$i" "${args[@]}" "${role[@]}" || return
        NODE_PORTS+="${REDIS_PORTS[node$i]} " NODE_PIDS+="${REDIS_PIDS[node$i]} "
    done
    for ((i = 1; i <= replicas; i++)); do
        wait_for 5 sentinel_in_step "${REDIS_PORTS[node$i]}" || return
    done
    for ((i = 0; i < sentinels; i++)); do sentinel_launch || return; done
    SENT_COUNT=$sentinels
    wait_for 10 sentinel_know || return
    export SENT_PORTS SENT_PIDS NODE_PORTS NODE_PIDS SENT_COUNT
}

sentinel_in_step() { ncli "$1" info replication | grep -q '^master_link_status:up'; }

# ncli PORT ARG...: a server; scli PORT ARG...: a sentinel.
ncli() { sentinel_cli "${SENT_AUTH:-}" "$@"; }
scli() { sentinel_cli "${SENT_PASS:-}" "$@"; }
sentinel_cli() {
    timeout 5 env ${1:+REDISCLI_AUTH="$1"} redis-cli --no-auth-warning -h 127.0.0.1 -p "$2" \
        "${@:3}" 3>&-
}
mcli() { ncli "$(sentinel_master)" "$@"; }

# Every sentinel knows the others and the replicas.
sentinel_know() {
    local port replicas
    replicas=$(($(wc -w <<<"$NODE_PORTS") - 1))
    for port in $SENT_PORTS; do
        scli "$port" info sentinel | grep -q \
            "status=ok,.*slaves=$replicas,sentinels=$SENT_COUNT" || return
    done
}

sentinel_named() { scli "$1" --raw sentinel get-master-addr-by-name svc | sed -n 2p; }
sentinel_master() {
    local port
    for port in $SENT_PORTS; do sentinel_named "$port"; done | sort | uniq -c | sort -rn |
        awk 'NR == 1 { print $2 }'
}
sentinel_all_name() {
    local port
    for port in $SENT_PORTS; do [ "$(sentinel_named "$port")" = "$1" ] || return; done
}

# All name the same one, the others follow it, and there is no failover under way.
sentinel_settled() {
    local master port state
    master=$(sentinel_master)
    [ -n "$master" ] && sentinel_all_name "$master" || return
    [ "$(ncli "$master" role | head -n 1)" = master ] || return
    for port in $NODE_PORTS; do
        [ "$port" != "$master" ] || continue
        state=$(ncli "$port" info replication)
        case $state in
        # The sentinels leave an old master in peace for eight seconds.
        *role:master*) ncli "$port" replicaof 127.0.0.1 "$master" && return 1 ;;
        *master_port:"$master"*master_link_status:up*) ;;
        *) return 1 ;;
        esac
    done
    for port in $SENT_PORTS; do
        scli "$port" sentinel master svc | grep -A 1 '^flags$' | grep -qx master || return
    done
    sentinel_know
}
sentinel_agree() { wait_for 20 sentinel_settled; }

sentinel_uri() {
    local port list=''
    for port in ${*:-$SENT_PORTS}; do list+=,127.0.0.1:$port; done
    echo "redis+sentinel://${SENT_AUTH:+:$SENT_AUTH@}${list#,}/svc"
}

# left_over PORT MS: the lock has more time left on this server.
left_over() { [ "$(ncli "$1" pttl "$NAME")" -gt "$2" ]; }

sentinel_stop() {
    local pid name
    for pid in $SENT_PIDS $NODE_PIDS; do
        kill -CONT "$pid" 2>/dev/null || :
        kill -KILL "$pid" 2>/dev/null || :
    done
    for pid in $SENT_PIDS $NODE_PIDS; do wait "$pid" 2>/dev/null || :; done
    SENT_PIDS='' NODE_PIDS=''
    # Nobody may kill them again: the numbers may be others' by then.
    for name in "${!REDIS_PIDS[@]}"; do
        case $name in node*) unset "REDIS_PIDS[$name]" ;; esac
    done
}
