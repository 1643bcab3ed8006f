#!/usr/bin/env bats
# faults.bats - faults around a lock in a real redis-server: restarts, stops, keys that others
# delete or take, connections that are cut. Servers that lie or refuse are in hostile.bats.

load ../../support/redisfile
load ../../support/outage

@test "the restart grace counts as held, and is waited for" {
    own_server --appendonly no
    L="redis://127.0.0.1:${REDIS_PORTS[own]}?restart-grace=1#$NAME"
    says 75 "restart-grace: " -vn "$L" true
    local t0
    t0=$(wall_ms)
    run -0 run_t 9 "$DLOCK" "$L" true
    assert_between 500 $(($(wall_ms) - t0)) $((3200 + BUSY)) "milliseconds"
    # It makes up for a server that forgets, for leases that are not longer.
    CI=1 says 0 "?restart-grace=1100ms" -n --ttl 1.1 "$L" true
    CI=1 run -0 run_t 5 "$DLOCK" -n --ttl 1 "$L" true
    [ -z "$output" ]
}

@test "a server whose clock is behind its start grants after the restart grace" {
    # An hour back at the end of its start: INFO then says a negative uptime.
    head -c 8 /dev/zero >offset
    LD_PRELOAD=$HELPERS/wallclock.so WALLCLOCK=$T/offset \
        ASAN_OPTIONS=${ASAN_OPTIONS:-}:verify_asan_link_order=0 own_server
    L="redis://127.0.0.1:${REDIS_PORTS[own]}?restart-grace=1#$NAME"
    set_clock -3600
    wait_for 5 eval 'rcli_in own info server | grep -q uptime_in_seconds:-'
    run -75 run_t 5 "$DLOCK" -vn "$L" touch ran
    assert_out "restart-grace: "
    run -75 run_t 5 "$DLOCK" -w 0.3 "$L" touch ran
    [ ! -e ran ]
    set_clock 0
    run -0 run_t 9 "$DLOCK" "$L" true
}
# set_clock SECONDS: ahead of the true time.
set_clock() {
    /usr/bin/python3 -c 'import struct, sys
with open("offset", "r+b") as f: f.write(struct.pack("<q", int(sys.argv[1]) * 10**9))' "$1"
}

# bats test_tags=plain
@test "waiters ride out an outage for as long as they may wait" {
    own_server --appendonly yes --appendfsync always
    ride_out
}
store_out() { redis_kill own; }
store_back() { own_again; }

@test "a waiter that loses its wake-up connection while it looks gets another one" {
    own_server --appendonly no --enable-debug-command yes
    start_log h "$DLOCK" -q "$L" sleep 60
    local pids=("$STARTED") admin answer old i
    wakes() { own client list type pubsub | sed -n 's/^id=\([0-9]*\) .*/\1/p'; }
    woken() { [ "$(wakes | awk -v after="$1" '$1 > after' | wc -l)" = "$2" ]; }
    wait_for 5 eval '[ "$(own exists "$NAME")" = 1 ]'
    # The second waiter looks twice a second.
    for i in 1 2; do
        start_log "w$i" "$DLOCK" -q --ttl 30 "$L" true
        pids+=("$STARTED")
        wait_for 5 woken 0 $i
    done
    # While the server sleeps it looks, too. The answer comes a little after the end of the other
    # connection.
    old=$(wakes | sort -n | tail -n 1)
    exec {admin}<>"/dev/tcp/127.0.0.1/${REDIS_PORTS[own]}"
    printf '%s\r\n' 'DEBUG SLEEP 0.8' 'CLIENT KILL TYPE pubsub' 'DEBUG SLEEP 0.02' >&"$admin"
    for i in 1 2 3; do read -r -t 5 answer <&"$admin"; done
    exec {admin}>&-
    wait_for 5 woken "$old" 2
    kill "${pids[@]}"
    for i in "${pids[@]}"; do wait_exit 5 "$i" || :; done
}

@test "a disconnected waiter keeps its queue entry" {
    hold
    TTL=6 wait_in_line 1 "$(stamp got)"
    local id
    id=$(rcli zrange "{$NAME}:dlock:queue" 0 0)
    rcli client kill type pubsub
    rcli client kill type normal skipme yes
    wait_for 5 tracked
    wait_for 5 queue_is 1
    [ "$(rcli zrange "{$NAME}:dlock:queue" 0 0)" = "$id" ]
    echo >go
    wait_exit 5 "$WAITER"
    test -s got
    wait_exit 5 "$HOLDER"
}

@test "a waiter that gets only one connection says so and goes on" {
    own_server
    rcli_in own set "$NAME" x px 700
    rcli_in own config set maxclients 1
    # The second connection is refused for longer than one ttl; the first one sees the lock expire.
    run -0 run_t 8 "$DLOCK" -v --ttl 2 "$L" true
    # The server says why and closes at once; our own bytes may turn that into a reset.
    assert_out "no second connection for wake-ups"
}
