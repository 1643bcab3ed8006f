#!/usr/bin/env bats
# nested.bats - a dlock under another one that holds the same lock: on Redis, and on files.

load ../../support/redis

setup_file() {
    # Also over a socket, which reaches into other network namespaces, and to other users.
    export SOCKET=$BATS_FILE_TMPDIR/redis.sock
    redis_start --unixsocket "$SOCKET" --unixsocketperm 777
}
teardown_file() { redis_stop; }
setup() {
    dlock_setup
    L="redis://127.0.0.1:$REDIS_PORT#$NAME"
    U="redis+unix://$SOCKET#$NAME"
    F="file://$T/locks#$NAME"
    mkdir -p locks
    export L U F
}

free() { run_t 5 "$DLOCK" -q -n "$1" true; }
held() { run_t 5 "$DLOCK" --status "$1" >status 2>&1; [ $? -eq 75 ]; }

# A background dlock under the lock $1; $K is the outer keeper, $I the inner one.
outlived() { # LOCK [ARG...]: of the inner one
    rm -f in inner outer go
    start_log outer.log "$HELPERS/launch" -d "$DLOCK" --ttl 2 "$1" sh -c 'echo $$ >outer
        "$@" sh -c "echo \$\$ >in; exec \"\$HELPERS/await\" go" & echo $! >inner
        until [ -s in ]; do sleep 0.02; done; exit 3' - "$DLOCK" "${@:2}" "$1"
    K=$STARTED
    wait_for 5 test -s in || fail "$(cat outer.log)"
    wait_for 5 pid_gone "$(cat outer)"
    I=$(cat inner)
}
command_gone() { pid_gone "$(cat in)"; }

@test "refuses a grace that the ttl above is too short for" {
    says 69 "is held with a ttl of 2 s, and this grace needs one of at least " --ttl 2 "$L" \
        "$DLOCK" --grace 5s "$L" touch ran
    [ ! -e ran ]
}

@test "the times of inner dlocks follow the renewals of the outer one" {
    # With a lease of 1 s a busy machine would renew late, and dlock would say so.
    run -0 run_t 10 "$DLOCK" --ttl 3 "$L" "$DLOCK" "$L" "$DLOCK" --ttl 20 "$L" sleep 4
    [ -z "$output" ] || fail "$output"
}

@test "the kinds of inner locks: as the manual's table says" {
    local lock outer inner want
    while read -r lock outer inner want; do
        run run_t 10 "$DLOCK" ${outer/=/ } "${!lock}" "$DLOCK" ${inner/=/ } "${!lock}" echo ran
        [ "$status" -eq "$want" ] || fail "$lock $outer $inner: $status: $output"
        case $want in
        0) [ "$output" = ran ] ;;
        75) assert_out "would wait for itself" ;;
        65) assert_out "with 2 slots" "not 3" ;;
        esac
    done <<'END'
L -x -x 0
L -x -s 0
L -x --slots=2 0
F -x --slots=2 0
F -s -s 0
F -s -x 75
F -s --slots=2 75
F --slots=2 -x 75
F --slots=2 -s 0
F --slots=2 --slots=2 0
F --slots=2 --slots=3 65
END
}

@test "each lock of --also is re-entrant, alone and in a set" {
    run -0 run_t 10 "$DLOCK" --also "$F" "$L" sh -c '
        "$DLOCK" -n "$L" echo "L $DLOCK_TOKEN"
        "$DLOCK" -n "$F" echo F
        "$DLOCK" -n --also "$L" "$F" echo F L
        "$DLOCK" -n --also "$F" "$F.other" "$DLOCK" -n --also "$F.other" "$L" echo all'
    [ "${#lines[@]}" -eq 4 ] || fail "$output"
    ln -s plain other
    run -64 run_t 10 "$DLOCK" "$T/plain" "$DLOCK" --also "$T/other" "$T/plain" touch ran
    run -75 run_t 10 "$DLOCK" --also-shared "$F" "$L" "$DLOCK" "$F" touch ran
    assert_out "would wait for itself"
    [ ! -e ran ]
    free "$L" && free "$F"
}

