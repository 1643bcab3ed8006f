#!/usr/bin/env bats
# shared.bats - readers (-s) of a lock that a majority of servers grants.

load ../../support/holders
load ../../support/redis
load ../../support/redlock

setup() {
    dlock_setup
    own_nodes
}

refused() {
    run -75 run_t 5 "$DLOCK" -n "$@" "$L" touch ran
    [ ! -e ran ] || final "a writer ran beside readers"
}
# stands N K...: as many readers stand on each of these nodes.
stands() {
    local k
    for k in "${@:2}"; do
        rl_ask "$k" get "$NAME" && [[ $ANSWER == dlock:shared:* ]] || return
        rl_ask "$k" zcard "{$NAME}:dlock:holders:${ANSWER#dlock:shared:}" &&
            [ "$ANSWER" = "$1" ] || return
    done
}

@test "readers stand together without a minority of the nodes" {
    held a -s
    rl_die 1 2
    held b -s
    refused
    run -75 run_t 5 "$DLOCK" --status "$L"
    [ "$(grep -c 'held (shared)' <<<"$output")" = 2 ] || fail "$output"
    [[ $output == *"pid ${PIDS[a]}"* && $output == *"pid ${PIDS[b]}"* ]] || fail "$output"
    # A node that only one of them could reach does not hide the other.
    end a
    refused
    end b
    quick -n "$L" true
    nothing_left 3 4 5
}

# bats test_tags=plain
@test "one node in common excludes a writer, and a reader" {
    rl_die 4 5
    held a -s --ttl 60
    rl_revive 4 5
    rl_freeze 1 2
    refused -x
    rl_thaw 1 2
    end a
    wait_for 5 rl_gone "$NAME"
    # Not frozen: they would have its votes as soon as they go on.
    rl_die 4 5
    hold --ttl 60
    rl_revive 4 5
    rl_freeze 1 2
    refused -s
    rl_thaw 1 2
    let_go
    nothing_left
}

@test "nodes that were emptied under readers get them back, and no writer comes in" {
    local k
    held a -s --ttl 2
    held b -s --ttl 2
    for k in 1 2; do
        rl $k flushall
        refused
        wait_for 3 stands 2 $k || fail "$(cat holds.*.log)"
        refused
    done
    # Another program has one of them: it keeps it.
    rl 3 flushall
    rl 3 set "$NAME" theirs px 60000
    wait_for 4 rl_renewals 1 3
    [ "$(rl 3 get "$NAME")" = theirs ]
    refused
    end a b
    rl 3 del "$NAME"
    nothing_left
}

@test "readers whose lock another program took on a majority are lost" {
    held a -s --ttl 2
    held b -s --ttl 2
    # Without DEL before it: a renewal in between would find the lock gone.
    on "1 2 3" set "$NAME" theirs px 60000
    exits 79 5 "${PIDS[a]}"
    exits 79 5 "${PIDS[b]}"
    grep -q 'is lost: .*not ours on 3 of 5 servers: another program' holds.a.log ||
        fail "$(cat holds.a.log)"
    [ "$(rl_count "get $NAME" theirs)" = 3 ]
    on "1 2 3" del "$NAME"
    # What the readers have left there expires.
    wait_for 4 nothing_left
}

@test "a node's own clients and the majority exclude each other" {
    local here
    here="redis://127.0.0.1:$(rl_port 2)#$NAME"
    held a -s
    run -75 run_t 5 "$DLOCK" -n "$here" true
    run -0 run_t 5 "$DLOCK" -s -n "$here" true
    end a
    run -0 run_t 5 "$DLOCK" -n "$here" true
    own_nodes 1
    here="redis://127.0.0.1:$(rl_port 1)#$NAME"
    L=$here held a -s
    refused
    run -0 run_t 5 "$DLOCK" -s -n "$L" true
    run -75 run_t 5 "$DLOCK" --status "$L"
    [[ $output == *"held (shared)"*"pid ${PIDS[a]}"* ]] || fail "$output"
    end a
    nothing_left
}

