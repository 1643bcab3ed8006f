# What the tools share that are dlock: DLOCK_LOCK is its lock at $ADDR, DLOCK_OPTS its options.
DLOCK_OPTS=(--ttl "$TTL")
DLOCK_PARAMS=''
tool_about() {
    local ADDR=HOST
    echo "dlock ${DLOCK_OPTS[*]} '$(dlock_lock)' COMMAND"
}
tool_missing() { [ -x "$DLOCK" ] || echo "$DLOCK is not built"; }
tool_version() { "$DLOCK" --version | sed -n 1p; }
tool_run() {
    exec ${VIA[@]+"${VIA[@]}"} "$DLOCK" "${DLOCK_OPTS[@]}" --events "$D/$1.events" \
        "$(dlock_lock)" "${@:2}"
}
tool_waiting() { file_has "$D/$1.events" '"event":"waiting"'; }
tool_guard() { ! guard_of "$A_PID" || echo "$G"; }
