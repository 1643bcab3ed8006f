STORE=etcd
tool_about() { echo "etcdctl lock --ttl $TTL NAME COMMAND"; }
tool_version() { etcdctl version | sed -n 's/^etcdctl version: /etcdctl /p'; }
tool_run() {
    ETCDCTL_API=3 exec ${VIA[@]+"${VIA[@]}"} etcdctl --endpoints "$ADDR" lock --ttl "$TTL" "$NAME" \
        "${@:2}"
}
etcd_keys() { etcd_ctl get "$NAME/" --prefix --keys-only --sort-by=CREATE --order=ASCEND | grep .; }
tool_waiting() { [ "$(etcd_keys | wc -l)" = 2 ]; }
tool_delete() { etcd_ctl del "$(etcd_keys | sed -n 1p)"; }
