#!/usr/bin/env bats
# list.bats - --list of a redis-server and of a cluster: which locks are found, and what it costs.

# bats file_tags=long
load ../../support/redisfile
load ../../support/cluster
load ../../support/clock

lists() { run -0 run_t 10 "$DLOCK" --list "${1:-${L%#*}}"; }

@test "each kind of lock, its holder and its waiters" {
    own_server
    L=${L%#*}
    lists
    [ -z "$output" ]
    U=$L
    for lock in "x" "{a}y" "s" "n" "a b"; do
        kind=''
        [ "$lock" != s ] || kind=-s
        [ "$lock" != n ] || kind=--slots=4
        L="$U#$lock" held "$lock" $kind --ttl 9
    done
    L="$U#s" held s2 -s --ttl 9
    L="$U#x" holds waiter --ttl 9
    wait_for 5 eval '[ "$(own zcard "{x}:dlock:queue")" = 1 ]'
    # No locks of dlock: another program's, a key that looks like one, a lock that is free.
    own mset other 1 ':dlock:fence' 1 '{}:dlock:fence' 1 'y:dlock:fence' 1 >/dev/null
    "$DLOCK" "$U#free" true
    lists "$U"
    [ "$(awk '{ print $1, $2, $3 }' <<<"$output" | sed 's/:.*//; s/,.*//' | tr '\n' '|')" = \
        "a b held|n slots 1|s shared 2|x held|{a}y held|" ] || fail "$output"
    [[ $output == *"x "*" held, 1 waiting, fence"* ]] || fail "$output"
    [[ $output == *"slots 1 of 4"* ]] || fail "$output"
    lists "$U#[sx]"
    [ "$(wc -l <<<"$output")" = 2 ]
    stop_pid "${PIDS[x]}"
    start_log break.log "$DLOCK" --break --yes "$U#x"
    wait_for 5 eval 'own get x | grep -q " break=1$"'
    lists "$U#x"
    [[ $output == *"being broken: "* ]] || fail "$output"
    kill -CONT "${PIDS[x]}"
    exits 79 5 "${PIDS[x]}"
    exits 0 5 "$STARTED"
    is_in waiter
    : >go.waiter
    exits 0 5 "${PIDS[waiter]}"
    end "{a}y" s s2 n "a b"
}

@test "a free lock with waiters is listed, one with dead waiters is not" {
    own_server
    own zadd "{$NAME}:dlock:queue" 1 w >/dev/null
    own hset "{$NAME}:dlock:waiters" w "$(($(wall_ms) + 60000)) 0 dlock1 pid=7" >/dev/null
    lists
    [[ $output == "$NAME"*"free, 1 waiting" ]] || fail "$output"
    own hset "{$NAME}:dlock:waiters" w "$(($(wall_ms) - 1)) 0 dlock1 pid=7" >/dev/null
    lists
    [ -z "$output" ] || fail "$output"
}

many() { # locks 1...$1, and as many other keys
    many_locks "$1" own
    own eval "for i = 1, $1 do redis.call('SET', 'key' .. i, 'x') end" 0 >/dev/null
}

# Memory and time are not a sanitizer's.
# bats test_tags=plain
@test "10 000 locks: no call over 5 ms, below 20 MB, within a second" {
    own_server --appendonly no
    many 10000
    own config set slowlog-log-slower-than 5000 >/dev/null
    # The server may be delayed in the middle of a call by tests beside this one.
    renice -n -20 -p "${REDIS_PIDS[own]}" >/dev/null 2>&1 || :
    for _ in 1 2 3; do
        own slowlog reset >/dev/null
        t0=$(now_ms)
        "$ROOT/tests/support/helpers/peak_rss.py" rss timeout 10 "$DLOCK" --list "${L%#*}" >listed
        took=$(($(now_ms) - t0))
        [ "$(wc -l <listed)" = 10000 ] && [ "$(sort -u listed | wc -l)" = 10000 ]
        [ "$(own slowlog len)" != 0 ] || break
    done
    [ "$(own slowlog len)" = 0 ] || fail "$(own slowlog get)"
    [ "$(cat rss)" -lt 20 ] || fail "$(cat rss) MiB"
    assert_between 0 "$took" $((1000 + BUSY)) ms
    [ "$(own dbsize)" = 30000 ]
}

@test "without the right to SCAN: 77; names that may not be read are counted" {
    own_server
    many 3
    own acl setuser looker on '>secret' '~*' '&*' +@all -scan >/dev/null
    run -77 run_t 10 "$DLOCK" --list "${L/\/\//\/\/looker:secret@}"
    assert_out "+scan"
    own acl setuser looker +scan resetkeys '~lock1' '~{lock1}:dlock:*' >/dev/null
    run -0 run_t 10 "$DLOCK" -v --list "$(sed "s|//|//looker:secret@|; s|#.*||" <<<"$L")"
    assert_out "2 locks are not listed"
    [[ $output == *"lock1 "* ]] && [[ $output != *lock2* ]]
}

@test "many keys and no lock: an empty list, and no time-out" {
    own_server
    own eval "for i = 1, 400000 do redis.call('set', i, '') end" 0 >/dev/null
    [ "$(own dbsize)" = 400000 ]
    run -0 run_t 10 "$DLOCK" --list --connect-timeout 100ms "${L%#*}"
    [ -z "$output" ] || fail "$output"
}

@test "a server that does not answer: 69" {
    own_server
    run -69 run_t 10 "$DLOCK" --connect-timeout 1 --list "redis://127.0.0.1:$(some_port)"
    stop_pid "${REDIS_PIDS[own]}"
    run -69 run_t 10 "$DLOCK" --connect-timeout 1 --list "${L%#*}"
    kill -CONT "${REDIS_PIDS[own]}"
}

@test "a cluster: the locks of all masters, asked by way of any node" {
    cluster_start 2
    for n in 0 1 2; do
        L="redis://127.0.0.1:${CPORT[0]}#$(name_on $n)" held h$n --ttl 9
    done
    for n in 0 1 2 3; do
        lists "redis://127.0.0.1:${CPORT[$n]}"
        [ "$(wc -l <<<"$output")" = 3 ] || fail "$output"
    done
    end h0 h1 h2
    cluster_stop
}

# --list finds the hold by the fence counter, which would expire a day after the grant.
# bats test_tags=plain
@test "a renewal puts the expiry of the fence counter off, every 8 hours" {
    own_server
    WALLCLOCK_SUSPEND=1 with_clock held a --ttl 60h
    own pexpire "{$NAME}:dlock:fence" 60000 >/dev/null
    # The holder is told of a change of its key, and renews.
    renewed() {
        own pexpire "$NAME" 1000000 >/dev/null
        wait_for 3 eval '[ "$(own pttl "$NAME")" -gt 1000000 ]'
    }
    wait_for 10 renewed
    assert_between 1 "$(own pttl "{$NAME}:dlock:fence")" 60000
    jump 30000
    renewed
    assert_between $((599 * 3600000)) "$(own pttl "{$NAME}:dlock:fence")" $((600 * 3600000))
    lists
    [[ $output == "$NAME"*" held, "* ]]
    end a
}
