#!/usr/bin/env bats
# --events: each outcome as lines for a JSON parser, slow and absent readers, a full disk.

load ../../support/fake

# events FILE [CODE]: see the helper.
events() { run_t 10 "$ROOT/tests/support/helpers/events.py" "$@"; }

# told CODE RC ARG...: a run with this exit code, and what its events must be.
told() {
    local code=$1 rc=$2
    shift 2
    rm -f ev
    run "-$rc" run_t 10 "$DLOCK" --events ev "$@"
    events ev "$code"
}
ran='["granted", "released", "end"]'

@test "every outcome is told in lines of JSON" {
    local w=$S/acquire
    told "assert [e['lock'] for e in starts] == ['$NAME'] and starts[0]['kind'] == 'fake', starts
assert names == $ran and end['outcome'] == 'exited'
assert end['exit_status'] == 3 == end['exit_code']
assert end['lock'] == '$NAME' and end['store'].startswith('fake://'), end
assert end['fence'] == '1' == events[0]['fence'], end
assert 28000 < events[0]['lease_left_ms'] < 30000 and events[1]['how'] == 'confirmed', events
assert 'signal' not in end and 'reason' not in end, end
assert end['renewals'] == end['dropped'] == 0, end" \
        3 "$L" sh -c 'exit 3'
    told "assert names == $ran and end['outcome'] == 'exited' and end['signal'] == 9
assert end['exit_code'] == 137
assert 'exit_status' not in end" 137 "$L" sh -c 'kill -9 $$'
    told "assert names == $ran and end['outcome'] == 'not-run' and end['exit_code'] == 127
assert 'cannot run' in end['reason'] and 'exit_status' not in end, end" 127 "$L" ./no-such
    tell acquire busy
    told "assert names == ['end'] and end['outcome'] == 'busy' and end['exit_code'] == 75
assert 'hold_ms' not in end" 75 -qn "$L" true
    told "assert names == ['end'] and end['outcome'] == 'busy' and end['exit_code'] == 0" 0 -qn \
        -E 0 "$L" false
    tell acquire wait
    told "assert names == ['waiting', 'end'] and end['outcome'] == 'timeout'
assert 100 <= end['wait_ms'] < 5000
holder = {'host': 'fakehost', 'pid': 4711, 'command': 'fakecommand', 'waited_ms': 0}
assert events[0]['place'] == 1 and events[0]['holder'] == holder" \
        75 -q -w .1 "$L" true
    tell acquire fail
    told "assert names == ['end'] and end['outcome'] == 'unavailable' and end['exit_code'] == 69
assert 'told to fail' in end['reason'], end" 69 "$L" true
    told "assert names == ['end'] and end['outcome'] == 'error' and end['exit_code'] == 64
assert 'unknown store' in end['reason'] and 'lock' not in end" 64 'redi://x#y' true
    rm "$w"
    tell release unclear
    told "assert names == $ran and end['outcome'] == 'exited'
assert events[1]['how'] == 'unconfirmed'" 0 -q "$L" true
    rm -f "$S/held"
    tell release notours
    told "assert names == ['granted', 'lost', 'released', 'end'] and end['outcome'] == 'lost'
assert end['exit_status'] == 0
assert end['exit_code'] == 79 and events[2]['how'] == 'not-ours', end" 79 "$L" true
}

@test "a signal that cancels the wait is told" {
    tell acquire wait
    background --events ev "$L" true
    wait_for 5 grep -q waiting ev
    kill -TERM "$K"
    ends_with 143
    events ev "assert names == ['waiting', 'end'] and end['outcome'] == 'cancelled'
assert end['exit_code'] == 143"
}

