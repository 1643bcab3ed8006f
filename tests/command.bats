#!/usr/bin/env bats
# The command must not notice that it runs under a lock: exit status, arguments, descriptors, signals.
# Each test runs with a lease and its guard, with a file lock, and with a file lock and a guard (-o).

load lib/common
load lib/fake

setup() {
    dlock_setup
    fake_setup
    STATE=$HELPERS/state
    LOCKS=("$L" "$T/x.lock" "-o $T/o.lock" "-F $T/f.lock")
}
teardown() { dlock_teardown; }

# same WHAT CMD...: CMD shows the same with and without each kind of lock. CMD uses $WITH as its prefix.
same() {
    local lock rc
    WITH='' run_t 10 bash -c "$1" >"$T/plain" 2>&1
    for lock in "${LOCKS[@]}"; do
        rc=0
        WITH="$DLOCK $lock" run_t 10 bash -c "$1" >"$T/under" 2>&1 || rc=$?
        [ $rc -eq 0 ] || fail "$lock: exit code $rc: $(cat "$T/under")"
        diff "$T/plain" "$T/under" || fail "$lock: differs"
    done
    [ -s "$T/plain" ]
}

# --- how it ends ---------------------------------------------------------------------------------------

@test "the exit code is the command's" {
    for lock in "${LOCKS[@]}"; do
        for code in 0 1 42 64 69 75 79 124 127 255; do
            run run_t 10 "$DLOCK" $lock sh -c "exit $code"
            [ "$status" -eq $code ] || fail "$lock: $status, not $code"
            [ "$output" = "" ] || fail "$lock: $output"
        done
    done
}

@test "death by a signal is 128+N" {
    for lock in "$L" "$T/x.lock" "-o $T/o.lock"; do
        for sig in 15 9 11 6 1 2 10; do
            run run_t 10 "$DLOCK" $lock "$HELPERS/launch" -d sh -c "ulimit -c 0; kill -$sig \$\$; sleep 5"
            [ "$status" -eq $((128 + sig)) ] || fail "$lock: $status, not 128+$sig"
            [ "$output" = "" ] || fail "$lock: $output"
        done
    done
}

@test "a command that is not there is 127, one that cannot be run 126; the lock is free again" {
    echo text >"$T/text"
    for lock in "${LOCKS[@]}"; do
        run run_t 10 "$DLOCK" $lock "$T/nothing"
        assert_rc 127
        assert_out "$T/nothing"
        assert_out "No such file"
        [ "${#lines[@]}" = 1 ]
        run run_t 10 "$DLOCK" $lock no-such-command-anywhere
        assert_rc 127
        run run_t 10 "$DLOCK" $lock "$T/text"
        assert_rc 126
        assert_out "ermission"
        run run_t 10 "$DLOCK" $lock "$T"
        assert_rc 126
        run run_t 10 "$DLOCK" -n $lock true
        assert_rc 0
    done
    [ ! -e "$S/held" ]
}

@test "a file without #! and an empty name" {
    echo 'exit 3' >"$T/script"
    chmod +x "$T/script"
    for lock in "${LOCKS[@]}"; do
        run run_t 10 "$DLOCK" $lock "$T/script"
        assert_rc 3
        run run_t 10 "$DLOCK" $lock ''
        assert_rc 127
    done
}

# --- what it is given ----------------------------------------------------------------------------------

@test "arguments arrive byte for byte" {
    same '$WITH "'"$STATE"'" args "" "a b" "\$HOME" -c --help -- -n "$(printf "\\xff\\n\\t*")" "a'\''b" \; -w'
    same '$WITH -- "'"$STATE"'" args -- x' 2>/dev/null || :
    run run_t 10 "$DLOCK" "$L" -- "$STATE" args -- -x
    [ "$output" = $'[--]\n[-x]' ]
}

@test "-c hands one string to the shell" {
    for lock in "$L" "$T/x.lock"; do
        run run_t 10 env SHELL=/bin/sh "$DLOCK" "$lock" -c 'echo "$((1 + 2)) $0"; exit 4'
        assert_rc 4
        [ "${lines[0]%% *}" = 3 ]
    done
}

