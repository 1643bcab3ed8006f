#!/usr/bin/env bats
# A hold in one Redis server, by the clock: what loses the key, who is stopped, and what that does
# to the command's tree and to the next holder. Strict bounds: the last sign of life of a whole tree
# against the server's own time.

load ../../support/common
load ../../support/fake
load ../../support/redis
load ../../support/redislock

# Renewals of a ttl of 3 s are 0.773 s apart.
INTERVAL=773

@test "a restart without data ends the hold at once, and the restart grace keeps others out" {
    own_server --appendonly no
    starts 4 -q --ttl 30 "$L" $SUBJECT -t -k
    redis_kill own
    redis_launch own "${REDIS_DIRS[own]}" "${REDIS_PORTS[own]}"
    restart=$(now_ns)
    run -75 run_t 5 "$DLOCK" -vn "${L/\#/?restart-grace=3#}" touch ran
    assert_out "restart"
    ended
    assert_rc 79
    assert_out "is lost"
    [ "$(grep -c '^dlock: ' out)" = 1 ]
    assert_between 0 "$(last_beat)" $((restart + (300 + BUSY) * NS)) "last sign of life"
    [ "$(count_seen main sig 15)" = 0 ]
    # The holder that wants no grace finds a lock that is free: it is the grace that kept it out.
    run -75 run_t 5 "$DLOCK" -n "${L/\#/?restart-grace=3#}" touch ran
    run -0 run_t 5 "$DLOCK" -q -n "$L" true
    [ ! -e ran ]
}

asked() { own info commandstats | count_evals; }
has_asked() { [ "$(asked)" -gt "$1" ]; }
cut() { own client kill type normal skipme yes; }

# As after a restart with the data.
@test "a holder that is cut off asks at once, twice a second at most, and goes on" {
    own_server
    redis_warm "$L.warm"
    starts 1 -q --ttl 30 "$L" $SUBJECT -u end
    nap 0.6
    before=$(asked)
    for i in 1 2; do
        [ "$(cut)" -ge 1 ]
        wait_for 1 has_asked $((before + i - 1))
    done
    t0=$(now_ms)
    for i in $(seq 30); do cut >cut && nap 0.05; done
    most=$(((($(now_ms) - t0) * 2 + 1999) / 1000 + 3))
    [ "$(asked)" -gt $((before + 2)) ]
    [ "$(asked)" -le $((before + most)) ] || fail "$(($(asked) - before)) renewals, not $most"
    unharmed 0
}

rival_is_in() { [ "$(wc -l <rival)" = 3 ]; }

# bats test_tags=slow
@test "a stopped keeper's tree dies before the key can be another's" {
    own_server
    starts 4 -q --ttl 3 "$L" $SUBJECT -t -k
    # Just behind a renewal: none is under way when it is stopped.
    wait_for 8 own_left_is_over 2850
    kill -STOP "$K"
    start "$ROOT/tests/support/helpers/contender.py" "${REDIS_PORTS[own]}" "$NAME" 10 >rival
    wait_for 10 rival_is_in
    kill -CONT "$K"
    ended
    assert_rc 79
    { read -r expiry && read -r entered && read -r answered; } <rival
    [ "$expiry" -gt 0 ]
    # The server's lease began a moment after ours, and it tells whole milliseconds.
    lease_times 3000 $((expiry - 3000 * NS))
    assert_between $((KILL_AT - 60 * NS)) "$(last_beat)" $((KILL_AT + 60 * NS)) "last sign of life"
    for who in main child session daemon; do
        assert_between $((TERM_AT - 60 * NS)) "$(seen $who sig 15)" $((TERM_AT + 250 * NS)) \
            "TERM for $who"
    done
    [ "$(last_beat)" -lt "$entered" ]
    [ "$answered" -ge "$expiry" ]
    [ "$(own get "$NAME")" = rival ]
}

# gone MS TTL HOW...: without the key by HOW, the tree ends within MS.
gone() {
    own del "$NAME"
    starts 4 -q --ttl "$2" "$L" $SUBJECT -t -k
    [ "$2" -lt 4 ] || own_tracks
    own "${@:3}"
    gone=$(now_ns)
    ended
    assert_rc 79
    assert_out "is lost"
    [ "$(grep -c '^dlock: ' out)" = 1 ]
    assert_between 1 "$(last_beat)" $((gone + ($1 + BUSY) * NS)) "last sign of life (${*:3})"
    for who in main child session daemon; do
        [ "$(count_seen $who sig 15)" = 0 ]
    done
    settle 2
}

