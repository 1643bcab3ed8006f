#!/usr/bin/env bats
# break.bats - --break of a Redlock: a mark counts on a majority of the servers. What holds for each
# store is in the contract.

# bats file_tags=long,plain
load ../../support/redlockfile

breaks() { run "-$1" run_t 20 "$DLOCK" --break --yes "${@:2}" "$L"; }
marked_on() {
    local k
    [ "$(for k in $(rl_all); do rl "$k" get "$NAME"; done | grep -c " break=1$")" = "$1" ]
}
texts() { for k in $(rl_all); do rl "$k" --raw keys "{$NAME}:dlock:break:*"; done; }

@test "two of five servers down: broken; three down: nothing done, the mark is taken back" {
    rl_start 5
    L=$(rl_uri "$NAME")
    tree --ttl 9 --grace 300ms "$L"
    stop_pid "$K"
    rl_freeze 1 2 3
    run -69 run_t 20 "$DLOCK" --break --yes --connect-timeout 1 "$L"
    rl_thaw 1 2 3
    wait_for 3 marked_on 0
    [ -z "$(texts)" ] || fail "$(texts)"
    rl_freeze 1 2
    kill -CONT "$K"
    start_waiter next
    breaks 0
    follows next
    rl_thaw 1 2
    ended
    assert_rc 79
}

# The value of the holder on each server; $1 servers get the mark.
mark_on() {
    local k value
    for k in $(rl_all); do
        [ "$k" -le "$1" ] || return 0
        value=$(rl "$k" get "$NAME")
        rl "$k" set "$NAME" "${value% break=1} break=1" keepttl >/dev/null
    done
}

@test "a mark on fewer servers than a majority is ignored" {
    tree --ttl 3 "$L"
    mark_on 2
    run -75 run_t 5 "$DLOCK" --status "$L"
    nap 1.5
    [ "$(count_seen main sig 15)" = 0 ]
    pid_alive "$K"
    mark_on 3
    ended
    assert_rc 79
    assert_out "was broken by an unknown client"
}

@test "a server that was restarted without its data does not undo the mark" {
    rl_start 3
    L=$(rl_uri "$NAME")
    tree --ttl 3 "$L"
    stop_pid "$K"
    mark_on 2
    rl_die 1
    rl_revive 1
    kill -CONT "$K"
    ended
    assert_rc 79
    assert_out "was broken by"
}

@test "another program's lock is freed by force alone, on all servers" {
    for k in $(rl_all); do rl "$k" set "$NAME" other px 60000 >/dev/null; done
    breaks 69
    assert_out "use --force"
    breaks 0 --force
    rl_count "exists $NAME" 0
}

@test "without the right: 77, nothing done" {
    rl_start 3
    L=$(rl_uri "$NAME")
    tree --ttl 60 "$L"
    for k in $(rl_all); do
        rl "$k" acl setuser looker on '>secret' '~*' '&*' +@all -set >/dev/null
    done
    run -77 run_t 10 "$DLOCK" --break --yes "${L/\/\//\/\/looker:secret@}"
    marked_on 0
    breaks 0
    ended
    assert_rc 79
}
