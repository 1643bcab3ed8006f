#!/usr/bin/env bats
# shared.bats - shared locks and slots in a real redis-server: the batch that one release lets in,
# waiters that are stopped, other programs, and what ends a hold. What holds for each store is in
# the contract.

# bats file_tags=long
load ../../support/redisfile

# waits N ID [ARG...]: as holds; returns when it is the N-th in the queue.
waits() {
    holds "${@:2}"
    wait_for 5 queue_is "$1" || fail "$(cat "holds.$2.log")"
}
stop() { stop_pid "${PIDS[$1]}"; }
own_holders_are() { [ "$(own zcard "$(own --raw keys "{$NAME}:dlock:holders:*")")" = "$1" ]; }
calls() { own info commandstats | tr -d '\r' | sed -n "s/^cmdstat_$1:calls=\([0-9]*\),.*/\1/p"; }
total() {
    own info commandstats | tr -d '\r' |
        awk -F'[:=,]' '/^cmdstat_/ && $1 !~ /_(info|config|zcard|keys|pttl|getrange)/ { n += $3 }
            END { print n }'
}

# Each grant calls the next one: two messages, and one try of each reader.
# bats test_tags=slow
@test "one release lets 50 readers in, each for the same work" {
    local n i
    own_server
    for n in 10 50; do
        hold --ttl 100
        for ((i = 1; i <= n; i++)); do holds "$n-$i" -s --ttl 100; done
        wait_for 20 own_queue_is $n
        own config resetstat >/dev/null
        let_go
        wait_for 20 own_holders_are $n
        scripts=$(own info commandstats | count_evals)
        echo "# $n readers: $scripts scripts, $(calls publish) messages, $(total) commands" >&3
        assert_between $((n + 1)) "$scripts" $((n + 4 + n / 5)) \
            "scripts for $n readers"
        assert_between $n "$(calls publish)" $((2 * n + 4)) "messages for $n readers"
        assert_between $((10 * n)) "$(total)" $((35 * n)) "commands for $n readers"
        for ((i = 1; i <= n; i++)); do : >"go.$n-$i"; done
        for ((i = 1; i <= n; i++)); do exits 0 20 "${PIDS[$n-$i]}"; done
        [ "$(own --raw keys '*')" = "{$NAME}:dlock:fence" ] || fail "$(own keys '*')"
    done
}

# Readers end meanwhile: that gives the stopped ones no more time.
@test "stopped waiters in front are passed while readers hold" {
    local i t0 took ending
    hold --ttl 30
    for i in 1 2 3 4 5 6 7; do waits $i r$i -s --ttl 30; done
    waits 8 s1 -s --ttl 30
    waits 9 s2 -s --ttl 30
    waits 10 live -s --ttl 30
    waits 11 w --ttl 30
    stop s1
    stop s2
    let_go
    is_in r7
    t0=$(now_ms)
    for i in 1 2 3 4 5 6; do
        nap 0.4
        : >go.r$i
    done &
    ending=$!
    is_in live 8
    took=$(($(now_ms) - t0))
    wait "$ending"
    # It does not come in at once either: each of them is waited for.
    assert_between 500 $took $((3000 + BUSY)) "ms with two stopped waiters in front"
    [ ! -e in.w ]
    kill -CONT "${PIDS[s1]}" "${PIDS[s2]}"
    end r1 r2 r3 r4 r5 r6 r7 live
    is_in w
    end w
    is_in s1
    is_in s2
    end s1 s2
}

own_back() { [ "$(own pubsub channels "{$NAME}*" | grep -c .)" = "$1" ]; }
@test "a reader that comes back has its place, and comes in as a reader" {
    local line
    own_server
    hold --ttl 30
    holds a -s --ttl 30
    wait_for 5 own_queue_is 1
    holds b --slots 2 --ttl 30
    wait_for 5 own_queue_is 2
    line=$(own --raw zrange "{$NAME}:dlock:queue" 0 -1 withscores)
    [[ $line == s:*n2:* ]] || fail "$line"
    # In this order: a waiter is back in an instant.
    own del "{$NAME}:dlock:queue" "{$NAME}:dlock:waiters" >/dev/null
    own client kill type pubsub >/dev/null
    own client kill type normal skipme yes >/dev/null
    wait_for 5 own_back 2
    wait_for 5 own_queue_is 2
    [ "$(own --raw zrange "{$NAME}:dlock:queue" 0 -1 withscores)" = "$line" ]
    let_go
    is_in a
    is_in b
    end a b
}

