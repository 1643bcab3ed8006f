# One etcd server.
store_missing() {
    local program
    for program in etcd etcdctl; do
        command -v $program >/dev/null || { echo "$program is not installed"; return; }
    done
}
store_version() { etcd --version | sed -n 's/^etcd Version: /etcd /p'; }
store_up() {
    local try
    for try in 1 2 3 4 5; do
        ETCD_PORT=$(some_port)
        etcd_launch && ADDR=127.0.0.1:$ETCD_PORT && return 0
        grep -q 'address already in use' etcd.log || break
    done
    tail -n 20 etcd.log >&2
    return 1
}
etcd_launch() {
    local peer
    peer=http://127.0.0.1:$(some_port)
    env -u DLOCK_TEST_ID etcd --name default --data-dir "$D/etcd" \
        --listen-client-urls "http://127.0.0.1:$ETCD_PORT" \
        --advertise-client-urls "http://127.0.0.1:$ETCD_PORT" --listen-peer-urls "$peer" \
        --initial-advertise-peer-urls "$peer" --initial-cluster "default=$peer" \
        >>etcd.log 2>&1 </dev/null 3>&- &
    ETCD_PID=$!
    until_ready 20 $ETCD_PID etcd_serves
}
etcd_serves() { etcd_ctl endpoint health >/dev/null 2>&1; }
etcd_ctl() { ETCDCTL_API=3 timeout 5 etcdctl --endpoints "127.0.0.1:$ETCD_PORT" "$@" 3>&-; }
store_pids() { echo "$ETCD_PID"; }
store_restart() {
    end_job TERM "$ETCD_PID"
    [ "$1" = keep ] || rm -rf "$D/etcd"
    etcd_launch
}
store_down() { [ -z "${ETCD_PID:-}" ] || end_job KILL "$ETCD_PID"; }