@test "standard input reaches the command, and only what it reads is taken" {
    same 'seq 1 100000 | $WITH cksum'
    same 'printf "one\ntwo\n" >in; { $WITH head -c 4; cat; } <in'
}

@test "the caller's descriptors, exactly: 0, 1 and 2" {
    same '$WITH "'"$STATE"'" fds'
}

@test "the caller's descriptors, exactly: more are open" {
    same 'exec 7<>seven 9</dev/null 42>>more; $WITH "'"$STATE"'" fds'
}

@test "the caller's descriptors, exactly: 0 or 1 or 2 or all closed" {
    export STATE_TO=$T/state
    same ': >state; $WITH "'"$STATE"'" fds <&-; cat state'
    same ': >state; $WITH "'"$STATE"'" fds >&-; cat state'
    same ': >state; $WITH "'"$STATE"'" fds 2>&-; cat state'
    same ': >state; $WITH "'"$STATE"'" fds <&- >&- 2>&-; cat state'
    same ': >state; exec 5<&0; $WITH "'"$STATE"'" fds <&- >&- 5<&-; cat state'
}

@test "with a file lock the command has its descriptor and no other; with -o not even that" {
    run run_t 10 "$DLOCK" "$T/x.lock" "$STATE" fds
    echo "$output" >"$T/with"
    "$STATE" fds >"$T/without" 2>&1 3>&-
    assert_out "$T/x.lock"
    [ "$(wc -l <"$T/with")" = $(($(wc -l <"$T/without") + 1)) ]
    run run_t 10 "$DLOCK" -o "$T/x.lock" "$STATE" fds
    refute_out x.lock
}

@test "signals: as the caller had them" {
    LOCKS+=("-o $T/o2.lock")
    same '$WITH "'"$STATE"'" signals'
    same 'trap "" HUP; $WITH "'"$STATE"'" signals'
    same 'trap "" INT QUIT TERM USR1 PIPE TSTP; $WITH "'"$STATE"'" signals'
    same 'trap "" CHLD; $WITH "'"$STATE"'" signals'
    same 'nohup $WITH "'"$STATE"'" signals 2>&1'
    same '"'"$HELPERS"'/launch" -d -i 17 -i 34 -i 64 -b 10 -b 15 -b 17 -b 40 $WITH "'"$STATE"'" signals'
    same '"'"$HELPERS"'/launch" -d -i 13 $WITH "'"$STATE"'" signals'
    same '"'"$HELPERS"'/launch" -d $WITH "'"$STATE"'" signals'
}

@test "SIGCHLD ignored by the caller: the exit code is still the command's" {
    for lock in "${LOCKS[@]}"; do
        run run_t 10 "$HELPERS/launch" -d -i 17 "$DLOCK" $lock sh -c 'exit 6'
        [ "$status" -eq 6 ] || fail "$lock: $status"
    done
}

@test "SIGCHLD blocked by the caller: the exit code is still the command's" {
    for lock in "${LOCKS[@]}"; do
        run run_t 10 "$HELPERS/launch" -d -b 17 "$DLOCK" $lock sh -c 'exit 6'
        [ "$status" -eq 6 ] || fail "$lock: $status"
    done
}

