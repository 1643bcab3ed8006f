#!/usr/bin/env bats
# --events with a Redis: the outcomes that its answers bring about.

load ../../support/common
load ../../support/redis

setup() {
    dlock_setup
    redis_start
    L=redis://127.0.0.1:$REDIS_PORT/0#$NAME
}

told() { # CODE RC ARG...
    local code=$1 rc=$2
    shift 2
    rm -f ev
    run "-$rc" run_t 10 "$DLOCK" --events ev "$@"
    run_t 10 "$ROOT/tests/support/helpers/events.py" ev "
assert end and end['store'] == 'redis://127.0.0.1:$REDIS_PORT/0' and end['exit_code'] == $rc, events
$code"
}

@test "each outcome on a Redis is told in lines of JSON" {
    hold --note 'say "hi"'
    told "assert names == ['end'] and end['outcome'] == 'busy'" 75 -qn "$L" true
    told "assert names == ['waiting', 'end'] and end['outcome'] == 'timeout' and 'fence' not in end
h = events[0]['holder']
assert h['pid'] == $HOLDER and h['note'] == 'say \"hi\"' and 'sh -c' in h['command'], h" \
        75 -q -w 1 "$L" true
    let_go
    told "assert names == ['granted', 'released', 'end'] and end['outcome'] == 'exited'
assert end['renewals'] >= 2 and end['hold_ms'] >= 2500, events
assert events[1]['how'] == 'confirmed' and int(end['fence']) > $(cat held), events" \
        0 --ttl 4 "$L" sleep 2.5
    told "assert end['outcome'] == 'lost'
assert [n for n in names if n != 'trouble'] == ['granted', 'lost', 'kill', 'released', 'end']" \
        79 --ttl 1 "$L" sh -c "redis-cli -p $REDIS_PORT flushall >/dev/null; exec sleep 10"
    rcli lpush "${NAME}2" foreign >/dev/null
    told "assert names == ['end'] and end['outcome'] == 'error' and '$NAME' in end['reason']" 65 \
        "${L}2" true
    rcli config set requirepass secret
    told "assert names == ['end'] and end['outcome'] == 'error'" 77 "$L" true
    redis_kill
    told "assert names == ['end'] and end['outcome'] == 'unavailable', end
assert 'refused' in end['reason'], end" 69 "$L" true
}
