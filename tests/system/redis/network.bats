#!/usr/bin/env bats
# A network that loses packets, resets connections or answers no questions about names, between
# dlock and a real redis-server: two machines of our own, see support/netns.bash.

# bats file_tags=long
load ../../support/common
load ../../support/fake
load ../../support/netns

setup() {
    dlock_setup
    fake_setup # the command that tells what happens to it
    L="redis://$SERVER:$PORT#$NAME"
}

left() { srv pttl "$NAME"; }
key_is_gone() { [ "$(srv exists "$NAME")" = 0 ]; }
# The number of the connection that the holder uses now; none: empty.
connection() { srv client list | sed -n "s/^id=\([0-9]*\) addr=$CLIENT:.*/\1/p" | tail -n 1; }
another_connection() { local c; c=$(connection) && [ -n "$c" ] && [ "$c" != "$1" ]; }
# silent RC: the command ends unharmed with RC, and dlock has said nothing.
silent() { unharmed "$1" && { [ -z "$output" ] || fail "$output"; }; }
rival_is_in() { [ "$(wc -l <"$T/rival")" = 3 ]; }

# --- packets are dropped -----------------------------------------------------

# bats test_tags=slow
@test "a hold rides out a short silent drop" {
    net_up
    # With this grace the first renewal is due after 4.7 s.
    net_hold --ttl 30 --grace 14 "$L" $SUBJECT -u "$T/end" -r 3
    wait_for 5 running
    net_cut
    run sleep 5.5 # the fault itself
    [ "$(left)" -lt 25500 ] || fail "there was a renewal: the cut proves nothing"
    net_mend
    wait_for 8 left_is_over 26000
    silent 3
    key_is_gone
}

@test "a long silent drop ends the tree before others can hold the lock" {
    net_up
    net_hold --ttl 3 "$L" $SUBJECT -t -k
    wait_for 5 running 4
    net_cut
    start server "$ROOT/tests/support/helpers/contender.py" $PORT "$NAME" 10 >"$T/rival"
    ended
    assert_rc 79
    assert_out "has not been renewed for"
    assert_out "could not be renewed in time"
    [ "$(grep -c '^dlock:' "$T/out")" = 2 ]
    wait_for 5 rival_is_in
    { read -r expiry && read -r entered && read -r answered; } <"$T/rival"
    [ "$expiry" -gt 0 ]
    # The server's lease began a moment after ours, by a renewal or the acquisition.
    lease_times 3000 $((expiry - 3000 * NS))
    for who in main child session daemon; do
        assert_between $((TERM_AT - 800 * NS)) "$(seen $who sig 15)" $((TERM_AT + 250 * NS)) \
            "TERM for $who"
        [ "$(count_seen $who sig 15)" = 1 ]
    done
    [ "$(last_beat)" -lt "$DEADLINE" ]
    [ "$answered" -ge "$expiry" ] ||
        fail "the key was free at $answered, $((expiry - answered)) ns before its end"
    [ "$(last_beat)" -lt "$entered" ]
    # What comes through late takes nothing away from the new owner.
    net_mend
    wait_for 2 pid_gone "$K"
    [ "$(srv get "$NAME")" = rival ]
}

@test "a lost reply to the acquisition gives the lock back" {
    net_up
    client "$DLOCK" -q "redis://$SERVER:$PORT#warm" true # the scripts are known
    net_lose_replies
    client_timed --ttl 30 --connect-timeout 1 "$L" touch "$T/ran"
    assert_rc 69
    assert_out "$SERVER:$PORT"
    [ ! -e "$T/ran" ]
    assert_between 1000 $took $((1900 + SLOW)) "time (ms)"
    # It did get there: the fence says so.
    [ "$(srv exists "{$NAME}:dlock:fence")" = 1 ]
    wait_for 2 key_is_gone
}

@test "a waiter's grant whose reply was lost is undone" {
    net_up
    srv set "$NAME" x px 60000
    net_hold --ttl 6 "$L" $SUBJECT -m 1 -r 7
    wait_for 5 eval '[ "$(srv zcard "{$NAME}:dlock:queue")" = 1 ]'
    net_lose_replies
    srv del "$NAME"
    # It looks by itself every 2 s; what it is granted it cannot know.
    wait_for 5 left_is_over 0
    # Questions are lost now, too: the grant stays where it is.
    net_cut
    run sleep 1 # the fault itself: longer than an answer is waited for
    [ ! -e "$C/events" ]
    # The old connection is of no use any more, nor what is on its way there.
    srv client kill type normal
    [ "$(left)" -gt 4000 ]
    net_mend
    t0=$(now_ms)
    ended
    assert_rc 7
    assert_between 0 $(($(now_ms) - t0)) $((3000 + SLOW)) \
        "time from the link's return to the end (ms)"
    key_is_gone
}