# An expiry after 2112 does not fit its score.
@test "no more hold slots than there are with the longest ttl" {
    held a --slots 2 --ttl 36500d
    held b --slots 2 --ttl 36500d
    [ "$(cat slot.a slot.b | tr -d '\n')" = 01 ]
    run -75 run_t 5 "$DLOCK" -n --slots 2 --ttl 36500d "$L" touch ran
    [ ! -e ran ] || fail "three holders of two slots"
    end a
    run -0 run_t 5 "$DLOCK" -n --slots 2 --ttl 36500d "$L" sh -c 'echo $DLOCK_SLOT'
    [ "$output" = 0 ]
    end b
}

@test "a server without memory renews and releases shared locks and slots" {
    own_server
    held a -s --ttl 2
    held b --slots 2 --ttl 2
    own config set maxmemory 1 >/dev/null
    run -69 run_t 5 "$DLOCK" -n -s "$L" true
    nap 2.5
    end b
    own_holders_are 2 || fail "$(own keys '*')" # a, and the number that is free
    end a
    own_gone
}

@test "a reader whose epoch is gone is lost, and those of the next one are not" {
    held a -s --ttl 2
    held b --slots 2 --ttl 2
    cmp fence.a fence.b
    rcli del "$NAME"
    held c -s --ttl 2
    exits 79 4 "${PIDS[a]}"
    exits 79 4 "${PIDS[b]}"
    grep -q "the key expired, was deleted" holds.a.log
    # Another program instead: at once, for a renewal in between would only miss it.
    rcli set "$NAME" foreign px 60000
    exits 79 4 "${PIDS[c]}"
    grep -q "another program took the lock" holds.c.log
    [ "$(rcli get "$NAME")" = foreign ]
}

@test "the list of holders is gone with the lock when the longest hold has ended" {
    local holders name list
    held a -s --ttl 20
    held b -s --ttl 600
    end b
    stop a
    holders=$(rcli --raw keys "{$NAME}:dlock:holders:*")
    name=$(rcli pexpiretime "$NAME") list=$(rcli pexpiretime "$holders")
    kill -CONT "${PIDS[a]}"
    [ "$name" = "$list" ] || fail "the lock until $name, its holders until $list"
    end a
}

# bats test_tags=plain
@test "redis-py's Lock and each kind of lock exclude each other" {
    /usr/bin/python3 -c 'import redis' 2>/dev/null || skip "python3-redis is not installed"
    cat >lock.py <<PY
import redis, subprocess
r = redis.Redis(port=$REDIS_PORT)
for kind in ("-x", "-s", "--slots=2"):
    l = r.lock("$NAME", timeout=10)
    assert l.acquire(blocking=False)
    rc = subprocess.call(["$DLOCK", "-q", "-n", kind, "$L", "true"])
    assert rc == 75, rc
    w = subprocess.Popen(["$DLOCK", kind, "$L", "sh", "-c", "echo; read x"], \
        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    l.release()
    w.stdout.readline()
    assert not r.lock("$NAME", timeout=10).acquire(blocking=False)
    w.communicate(b"\n")
    assert w.returncode == 0
    l = r.lock("$NAME", timeout=10)
    assert l.acquire(blocking=False)
    l.release()
PY
    run_t 10 /usr/bin/python3 lock.py
}

@test "a restarted server lets no reader in beside readers before its grace is over" {
    own_server
    L="${L%#*}?restart-grace=60s#$NAME"
    run -75 run_t 5 "$DLOCK" -n "$L" true
    own set "$NAME" dlock:shared:00 px 60000
    own zadd "{$NAME}:dlock:holders:00" 9999999999999 "s:00 dlock1"
    run -75 run_t 5 "$DLOCK" -n -s "$L" touch ran
    run -75 run_t 5 "$DLOCK" -n --slots 2 "$L" touch ran
    [ ! -e ran ]
    run -0 run_t 5 "$DLOCK" -n -s "${L/60s/0}" true
}
