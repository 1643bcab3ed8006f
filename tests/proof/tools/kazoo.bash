STORE=zookeeper
tool_missing() { /usr/bin/python3 -c 'import kazoo' 2>&1 | tail -n 1; }
tool_about() { echo "kazoo: zk.Lock around a subprocess; a listener ends it on SUSPENDED or LOST"; }
tool_version() { /usr/bin/python3 -c 'import kazoo; print("kazoo", kazoo.__version__)'; }
tool_run() {
    exec ${VIA[@]+"${VIA[@]}"} "$proof/tools/kazoo_lock.py" "$ADDR" "/$NAME" "$TTL" "${@:2}"
}
tool_waiting() { [ "$(zk_ls "/$NAME" | wc -l)" = 2 ]; }
tool_delete() { zk_rm "/$NAME/$(zk_first "/$NAME")"; }
# Its names end in the number, too.
zk_first() { zk_ls "$1" | sed -E 's/.*([0-9]{10})$/\1 &/' | sort | sed -n '1s/.* //p'; }
