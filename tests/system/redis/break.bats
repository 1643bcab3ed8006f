#!/usr/bin/env bats
# break.bats - --break of a lock in a redis-server: the holder's tree is gone before the next holder
# starts, whatever state the holder is in, and nothing else changes.

# bats file_tags=long,plain
load ../../support/redisfile

# breaks RC ARG...: --break of $L.
breaks() { run "-$1" run_t 20 "$DLOCK" --break --yes "${@:2}" "$L"; }
said_broken() {
    [[ $output == *"was broken by $(id -un)@$(uname -n)$1; ending the command"* ]] || fail "$output"
}
keys() { own --raw keys '*' | sort | tr '\n' ' '; }
only_fence() { [ "$(keys)" = "{$NAME}:dlock:fence " ] || fail "$(keys)"; }
holder_of() { # K: the K-th holder of --status --json, for --holder
    timeout 5 "$DLOCK" --status --json "$L" | /usr/bin/python3 -c "
import json, sys
h = json.load(sys.stdin)['holders'][$1]
print('%s:%d' % (h['host'], h['pid']))"
}

@test "a living holder's tree is gone before the next one starts" {
    own_server
    tree --ttl 9 "$L"
    own_tracks
    start_waiter next --ttl 9
    own_waits_for 1
    marked=$(now_ns)
    breaks 0 --note stuck
    ended
    assert_rc 79
    said_broken ', note "stuck"'
    follows next
    # CLIENT TRACKING tells the holder of the mark: no renewal is waited for.
    just_after "$marked" "$(seen main sig 15)" 700 TERM
    only_fence
}

@test "waiters are served in order after a break, and their places do not change" {
    own_server
    tree --ttl 3 --grace 300ms "$L"
    for n in 1 2 3; do
        start_log "wait$n.log" "$DLOCK" "$L" sh -c 'flock -sn "$1/witness" true || : >>violations
            echo $2 >>order' - "$C" $n
        own_waits_for $n
    done
    queue=$(own zrange "{$NAME}:dlock:queue" 0 -1 withscores)
    start_log break.log "$DLOCK" --break --yes "$L"
    breaking=$STARTED
    wait_for 5 eval '[ "$(own keys "{$NAME}:dlock:break:*")" ]'
    [ "$(own zrange "{$NAME}:dlock:queue" 0 -1 withscores)" = "$queue" ]
    exits 0 10 "$breaking"
    ends_with 79
    wait_for 5 eval '[ "$(tr -d "\n" <order)" = 123 ]' || fail "$(cat order)"
    no_violations || final overlap
}

@test "a mark is shown, prolongs nothing, and keeps nobody out longer than the lease" {
    own_server
    tree --ttl 3 "$L"
    kill -KILL "$K"
    wait_for 5 tree_gone
    left=$(own pttl "$NAME")
    start_log break.log "$DLOCK" --break --yes --note why "$L"
    breaking=$STARTED
    wait_for 2 eval 'own get "$NAME" | grep -q " break=1$"'
    [ "$(own pttl "$NAME")" -le "$left" ]
    # A second break finds the mark, and changes nothing.
    value=$(own get "$NAME") text=$(own get "$(own --raw keys "{$NAME}:dlock:break:*")")
    start_log again.log "$DLOCK" --break --yes --note other "$L"
    again=$STARTED
    start_waiter next
    exits 0 10 "$breaking"
    exits 0 10 "$again"
    follows next
    [[ $value == *" break=1" ]] && [[ $text == *'note "why"' ]] || fail "$value $text"
}

@test "a stopped keeper's tree is gone before the next one starts" {
    own_server
    tree --ttl 3 "$L"
    start_waiter next
    own_waits_for 1
    stop_pid "$K"
    breaks 0
    follows next
    kill -CONT "$K"
    ended
    assert_rc 79
}