# bats test_tags=slow
@test "a hold rides out lost replies" {
    net_up
    net_hold -q --ttl 4 --grace 500ms "$L" $SUBJECT -u "$T/end" -r 4
    wait_for 5 running
    first=$(connection)
    net_lose_replies
    # It asks again on another connection.
    wait_for 4 another_connection "$first"
    net_mend
    # Longer than the lease of before the fault.
    lives_for 4000
    silent 4
    key_is_gone
}

# bats test_tags=slow
@test "a hold rides out the loss of every sixth packet" {
    net_up
    net_hold --ttl 6 --grace 500ms "$L" $SUBJECT -u "$T/end" -r 4
    wait_for 5 running
    server iptables -I INPUT -i link0 -m statistic --mode nth --every 6 --packet 0 -j DROP
    client iptables -I INPUT -i link0 -m statistic --mode nth --every 6 --packet 3 -j DROP
    lives_for 6000
    net_mend
    silent 4
}

@test "a hold survives connection resets" {
    net_up
    net_hold --ttl 3 "$L" $SUBJECT -u "$T/end" -r 5
    wait_for 5 running
    first=$(connection)
    [ -n "$first" ]
    net_reset
    # The next renewal meets it, 0.77 s after the last one at most.
    wait_for 3 net_was_reset
    net_mend
    wait_for 3 another_connection "$first"
    wait_for 3 left_is_over 2500
    silent 5
}

@test "a waiter rides out a silent drop, and gets the lock afterwards" {
    net_up
    srv set "$NAME" x px 60000
    net_hold --ttl 6 "$L" $SUBJECT -m 1 -r 7
    wait_for 5 eval '[ "$(srv zcard "{$NAME}:dlock:queue")" = 1 ]'
    net_cut
    run sleep 3 # the fault itself: two of its refreshs are lost
    pid_alive "$K"
    srv del "$NAME"
    net_mend
    ended 10
    assert_rc 7
    key_is_gone
    [ "$(srv zcard "{$NAME}:dlock:queue")" = 0 ]
}

@test "a server that drops everything fails in time" {
    net_up
    net_cut
    client_timed --connect-timeout 1 "$L" touch "$T/ran"
    assert_rc 69
    assert_out "$SERVER:$PORT"
    assert_out "no answer"
    assert_between 1000 $took $((1250 + SLOW)) "--connect-timeout 1 (ms)"
    client_timed -w 0.3 "$L" touch "$T/ran"
    assert_rc 69
    assert_between 300 $took $((450 + SLOW + BUSY)) "-w 0.3 (ms)"
    net_hold --connect-timeout 20 "$L" $SUBJECT
    wait_for 5 eval 'client ss -Htn state syn-sent | grep -q .'
    t0=$(now_ms)
    kill -TERM "$K"
    ended
    assert_rc 143
    assert_between 0 $(($(now_ms) - t0)) $((500 + SLOW + BUSY)) "time to die (ms)"
    [ ! -e "$T/ran" ] && [ ! -e "$C/events" ]
}

# --- names -------------------------------------------------------------------

@test "silent DNS delays neither -w, --connect-timeout nor signals" {
    net_up
    net_dns_silent
    net_dns_bounds "redis://redis.test:$PORT#$NAME" redis.test
}

# Two more servers of a Redlock, and what it is called where the third name is one that nobody
# knows.
redlock_up() {
    local p
    net_up
    for p in 6380 6381; do
        start_log "$T/etc/redis$p.log" server redis-server --port $p --bind 127.0.0.1 $SERVER \
            --protected-mode no --save '' \
            --daemonize no --dir "$T/etc" --logfile ''
        wait_for 10 server_is_up $p || return
    done
    printf '%s r1.test r2.test\n' $SERVER >>"$T/etc/hosts"
    R="redlock://r1.test:$PORT,r2.test:6380,r3.test:6381/?restart-grace=0#$NAME"
}

@test "silent DNS for one server of a Redlock is harmless" {
    redlock_up
    net_dns_silent
    client_timed --connect-timeout 2 "$R" echo ran
    assert_rc 0
    [ "$output" = ran ]
    assert_between 1000 $took $((1500 + SLOW)) "half of --connect-timeout goes by (ms)"
    client_timed -w 1 "$R" echo ran
    assert_rc 0
    assert_between 500 $took $((1000 + SLOW)) "half of -w goes by (ms)"
    client_timed --connect-timeout 2 --status "$R"
    assert_rc 0
    [ "$(net_dns_asked)" -ge 3 ]
    # One name is not a majority.
    client_timed --connect-timeout 1 \
        "redlock://r1.test:$PORT,r3.test:6381,r4.test:6382/?restart-grace=0#$NAME" touch "$T/ran"
    assert_rc 69
    [ ! -e "$T/ran" ]
    key_is_gone
}

