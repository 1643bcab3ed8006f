STORE=redis
tool_missing() { /usr/bin/python3 -c 'import redis' 2>&1 | tail -n 1; }
tool_about() {
    echo "redis-py: Lock(timeout=$TTL), a thread calls reacquire(); LockError ends the command"
}
tool_version() { /usr/bin/python3 -c 'import redis; print("redis-py", redis.__version__)'; }
tool_run() {
    exec ${VIA[@]+"${VIA[@]}"} "$proof/tools/redis_lock.py" "$ADDR" "$NAME" "$TTL" \
        "$D/$1.waits" "${@:2}"
}
tool_waiting() { [ -e "$D/$1.waits" ]; }
tool_delete() { rcli del "$NAME"; }
