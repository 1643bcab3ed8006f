#!/usr/bin/env bats
# once.bats - --once, --forget and --min-hold in one Redis server: the record's form, what else may
# be in its place, crashes, lost answers, servers that end or are out of memory. What all stores
# have in common is in the contract suite.

# bats file_tags=long
load ../../support/common
load ../../support/clock
load ../../support/redis
load ../../support/redislock

setup_file() { redis_start && redis_warm; }
teardown_file() { redis_stop; }

setup() {
    dlock_setup
    L="redis://127.0.0.1:$REDIS_PORT#$NAME" R="{$NAME}:dlock:once"
}

# ---------------------------------------------------------------- helpers ---

once() { # RC ARG...
    run "-$1" run_t 9 "$DLOCK" -q --ttl 2 --once "${@:2}"
}
# runs [URI]: a command under --once runs, and fails.
runs() {
    rm -f ran
    run -9 run_t 9 "$DLOCK" -q --ttl 2 --once "${1:-$L}" sh -c ': >ran; exit 9'
    [ -e ran ]
}
# skips [URI]: none does.
skips() {
    rm -f ran
    run -0 run_t 9 "$DLOCK" -q --ttl 2 --once "${1:-$L}" touch ran
    [ ! -e ran ] || final "a command ran after a recorded success"
}
# record_is STATE [CLI...]: in the server.
record_is() {
    local state=$1
    shift
    [[ $("${@:-rcli}" get "$R") == "dlock-run1 $state "* ]]
}
proxy() {
    listener proxy "$REDIS_PORT" "$@"
    P="redis://127.0.0.1:$LISTENS#$NAME"
}
# lua SCRIPT KEYS KEY... ARG...: one of dlock's scripts, sent by hand.
lua() {
    local dir=$ROOT/lib/backends/redis/scripts
    rcli eval "$(awk -v plain=1 -f "$dir/embed.awk" "$dir/$1.lua")" "${@:2}"
}
free() { [ "$(rcli exists "$NAME")" = 0 ]; }

# ----------------------------------------------------------------- record ---

@test "the record is a string beside the lock, and expires one ttl after its time" {
    hold --ttl 2 --once=1h --note 'night run'
    local fence token left
    fence=$(cat held) token=$(rcli get "$NAME") token=${token%% *}
    [[ $(rcli get "$R") =~ \
        ^dlock-run1\ running\ -1\ $fence\ $token\ [0-9]{13}\ 0\ 3600000\ dlock1\ .*note=night ]] ||
        fail "$(rcli get "$R")"
    let_go
    [[ $(rcli get "$R") =~ \
        ^dlock-run1\ succeeded\ 0\ $fence\ $token\ [0-9]{13}\ [0-9]{13}\ 3600000\ dlock1\  ]] ||
        fail "$(rcli get "$R")"
    left=$(rcli pttl "$R")
    assert_between 3590000 "$left" 3602000 "left of the record"
    run -0 run_t 5 "$DLOCK" --status "$L"
    assert_out "last run: succeeded"
    assert_out "night run"
    run -7 run_t 5 "$DLOCK" -q --once=1ms "$L" sh -c 'exit 7'
    record_is "failed 7"
    # A begin that is not there any more, and a record of another run.
    once 0 "$L" redis-cli -p "$REDIS_PORT" del "$R"
    record_is "succeeded 0 0"
}

# The server's clock is the one that counts, however it jumps.
@test "a success counts by the server's clock, also set back a little" {
    with_clock own_server
    once 0 "$L" true
    jump 7200
    skips
    run -3 run_t 5 "$DLOCK" -q --once=1h "$L" sh -c 'exit 3'
    once 0 "$L" true
    jump 6300
    skips
    run -0 run_t 5 "$DLOCK" -q --once=1ms "$L" touch ran
    [ ! -e ran ]
    jump 0
    runs
}

# 100 years, the longest, and a fence counter near its end: the record that says so is still read.
@test "a record of any time is read again" {
    rcli set "{$NAME}:dlock:fence" 4503599627370000
    run -0 run_t 5 "$DLOCK" -q --ttl 2 --once=36500d "$L" true
    record_is "succeeded 0"
    run -0 run_t 5 "$DLOCK" -q --ttl 2 --once=36500d "$L" touch ran
    [ ! -e ran ]
}

# Without that call, each would look half a second after the one before it: 8 waiters would take 4
# s.
@test "those in line behind a success, or behind what is no record, leave in one go" {
    local i code t0 took waiters
    for code in 0 65; do
        waiters=()
        # shellcheck disable=SC2046
        hold --ttl 9 $([ $code -ne 0 ] || echo --once)
        for i in 1 2 3 4 5 6 7 8; do
            start_log "w$i.log" "$DLOCK" -q --ttl 9 --once "$L" touch ran
            waiters+=("$STARTED")
            wait_for 5 queue_is "$i"
        done
        [ $code -eq 0 ] || rcli set "$R" theirs
        t0=$(now_ms)
        let_go
        for i in "${waiters[@]}"; do exits $code 9 "$i"; done
        took=$(($(now_ms) - t0))
        echo "# 8 waiters: $took ms" >&3
        assert_between 0 $took $((2000 + SLOW)) "ms for 8 waiters"
        [ ! -e ran ] || final "ran"
        free
        [ "$(rcli --raw keys "{$NAME}*" | sort | tr '\n' ' ')" = "{$NAME}:dlock:fence $R " ] ||
            fail "$(rcli --raw keys "{$NAME}*")"
        rcli del "$R"
    done
}

