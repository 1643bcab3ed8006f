. "$proof/faults/clock-server-forward.bash"
FAULT_TITLE='clock of 1 server of 3 1 h ahead' FAULT_ORDER=94
fault_applies() { [ "$STORE" = redlock ]; }
clock_servers() {
    eval "plain_$(declare -f redis_spawn)"
    redis_spawn() {
        local with=clocked
        [ "$1" = n1 ] || with=
        $with plain_redis_spawn "$@"
    }
}