@test "a stopped keeper and guard: their lock ends by the ttl, the mark changes nothing" {
    own_server
    tree --ttl 2 "$L"
    find_guard
    stop_pid "$K"
    stop_pid "$G"
    left=$(own pttl "$NAME")
    t0=$(now_ms)
    breaks 0
    assert_between 0 $(($(now_ms) - t0)) $((left + 600 + BUSY)) "ms of the break"
    kill -CONT "$G" "$K"
    ended
    assert_rc 79
}

# at_question CODE COMMAND TEXT: --break asks at a terminal, COMMAND (of cli) runs, the answer is y:
# dlock says TEXT, and its exit code is CODE.
at_question() {
    L=$L at_terminal <<PY
import subprocess
j = t.start([DLOCK, '--break', LOCK])
t.until(lambda: '[y/N]' in t.output, name='the question')
subprocess.run($2, check=True, stdout=subprocess.DEVNULL, timeout=5)
t.type(b'y\n')
check(j.status(), 'exit $1', 'dlock')
check('$3' in t.output, True, t.output)
PY
}
cli() {
    /usr/bin/python3 -c 'import sys; print(sys.argv[1:])' \
        redis-cli -p "${REDIS_PORTS[own]}" "$@"
}

@test "a lock that changed hands while --break asked is not touched" {
    own_server
    other=0123456789abcdef0123456789abcdef
    other+=' dlock1 host=h9 pid=77 user=ann since=1 waited=0 cmd=x note= ttl=9000'
    tree --ttl 9 "$L"
    at_question 75 "$(cli set "$NAME" "$other" px 9000)" 'has changed hands, nothing was done'
    [ "$(own get "$NAME")" = "$other" ]
    [ -z "$(own --raw keys "{$NAME}:dlock:break:*")" ]
    ended
    assert_rc 79
    assert_out "ann@h9, pid 77 holds the lock now"
}

@test "a lock that was freed while --break asked is free" {
    own_server
    own set "$NAME" other >/dev/null
    at_question 0 "$(cli del "$NAME")" "broken: "
    [ -z "$(own --raw keys '*')" ]
}

@test "one of several holders: the others stay" {
    own_server
    for kind in -s --slots=2; do
        held a $kind --ttl 9
        held b $kind --ttl 9
        run -64 run_t 10 "$DLOCK" --break --yes "$L"
        assert_out "pick one with --holder"
        run -75 run_t 10 "$DLOCK" --break --yes --holder nowhere:1 "$L"
        breaks 0 --holder "$(uname -n):${PIDS[a]}"
        exits 79 5 "${PIDS[a]}"
        pid_alive "${PIDS[b]}"
        # The slot and its number are free for the next one.
        held c $kind --ttl 9
        [ "$kind" = -s ] || [ "$(cat slot.c)" = "$(cat slot.a)" ]
        end b c
        only_fence
    done
}

@test "a reader's mark ends with the epoch, a stopped reader by its ttl" {
    own_server
    held a -s --ttl 9
    held b -s --ttl 2
    stop_pid "${PIDS[b]}"
    breaks 0 --holder "$(uname -n):${PIDS[b]}"
    [ "$(own zcard "$(own --raw keys "{$NAME}:dlock:holders:*")")" -le 2 ]
    kill -CONT "${PIDS[b]}"
    exits 79 10 "${PIDS[b]}"
    end a
    # No client was left to delete the text of the mark.
    text=$(own --raw keys "{$NAME}:dlock:break:*")
    assert_between 1 "$(own pttl "$text")" 5000 "PTTL of the text"
}

@test "--force frees at once, and calls the next waiter" {
    own_server
    for kind in '' -s; do
        held a $kind --ttl 60
        stop_pid "${PIDS[a]}"
        start_log next.log "$DLOCK" "$L" true
        own_waits_for 1
        breaks 0 --force
        assert_out "its command may still run beside the next one"
        exits 0 3 "$STARTED"
        kill -CONT "${PIDS[a]}"
        : >go.a
        exits 79 10 "${PIDS[a]}"
        only_fence
    done
}