@test "100 inner dlocks run at once, and the store knows one holder" {
    run -0 run_t 60 "$DLOCK" "$L" bash -c '
        for i in {1..100}; do
            "$DLOCK" "$L" sh -c "echo >in.$i; \"\$HELPERS/await\" go" & pids+=($!)
        done
        until [ "$(ls in.* | wc -l)" -eq 100 ]; do sleep 0.05; done
        "$DLOCK" --status "$L" >status
        : >go
        for p in "${pids[@]}"; do wait $p || exit; done'
    [ "$(grep -c 'held by' status)" -eq 1 ] || fail "$(cat status)"
    free "$L"
}

@test "an inner dlock that outlives the command keeps the lock, and the exit code stays" {
    for lock in "$L" "$F" "$T/plain"; do
        outlived "$lock"
        nap 0.3
        held "$lock" || fail "free: $(cat status outer.log)"
        : >go
        exits 3 5 "$K"
        command_gone || final "released before the inner command ended"
        wait_for 5 pid_gone "$I"
        free "$lock"
    done
}

@test "what an inner dlock leaves behind runs under the outer one, which holds the lock" {
    local lock kind
    for kind in -x -s --slots=1; do
        for lock in "$L$kind" "$F$kind" "$T/plain"; do
            # The outer command, `cat`, waits for what the inner one has left behind.
            run -0 run_t 10 "$DLOCK" "$kind" "$lock" sh -c '
                { "$DLOCK" "$1" "$2" sh -c "(\"\$HELPERS/await\" go; \"\$DLOCK\" --held \"\$2\"
                    exec \"\$DLOCK\" \"\$@\" echo left) & exit 0" - "$@"; : >go; } | cat' \
                - "$kind" "$lock"
            [[ $output =~ ^([0-9]+|inf)$'\n'left$ ]] || fail "$kind $lock: $output"
            free "$lock"
            rm go
        done
    done
    # A reader under a reader does not queue behind a writer that waits for both.
    start_log outer.log "$DLOCK" -s "$L" sh -c '{ "$DLOCK" -s "$L" sh -c "(
        \"\$HELPERS/await\" go; exec \"\$DLOCK\" -s \"\$L\" echo left) &"; : >in; } | cat'
    K=$STARTED
    wait_for 5 test -e in
    start_log writer.log "$DLOCK" "$L" true
    I=$STARTED
    wait_for 5 waiters_are 1
    : >go
    exits 0 5 "$K"
    exits 0 5 "$I"
    grep -qx left outer.log || fail "$(cat outer.log)"
}

@test "of an inner set, the store is asked only for the lock whose outer dlock has ended" {
    local outer
    for outer in a b; do
        run -0 run_t 10 "$DLOCK" "$L-$outer" sh -c '{ "$DLOCK" "$1" sh -c "(
            \"\$HELPERS/await\" go; exec \"\$DLOCK\" -w 3 --also \"\$L-a\" \"\$L-b\" echo left) &"
            : >go; } | cat' - "$L-$([ $outer = a ] && echo b || echo a)"
        [ "$output" = left ] || fail "$output"
        rm go
    done
    free "$L-a" && free "$L-b"
}

@test "the --min-hold of an outer dlock that has ended is waited for" {
    run -0 run_t 10 sh -c '{ "$DLOCK" --min-hold 1s "$L" sh -c "(
        \"\$HELPERS/await\" go; exec \"\$DLOCK\" --no-reentrant -w 5 \"\$L\" echo left
        ) & exit 0"; : >go; } | cat'
    [ "$output" = left ] || fail "$output"
}

@test "a signal ends the inner dlocks that are left, and the exit code stays" {
    for lock in "$L" "$F"; do
        for sig in HUP INT TERM; do
            outlived "$lock"
            kill -$sig "$K"
            exits 3 5 "$K"
            command_gone || final "the command under the inner dlock lives"
            free "$lock"
        done
    done
}

