#!/usr/bin/env bats
# list.bats - --list of a Redlock: the names of all servers, and what a majority says of each.

# bats file_tags=long
load ../../support/redlockfile

store() { echo "${L%#*}"; }
lists() { run -0 --separate-stderr run_t 20 "$DLOCK" -v --list "$(store)#$1"; }
status_of() { "$DLOCK" --status --json "$L" | sed -n 's/.*"state":"\([a-z]*\)".*/\1/p'; }

# A minority's name is no lock; a broken hold is marked by a majority.
@test "a list says what --status says of a minority" {
    local k value mark
    rl_start 5
    L=$(rl_uri "$NAME")
    held a --ttl 9 --grace 3
    stop_pid "${PIDS[a]}"
    rl 1 del "$NAME" >/dev/null
    rl 2 del "$NAME" >/dev/null
    lists "$NAME"
    [[ $output == "$NAME  held, fence "* ]] && [ "$(status_of)" = held ] || fail "$output"
    [[ $stderr == *"locks that dlock has not taken are not listed"* ]] || fail "$stderr"
    value=$(rl 3 get "$NAME")
    mark="{$NAME}:dlock:break:${value%% *}"
    for k in 3 4; do
        rl "$k" set "$NAME" "$value break=1" keepttl >/dev/null
        rl "$k" set "$mark" "1 root@db1" px 9000 >/dev/null
    done
    lists "$NAME"
    [[ $output == *held* ]] && [[ $output != *"being broken"* ]] || fail "$output"
    rl 1 set "$NAME" "$value break=1" px 9000 >/dev/null
    rl 1 set "$mark" "1 root@db1" px 9000 >/dev/null
    lists "$NAME"
    [[ $output == *"held, fence "*", being broken: "* ]] || fail "$output"
    on "1 3 4" del "$NAME"
    lists "$NAME"
    [ -z "$output" ] && [ "$(status_of)" = free ] || fail "$output"
    kill -KILL "${PIDS[a]}"
    wait_for 15 started_gone
}

@test "servers that do not answer are named once; a missing majority: 69" {
    rl_start 3
    L=$(rl_uri "$NAME")
    held a --ttl 30
    rl_die 3
    lists "*"
    [[ $output == "$NAME  held, fence "* ]] || fail "$output"
    [ "$(grep -c ": 127.0.0.1:$(rl_port 3): .* (one of 3 servers)" <<<"$stderr")" = 1 ] ||
        fail "$stderr"
    rl_freeze 2
    run -69 run_t 20 "$DLOCK" --connect-timeout 1 --list "$(store)"
    assert_out "only 1 of 3 servers can be used, 2 are needed"
    rl_thaw 2
    rl_revive 3
    rl_freeze 3
    lists "*"
    [[ $output == "$NAME  held, fence "* ]] || fail "$output"
    [ "$(grep -c ":$(rl_port 3).*no answer (one of 3 servers)" <<<"$stderr")" = 1 ] ||
        fail "$stderr"
    rl_thaw 3
    end a
}

@test "a lock whose keys cannot be read is counted" {
    local k u
    rl_start 3
    L=$(rl_uri "$NAME")
    held a --ttl 30
    for k in $(rl_all); do
        rl "$k" acl setuser looker on '>secret' '~*' '&*' +@all -scan >/dev/null
    done
    u=$(store | sed 's|127|looker:secret@127|g')
    run -77 run_t 20 "$DLOCK" --list "$u"
    assert_out "+scan"
    on_all acl setuser looker +scan -zrange
    run -0 run_t 20 "$DLOCK" -v --list "$u"
    assert_out "1 locks are not listed: "
    assert_out "+zrange"
    end a
}

many() { # locks 1...$1 on each server
    local k
    for k in $(rl_all); do many_locks "$1" rl "$k"; done
}

# Memory and time are not a sanitizer's.
# bats test_tags=plain
@test "10 000 locks: below 20 MB, no call over 5 ms" {
    local k
    rl_start 3 --appendonly no
    L=$(rl_uri "$NAME")
    many 10000
    on_all config set slowlog-log-slower-than 5000
    for k in $RL_PIDS; do renice -n -20 -p "$k" >/dev/null 2>&1 || :; done
    for _ in 1 2 3; do
        on_all slowlog reset
        t0=$(now_ms)
        "$ROOT/tests/support/helpers/peak_rss.py" rss timeout 60 "$DLOCK" --list "$(store)" >listed
        took=$(($(now_ms) - t0))
        [ "$(wc -l <listed)" = 10000 ] && [ "$(sort -u listed | wc -l)" = 10000 ]
        [ "$(rl_count "slowlog len" 0)" != 3 ] || break
    done
    [ "$(rl_count "slowlog len" 0)" = 3 ] || fail "$(rl 1 slowlog get)"
    [ "$(cat rss)" -lt 20 ] || fail "$(cat rss) MiB"
    assert_between 0 "$took" $((10000 + BUSY)) ms
}