@test "a key that is deleted, flushed or replaced ends the hold at once" {
    own_server
    redis_warm "$L.warm"
    gone 100 30 del "$NAME"
    gone 100 30 flushall
    gone 100 30 set "$NAME" thief px 60000
    [ "$(own get "$NAME")" = thief ]
}

refused_once() { [ "$(own acl log | grep -cx 'client|tracking')" = 1 ]; }

# Behind the grant, so that the renewal is a whole interval off.
@test "the next renewal notices a deleted key where the server tells of no changes" {
    own_server
    own acl setuser default '-client|tracking'
    gone $((INTERVAL + 50)) 3 del "$NAME"
    # Asked once, and nothing is said.
    own acl log reset
    hold --ttl 4
    wait_for 4 refused_once
    before=$(asked)
    wait_for 4 has_asked "$before"
    refused_once
    let_go
    [ ! -s hold.log ] || fail "$(cat hold.log)"
}

# The keeper learns of both at once when it continues: the command's end, and the closed connection.
@test "a release behind a restart without data says that the lock was lost" {
    own_server --appendonly no
    ends_while_stopped -q --ttl 60
    redis_kill own
    redis_launch own "${REDIS_DIRS[own]}" "${REDIS_PORTS[own]}" --appendonly no
    kill -CONT "$HOLDER"
    exits 79 8 "$HOLDER"
    grep -q 'was not ours any more when it was released' hold.log || fail "$(cat hold.log)"
}

# as PASSWORD ARG...: redis-cli with this password. late PASSWORD NEXT: the server has the next one,
# and hangs up; the file does not.
as() { REDISCLI_AUTH=$1 own "${@:2}"; }
late() {
    as "$1" config set requirepass "$2"
    as "$2" acl log reset
    as "$2" client kill type normal
}
refused_as() { as "$1" acl log | grep -qx auth; }
renewed_as() { [ "$(as "$1" pttl "$NAME")" -gt 25000 ]; }

@test "a hold reads its password again, and rides out a wrong or a missing one" {
    own_server --requirepass old
    L="redis://127.0.0.1:${REDIS_PORTS[own]}?password-file=$T/pw#$NAME"
    install -m 600 /dev/null pw
    echo old >pw
    hold
    late old new
    wait_for 5 refused_as new
    as new pexpire "$NAME" 20000
    echo new >pw
    wait_for 5 renewed_as new
    late new newer
    : >go
    wait_for 5 refused_as newer
    echo newer >pw
    exits 0 8 "$HOLDER"
    [ "$(as newer exists "$NAME")" = 0 ]
    hold --connect-timeout 1
    mv pw away
    late newer newest
    let_go 0
    file_has hold.log "is not confirmed: password-file $T/pw: No such file"
    mv away pw
    # At the first acquire it is an error.
    says 77 "the user or password is wrong" "$L" true
}

@test "a release leaves a key alone that the command has overwritten" {
    own_server
    run run_t 5 "$DLOCK" -q --ttl 30 "$L" redis-cli -p "${REDIS_PORTS[own]}" set "$NAME" thief px \
        60000
    assert_rc 79
    [ "${#lines[@]}" = 2 ] # one is redis-cli's
    assert_out "was not ours any more when it was released"
    [ "$(own get "$NAME")" = thief ]
    [ "$(own pttl "$NAME")" -gt 50000 ]
    # Something that only looks like ours: the same length, the same form, another token.
    run run_t 5 "$DLOCK" -q --ttl 30 "$L.2" sh -c '
        v=$(redis-cli -p "$1" get "$2") &&
            redis-cli -p "$1" set "$2" "0123456789abcdef0123456789abcdef ${v#* }" px 60000' - \
        "${REDIS_PORTS[own]}" "$NAME.2"
    assert_rc 79
    [[ $(own get "$NAME.2") == "0123456789abcdef0123456789abcdef "* ]]
}