# bats test_tags=plain
@test "fences of readers stand between those of writers, whichever majority grants" {
    local round fence last=0 writer=0 out=() ahead
    # The clock of node 3 was six years ahead once: only a reader's majority sees its counter, at
    # first.
    ahead=$(($(now_ms) * 1000 + 6 * 365 * 86400000000))
    for round in "-x 4 5" "-x 1 2" "-x 3 4" "-s 1 2" "ahead" "-s 1 5" "-x 3 4" "-x 3 5" "-s 1 3" \
        "-s 2 3" "-x 4 5" "-x 2 3" "-x 1 2"; do
        if [ "$round" = ahead ]; then
            rl 3 set "{$NAME}:dlock:fence" $ahead
            continue
        fi
        read -ra out <<<"${round#* }"
        rl_freeze "${out[@]}"
        fence=$("$DLOCK" --ttl 20 "${round%% *}" "$L" sh -c 'echo $DLOCK_FENCE' 3>&-)
        rl_thaw "${out[@]}"
        if [ "${round%% *}" = -s ]; then
            [ "$fence" -ge "$writer" ] ||
                final "$round out: a reader's $fence after a writer's $writer"
        else
            [ "$fence" -gt "$last" ] || final "$round out: a writer's $fence after $last"
            writer=$fence
        fi
        last=$fence
        # The next one must not find the lock on what was away.
        wait_for 5 rl_gone "$NAME"
    done
    [ "$writer" -gt $ahead ]
}

@test "a waiting writer that is stopped or killed holds up readers for a moment only" {
    local sig t0 writer
    for sig in STOP KILL; do
        held a -s --ttl 60
        start_log "writer.log" "$DLOCK" --ttl 60 "$L" true
        writer=$STARTED
        wait_for 5 watched 1
        refused -s
        kill -$sig "$writer"
        if [ $sig = KILL ]; then
            wait_for 2 watched 0
            run -0 run_t 5 "$DLOCK" -s -n "$L" true
            end a
            continue
        fi
        holds b -s --ttl 60
        wait_for 5 in_line 2
        t0=$(clock)
        end a
        is_in b
        assert_between 0 $((($(cat in.b) - t0) / NS)) $((2500 + SLOW)) "ms behind a stopped writer"
        end b
        kill -CONT "$writer"
        exits 0 5 "$writer"
    done
    nothing_left
}

@test "a waiting reader passes a stopped writer when the writer's ttl is over" {
    local writer t0
    held a -s --ttl 60
    start_log writer.log "$DLOCK" --ttl 2 "$L" true
    writer=$STARTED
    wait_for 5 in_line 1
    stop_pid "$writer"
    t0=$(clock)
    held b -s --ttl 60
    assert_between 0 $((($(cat in.b) - t0) / NS)) $((2500 + SLOW)) "ms behind a writer of ttl 2"
    end a b
    kill -CONT "$writer"
    exits 0 5 "$writer"
    nothing_left
}

@test "restarted nodes do not vote while a reader's longer ttl may last" {
    local id holders long
    own_nodes 3
    # One that was given back counts no more.
    held c -s --ttl 600
    end c
    # Two of the three are enough for a grant, and this test needs the third one: a busy machine may
    # not hear it in time.
    for id in 1 2 3; do
        held a -s --ttl 60
        ! wait_for 2 eval '[ "$(rl 3 get "{$NAME}:dlock:longest")" = 60000 ]' || break
        [ "$id" -lt 3 ] || fail "node 3 has no vote for the reader"
        end a
    done
    held b -s --ttl 2
    L=$(rl_uri "$NAME" -)
    for id in a b; do kill -KILL "${PIDS[$id]}"; done
    # Of two readers a node names the one with the later expiry: here the one with the shorter ttl.
    rl_ask 3 get "$NAME"
    holders="{$NAME}:dlock:holders:${ANSWER#dlock:shared:}"
    long=$(rl 3 zrange "$holders" 0 -1 | grep 'ttl=60000')
    rl 3 zadd "$holders" 1 "$long"
    rl_die 1 2
    rl_revive 1 2
    wait_for 8 up_for 4 1
    wait_for 8 up_for 4 2
    run -75 run_t 5 "$DLOCK" --ttl 1 -n "$L" touch ran
    [ ! -e ran ] || final "a writer ran beside a reader"
    # That node 3 knew of the longer one was the reason.
    rl 3 del "{$NAME}:dlock:longest"
    run -0 run_t 5 "$DLOCK" --ttl 1 -n "$L" true
}
up_for() {
    rl_ask "$2" info server && [[ $ANSWER =~ uptime_in_seconds:([0-9]+) ]] &&
        [ "${BASH_REMATCH[1]}" -ge "$1" ]
}