@test "a lease that is not renewed, and one that is lost" {
    tell renew unclear
    told "names = [n for n in names if n != 'trouble']
assert names == ['granted', 'lost', 'term', 'kill', 'released', 'end'], names
assert end['outcome'] == 'lost' and end['signal'] == 9 and end['exit_code'] == 79, end
assert end['renewals'] == 0, end
assert by['lost'][0]['reason'] == end['reason'] == 'no answer', events
assert by['term'][0]['kill_in_ms'] <= 333, events" \
        79 --ttl 2 "$L" $SUBJECT -k
    told "names = [n for n in names if n != 'trouble']
assert names == ['granted', 'lost', 'kill', 'released', 'end'], names" \
        79 --ttl 1 --on-lost kill "$L" $SUBJECT
    told "assert [n for n in names if n != 'trouble'] == ['granted', 'lost', 'released', 'end']
assert end['outcome'] == 'lost' and end['exit_status'] == 4, end" \
        79 --ttl 1 --on-lost warn "$L" $SUBJECT -m 1200 -r 4
    rm "$S/renew"
    told "assert names == $ran and end['renewals'] >= 2 and end['hold_ms'] >= 1000, events" \
        0 --ttl 1 "$L" $SUBJECT -m 1000
    told "assert names == ['granted', 'lost', 'kill', 'released', 'end'], end
assert end['reason'] == 'lost unasked', end" \
        79 --ttl 1 "$L" sh -c ": >'$S/lost'; sleep 10"
}

@test "a broken hold: the cause, and by whom" {
    tell renew broken
    told "assert names == ['granted', 'lost', 'term', 'released', 'end'], names
assert by['lost'][0]['cause'] == 'broken', events
assert by['lost'][0]['reason'] == end['reason'] == 'by root@db1, note \"stuck\"', events
assert end['outcome'] == 'lost'" 79 --ttl 3 "$L" $SUBJECT
}

@test "a keeper that was stopped tells of no KILL where TERM was enough" {
    # The grace is long enough to end by TERM on a busy machine.
    starts 1 --events ev --ttl 2 --grace .6 "$L" $SUBJECT
    kill -STOP "$K"
    wait_for 5 tree_gone
    sleep .8 # KILL would have come meanwhile
    kill -CONT "$K"
    ends_with 79
    events ev "assert end['outcome'] == 'lost' and 'lost' in names
assert end.get('signal') != 9 and 'kill' not in names, events"
}

# --- the descriptor ----------------------------------------------------------

# fds FILE CMD...: the descriptors of the command, but for the number of the lock's.
fds() {
    STATE_TO=$T/state run_t 5 "${@:2}"
    sed -E "s,^[0-9]+ ($T/x ),\1," state | sort >"$1"
}

@test "the command does not get the descriptor" {
    mkfifo fifo
    for how in "$T/x" "-o $T/x" "-F $T/x" "$L"; do
        # 9 shows that the others stay.
        fds without "$DLOCK" $how "$HELPERS/show_inherited" fds 8>&- 9</dev/null
        fds with "$DLOCK" --events 8 $how "$HELPERS/show_inherited" fds 8>ev 9</dev/null
        diff -u without with || fail "a file, $how"
        events ev 'assert names[0] == "granted"'
        start cat fifo >ev
        fds with "$DLOCK" --events 8 $how "$HELPERS/show_inherited" fds 8>fifo 9</dev/null
        diff -u without with || fail "a pipe, $how"
        wait_exit 5 "$STARTED"
        events ev 'assert names[0] == "granted"'
        # A standard descriptor stays the command's.
        run -0 --separate-stderr run_t 5 "$DLOCK" --events 1 $how echo hello
        grep -v '^hello$' <<<"$output" >ev
        [[ $'\n'$output$'\n' == *$'\nhello\n'* ]] || fail "$output"
        events ev 'assert names[0] == "granted"'
    done
}