@test "the inner trees end before the lock is free when the outer keeper is killed or stopped" {
    local sig end
    for sig in KILL STOP; do
        outlived "$L"
        kill -$sig "$K"
        end=$(($(now_ms) + 5000))
        # Redis knows the token until the ttl is over. First the key, then the command: the key may
        # go between the two.
        until command_gone; do
            [ "$(rcli exists "$NAME")" = 1 ] || command_gone || final "$sig: free, and it lives"
            [ "$(now_ms)" -lt $end ] || fail "$sig: the command lives"
        done
        wait_for 3 pid_gone "$I" || fail "$sig: the inner dlock lives"
        kill -KILL "$K" 2>/dev/null || :
        wait "$K" || :
        wait_for 5 free "$L"
    done
}

# The innermost one is no descendant of the one in the middle, and cannot act.
@test "the outermost dlock waits for the innermost tree when the one in the middle is killed" {
    local m
    start_log outer.log "$DLOCK" --ttl 5 "$L" sh -c '"$DLOCK" "$1" sh -c "
        echo \$\$ >in; echo \"\$DLOCK_HELD\" >held; exec \"\$HELPERS/await\" go" & echo $! >middle
        wait; echo $? >rc; exit 3' - "$L"
    K=$STARTED
    wait_for 5 test -s held || fail "$(cat outer.log)"
    m=$(cat middle)
    DLOCK_HELD=$(cat held) start_log inner.log "$DLOCK" "$L" "$HELPERS/witness" "$T" 60000 tree
    I=$STARTED
    wait_for 5 file_has history enter || fail "$(cat inner.log)"
    kill -STOP "$I"
    kill -KILL "$m"
    wait_for 5 test -s rc
    run -75 run_t 5 "$DLOCK" -w 0.5 -q "$L" true
    kill -CONT "$I"
    exits 3 5 "$K"
    flock -sn witness true || final "released before the innermost command ended"
    exits 79 5 "$I"
    free "$L"
}

@test "a loss ends the inner commands with 79, at once" {
    start_log outer.log "$DLOCK" --on-lost warn --ttl 3 "$L" sh -c \
        '"$DLOCK" "$L" sh -c "echo >in; exec \"\$HELPERS/await\" go"; echo $? >rc'
    K=$STARTED
    wait_for 5 test -s in
    rcli del "$NAME"
    wait_for 5 test -s rc
    [ "$(cat rc)" = 79 ] || fail "$(cat rc outer.log)"
    exits 79 5 "$K"
}

@test "an ancestor that is stopped, or has too many connections, is no reason to go on without it" {
    # The command stops its own keeper, and asks it. The guard takes its title, which names the
    # keeper, once the command has been forked.
    run -0 run_t 10 "$DLOCK" "$L" sh -c '
        until [ "$keeper" ]; do
            keeper=$(tr -d "\0" <"/proc/$PPID/cmdline" | sed -n "s/.* of \([0-9]*\)$/\1/p")
        done
        kill -STOP "$keeper"
        "$DLOCK" --connect-timeout 0.3 "$L" touch ran; echo $?
        "$ROOT/tests/support/helpers/backlog.py" "${DLOCK_HELD##*:}" \
            "$DLOCK" --connect-timeout 0.3 "$L" touch ran; echo $?
        kill -CONT "$keeper"
        "$DLOCK" "$L" echo again'
    [ ! -e ran ] || final "ran without the lock"
    assert_out "is it stopped?"
    [ "$(grep -xc 69 <<<"$output")" -eq 2 ] || fail "$output"
    assert_out again
}

