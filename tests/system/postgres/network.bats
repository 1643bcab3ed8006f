#!/usr/bin/env bats
# network.bats - a network that loses packets, or answers no questions about names, between dlock and PostgreSQL:
# names in both modes, and the lease table. Packets and advisory locks: faults.bats.

# bats file_tags=long
bats_require_minimum_version 1.5.0
load ../../support/common
load ../../support/fake
load ../../support/netns
load ../../support/postgres
load ../../support/pgnet

setup_file() { export BATS_NO_PARALLELIZE_WITHIN_FILE=true; }
setup() {
    dlock_setup
    fake_setup # the command that tells what happens to it
}
teardown() { dlock_teardown; }

MODES='advisory lease'

# table EXPRESSION: of the lock's row.
table() { pgsql -d postgres -c "select $1 from public.dlock_locks where name = '$NAME'"; }
# What is left of its lease (ms).
left() { table '(extract(epoch from expires - clock_timestamp()) * 1000)::bigint'; }
left_is_over() { [ "$(left)" -gt "$1" ]; }

# rival [ARG...]: one beside the server, who writes the time of its entry into "rival" (ns).
rival() {
    L=$LOCAL start_waiter rival "$@"
    RIVAL=$WAITER
    waits() { [ "$(pgsql -d postgres -c "select count(*) from pg_stat_activity where application_name like 'dlock:%:%'")" = 1 ]; }
    wait_for 5 waits
}

# --- names ---------------------------------------------------------------------------------------------

@test "silent DNS delays neither -w, --connect-timeout nor signals" {
    net_up
    net_dns_silent
    for mode in $MODES; do
        SLOW=$((SLOW + BUSY)) net_dns_bounds "postgres://u@pg.test:5432/x?mode=$mode#$NAME" pg.test || fail "$mode"
    done
}

# bats test_tags=slow
@test "a renewal never waits for DNS" {
    net_server '?mode=lease'
    echo "$SERVER pg.test" >>"$T/etc/hosts"
    net_dns_silent
    net_hold --ttl 3 "postgres://postgres@pg.test:$PORT/postgres?mode=lease#$NAME" $SUBJECT -u "$T/end" -r 6
    wait_for 5 running
    [ "$(net_dns_asked)" = 0 ]
    echo "127.0.0.1 localhost" >"$T/etc/hosts"
    # For the first ten seconds the addresses count as fresh, and there is no new look-up.
    now=$(now_ns)
    fresh_no_more() { [ "$(now_ns)" -gt $((now + 10300 * NS)) ]; }
    wait_for 12 fresh_no_more
    for round in 1 2; do
        net_reset
        wait_for 3 net_was_reset
        server iptables -D INPUT 1
        wait_for 2 left_is_over 2500
    done
    # There was a look-up beside it, and it is still without an answer.
    [ "$(net_dns_asked)" -ge 1 ]
    touch "$T/end"
    ended
    assert_rc 6
    [ "$output" = "" ]
    [ "$(count_seen main sig 15)" = 0 ]
}

# --- packets -------------------------------------------------------------------------------------------

@test "a long silent drop ends the tree before the rival enters" {
    net_server '?mode=lease'
    net_hold --ttl 3 "$L" $SUBJECT -t -k
    wait_for 5 running 4
    rival
    net_cut
    # Nobody renews it any more: the lease that the server gave ends then.
    lost=$(now_ns)
    end=$(($(now_ns) + $(left) * NS))
    ended
    assert_rc 79
    assert_out "has not been renewed for"
    assert_out "could not be renewed in time"
    [ "$(grep -c '^dlock:' "$T/out")" = 2 ]
    # The server's lease began a moment after ours.
    lease_times 3000 $((end - 3000 * NS))
    for who in main child session daemon; do
        assert_between $((TERM_AT - 300 * NS)) "$(seen $who sig 15)" $((TERM_AT + 250 * NS)) "TERM for $who"
        [ "$(count_seen $who sig 15)" = 1 ]
    done
    [ "$(last_beat)" -gt "$lost" ]
    [ "$(last_beat)" -lt "$DEADLINE" ]
    rc=0
    wait_exit 10 "$RIVAL" || rc=$?
    [ $rc = 0 ]
    # The rival is not let in before, and not much later (it looks when the lease ends).
    assert_between $((end - 20 * NS)) "$(cat rival)" $((end + (1000 + SLOW) * NS)) "the rival's entry (ns)"
    [ "$(last_beat)" -lt "$(cat rival)" ]
    no_violations
    # What comes through late takes nothing away from the next owner.
    fence=$(table fence)
    net_mend
    run -75 "$DLOCK" -q "$LOCAL" "$DLOCK" --no-reentrant -q -n "$LOCAL" true
    [ "$(table fence)" -gt "$fence" ]
}

@test "lost replies end the hold in time" {
    net_server '?mode=lease'
    net_hold --ttl 3 "$L" $SUBJECT -t -k
    wait_for 5 running 4
    rival
    net_lose_replies
    lost=$(now_ns)
    ended
    assert_rc 79
    assert_out "could not be renewed in time"
    # Nothing was confirmed after that: so long after the last renewal at most.
    lease_times 3000 "$lost"
    for who in main child session daemon; do
        assert_between "$lost" "$(seen $who sig 15)" $((TERM_AT + 250 * NS)) "TERM for $who"
    done
    [ "$(last_beat)" -lt "$DEADLINE" ]
    # A renewal did get there: the row is held until the end of that, which is later.
    rc=0
    wait_exit 10 "$RIVAL" || rc=$?
    [ $rc = 0 ]
    [ "$(last_beat)" -lt "$(cat rival)" ]
    no_violations
    net_mend
}

@test "lost replies to the acquisition leave nothing behind" {
    net_server '?mode=lease'
    "$DLOCK" -q "$LOCAL" true # the table is there
    net_lose_replies
    client_timed --ttl 3 --connect-timeout 1 "$L" touch "$T/ran"
    assert_rc 69
    assert_between 1000 $took $((1900 + SLOW)) "time (ms)"
    assert_out "$SERVER:$PG_PORT"
    [ ! -e ran ]
    run -0 run_t 5 "$DLOCK" -q -n "$LOCAL" true
}