@test "a killed keeper leaves whole lines, and the pipe ends with it" {
    for round in 1 2 3 4 5 6; do
        rm -rf "$C"/* "$S"/*
        exec {pipe}> >(exec cat >ev)
        reader=$!
        background --events $pipe --ttl 3 "$L" $SUBJECT -k
        exec {pipe}>&-
        if [ $((round % 2)) = 0 ]; then wait_for 5 running; else wait_for 5 test -s "$S/log"; fi
        find_guard
        kill -STOP "$G" # so that only the keeper's end can end the pipe
        kill -KILL "$K"
        [ $((round % 2)) = 1 ] || wait_for 2 pid_gone "$reader"
        kill -CONT "$G"
        wait_for 5 pid_gone "$reader"
        ends_with 137
        events ev "assert names in ([], ['granted'])"
        wait_for 5 pid_gone "$G"
    done
}

@test "what cannot be written to is refused before anything starts" {
    mkfifo fifo
    touch ro && mkdir dir
    for row in '64 is not open:88' '64 is not open for writing:7' \
        '73 no process has this FIFO open for reading:fifo' \
        '73 Is a directory:dir' '73 No such file or directory:none/x' '64 an unset variable:' \
        '64 1 is standard output:-' \
        '64 is not a descriptor or a file:-n'; do
        run "-${row%% *}" run_t 5 "$DLOCK" --events "${row##*:}" "$L" touch ran 7<ro
        what=${row#* }
        assert_out "${what%:*}"
        [ "${#lines[@]}" = 1 ]
    done
    [ ! -e ran ]
    [ ! -e "$S/log" ]
    # What runs no command has no events.
    for form in '8' '-u 8' '--status x' '--schema x'; do
        says 64 "--events is not for" --events ev $form 8>x
    done
    [ ! -e ev ]
    run -0 run_t 5 "$DLOCK" --events ./5 "$L" true
    events 5 "assert end"
}

@test "DLOCK_EVENTS is the default of --events" {
    export DLOCK_EVENTS=$T/ev
    for how in "$T/x" "-o $T/x" "-F $T/x" "$L"; do
        rm -f ev
        run -0 run_t 5 "$DLOCK" $how true
        events ev 'assert names[0] == "granted"'
    done
    run -0 run_t 5 "$DLOCK" --events other "$L" true
    events other "assert end"
    # A dlock below writes into the same file, at the same time; each line has the pid of its own
    # dlock.
    rm ev
    run -0 run_t 5 "$DLOCK" "$L" "$DLOCK" "$T/y" true
    two=$(sed -E 's/.*"event":"([a-z]+)".*"pid":([0-9]+),.*/\1 \2/' ev | sort -s -k 2,2)
    [ "$(cut -d ' ' -f 1 <<<"$two" | tr '\n' ' ')" = \
        "start granted released end start granted released end " ] || fail "$two"
    [ "$(cut -d ' ' -f 2 <<<"$two" | sort -u | wc -l)" = 2 ] || fail "$two"
    # A descriptor is for this dlock alone.
    rm ev
    for how in "$T/x" "-F $T/x" "$L"; do
        DLOCK_EVENTS=8 run -0 run_t 5 "$DLOCK" $how sh -c \
            'echo "${DLOCK_EVENTS-unset}"; exec "$@" 8>stolen' - "$DLOCK" "$T/z" true 8>>ev
        [ "$output" = unset ] || fail "$how: $output"
    done
    [ ! -s stolen ]
    [ "$(grep -c '"event":"granted"' ev)" = 3 ]
    # Unset, and where no lock is taken.
    rm ev
    DLOCK_EVENTS='' run -0 run_t 5 "$DLOCK" "$L" true
    run -0 run_t 5 "$DLOCK" --status "$L"
    run -0 run_t 5 "$DLOCK" 7 7>x
    [ ! -e ev ]
}

@test "a DLOCK_EVENTS that cannot be used is named before anything starts" {
    DLOCK_EVENTS=88 says 64 "descriptor 88 is not open (DLOCK_EVENTS)" "$L" touch ran
    DLOCK_EVENTS=none/x says 73 "No such file or directory (DLOCK_EVENTS)" "$L" touch ran
    if [ "$(id -u)" = 0 ]; then # a file of root's that the user of sudo chooses
        export SUDO_UID=1000
        DLOCK_EVENTS=$T/x says 77 "DLOCK_EVENTS names a file and was set by a user" "$L" touch ran
        [ ! -e x ]
        DLOCK_EVENTS=1 run -0 run_t 5 "$DLOCK" "$L" true
        assert_out '"event":"granted"'
    fi
    [ ! -e ran ]
}

@test "with -F the grant is the last line, unless the command cannot be executed" {
    told "assert names == ['granted']" 0 -F x true
    told "assert names[0] == 'granted' and end['outcome'] == 'not-run'
assert end['exit_code'] == 127" 127 -F x ./no-such
    # A pipe without a reader does not end the command.
    run -0 run_t 5 bash -c '"$1" -F --events 8 x echo alive 8> >(:)' - "$DLOCK"
    assert_out alive
}

