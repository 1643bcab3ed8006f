#!/usr/bin/env bats
# network.bats - a network that loses packets, or answers no questions about names, between dlock
# and PostgreSQL.

# bats file_tags=long
load ../../support/netns
load ../../support/pgtests
load ../../support/pgnet

setup_file() { export BATS_NO_PARALLELIZE_WITHIN_FILE=true; }
setup() {
    dlock_setup
    fake_setup # the command that tells what happens to it
}

MODES='advisory lease'

row() { pgsql -c "select $1 from dlock_locks where name = '$NAME'"; }
# What is left of the row's lease (ms).
left() { row '(extract(epoch from expires - clock_timestamp()) * 1000)::bigint'; }
a_waiter() {
    waiting_is 1 || is_sql \
        "count(*) = 1 from pg_stat_activity where application_name like 'dlock:%:%'"
}
# rival: one beside the server, who writes the time of its entry into "rival" (ns).
rival() {
    rm -f rival
    L=$LOCAL start_waiter rival
    wait_for 5 a_waiter
}

# --- names ----------------------------------------------------------------------------------------

@test "silent DNS delays neither -w, --connect-timeout nor signals" {
    net_up
    net_dns_silent
    for mode in $MODES; do
        SLOW=$((SLOW + BUSY)) net_dns_bounds "postgres://u@pg.test:5432/x?mode=$mode#$NAME" \
            pg.test || fail "$mode"
    done
}

# bats test_tags=slow
@test "a renewal never waits for DNS" {
    net_server
    echo "$SERVER pg.test" >>"$T/etc/hosts"
    net_dns_silent
    RUN=net_hold job 6 --ttl 3 "${L/$SERVER/pg.test}"
    [ "$(net_dns_asked)" = 0 ]
    echo "127.0.0.1 localhost" >"$T/etc/hosts"
    # For the first ten seconds the addresses count as fresh, and there is no new look-up.
    now=$(now_ms)
    wait_for 12 beyond $((now + 10300))
    for round in 1 2; do
        net_reset
        wait_for 3 net_was_reset
        server iptables -D INPUT 1
        wait_for 2 left_is_over 2500
    done
    # There was a look-up beside it, and it is still without an answer.
    [ "$(net_dns_asked)" -ge 1 ]
    job_ends_silently
}

# --- packets --------------------------------------------------------------------------------------

# bats test_tags=plain
@test "a long silent drop ends the tree before others can hold the lock" {
    net_server advisory
    RUN=net_hold tree --ttl 3 "$L"
    rival
    pid=$(holder_pid)
    net_cut
    times_out 3000 "$(now_ns)" 1100
    # The server ends the session by itself.
    follows rival
    log_has "$pid" "idle-session timeout"
    net_mend
    # A lease.
    net_mode lease
    RUN=net_hold tree --ttl 3 "$L"
    rival
    net_cut
    # It is not renewed any more: the lease that the server gave ends then, and began a moment after
    # ours.
    cut=$(now_ns)
    end=$(($(now_ns) + $(left) * NS))
    times_out 3000 $((end - 3000 * NS)) 300
    [ "$(last_beat)" -gt "$cut" ]
    follows rival
    # The rival is not let in before, and not much later (it looks when the lease ends).
    assert_between $((end - 20 * NS)) "$(cat rival)" $((end + (1000 + SLOW) * NS)) \
        "the rival's entry (ns)"
    # What comes through late takes nothing away from the next owner.
    fence=$(row fence)
    net_mend
    run -75 "$DLOCK" -q "$LOCAL" "$DLOCK" --no-reentrant -q -n "$LOCAL" true
    [ "$(row fence)" -gt "$fence" ]
}

# bats test_tags=slow
@test "keepalives alone end a cut-off session between ttl and ttl + 2 s" {
    LD_PRELOAD=$HELPERS/no_user_timeout.so net_server advisory
    RUN=net_hold job 0 --ttl 9 "$L"
    rival
    pid=$(holder_pid)
    age() {
        pgsql -c "select (extract(epoch from clock_timestamp() - state_change) * 1000)::int
            from pg_stat_activity where pid = $pid"
    }
    # Not while an answer is on its way: keepalives begin when it has arrived.
    between_renewals() { local ms; ms=$(age) && [ "$ms" -gt 200 ] && [ "$ms" -lt 1000 ]; }
    wait_for 10 between_renewals
    net_cut
    last=$(($(now_ns) - $(age) * NS))
    ends 79
    wait_exit 15 "$WAITER"
    [ "$(last_beat)" -lt "$(cat rival)" ]
    assert_between $((last + 9000 * NS)) "$(cat rival)" $((last + (11000 + BUSY) * NS)) \
        "the rival's entry (ns)"
    no_violations
}

# bats test_tags=slow
@test "a hold rides out a silent drop for a third of the ttl" {
    net_server advisory
    RUN=net_hold job 3 --ttl 4 "$L"
    pid=$(holder_pid)
    net_cut
    run sleep 1.3 # the fault itself
    net_mend
    lasts 4100
    undisturbed
    [ "$(holder_pid)" = "$pid" ]
    job_ends
}

@test "lost replies end the hold in time" {
    net_server
    for mode in $MODES; do
        net_mode $mode
        RUN=net_hold tree --ttl 3 "$L"
        rival
        net_lose_replies
        times_out 3000 "$(now_ns)"
        # Its last renewals did get there; the end of the connection does, too.
        follows rival
        net_mend
    done
}

@test "lost replies to the acquisition run nothing and leave nothing behind" {
    net_server
    "$DLOCK" -q "$LOCAL" true # the table is there
    net_lose_replies
    for mode in $MODES; do
        net_mode $mode
        client_timed --ttl 3 --connect-timeout 1 "$L" touch "$T/ran"
        assert_rc 69
        assert_between 1000 $took $((1900 + SLOW)) "time (ms)"
        assert_out "$SERVER:$PG_PORT"
        [ ! -e ran ]
        # The server ends a session when it hears of that.
        [ $mode = lease ] || wait_for 2 "$DLOCK" -q -n "$LOCAL" true
        run -0 run_t 5 "$DLOCK" -q -n "$LOCAL" true
    done
}

@test "a connection reset ends the hold at once" {
    net_server advisory
    # The next renewal meets it.
    RUN=net_hold tree --ttl 3 "$L"
    net_reset
    t0=$(now_ms)
    ends 79
    assert_between 0 $(($(now_ms) - t0)) $((1200 + SLOW)) "time until the end (ms)"
    [ "$(count_seen main sig 15)" = 0 ]
    net_was_reset
    wait_for 2 tree_gone
}