@test "out of reach, an inner dlock finds that it would wait for itself" {
    need_root
    run -75 run_t 10 "$DLOCK" "$U" unshare -n "$DLOCK" "$U" touch ran
    assert_out "would wait for itself"
    # A machine that was started a moment ago has no earlier time.
    if unshare -T true; then
        run -75 run_t 10 "$DLOCK" "$U" unshare -T --fork --boottime 1000 "$DLOCK" "$U" touch ran
        assert_out "would wait for itself"
    fi
    # Another user; the environment as sudo leaves it.
    chmod 711 "$BATS_RUN_TMPDIR" "$BATS_FILE_TMPDIR" 2>/dev/null || :
    if setpriv --reuid=nobody --regid=nogroup --clear-groups "$DLOCK" --status "$U" >/dev/null; then
        run -75 run_t 10 "$DLOCK" "$U" setpriv --reuid=nobody --regid=nogroup --clear-groups \
            "$DLOCK" "$U" touch ran
        assert_out "would wait for itself"
    fi
    run -75 run_t 10 "$DLOCK" "$U" env -u DLOCK_HELD -u DLOCK_TOKEN "$DLOCK" "$U" touch ran
    assert_out "would wait for itself"
    # Another spelling of the same lock.
    run -75 run_t 10 "$DLOCK" --note 'a "b"' "$U" "$DLOCK" -w 5 "$L" touch ran
    [[ $output == *"would wait for itself; held "*', note "a \"b\""' ]] || fail "$output"
    local file
    for file in "$F" "$T/plain" "-s $F" "--slots=1 $F"; do
        run -75 run_t 10 "$DLOCK" $file env -u DLOCK_HELD "$DLOCK" "${file##* }" touch ran
        assert_out "would wait for itself"
    done
    run -75 run_t 10 "$DLOCK" "$L" "$DLOCK" --no-reentrant "$L" touch ran
    [ ! -e ran ]
}

@test "forged and stale entries of DLOCK_HELD gain nothing" {
    "$DLOCK" "$L" sh -c 'echo "$DLOCK_HELD"' >stale
    # A lock that another process holds, with what is left of an old one.
    hold
    for value in "$(cat stale)" "$(cat stale):" x ':::' "$(cut -c 2- stale)"; do
        DLOCK_HELD=$value run -75 run_t 5 "$DLOCK" -n "$L" touch ran
    done
    # The entry of a lock that is ours, under the digest of the other one.
    run -75 run_t 5 "$DLOCK" "$F" sh -c \
        'DLOCK_HELD=$(cut -d: -f1 stale):${DLOCK_HELD#*:} "$DLOCK" -n "$L" touch ran'
    # The right entry with another token.
    guard_of "$HOLDER"
    DLOCK_HELD=$(tr '\0' '\n' <"/proc/$(children "$G")/environ" |
        sed -n 's/^DLOCK_HELD=//p')
    [ -n "$DLOCK_HELD" ]
    DLOCK_HELD=$DLOCK_HELD run -0 run_t 5 "$DLOCK" -n "$L" true
    DLOCK_HELD=$(sed 's/:[0-9a-f]\{32\}:/:00000000000000000000000000000000:/' <<<"$DLOCK_HELD") \
        run -75 run_t 5 "$DLOCK" -n "$L" touch ran
    [ ! -e ran ]
    let_go
}

@test "root believes no keeper of another user" {
    need_root
    local yes=("$ROOT/tests/support/helpers/yes_keeper.py" "$DLOCK")
    "$DLOCK" "$L" sh -c 'echo "$DLOCK_HELD"' >stale
    hold
    DLOCK_HELD=$(cat stale) run -75 run_t 5 "${yes[@]}" -n "$L" touch ran
    [ ! -e ran ]
    DLOCK_HELD=$(cat stale) run -79 run_t 5 "${yes[@]}" --held
    let_go
}

@test "what is left of a dlock that has ended waits for its lock, as any other does" {
    # The store knows the token a while longer: the release was not confirmed.
    run -0 run_t 10 "$DLOCK" "$L" sh -c \
        'redis-cli -p "$REDIS_PORT" get "$NAME" >value
        ("$HELPERS/await" go && MALLOC_PERTURB_=85 "$DLOCK" -v -w 5 "$L" touch ran
        echo $? >rc) >left.log 2>&1 &'
    rcli set "$NAME" "$(cat value)" px 1500
    : >go
    wait_for 8 test -s rc
    [ -e ran ] && [ "$(cat rc)" = 0 ] || fail "$(cat left.log)"
    # The words of a handle that is closed by then; MALLOC_PERTURB_ wipes what is freed.
    grep -q 'cannot be reached: .*; asking the store' left.log || fail "$(cat left.log)"
}
