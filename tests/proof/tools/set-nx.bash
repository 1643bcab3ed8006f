# The script of ten lines that many have: tools/set-nx.
STORE=redis
tool_about() { echo 'a script: SET NAME TOKEN NX PX, PEXPIRE in the background, EVAL to release'; }
tool_version() { redis-cli --version; }
tool_run() {
    exec ${VIA[@]+"${VIA[@]}"} sh "$proof/tools/set-nx" "${ADDR%:*}" "${ADDR#*:}" "$NAME" \
        "$TTL_MS" "${@:2}"
}
# It asks again and again, each time with a connection of its own.
tool_waiting() {
    local received
    received=$(rcli info stats | tr -d '\r' | sed -n 's/^total_connections_received://p')
    [ "$received" -gt 20 ]
}
tool_delete() { rcli del "$NAME"; }
