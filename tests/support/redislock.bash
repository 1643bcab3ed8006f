# redislock.bash - a lock in a redis-server, for the files that test it. Load after common.bash and
# redis.bash; setup gives L (the lock's URI) at the file's server.

# own_server [ARG...]: one for this test; L is there then.
own_server() {
    redis_start_in own "$@"
    L="redis://127.0.0.1:${REDIS_PORTS[own]}#$NAME"
}
own() { rcli_in own "$@"; }
# The same server again, on the same files.
own_again() {
    redis_launch own "${REDIS_DIRS[own]}" "${REDIS_PORTS[own]}" --appendonly yes \
        --appendfsync always
}
# own_queue_is CLIENTS: so many stand in the queue. own_tracks: one of them is told of changes.
own_queue_is() { [ "$(own zcard "{$NAME}:dlock:queue")" = "$1" ]; }
own_waits_for() { wait_for 10 own_queue_is "$1"; }
own_tracks() {
    wait_for 5 eval '[ "$(own info clients | sed -n "s/^tracking_clients:\([0-9]*\).*/\1/p")" = 1 ]'
}
own_gone() { [ "$(own exists "$NAME")" = 0 ]; }
own_left_is_over() { [ "$(own pttl "$NAME")" -gt "$1" ]; }

queue_is() { [ "$(rcli zcard "{$NAME}:dlock:queue")" = "$1" ]; }
# The time is in FILE when the command has run.
stamp() { echo "date +%s%3N >>'$T/$1'"; }

# wakes MS PID CMD...: CMD frees the lock; the waiter PID, with `stamp got`, has it within MS and
# ends.
wakes() {
    local t0
    t0=$(wall_ms)
    "${@:3}"
    wait_exit 10 "$2"
    assert_between 0 $(($(head -n 1 got) - t0)) $(($1 + BUSY)) "milliseconds"
}

# A client is told of changes.
tracked() { [ "$(rcli info clients | sed -n "s/^tracking_clients:\([0-9]*\).*/\1/p")" -ge 1 ]; }
# Command calls the server has counted, our own question left out.
evals() { rcli info commandstats | count_evals; }

# wait_in_line N CMD: the N-th waiter; returns when it is in the queue.
wait_in_line() {
    start_log "wait$1.log" "$DLOCK" --ttl "${TTL:-3}" "$L" sh -c "$2"
    WAITER=$STARTED
    wait_for 5 queue_is "$1"
}
