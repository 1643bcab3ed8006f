#!/usr/bin/env bats
# also.bats - --also: several locks, in Redis and in files, all or none.

load ../../support/redis

setup_file() { redis_start; }
teardown_file() { redis_stop; }
setup() {
    dlock_setup
    A="redis://127.0.0.1:$REDIS_PORT#a-$NAME" B="redis://127.0.0.1:$REDIS_PORT#b-$NAME"
    F=$T/file
}

# holds ARG...: dlock with these options and locks runs until go; its pid is $HOLDER.
holds() {
    rm -f in go
    start_log hold.log "$DLOCK" "$@" sh -c \
        'env >env.new && mv env.new in; ls -l /proc/self/fd >fds; "$HELPERS/await" go'
    HOLDER=$STARTED
    wait_for 5 test -s in || fail "$(cat hold.log)"
}
is_free() { run -0 run_t 5 "$DLOCK" -n "$1" true; }
is_held() { run -75 run_t 5 "$DLOCK" -qn "$1" true; }
var() { sed -n "s/^$1=//p" in; }
file_held() { ! flock -n "$F" true; }
blanked() { tr '\0' ' ' <"/proc/$1/cmdline" | grep -q -- "--also redis://xxx*@127"; }
refused_again() { [ "$(grep -c "'a-$NAME': waiting without a connection" wait.log)" -eq 2 ]; }

@test "all of them are held, and the command knows their fences" {
    DLOCK_FENCE_4=9 DLOCK_SLOT=1 holds --also "$F" --also "file://$T#named" "$B"
    wait_for 5 test -s fds
    is_held "$B"
    is_held "file://$T#named"
    run -1 flock -n "$F" true
    [ "$(var DLOCK_NAME)" = "b-$NAME" ]
    [ "$(rcli get "{b-$NAME}:dlock:fence")" = "$(var DLOCK_FENCE)" ]
    [ -z "$(var DLOCK_FENCE_2)$(var DLOCK_FENCE_4)$(var DLOCK_SLOT)" ] # a bare file has none
    [[ "$(cat "$T/named.fence")" == *"$(var DLOCK_FENCE_3)"* && -n $(var DLOCK_FENCE_3) ]]
    # The guard keeps the files, not the command.
    ! grep -E -- "-> ($F|$T/named.*|socket:.*)\$" fds || fail "$(cat fds)"
    let_go
    [ ! -s hold.log ] || fail "$(cat hold.log)"
    is_free "$B"
    is_free "$F"
}

@test "one that is busy: the message names it, and none is kept" {
    local lock
    holds "$B"
    CI=1 says 75 "'b-$NAME' is busy: held " -n --also "$F" --also "$A" "$B" touch ran
    is_free "$A"
    is_free "$F"
    timed -w 0.4 --also "$B" --also "$F" "$A" touch ran
    assert_rc 75
    assert_out "'b-$NAME' is still busy after 400ms"
    assert_between 400 "$took" $((600 + BUSY + SLOW)) "ms"
    for lock in "$A" "$F"; do is_free "$lock"; done
    [ ! -e ran ]
    # In this order: the name b-... is behind a-....
    start_log wait.log "$DLOCK" -v --events ev --ttl 2 --also "$B" "$A" touch ran
    wait_for 5 waiters_are 1 "$B"
    is_held "$A"
    # The names of the lock that was asked for, and of that which is in the way.
    wait_for 5 file_has wait.log \
        "dlock: waiting for 'a-$NAME', now for 'b-$NAME': 1s, next in line; held " ||
        fail "$(cat wait.log)"
    run_t 5 "$ROOT/tests/support/helpers/events.py" ev "
assert {(e['lock'], e['set']) for e in by['waiting']} == {('b-$NAME', 'a-$NAME')}, events"
    kill -TERM "$STARTED"
    exits 143 5 "$STARTED"
    is_free "$A"
    let_go
    [ ! -e ran ]
}

@test "--also-shared and -s are each lock's own" {
    start_log one.log "$DLOCK" --also-shared "$F" "$A" sh -c 'touch one; "$HELPERS/await" go'
    local one=$STARTED
    wait_for 5 test -e one
    run -0 run_t 5 "$DLOCK" -n --also-shared "$F" "$B" true
    run -0 run_t 5 "$DLOCK" -ns --also "$B" "$F" true
    run -75 run_t 5 "$DLOCK" -n --also "$F" "$B" true
    run -75 run_t 5 "$DLOCK" -n --also-shared "$F" "$A" true
    : >go
    exits 0 5 "$one"
}

@test "the loss of any ends the command, and the others are given back" {
    holds --also "$A" --also "$F" --ttl 3 "$B"
    rcli del "a-$NAME"
    exits 79 5 "$HOLDER"
    lost="dlock: redis://127.0.0.1:$REDIS_PORT/0: the lock 'a-$NAME' is lost: "
    [[ "$(cat hold.log)" == "$lost"*"; ending the command" ]] || fail "$(cat hold.log)"
    is_free "$B"
    is_free "$F"
}

