#!/usr/bin/env bats
# break.bats - --break of a lock in a redis-server: the mark in the key and how the holder hears of
# it, other programs' keys, outages, rights. What holds for each store is in the contract.

# bats file_tags=long,plain
load ../../support/redisfile

# breaks RC ARG...: --break of $L.
breaks() { run "-$1" run_t 20 "$DLOCK" --break --yes "${@:2}" "$L"; }
keys() { own --raw keys '*' | sort | tr '\n' ' '; }

@test "the holder hears of a mark at once, without a renewal" {
    own_server
    tree --ttl 9 "$L"
    own_tracks
    marked=$(now_ns)
    breaks 0
    ended
    assert_rc 79
    just_after "$marked" "$(seen main sig 15)" 700 TERM
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

@test "another program's lock: refused, and freed only by force" {
    own_server
    own set "$NAME" other px 60000 >/dev/null
    breaks 69
    assert_out "use --force"
    [ "$(own get "$NAME")" = other ]
    # The value is compared as it was shown.
    same() { own set "$NAME" other px 60000; }
    says_yes 69 "use --force" same --break "$L"
    another() { own set "$NAME" another px 60000; }
    says_yes 75 "has changed hands" another --break "$L"
    [ "$(own get "$NAME")" = another ]
    breaks 0 --force
    own_gone
    own lpush "$NAME" x >/dev/null
    run run_t 10 "$DLOCK" --break --yes --force "$L"
    assert_out "is a list"
    [ "$(own llen "$NAME")" = 1 ]
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