@test "another program's lock: refused, and freed only by force" {
    own_server
    own set "$NAME" other px 60000 >/dev/null
    breaks 69
    assert_out "use --force"
    [ "$(own get "$NAME")" = other ]
    # The value is compared as it was shown.
    at_question 69 "$(cli set "$NAME" other px 60000)" "use --force"
    at_question 75 "$(cli set "$NAME" another px 60000)" "has changed hands"
    [ "$(own get "$NAME")" = another ]
    breaks 0 --force
    own_gone
    own lpush "$NAME" x >/dev/null
    run run_t 10 "$DLOCK" --break --yes --force "$L"
    assert_out "is a list"
    [ "$(own llen "$NAME")" = 1 ]
}

@test "a hold that is kept by --min-hold alone is freed without a mark" {
    own_server
    run -0 run_t 10 "$DLOCK" --min-hold 1h "$L" true
    ! own_gone || fail 'its own is gone'
    breaks 0
    own_gone
    tree --ttl 3 --min-hold 1h "$L"
    breaks 0
    ended
    assert_rc 79
    own_gone
}

@test "a broken run with --once: its end is recorded, its fence stays" {
    own_server
    tree --ttl 3 --once=1h "$L"
    breaks 0
    ended
    assert_rc 79
    run -0 run_t 5 "$DLOCK" --status "$L"
    assert_out "last run: failed"
    first=$(own get "{$NAME}:dlock:fence")
    run -0 run_t 5 "$DLOCK" --once=1h "$L" sh -c 'echo "$DLOCK_FENCE"'
    [ "$output" -gt "$first" ]
}

@test "a set is lost whole, an inner dlock ends with the outer one" {
    own_server
    tree --ttl 3 --also "$L.other" "$L"
    L=$L.other breaks 0
    ended
    assert_rc 79
    own_gone
    tree --ttl 3 "$L" "$DLOCK" "$L"
    breaks 0
    ended
    assert_rc 79
    tree_gone
}

@test "--on-lost warn and kill, and the event: lost, broken" {
    own_server
    tree --ttl 3 --on-lost warn --events ev "$L"
    breaks 0
    ended
    assert_rc 79
    grep '"event":"lost"' ev | grep -q '"cause":"broken"' || fail "$(cat ev)"
    tree --ttl 3 --on-lost kill "$L"
    breaks 0
    ended
    assert_rc 79
    [ "$(count_seen main sig 15)" = 0 ]
}

@test "during an outage nothing is said to be broken, and the mark outlives it" {
    own_server --appendonly yes --appendfsync always
    tree --ttl 9 "$L"
    redis_kill own
    run -69 run_t 10 "$DLOCK" --break --yes --connect-timeout 1 "$L"
    own_again
    stop_pid "$K"
    start_log break.log "$DLOCK" --break --yes "$L"
    breaking=$STARTED
    wait_for 3 eval 'own get "$NAME" | grep -q " break=1$"'
    redis_kill own
    own_again
    kill -CONT "$K"
    exits 0 15 "$breaking"
    ended
    assert_rc 79
}

@test "without the right: 77, nothing done" {
    own_server
    tree --ttl 60 "$L"
    start_log next.log "$DLOCK" "$L" true
    own_waits_for 1
    own acl setuser looker on '>secret' '~*' '&*' '+@all' -set >/dev/null
    own acl setuser reader on '>secret' "%R~$NAME" "~{$NAME}:dlock:*" '&*' '+@all' >/dev/null
    before=$(own get "$NAME") all=$(keys)
    for user in looker reader; do
        run -77 run_t 10 "$DLOCK" --break --yes "${L/\/\//\/\/$user:secret@}"
        [[ $output != *secret* ]]
        [ "$(own get "$NAME")" = "$before" ] && [ "$(keys)" = "$all" ] || fail "$(keys)"
    done
    assert_out "lacks a right"
    breaks 0
    ended
    assert_rc 79
    exits 0 5 "$STARTED"
}
