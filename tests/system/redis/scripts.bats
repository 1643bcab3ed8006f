#!/usr/bin/env bats
# scripts.bats - servers that forget the scripts at any moment, and users that may send texts only.

# bats file_tags=long
load ../../support/common
load ../../support/redis
load ../../support/redislock
load ../../support/redlock

# forgetful PORT...: these servers forget their scripts again and again, until $FORGETFUL is killed.
forgetful() {
    start /usr/bin/python3 -c '
import socket, sys, time
servers = [socket.create_connection(("127.0.0.1", int(port))) for port in sys.argv[1:]]
while True:
    for server in servers:
        server.sendall(b"SCRIPT FLUSH\r\n")
        server.recv(99)
    time.sleep(0.002)' "$@"
    FORGETFUL=$STARTED
}
remember() {
    kill "$FORGETFUL"
    wait_for 5 pid_gone "$FORGETFUL"
}
# But for the claim of a waiter that was called and gave up: its key lives for a second.
only_fence() { wait_for 2 only_fence_now || fail "$(own keys '*')"; }
only_fence_now() { [ "$(own --raw keys '*')" = "{$NAME}:dlock:fence" ]; }
# contended N ROUNDS: N clients take the lock in turn and count, while others give up waiting.
contended() {
    local i pids=()
    echo 0 >count
    for ((i = 0; i < $1; i++)); do
        start_log "c$i.log" sh -c 'for i in $(seq "$0"); do
            "$DLOCK" -q -w 20 "$1" sh -c \
                "echo \$((\$(cat count) + 1)) >count.new; mv count.new count" || exit
            "$DLOCK" -q -w 0.02 "$1" true
            case $? in 0 | 69 | 75) ;; *) exit 1 ;; esac
        done' "$2" "$L"
        pids+=("$STARTED")
    done
    for i in "${pids[@]}"; do wait_exit 60 "$i" || fail "$(cat c*.log)"; done
    [ "$(cat count)" = $(($1 * $2)) ] || final "$(cat count) of $(($1 * $2)) counted"
}

@test "a server that forgets its scripts all the time is harmless" {
    own_server
    local t0
    hold --ttl 1
    forgetful "${REDIS_PORTS[own]}"
    start_log wait.log "$DLOCK" -q --ttl 1 "$L" touch in
    local waiter=$STARTED
    own_waits_for 1
    # Holder and waiter have to speak in this time.
    t0=$(now_ms)
    wait_for 4 eval '[ "$(now_ms)" -gt $((t0 + 1500)) ]'
    let_go
    wait_exit 5 "$waiter"
    [ ! -s hold.log ] || fail "$(cat hold.log)"
    [ -e in ]
    contended 3 10
    remember
    only_fence
    own info commandstats | count_evals failed_ >failed
    [ "$(cat failed)" -gt 5 ] # it did forget
}

@test "Redlock servers that forget their scripts all the time are harmless" {
    rl_start 5
    L=$(rl_uri "$NAME")
    # shellcheck disable=SC2046
    forgetful $(for k in $(rl_all); do rl_port "$k"; done)
    contended 2 5
    remember
    wait_for 5 eval '[ -z "$(rl_left)" ]'
}

@test "a user without +evalsha sends the texts" {
    own_server
    own acl setuser u on '>pw' '~*' '&*' +@all -evalsha
    L="redis://u:pw@127.0.0.1:${REDIS_PORTS[own]}#$NAME"
    run -0 run_t 5 "$DLOCK" "$L" true
    [ -z "$output" ] || fail "$output"
    contended 2 3
    only_fence
}