@test "--forget removes the record that was shown, and no other" {
    hold --ttl 2 --once
    local token
    token=$(rcli get "$NAME") token=${token%% *}
    let_go
    forget() { lua forget 2 "$NAME" "$R" 0 "{$NAME}:dlock:" "$1"; }
    [ "$(forget "${token:1}0")" = changed ]
    record_is succeeded
    [ "$(forget "$token")" = "done" ]
    [ "$(forget "$token")" = "done" ]
    [ "$(rcli exists "$R")" = 0 ]
    # A run that crashed holds no lock: another one may hold it.
    hold --ttl 1 --once
    kill -KILL "$HOLDER"
    wait_for 5 free
    record_is running
    hold --ttl 2
    run -0 run_t 5 "$DLOCK" --forget --yes "$L"
    let_go
    [ "$(rcli exists "$R")" = 0 ]
}

# bats test_tags=plain,soak
@test "dated names leave nothing behind, each for the same few commands" {
    local n i first
    n=$(amount once_names)
    own_server --appendonly no
    # shellcheck disable=SC2016
    seq "$n" | xargs -P 8 -I {} "$DLOCK" -q --ttl 1 --once=1ms "${L%#*}#report-{}" true 3>&-
    wait_for 9 eval '[ "$(own --raw keys "*once*" | grep -c .)" = 0 ]'
    [ -z "$(own --raw keys '*' | grep -v ':dlock:fence$')" ] || fail "$(own keys '*')"
    own config resetstat
    run -0 run_t 5 "$DLOCK" -q --ttl 1 --once=1ms "${L%#*}#report-x" true
    n=$(own info commandstats | tr -d '\r' |
        sed -n 's/^cmdstat_\([^:]*\):calls=\([0-9]*\).*/\1 \2/p' |
        awk '{ n += $2 } END { print n }')
    # Without it there are 14 of these.
    assert_between 10 "$n" 30 "commands of a run"
}

# ----------------------------------------------------------------- crashes ---

@test "a lost answer costs nothing: one run, one record, exit code 0" {
    # A grant: at first contact the command does not start, and a waiter goes on.
    proxy lose "0 2592000000 0" # the last argument of a try
    once 69 "$P" touch granted
    [ ! -e granted ]
    free
    record_is running
    proxy lose "0 2592000000 0" 3
    hold --ttl 5
    start_log w.log "$DLOCK" --ttl 9 --once "$P" sh -c 'echo >>granted'
    wait_for 5 queue_is 1
    let_go
    exits 0 5 "$STARTED"
    [ "$(wc -l <granted)" = 1 ]
    record_is succeeded
    rcli del "$R"
    # A release.
    proxy lose 'succeeded 0 '
    once 0 "$P" sh -c 'echo >>released'
    [ "$(wc -l <released)" = 1 ]
    [ -z "$output" ] || fail "$output"
    record_is succeeded
    free
    rcli del "$R"
    # A failed one, and one that stays.
    proxy lose 'failed 5 '
    once 5 "$P" sh -c 'exit 5'
    record_is "failed 5"
    proxy lose $'\r\n3599' # what is left of the hour, the last argument of a release
    run -0 run_t 5 "$DLOCK" -q --ttl 2 --min-hold 1h "$P" true
    [ "$(rcli exists "$NAME")" = 1 ]
}

# The lock is another's, and so is the record, when the release is sent again.
@test "a lost answer to a failed run's release costs nothing, also when the next run has begun" {
    proxy lose 'failed 5 '
    start_log a.log "$DLOCK" -q --ttl 5 --once "$P" sh -c ': >held; "$HELPERS/await" go; exit 5'
    local first=$STARTED
    wait_for 5 test -e held
    start_log b.log "$DLOCK" -q --ttl 5 --once "$L" "$HELPERS/await" end
    wait_for 5 queue_is 1
    : >go
    exits 5 5 "$first"
    [ ! -s a.log ] || fail "$(cat a.log)"
    : >end
    exits 0 5 "$STARTED"
    record_is "succeeded 0"
}

@test "whose lock was taken away records nothing" {
    once 79 "$L" redis-cli -p "$REDIS_PORT" set "$NAME" thief
    assert_out "another program took the lock"
    record_is "running -1"
    rcli del "$NAME"
    runs
    # Another program has overwritten the record: not a word of it is touched.
    once 79 "$L" redis-cli -p "$REDIS_PORT" set "$R" theirs
    assert_out "succeeded, but its run is not recorded"
    assert_out "$R"
    [ "$(rcli get "$R")" = theirs ]
    rcli del "$R" "$NAME"
}