@test "a limit of a file's size ends neither dlock nor the command" {
    local how
    for how in -F -x -o '--max-run 5'; do
        # shellcheck disable=SC2086
        run -3 run_t 5 bash -c 'ulimit -f 0; exec "$@" 2>limited.err' - \
            "$DLOCK" -v $how --events limited x sh -c 'exit 3'
    done
    # The command has the limit's signal as it was.
    run -153 run_t 5 bash -c 'ulimit -f 0; exec "$@"' - "$DLOCK" -o x sh -c 'echo >out; echo alive'
    run -1 run_t 5 bash -c 'ulimit -f 0; trap "" XFSZ; exec "$@"' - "$DLOCK" -o x \
        "$BASH" -c 'exec >out; echo'
}

# --- texts -------------------------------------------------------------------

@test "hostile names, notes and commands stay texts" {
    local dir lock
    dir=$T/$'d\n"\\\x01\xff'
    mkdir "$dir"
    told "assert end['lock'] == end['store'] and end['lock'].endswith('\ufffd/x'), end
assert 'd\n\"\\\\\x01' in end['lock'], end" 0 "$dir/x" true
    # A named file lock keeps its holder's note; the name has 250 bytes.
    lock="file://$T#$(printf '"%.0s' {1..60})%C3%A4://user:pass@$(printf 'x%.0s' {1..150})"
    ln -s /bin/sh $'c"\n\xff'
    for note in $'"\\\n\t\x01\xff\xc3' "$(printf '"%.0s' {1..300})" \
        "see redis://user:geheim@h/0?password=geheim"; do
        rm -f go held ev
        start_log hold.log "$DLOCK" --note "$note" "$lock" $'./c"\n\xff' -c \
            'echo x >held; "$HELPERS/await" go'
        holder=$STARTED
        wait_for 5 test -s held
        start_log w.log "$DLOCK" --events ev "$lock" true
        wait_for 5 file_has ev holder
        : >go
        wait_exit 5 "$STARTED"
        wait_exit 5 "$holder"
        events ev "
assert names == ['waiting'] + $ran
h = events[0]['holder']
assert h['pid'] == $holder and h['note'] and h['command'].startswith('./c\"'), h
assert 'user:pass' not in end['lock'] and end['lock'].startswith('\"' * 60 + 'ä'), end
assert not any('geheim' in str(e) for e in events), events"
    done
}

# --- slow readers and disks --------------------------------------------------

@test "a reader that never reads delays no renewal" {
    run -0 /usr/bin/python3 -c '
import fcntl, os, subprocess, sys
r, w = os.pipe()
other = os.open("/proc/self/fd/%d" % w, os.O_WRONLY | os.O_NONBLOCK)
try:
    while True: os.write(other, b"x" * 4096)
except BlockingIOError:
    os.close(other)
before = fcntl.fcntl(w, fcntl.F_GETFL)
p = subprocess.run(sys.argv[1:3] + [str(w)] + sys.argv[3:], pass_fds=[w], timeout=10)
assert fcntl.fcntl(w, fcntl.F_GETFL) == before and not before & os.O_NONBLOCK
sys.exit(p.returncode)' "$DLOCK" --events --ttl 1 "$L" $SUBJECT -m 1500
    [ "$(grep -c ^ok "$S/log")" -ge 4 ]
    no_violations
}

# bats test_tags=thread
@test "a slow disk delays neither a renewal nor the exit" {
    : >ev
    # Each write takes longer than the lease lasts without a renewal.
    SLOWDISK=$T/ev SLOWDISK_MS=1300 preload slowdisk timed_run \
        "$DLOCK" --events ev --ttl 1 "$L" env -u LD_PRELOAD $SUBJECT -m 1500
    assert_rc 0
    [ "$(grep -c ^ok "$S/log")" -ge 4 ]
    assert_between 1500 "$took" $((3000 + SLOW)) "run in ms"
}

@test "a full disk costs lines, and not more" {
    for where in "$L" x; do
        run -7 run_t 5 "$DLOCK" --events /dev/full "$where" sh -c 'exit 7'
        [ -z "$output" ]
    done
}

# --- manual ------------------------------------------------------------------

@test "the manual has every event, key and word" {
    awk '/^\.Sh /{ on = $2 == "EVENTS" } on' "$ROOT/man/dlock-formats.5" >section
    file_nonempty section
    for word in $("$ROOT/tests/support/helpers/events.py" --keys); do
        grep -Eq "^\..*Li $word( |$)" section || fail "no $word in EVENTS"
    done
}
