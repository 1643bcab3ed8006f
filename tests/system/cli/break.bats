#!/usr/bin/env bats
# break.bats - --break on the scripted store: the mark, the wait for its effect, and what is said.

# bats file_tags=plain
load ../../support/fake

breaks() { CI=1 run "-$1" run_t 15 "$DLOCK" --break --yes "${@:2}" "$L"; } # CODE ARG...
# asks: the Python program on stdin; j is dlock --break, which has asked.
asks() {
    {
        echo 'j = t.start([DLOCK, "--break", LOCK])'
        echo 't.until(lambda: "break? [y/N]" in t.output, name="the question")'
        cat
    } | at_terminal
}

@test "the living holder ends its command, then the lock is free" {
    starts 1 --ttl 3 "$L" $SUBJECT
    breaks 0
    assert_out "held by pid $K" "dlock: broken: fake://$S: '$NAME', pid $K"
    [ "$(count_seen main sig 15)" = 1 ]
    [ ! -e "$S/held" ]
    ends_with 79
    store_did clean
}

@test "a free lock needs no break" {
    breaks 0
    assert_out "free"
    refute_out broken
}

@test "a stopped holder: the break waits as long as -w says, and the mark stays" {
    starts 1 --ttl 9 "$L" $SUBJECT
    kill -STOP "$K"
    breaks 75 -w 0.3
    assert_out "'$NAME' is still held by pid $K; the hold stays marked, and its holder will end its"
    [ "$(cat "$S/renew")" = broken ]
    kill -CONT "$K"
    ends_with 79
}

@test "without -w the break waits for ttl, grace and a second" {
    start_log holder.log "$DLOCK" --ttl 60 "$L" sleep 60
    wait_for 5 test -e "$S/held"
    kill -STOP "$STARTED"
    timed --break --yes --ttl 1 --grace 100ms "$L" # the store says 1 s, too
    assert_rc 75
    assert_between 7000 "$took" $((7000 + BUSY + SLOW)) "time (ms)"
    kill -CONT "$STARTED"
    exits 79 25 "$STARTED"
}

@test "an outage of the store during the wait is told once" {
    starts 1 --ttl 9 "$L" $SUBJECT
    kill -STOP "$K"
    start_log break.log "$DLOCK" --break --yes -w 9 "$L"
    wait_for 5 test -e "$S/renew"
    tell ask away
    wait_for 5 file_has break.log "told to be away"
    looks() { [ "$(grep -c '^ask' "$S/log")" -ge "$1" ]; }
    wait_for 5 looks $(($(grep -c '^ask' "$S/log") + 2))
    rm "$S/ask"
    kill -CONT "$K"
    exits 0 10 "$STARTED"
    [ "$(grep -c "told to be away" break.log)" = 1 ] || fail "$(cat break.log)"
    ends_with 79
}

@test "a store that is away: nothing is marked" {
    tell ask away
    breaks 69
    [ ! -e "$S/renew" ]
}

@test "a lock that changes hands while it asks is left alone" {
    starts 1 --ttl 9 "$L" $SUBJECT
    another_holds() { tell held "$(cut -d' ' -f1 "$S/held")" 4711 "$(printf %032d 0)"; }
    says_yes 75 "' has changed hands, nothing was done: held by pid 4711" another_holds --break "$L"
    [ ! -e "$S/renew" ]
    kill -KILL "$K"
    settle 5
}

@test "a signal leaves the mark, and says so" {
    starts 1 --ttl 9 "$L" $SUBJECT
    kill -STOP "$K"
    asks <<'PY'
t.type(b'y\n')
t.until(lambda: os.path.exists(S + '/renew'), name='the mark')
j.interrupt()
t.until(lambda: 'dlock: the hold stays marked, and its holder will end its command' in t.output,
        name='what stays')
PY
    kill -CONT "$K"
    ends_with 79
}

@test "--force frees at once, and says what that means" {
    starts 1 --ttl 9 "$L" $SUBJECT
    breaks 0 --force
    assert_out "'$NAME' was freed by force: its command may still run beside the next one"
    [ ! -e "$S/held" ]
    [ ! -e "$S/renew" ]
    tell renew lost
    ends_with 79
}

@test "a status tells of a mark" {
    starts 1 --ttl 9 "$L" $SUBJECT
    kill -STOP "$K"
    tell renew broken
    run -75 run_t 5 "$DLOCK" --status "$L"
    assert_out 'being broken by root@db1, note "stuck", since 5s'
    run -75 run_t 5 "$DLOCK" --status --json "$L"
    mark='"token":"[0-9a-f]{32}","broken":[{]"by":"root@db1, note \\"stuck\\"","since_ms":[0-9]+[}]'
    [[ $output =~ $mark ]] || fail "$output"
    kill -CONT "$K"
    ends_with 79
}