@test "nohup: a hang-up does not end dlock or the command" {
    for lock in "$L" "$T/x.lock" "-o $T/o.lock"; do
        rm -rf "$C"/* "$T/end"
        start_log "$T/out" "$HELPERS/launch" -d -s nohup "$DLOCK" $lock $SUBJECT -u "$T/end" -r 5
        K=$STARTED
        wait_for 5 running
        kill -HUP "$K"
        kill -USR1 "$K"
        wait_for 5 has_seen main sig 10
        [ "$(count_seen main sig 1)" = 0 ]
        touch "$T/end"
        ended
        assert_rc 5
    done
}

@test "umask, directory, nice, limits, capabilities: unchanged" {
    same 'umask 027; cd /usr; nice -n 3 $WITH "'"$STATE"'" misc'
    same 'ulimit -c 0; ulimit -n 200; ulimit -s 1024; $WITH "'"$STATE"'" limits'
    same '$WITH "'"$STATE"'" limits'
}

@test "the environment: unchanged but for DLOCK_*" {
    for lock in "${LOCKS[@]}"; do
        env A=1 'B=x y' sh -c 'exec env' | grep -v '^_=' | sort >"$T/plain"
        env A=1 'B=x y' "$DLOCK" $lock env | grep -v '^_=' | sort >"$T/under"
        diff "$T/plain" <(grep -v '^DLOCK_\(NAME\|TOKEN\|FENCE\|HELD\)=' "$T/under") || fail "$lock"
    done
}

@test "DLOCK_NAME, DLOCK_TOKEN, DLOCK_FENCE" {
    run run_t 10 "$DLOCK" "$L" sh -c 'echo "$DLOCK_NAME|$DLOCK_TOKEN|$DLOCK_FENCE"'
    [[ $output =~ ^$NAME\|[0-9a-zA-Z_-]{16,}\|1$ ]] || fail "$output"
    first=$output
    run run_t 10 "$DLOCK" "$L" sh -c 'echo "$DLOCK_NAME|$DLOCK_TOKEN|$DLOCK_FENCE"'
    [[ $output =~ \|2$ ]]
    [ "$output" != "$first" ]
    # The token is the one in the store.
    run run_t 10 "$DLOCK" "$L" sh -c 'grep -c "$DLOCK_TOKEN" '"$S/held"
    [ "$output" = 1 ]
}

@test "DLOCK_* of an outer dlock do not leak into an inner one" {
    run run_t 10 "$DLOCK" "$L" "$DLOCK" "$T/x.lock" sh -c 'echo "${DLOCK_FENCE-unset} $DLOCK_NAME $DLOCK_TOKEN"'
    assert_rc 0
    outer=$(DLOCK_TOKEN='' "$DLOCK" "$L" sh -c 'echo $DLOCK_TOKEN')
    case $output in "unset "*x.lock*) ;; *) fail "$output" ;; esac
    [ -n "$outer" ]
    run run_t 10 env DLOCK_FENCE=77 DLOCK_TOKEN=abc DLOCK_NAME=zzz "$DLOCK" "$T/x.lock" env
    refute_out DLOCK_FENCE=77
    refute_out DLOCK_TOKEN=abc
    refute_out DLOCK_NAME=zzz
}

# --- pipes ---------------------------------------------------------------------------------------------

@test "yes | head: ends as without dlock" {
    for lock in "${LOCKS[@]}"; do
        run run_t 10 "$HELPERS/launch" -d bash -c '"$@" yes | head -n 1; echo "${PIPESTATUS[0]}"' - "$DLOCK" $lock
        [ "$output" = $'y\n141' ] || fail "$lock: $output"
    done
}

@test "SIGPIPE ignored by the caller: the command sees the error as without dlock" {
    for lock in "${LOCKS[@]}"; do
        run run_t 10 "$HELPERS/launch" -d -i 13 bash -c '"$@" sh -c "while echo y; do :; done 2>/dev/null; exit 9" | head -n 1; echo "${PIPESTATUS[0]}"' - "$DLOCK" $lock
        [ "$output" = $'y\n9' ] || fail "$lock: $output"
    done
}

@test "a reader of the command's output sees its end although the release hangs" {
    tell release hang
    mkfifo "$T/pipe"
    start "$DLOCK" --connect-timeout 20 "$L" sh -c 'echo data' >"$T/pipe" 2>"$T/err"
    K=$STARTED
    [ "$(run_t 5 cat "$T/pipe")" = data ]
    wait_for 5 store_did release
    pid_alive "$K"
    kill -KILL "$K"
}

@test "a reader sees the end when the command closes its output, not when it ends" {
    for lock in "$L" "$T/x.lock" "-o $T/o.lock"; do
        rm -f "$T/pipe" "$T/end"
        mkfifo "$T/pipe"
        start "$DLOCK" $lock sh -c 'echo data; exec >&-; until [ -e '"$T/end"' ]; do sleep 0.02; done' >"$T/pipe" 7>&1
        K=$STARTED
        # 7 is the pipe too: let go of by us, but kept by the command's shell; so close it there.
        kill -KILL "$K" 2>/dev/null
        wait_for 5 pid_gone "$K"
        rm -f "$T/pipe"
        mkfifo "$T/pipe"
        settle 3
        start "$DLOCK" -w 5 --ttl 30 ${lock/$L/$L-2} sh -c 'echo data; exec >&- 7>&-; until [ -e '"$T/end"' ]; do sleep 0.02; done' >"$T/pipe" 7>&1
        K=$STARTED
        [ "$(run_t 5 cat "$T/pipe")" = data ]
        pid_alive "$K"
        touch "$T/end"
        wait_exit 5 "$K"
        rm -rf "$S"/held
    done
}

@test "a writer into the command's input sees that it was closed" {
    for lock in "$L" "$T/x.lock" "-o $T/o.lock"; do
        rm -f "$T/end"
        run run_t 10 "$HELPERS/launch" -d bash -c 'yes | { "$@"; }; echo "${PIPESTATUS[0]}"' - \
            "$DLOCK" $lock sh -c 'exec <&-; sleep 0.1'
        [ "$output" = 141 ] || fail "$lock: $output"
    done
}

# --- what it leaves ------------------------------------------------------------------------------------

@test "a background process is left alone, and the lock is released" {
    for lock in "$L" "-o $T/o.lock"; do
        rm -rf "$C"/*
        run run_t 10 "$DLOCK" $lock sh -c "$SUBJECT -m 8000 >/dev/null 2>&1 & exit 3"
        assert_rc 3
        wait_for 5 running
        run run_t 10 "$DLOCK" -n $lock true
        assert_rc 0
        pid_alive "$(pid_of main)"
        kill -KILL "$(pid_of main)"
        wait_for 5 pid_gone "$(pid_of main)"
    done
}

@test "a background process that has a file lock's descriptor keeps the lock, as with flock" {
    run run_t 10 "$DLOCK" "$T/x.lock" sh -c "$SUBJECT -m 8000 >/dev/null 2>&1 & exit 3"
    assert_rc 3
    wait_for 5 running
    run run_t 10 "$DLOCK" -n "$T/x.lock" true
    assert_rc 75
    kill -KILL "$(pid_of main)"
    wait_for 5 pid_gone "$(pid_of main)"
    run run_t 10 "$DLOCK" -n "$T/x.lock" true
    assert_rc 0
}

@test "the lock is released after the command, and no process of ours is left" {
    background "$L" $SUBJECT -u "$T/end"
    wait_for 5 running
    find_guard
    touch "$T/end"
    ended
    assert_rc 0
    [ "$(last_beat)" -lt "$(at release)" ]
    wait_for 2 pid_gone "$G"
    [ -z "$(test_pids)" ] || settle 1
}

@test "children that 'exec dlock' inherited are not touched" {
    for lock in "$L" "$T/x.lock" "-o $T/o.lock"; do
        rm -rf "$C"/*
        run run_t 10 bash -c 'sleep 8 & echo $! >'"$T/inherited"'; exec "$@"' - \
            "$DLOCK" --grace 100ms $lock sh -c 'kill -TERM $PPID; sleep 0.05; kill -KILL $$' 3>&-
        pid_alive "$(cat "$T/inherited")" || fail "$lock"
        kill "$(cat "$T/inherited")"
    done
}

@test "the process list shows the command as it is, and dlock" {
    background "$L" $SUBJECT -u "$T/end"
    wait_for 5 running
    tr '\0' ' ' <"/proc/$(pid_of main)/cmdline" >"$T/cmdline"
    [ "$(cat "$T/cmdline")" = "$SUBJECT -u $T/end " ]
    touch "$T/end"
    ended
}

@test "file locks: exclusion against flock(1), both ways" {
    flock "$T/x.lock" "$DLOCK" -n "$T/x.lock" true && false
    run run_t 10 "$DLOCK" "$T/x.lock" flock -n "$T/x.lock" true
    assert_rc 1
    run run_t 10 "$DLOCK" -o "$T/x.lock" flock -n "$T/x.lock" true
    assert_rc 1
}