@test "a record is missed after a restart without the data" {
    own_server --appendonly no
    once 0 "$L" true
    redis_kill own
    redis_launch own "${REDIS_DIRS[own]}" "${REDIS_PORTS[own]}"
    runs
}

@test "a server that is away at the end is asked until the deadline" {
    own_server --appendonly yes --appendfsync always
    hold --ttl 4 --once
    redis_kill own
    : >go
    own_again
    exits 0 5 "$HOLDER"
    record_is succeeded own
    own del "$R"
    # The command must end before the lease does.
    hold --ttl 3 --once
    redis_kill own
    let_go 79
    file_has hold.log "succeeded, but its run is not recorded"
}

@test "a server out of memory starts no run, and takes the end of one" {
    own_server
    hold --ttl 3 --once
    own config set maxmemory 1
    let_go
    record_is succeeded own
    own del "$R"
    once 69 "$L" touch ran
    [ ! -e ran ]
    [ "$(own --raw keys '*' | grep -vc ':dlock:fence$')" = 0 ]
    own config set maxmemory 0
    hold --ttl 3 --min-hold 1h
    own config set maxmemory 1
    let_go
    assert_between 3590000 "$(own pttl "$NAME")" 3600000 "left of the lock"
}

# ---------------------------------------------------------------- min-hold ---

# enters FILE ARG...: a client that notes when it got the lock (ns).
enters() {
    start_log "$1.log" "$DLOCK" --ttl 5 "${@:2}" "$L" "$HELPERS/clock" "$T/$1"
    IN=$STARTED
}
# entered FILE: the client that `enters` came soon after asks_end's end, and has ended.
entered() {
    local at
    exits 0 5 "$IN"
    at=$(($(cat "$1") / 1000000))
    echo "# $1: $((at - end)) ms after the end" >&3
    [ "$at" -ge $((end - 10)) ] || final "$1 $((end - at)) ms early"
    [ "$at" -le $((latest + $(amount min_hold_late) + SLOW)) ] || fail "$1 $((at - latest)) ms late"
}
# asks_end: the server frees the lock between $end and $latest (ms): the question takes the time in
# between, which may be long on a busy machine. Asked while the lock must still be held.
asks_end() {
    local left
    now_ms end
    left=$(rcli pttl "$NAME")
    now_ms latest
    end=$((end + left)) latest=$((latest + left))
}

# No message tells the first waiter: it knows the end, and the server reports the change. So nobody
# polls.
@test "a waiter hears of --min-hold that begins, and does not ask again and again" {
    local n
    local end latest
    hold --ttl 3 --min-hold 2s
    enters in1
    wait_for 5 queue_is 1
    wait_for 5 tracked
    let_go
    asks_end
    n=$(evals)
    entered in1
    assert_between 1 $(($(evals) - n)) 6 "EVALs of a waiter until it has given the lock back"
}

@test "a renewal that comes late does not prolong --min-hold, and a renewal does not end it" {
    local value left
    hold --ttl 1 --min-hold 4s
    value=$(rcli get "$NAME")
    # Longer than the ttl: renewals leave more than that. What follows needs the rest.
    wait_for 5 eval 'n=$(rcli pttl "$NAME") && [ "$n" -lt 2500 ] && [ "$n" -gt 1000 ]'
    let_go
    [ "$(rcli get "$NAME")" = "$value over=1" ]
    left=$(rcli pttl "$NAME")
    [ "$left" -lt 2500 ]
    [ "$(lua renew 1 "$NAME" 0 "{$NAME}:dlock:" "$value" 60000 | head -n 1)" = 0 ]
    [ "$(lua leave 1 "$NAME" 0 "{$NAME}:dlock:" "$value" '' 0 | head -n 1)" = 0 ]
    # A break reads again, and frees the lock instead.
    [ "$(lua break 1 "$NAME" 0 "{$NAME}:dlock:" "${value%% *}" me mark)" = changed ]
    [ "$(rcli get "$NAME")" = "$value over=1" ]
    [ "$(rcli pttl "$NAME")" -le "$left" ]
    run -75 run_t 5 "$DLOCK" --status "$L"
    assert_out "$HOLDER"
    wait_for 4 free
}

@test "--min-hold of a reader: nothing stays for the rest of the ttl" {
    local epoch
    run -0 run_t 5 "$DLOCK" -q -s --ttl 9 --min-hold 1s "$L" true
    epoch=$(rcli get "$NAME")
    assert_between 1 "$(rcli pttl "{$NAME}:dlock:holders:${epoch##*:}")" 1000 "left of the holders"
    [[ $(rcli zrange "{$NAME}:dlock:holders:${epoch##*:}" 0 -1) == "s:"*" over=1" ]]
    wait_for 4 free
}

@test "--once with --min-hold: the record is written at once, the lock stays" {
    run -0 run_t 5 "$DLOCK" -q --ttl 1 --once --min-hold 2s "$L" true
    record_is succeeded
    run -75 run_t 5 "$DLOCK" -q --once -n "$L" true
    # It waits for the lock, and then finds the success.
    skips
    free
}