# bats test_tags=slow
@test "a Redlock server whose name resolves again gets the lock" {
    redlock_up
    net_dns_silent
    echo "options timeout:1 attempts:1" >>"$T/etc/resolv.conf"
    net_hold --ttl 3 --connect-timeout 2 "$R" $SUBJECT -u "$T/end" -r 6
    wait_for 5 running
    [ "$(server redis-cli -p 6381 exists "$NAME")" = 0 ]
    echo "$SERVER r3.test" >>"$T/etc/hosts"
    third_has_it() { [ "$(server redis-cli -p 6381 exists "$NAME")" = 1 ]; }
    wait_for 20 third_has_it
    unharmed 6
    [ "$(server redis-cli -p 6381 exists "$NAME")" = 0 ]
}

@test "a DNS failure is reported at once, and ridden out with --retry" {
    net_up
    # The reply is an ICMP error: nobody listens.
    echo "nameserver $SERVER" >"$T/etc/resolv.conf"
    client_timed --connect-timeout 20 "redis://redis.test:$PORT#$NAME" touch "$T/ran"
    assert_rc 69
    assert_out "redis.test"
    assert_between 0 $took $((3000 + SLOW)) "time (ms)"
    [ ! -e "$T/ran" ]
    # With --retry the name is looked up again.
    net_hold --retry "redis://redis.test:$PORT#$NAME" touch "$T/ran"
    local later=$(($(now_ms) + 500))
    wait_for 5 beyond "$later"
    pid_alive "$K"
    echo "$SERVER redis.test" >>"$T/etc/hosts"
    ended 10
    assert_rc 0
    [ -e "$T/ran" ]
}

# bats test_tags=slow
@test "a renewal never waits for DNS" {
    net_up
    echo "$SERVER redis.test" >>"$T/etc/hosts"
    net_dns_silent
    net_hold --ttl 3 "redis://redis.test:$PORT#$NAME" $SUBJECT -u "$T/end" -r 6
    wait_for 5 running
    [ "$(net_dns_asked)" = 0 ]
    echo "127.0.0.1 localhost" >"$T/etc/hosts"
    # For the first ten seconds the addresses count as fresh, and there is no new look-up.
    now=$(now_ns)
    fresh_no_more() { [ "$(now_ns)" -gt $((now + 10300 * NS)) ]; }
    wait_for 12 fresh_no_more
    for round in 1 2; do
        first=$(connection)
        net_reset
        wait_for 3 net_was_reset
        server iptables -D INPUT 1
        wait_for 2 another_connection "$first"
        wait_for 2 left_is_over 2500
    done
    # There was a look-up beside it, and it is still without an answer.
    [ "$(net_dns_asked)" -ge 1 ]
    silent 6
}

@test "a dead address of several is passed over" {
    net_up
    net_refusing 10.77.0.3
    printf '%s redis.test\n' 10.77.0.3 $SERVER >>"$T/etc/hosts"
    client_timed "redis://redis.test:$PORT#$NAME" echo ran
    assert_rc 0
    [ "$output" = ran ]
    assert_between 0 $took $((900 + SLOW)) "the first one refuses (ms)"
    server iptables -I INPUT -i link0 -d 10.77.0.3 -j DROP
    client_timed --connect-timeout 2 "redis://redis.test:$PORT#$NAME" echo ran
    assert_rc 0
    [ "$output" = ran ]
    assert_between 900 $took $((1900 + SLOW)) "the first one is silent (ms)"
    # Once it holds, renewals go where it works: nothing is lost although the ttl is short.
    net_hold --ttl 1.5 --connect-timeout 2 "redis://redis.test:$PORT#$NAME" $SUBJECT -u "$T/end" \
        -r 8
    wait_for 5 running
    first=$(connection)
    srv client kill id "$first"
    wait_for 2 another_connection "$first"
    lives_for 1500
    silent 8
}

@test "names the host and port where nothing listens" {
    net_up
    echo "$SERVER redis.test" >>"$T/etc/hosts"
    client_timed "redis://redis.test:6390#$NAME" touch "$T/ran"
    assert_rc 69
    assert_out "redis.test:6390"
    assert_out refused
    [ "${#lines[@]}" = 1 ]
    # No machine has that address, and no route leads there.
    client_timed "redis://10.78.0.1:6390#$NAME" touch "$T/ran"
    assert_rc 69
    assert_out "10.78.0.1:6390"
    assert_out unreachable
    assert_between 0 $took $((1000 + SLOW)) "time (ms)"
    [ ! -e "$T/ran" ]
}