# By the command itself, so that only the release can notice.
@test "a lock that is lost at the end makes the run a failed one" {
    local lock also key
    for lock in "$A" "$B" "file://$T#once"; do
        also=$A key=a-$NAME
        [ "$lock" != "$A" ] || also=$B key=b-$NAME
        run -79 run_t 5 "$DLOCK" --once --also "$also" "$lock" \
            redis-cli -h 127.0.0.1 -p "$REDIS_PORT" del "$key"
        assert_out "'$key'"
        refute_out 'not recorded'
        run run_t 5 "$DLOCK" --status "$lock"
        assert_out 'last run: failed'
        run -0 run_t 5 "$DLOCK" --once --also "$also" "$lock" true
        run run_t 5 "$DLOCK" --status "$lock"
        assert_out 'last run: succeeded'
    done
}

@test "a set whose store is silent at the end records the run all the same" {
    redis_start_in own
    local other="redis://127.0.0.1:${REDIS_PORTS[own]}#c-$NAME"
    start_log hold.log "$DLOCK" --ttl 5 --connect-timeout 2 --once --also "$other" "$A" sh -c \
        'kill -STOP "$0"' "${REDIS_PIDS[own]}"
    exits 0 8 "$STARTED"
    kill -CONT "${REDIS_PIDS[own]}"
    file_has hold.log "is not confirmed" || fail "$(cat hold.log)"
    run run_t 5 "$DLOCK" --status "$A"
    assert_out 'last run: succeeded'
}

@test "a killed keeper's files are free when its tree is gone, and not before" {
    start_log hold.log "$DLOCK" --ttl 2 --also "$F" "$A" "$HELPERS/witness" "$T" 60000 tree
    HOLDER=$STARTED
    wait_for 5 file_has history enter
    file_held
    kill -KILL "$HOLDER"
    run -0 run_t 5 flock "$F" flock -sn witness true
    run -0 run_t 5 "$DLOCK" -w 4 "$A" flock -n witness true
}

@test "20 processes that name three locks in any order never wait in a circle" {
    local i j turns order
    turns=$(amount also_turns)
    order=("--also $A --also $F $B" "--also $B --also $F $A" "--also $B --also $A $F"
        "--also $F --also $A $B")
    for ((i = 0; i < 20; i++)); do
        # shellcheck disable=SC2086
        start_log "turn$i.log" bash -c \
            'for ((j = 0; j < '"$turns"'; j++)); do timeout 15 "$@" || exit; done' - \
            "$DLOCK" --ttl 5 ${order[i % 4]} "$HELPERS/witness" "$T" 1
        TURNS+=("$STARTED")
    done
    for i in "${TURNS[@]}"; do exits 0 120 "$i"; done
    [ ! -e violations ] || final "$(cat violations)"
    [ "$(grep -c enter history)" -eq $((20 * turns)) ]
}

@test "a wait goes on when the store of a lock that is held already is away" {
    redis_start_in one --appendonly no # a notice about it comes during the wait
    local first="redis://127.0.0.1:${REDIS_PORTS[one]}#a-$NAME" waiter
    holds "$B"
    start_log wait.log "$DLOCK" -v --ttl 2 -w 30 --also "$first" "$B" touch ran
    waiter=$STARTED
    wait_for 5 file_has wait.log "dlock: waiting for 'b-$NAME': 1s of 30s, next in line; held " ||
        fail "$(cat wait.log)"
    grep -q '/0: a crash or restart of this server' wait.log || fail "$(cat wait.log)"
    redis_kill one
    wait_for 10 file_has wait.log \
        "was lost before the others were held: all are given back and taken again"
    wait_for 5 refused_again || fail "$(cat wait.log)"
    redis_restart one
    : >go
    exits 0 20 "$waiter"
    [ -e ran ] || fail "$(cat wait.log)"
}

@test "what cannot be a set is refused, and no password is shown" {
    local i many=()
    refused() { # TEXT ARG...
        local text=$1
        shift
        says 64 "$text" "$@" touch ran
        [ ! -e ran ]
    }
    refused "named twice (lock 'a-$NAME')" --also "$A" "$A"
    refused "this is the same lock as " --also "${A/127.0.0.1/localhost}" "$A"
    ln -s "$F" link
    refused "this is the same lock as " --also "$T/link" "$F"
    refused "this is the same lock as " -n --also-shared ./file "$F"
    refused '-F and --also' -F --also "$A" "$F"
    refused '--fcntl and --also' --fcntl --also "$A" "$F"
    says 64 '--also is not for --status' --status --also "$A" "$B"
    refused "the lock's name is empty" --also '' "$A"
    for ((i = 0; i < 16; i++)); do many+=(--also "$A$i"); done
    refused 'more than 16 locks' "${many[@]}" "$F"
    refused 'names a store but no lock' --also 'redis://u:hidden@h' "$F"
    refute_out hidden
    exec 8>"$F" # so that it waits
    flock 8
    start_log ps.log "$DLOCK" --also "redis://:hidden@127.0.0.1:$REDIS_PORT#p" "$F" true
    wait_for 2 blanked "$STARTED"
    exec 8>&-
    wait_exit 5 "$STARTED" || :
    ! grep hidden ps.log || fail 'the message shows it'
}
