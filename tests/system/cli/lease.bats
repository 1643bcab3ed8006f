#!/usr/bin/env bats
# lease.bats - what the keeper does with a lease that is not renewed, is lost, or is granted late,
# and when its command is told to end: the command's whole tree is gone before the lease is over,
# and the lock is released after that.

# bats file_tags=long
load ../../support/fake

# ends_at_kill_at: the tree is killed at that time, and the lock is released after it.
ends_at_kill_at() {
    assert_between $((KILL_AT - 150 * NS)) "$(last_beat)" $((DEADLINE - 1)) "last sign of life"
    [ "$(last_beat)" -lt "$(at release)" ]
}
beats_after() { [ "$(last_beat)" -gt "$1" ]; } # TIME (ns)

# said REGEX...: these lines about the lock, and no others.
said() {
    local n=0
    local -a out
    mapfile -t out <"$T/out"
    [ ${#out[@]} -eq $# ] || fail "$(cat "$T/out")" || return
    while [ $n -lt ${#out[@]} ]; do
        [[ ${out[n++]} =~ ^"dlock: fake://$S: the lock '$NAME' "${!n}$ ]] ||
            fail "line $n: ${out[n - 1]}" || return
    done
}
DURATION='[0-9.]+ (s|ms)'
ENDS="no answer; the command will be ended in $DURATION unless the store answers"

# --- the store does not answer -----------------------------------------------

@test "without renewal the command gets TERM at term_at and KILL at kill_at" {
    starts 4 --ttl 1.5 "$L" $SUBJECT -t -k
    wait_for 5 store_did ok
    tell renew unclear
    ends_with 79
    said "has not been renewed for $DURATION: $ENDS" \
        "could not be renewed in time: no answer; ending the command"
    lease_times 1500 "$(confirmed)"
    for who in main child session daemon; do
        just_after "$TERM_AT" "$(seen $who sig 15)" 250 "TERM for $who"
        [ "$(count_seen $who sig 15)" = 1 ]
    done
    ends_at_kill_at
    settle 1
}

@test "--grace is the time between TERM and KILL" {
    starts 1 --ttl 1.5 --grace 400ms "$L" $SUBJECT -k
    tell renew hang
    ends_with 79
    lease_times 1500 "$(confirmed)" 400
    just_after "$TERM_AT" "$(seen main sig 15)" 250 TERM
    ends_at_kill_at
}

@test "a renewal during the grace brings no reprieve" {
    starts 1 --ttl 1.5 --grace 500ms "$L" $SUBJECT -k
    tell renew unclear
    wait_for 5 has_seen main sig 15
    tell renew ok
    ends_with 79
    [ "$(at ok -1)" -gt "$(seen main sig 15)" ]
    just_after "$(($(seen main sig 15) + 300 * NS))" "$(last_beat)" 400 "last sign of life"
    [ "$(last_beat)" -lt "$(at release)" ]
}

@test "a command that TERM ends for want of a renewal is followed by its descendants" {
    starts 4 -q --ttl 1.5 "$L" $SUBJECT -t -n
    tell renew unclear
    ends_with 79
    # -q: of the loss only.
    said "could not be renewed in time: no answer; ending the command"
    lease_times 1500 "$(confirmed)"
    [ "$(last_beat 0)" -lt $((TERM_AT + 200 * NS)) ]
    ends_at_kill_at
}

@test "rides out a pause of the renewals" {
    starts 1 -q --ttl 2 "$L" $SUBJECT -u "$T/end" -r 42
    tell renew unclear
    wait_for 5 store_did unclear 4
    tell renew ok
    wait_for 5 store_did ok 3
    finish 42
    [ "$output" = "" ]
    [ "$(count_seen main sig 15)" = 0 ]
}

@test "trouble is said once, and so is its end" {
    starts 1 --ttl 3 "$L" $SUBJECT -u "$T/end" -r 42
    lines_with() { [ "$(grep -c "$2" "$T/out")" = "$1" ]; } # N TEXT
    for round in 1 2; do
        tell renew unclear
        wait_for 5 lines_with $round 'has not been renewed'
        tell renew ok
        wait_for 5 lines_with $round 'is renewed again'
    done
    finish 42
    trouble="has not been renewed for $DURATION: $ENDS"
    said "$trouble" "is renewed again after $DURATION" "$trouble" "is renewed again after $DURATION"
    [ "$(count_seen main sig 15)" = 0 ]
}

@test "a command that ends before the deadline has lost nothing" {
    starts 1 --ttl 2 "$L" $SUBJECT -u "$T/end"
    tell renew unclear
    wait_for 5 store_did unclear
    finish 0
    store_did clean
}

# --- the lock is lost --------------------------------------------------------

@test "a loss reported by the store or by a renewal kills the command at once" {
    for how in "lost 30 $((300 + SLOW))" 'renew 1.5 50'; do
        rm -rf "$S"/*
        read -r file ttl bound <<<"$how"
        starts 4 --ttl $ttl --lost-exit-code 7 "$L" $SUBJECT -t -k
        lost=$(now_ns)
        tell $file lost
        ends_with 7
        assert_out "$NAME" "is lost"
        [ $file = lost ] || lost=$(at lost)
        gone_by $bound "$lost"
        [ -z "$(seen main sig 15)" ]
        ! store_did clean || [ "$(last_beat)" -lt "$(at clean)" ]
        settle 1
    done
}

@test "a release that answers 'not ours' is a loss although the command returned 0" {
    tell release notours
    run -79 run_t 10 "$DLOCK" "$L" true
    assert_out "dlock: fake://$S: the lock '$NAME' was not ours any more when it was released"
    rm "$S/held"
    run -0 run_t 10 "$DLOCK" --lost-exit-code 0 "$L" sh -c 'exit 5'
}

@test "a release without an answer gives the command's code and a warning, in time" {
    for how in "unclear 0" "hang 380"; do
        rm -f "$S/held"
        tell release ${how% *}
        timed --connect-timeout 400ms "$L" sh -c 'exit 5'
        assert_rc 5
        assert_out "the release of '$NAME' is not confirmed: no answer"
        [ "${#lines[@]}" = 1 ] || fail "$output"
        assert_between ${how#* } $took $((800 + SLOW)) "time (ms)"
    done
}

@test "--on-lost kill sends no TERM" {
    starts 4 --ttl 1.5 --on-lost kill "$L" $SUBJECT -t -k
    tell renew unclear
    ends_with 79
    lease_times 1500 "$(confirmed)" 0
    ends_at_kill_at
    [ "$(count_seen main sig 15)" = 0 ]
}

@test "--on-lost warn lets the command run on after missed renewals" {
    starts 1 --ttl 1 --on-lost warn "$L" $SUBJECT -u "$T/end"
    tell renew unclear
    wait_for 5 file_has "$T/out" "--on-lost warn"
    lease_times 1000 "$(confirmed)" 0
    wait_for 5 beats_after $((DEADLINE + 200 * NS))
    finish 79
    [ "$(count_seen main sig 15)" = 0 ]
    said "has not been renewed for $DURATION: ${ENDS/the command will be ended/it expires}" \
        "could not be renewed in time: no answer; the command continues .--on-lost warn."
}

@test "--on-lost warn lets the command run on after a certain loss, and of a stopped keeper" {
    starts 1 --ttl 1 --on-lost warn "$L" $SUBJECT -u "$T/end"
    touch "$S/lost"
    wait_for 5 file_has "$T/out" "is lost: lost unasked; the command continues"
    wait_for 5 beats_after $(($(now_ns) + 1200 * NS))
    finish 79
    rm -rf "$S"/*
    starts 1 --ttl 1 --on-lost warn "$L" $SUBJECT -u "$T/end" -r 4
    kill -STOP "$K"
    lease_times 1000 "$(now_ns)"
    wait_for 5 beats_after $((DEADLINE + 100 * NS))
    kill -CONT "$K"
    touch "$T/end"
    ended
    # What became of the lock is up to the store: renewed at the last moment, or reported.
    case $status in 4 | 79) ;; *) fail "exit code $status" ;; esac
}

@test "--on-lost warn does not protect the tree of a dead keeper" {
    starts 4 --ttl 30 --on-lost warn "$L" $SUBJECT -t -k
    kill -KILL "$K"
    gone_by $((500 + SLOW)) "$(now_ns)"
}

# --- the end of a command that was told to end -------------------------------

@test "descendants get TERM and, after --grace, KILL, before the release" {
    starts 4 --ttl 30 --grace 600ms "$L" $SUBJECT -t -n
    kill -TERM "$K"
    ends_with 143
    [ "$(count_seen main sig 15)" = 1 ]
    for who in child session daemon; do has_seen $who sig 15; done
    t=$(seen session sig 15)
    assert_between $((t + 540 * NS)) "$(last_beat)" $((t + 700 * NS)) "last sign of life"
    [ "$(last_beat)" -lt "$(at release)" ]
    store_did clean
}

@test "descendants that obey TERM do not delay the release" {
    starts 4 --ttl 60 --grace 10s "$L" $SUBJECT -t
    kill -TERM "$K"
    ends_with 143 5
    [ "$(last_beat)" -lt "$(at release)" ]
}

@test "a command that ignores TERM is not timed" {
    starts 1 --ttl 3 --grace 100ms "$L" $SUBJECT -k -u "$T/end" -r 6
    kill -TERM "$K"
    wait_for 5 has_seen main sig 15
    wait_for 5 store_did ok
    finish 6
}

@test "the lock is renewed until the grace after TERM is over" {
    starts 4 --ttl 2 --grace 1s "$L" $SUBJECT -t -n
    kill -TERM "$K"
    wait_for 5 has_seen session sig 15
    ends_with 143
    [ "$(at ok -1)" -gt "$(seen session sig 15)" ]
    [ "$(last_beat)" -lt "$(at release)" ]
}

@test "a loss during the grace after TERM kills at once" {
    starts 4 --ttl 60 --grace 10s "$L" $SUBJECT -t -n
    kill -TERM "$K"
    wait_for 5 has_seen daemon sig 15
    touch "$S/lost"
    lost=$(now_ns)
    ends_with 79 5
    gone_by $((300 + SLOW)) "$lost"
}

@test "a keeper stopped during the grace does not outlast the lease" {
    starts 4 --ttl 2 --grace 1s "$L" $SUBJECT -t -n
    kill -TERM "$K"
    wait_for 5 has_seen daemon sig 15
    kill -STOP "$K"
    wait_for 5 tree_gone
    kill -CONT "$K"
    lease_times 2000 "$(confirmed)" 1000
    [ "$(last_beat)" -lt "$DEADLINE" ]
    ended
    case $status in 143 | 79) ;; *) fail "exit code $status" ;; esac
    [ "$(last_beat)" -lt "$(at release)" ]
}

# --- a grant that comes late -------------------------------------------------

@test "a late grant is confirmed by a renewal before the command starts" {
    tell acquire grant 500
    tell renew ok 200 # a command that does not wait for it is earlier
    starts 1 --ttl 2 "$L" $SUBJECT -u "$T/end"
    [ "$(at ok)" -gt $(($(at acquire) + 700 * NS)) ]
    [ "$(seen main start '')" -gt "$(at ok)" ]
    finish 0
}

@test "a grant after term_at never starts the command and is given back" {
    tell acquire grant 850
    background --ttl 1 -n "$L" $SUBJECT
    ends_with 69
    [ ! -e "$C/events" ]
    store_did clean
    [ ! -e "$S/held" ]
}

@test "a keeper that is stopped while it is granted never starts the command too late" {
    tell acquire wait
    background --ttl 1 "$L" $SUBJECT -u "$T/end"
    wait_for 5 store_did acquire
    tell acquire grant
    wait_for 5 file_nonempty "$S/fence"
    kill -STOP "$K"
    wait_for 2 pid_stopped "$K"
    if running; then # it was faster: then the guard has the command
        wait_for 5 tree_gone
        kill -CONT "$K"
        ends_with 79
        return
    fi
    lease_times 1000 "$(now_ns)"
    wait_for 5 beyond $((DEADLINE / NS + 1))
    kill -CONT "$K"
    wait_for 5 pid_gone_or_running
    if running; then
        # Only under a fresh grant or renewal.
        [ "$(seen main start '')" -lt $(($(confirmed) + 772 * NS)) ]
        touch "$T/end"
    fi
    ended
}
pid_gone_or_running() { pid_gone "$K" || running; }

@test "a guard that is stopped before the start never starts the command too late" {
    tell acquire wait
    background --ttl 1 "$L" $SUBJECT
    wait_for 5 store_did acquire
    find_guard
    kill -STOP "$G"
    wait_for 2 pid_stopped "$G"
    tell acquire grant
    wait_for 5 file_nonempty "$S/fence"
    tell renew unclear
    lease_times 1000 "$(now_ns)"
    wait_for 5 beyond $((DEADLINE / NS + 1))
    kill -CONT "$G" || :
    ended
    case $status in 69 | 71 | 79) ;; *) fail "exit code $status" ;; esac
    [ ! -e "$C/events" ]
}

@test "gives the lock back when the guard is stopped before the start" {
    tell acquire wait
    start_log "$T/out" "$DLOCK" --ttl 2 "$L" touch "$T/ran"
    K=$STARTED
    wait_for 5 store_did acquire
    wait_for 5 guard_is_there
    kill -STOP "$G"
    tell acquire grant
    rc=0
    wait_exit 8 "$K" || rc=$?
    [ "$rc" -eq 71 ] || [ "$rc" -eq 79 ]
    [ ! -e "$T/ran" ]
    store_did clean
}
