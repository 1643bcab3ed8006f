#!/usr/bin/env bats
# machine_faults.bats - faults of the machine around a lock in a real redis-server: the keeper
# killed or failed at each of its system calls, limits, clocks that jump.
# Servers that lie, refuse or hang are in hostile.bats, network faults in network.bats.

# bats file_tags=long
load ../../support/redisfile
load ../../support/clock
load ../../support/keeper_killed

# Every exit code that the manual names for something of ours (and 0).
DOCUMENTED=' 0 64 65 69 71 73 75 76 77 79 '
documented() { case $DOCUMENTED in *" $1 "*) ;; *) fail "exit code $1${2:+ ($2)}" ;; esac; }

# attempt SECONDS CMD...: as `run`, which warns about 127.
attempt() {
    status=0
    output=$(run_t "$@" 2>&1) || status=$?
    lines=()
    [ -z "$output" ] || mapfile -t lines <<<"$output"
}

# --- the keeper at each of its system calls ----------------------------------

lock_of() { echo "redis://127.0.0.1:$REDIS_PORT#$NAME.$1${2:+.$2}"; }

# A process that is killed makes no report: nothing for a sanitizer.
# bats test_tags=plain,soak
@test "no tree survives a keeper killed at its system calls" { kill_at_points redis; }

# The network calls of a run: "NAME K", the K-th call of that name; from the guard's fork on, the
# first three of each name.
network_calls() {
    strace -o /dev/null true 2>/dev/null || skip "strace does not work here"
    ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0 strace -o "$T/trace" "$DLOCK" --ttl 1 "$L" \
        "$HELPERS/check_key" "$C" "$REDIS_PORT" "$NAME" 400
    awk 'match($0, /^[a-z_0-9]+\(/) {
             name = substr($0, 1, RLENGTH - 1); n[name]++
             if (name ~ /^(clone|clone3|fork|vfork)$/) forked = 1
             if (forked && name ~ /^(socket|connect|ppoll|sendto|recvfrom)$/ && ++calls[name] <= 3)
                 print name, n[name]
         }' "$T/trace"
}

# failing NAME K ERROR: with a lock of its own, and what must be true when that call and all later
# ones fail. Complaints go to $T/bad.
failing() {
    local call=$1:$2+:$3 rc=0 i dir
    dir=$T/call.$call
    mkdir -p "$dir"
    ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0 timeout -k 2 15 \
        strace -o /dev/null -e trace="$1" -e inject="$1:error=$3:when=$2+" \
        "$DLOCK" --ttl 1 "redis://127.0.0.1:$REDIS_PORT#$NAME.$call" \
        "$HELPERS/check_key" "$dir" "$REDIS_PORT" "$NAME.$call" 400 >"$dir/out" 2>&1 \
        </dev/null 3>&- || rc=$?
    # It is over: nobody of the tree lives on, whatever the keeper was doing.
    for ((i = 0; i < 40; i++)); do
        [ -e "$dir/witness" ] || break
        flock -sn "$dir/witness" true && break
        sleep 0.025
    done
    [ $i -lt 40 ] || echo "$call: the tree lives on" >>"$T/bad"
    # Free within the ttl and a second (25 ms a turn, and more).
    for ((i = 0; i < 80; i++)); do
        [ "$(redis-cli -p "$REDIS_PORT" exists "$NAME.$call")" != 0 ] || break
        sleep 0.025
    done
    [ $i -lt 80 ] || echo "$call: the lock is still held" >>"$T/bad"
    [ ! -e "$dir/violations" ] ||
        echo "$call: lived without the lock: $(head -n 1 "$dir/violations")" >>"$T/bad"
    case $rc in
    0) return ;;
    69 | 71 | 79) ;;
    *) echo "$call: exit code $rc: $(tail -n 1 "$dir/out")" >>"$T/bad" ;;
    esac
    # An end that is ours is explained, and in one line for each thing that is wrong.
    [ "$(grep -c '^dlock: ' "$dir/out")" = "$(grep -c . "$dir/out")" ] && [ -s "$dir/out" ] ||
        echo "$call: exit code $rc with: $(cat "$dir/out")" >>"$T/bad"
}
export -f failing

# bats test_tags=soak,plain
@test "a system call that fails from then on does not cause a hang" {
    # What a kernel without memory, or a broken device, may go on answering. (Not EINTR for ever,
    # and not for the signalfd, which would stay readable.)
    network_calls >all
    for e in ENOMEM EIO EMFILE; do
        case $e in EMFILE) may=socket ;; EIO) may='connect|sendto|recvfrom' ;; *) may='.*' ;; esac
        grep -E "^($may) " all | sed "s/\$/ $e/"
    done | sample call_points >points
    echo "$(wc -l <points) points"
    export T NAME
    timeout 100 xargs -P 8 -L 1 bash -c 'failing "$1" "$2" "$3"' - <points
    settle 2
    [ ! -e bad ] || fail "$(cat bad)"
}

# bats test_tags=plain
@test "a request that the kernel has no memory for is sent again" {
    given_back() { [ "$(rcli exists "$NAME")" = 0 ]; }
    sends_again given_back
}

# --- limits ------------------------------------------------------------------

# one_line: a failure that is ours is one line; what the loader says before main() is not ours.
one_line() {
    [ "$status" -eq 127 ] && case $output in *"shared librar"*) return 0 ;; esac
    documented "$status" "$1"
    [ "$status" -eq 0 ] || [ "${#lines[@]}" = 1 ] || fail "$1: $output"
    [ "$status" -eq 0 ] || [[ ${lines[0]} == dlock:\ * ]] || fail "$1: $output"
}

@test "dlock works with few descriptors or says what it lacks" {
    export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0
    works='' fails=''
    # By a name as well: the look-up needs descriptors of its own.
    for n in 127.0.0.1/{3..12} localhost/{5..12} 127.0.0.1/20 localhost/20; do
        attempt 10 prlimit --nofile="${n#*/}" "$DLOCK" --ttl 1 \
            "redis://${n%/*}:$REDIS_PORT#$NAME" true
        one_line "--nofile=$n"
        if [ "$status" -eq 0 ]; then works=1; else fails=$fails$status; fi
        [ "$(rcli exists "$NAME")" = 0 ] || fail "--nofile=$n: the lock is left behind"
    done
    [ -n "$works" ]
    case $fails in *71*) ;; *) fail "no run lacked descriptors: $fails" ;; esac
}

@test "dlock says that it cannot fork or start a thread" {
    need_root
    export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0
    # A user of this test alone, who has no other process: the limit counts those of other tests,
    # too. And a folder that it can enter.
    local nobody=$((20000 + SRANDOM % 30000))
    dir=$(mktemp -d /tmp/dlock-test.XXXXXX)
    chmod 755 "$dir"
    install -m 755 "$DLOCK" "$dir/dlock"
    # What is left of an earlier run counts, too.
    has_none() { ! pgrep -u "$nobody" >/dev/null; }
    limited() { # PROCESSES ARG...
        wait_for 5 has_none
        (cd / && run_t 10 setpriv --reuid=$nobody --regid=$nobody --clear-groups \
            prlimit --nproc="$1:$1" "$dir/dlock" "${@:2}")
    }
    run limited 1 "$L" true
    guard="$status ${#lines[@]} $output"
    run limited 2 "$L" true
    setup="$status ${#lines[@]} $output"
    run limited 3 "$L" true
    command="$status ${#lines[@]} $output $(rcli exists "$NAME")"
    run limited 1 --status "redis://localhost:$REDIS_PORT#$NAME"
    thread="$status ${#lines[@]} $output"
    # The keeper, the witness, the guard, what makes the command's group, and the command.
    run limited 5 "$L" true
    rm -r "$dir"
    assert_rc 0
    [[ $guard == "71 1 dlock: cannot fork the guard: "* ]] || fail "$guard"
    [[ $setup == "71 1 dlock: cannot set up the guard process: "*"ulimit -u"* ]] || fail "$setup"
    [[ $command == "71 1 dlock: cannot fork the command: "*" 0" ]] || fail "$command"
    [[ $thread == "71 1 dlock: cannot look up names: no thread: "* ]] || fail "$thread"
}

@test "dlock works with little memory or says so" {
    # A sanitizer reserves terabytes.
    [ -z "${SAN:-}" ] || return 0
    fails=''
    for kb in $(seq 2500 250 6000) 8000 16000; do
        attempt 10 prlimit --as=$((kb * 1024)) "$DLOCK" --ttl 1 "$L" "$HELPERS/clock" "$T/ran"
        [ "$status" -ne 127 ] || [[ $output == *"shared librar"* ]] ||
            [[ $output == "dlock: cannot run"* ]] ||
            [[ $output == "cannot allocate TLS data structures for initial thread" ]] ||
                # ld.so, before main()
            fail "$kb KiB: $output"
        case $status in
        0 | 127) ;;
        139) # before main() the kernel itself kills a program whose segments do not fit
            [ -z "$fails" ] || fail "$kb KiB: crash" ;;
        *) one_line "$kb KiB" ;;
        esac
        fails=$fails$status
        [ "$(rcli exists "$NAME")" = 0 ] || fail "$kb KiB: the lock is left behind"
    done
    [ "$status" -eq 0 ]
}

# --- clocks ------------------------------------------------------------------

@test "the next renewal notices that the server's clock jumped" {
    with_clock own_server
    CI=1 background --ttl 3 "$L" $SUBJECT -t -k
    wait_for 5 running 4
    jump -60
    t0=$(now_ms)
    wait_for 5 beyond $((t0 + 3100))
    pid_alive "$K"
    own_left_is_over 2000
    [ "$(grep -c '^dlock: ' "$T/out")" = 1 ]
    grep -q 'clock was set back by 60 s' "$T/out"
    jump -59
    wait_for 2 grep -q 'clock was set forward by 1 s' "$T/out"
    pid_alive "$K"
    jump 0
    t0=$(now_ms)
    ended 5
    # Renewals are 0.77 s apart.
    assert_between 0 $(($(now_ms) - t0)) $((1100 + SLOW)) "time until it is noticed (ms)"
    assert_rc 79
    assert_out "is lost: the key expired"
    assert_out "clock was set forward by 59 s"
    [ "$(grep -c '^dlock: ' "$T/out")" = 3 ]
    [ "$(count_seen main sig 15)" = 0 ]
    settle 2
}

# bats test_tags=slow
@test "the client's wall clock does not affect a hold or wait" {
    with_clock background --ttl 1.5 "$L" $SUBJECT -u "$T/end" -r 5
    wait_for 5 running
    holder=$K
    for by in 3600 -3600; do
        jump $by
        t0=$(now_ms)
        wait_for 5 beyond $((t0 + 1600))
    done
    pid_alive "$holder"
    # -w with a clock that jumps while it waits, in both directions.
    for by in 3600 -3600; do
        with_clock background -w 1 "$L" true
        t0=$(now_ms)
        wait_for 5 eval '[ "$(rcli zcard "{$NAME}:dlock:queue")" = 1 ]'
        jump $by
        status=0
        wait_exit 5 "$K" || status=$?
        assert_rc 75
        assert_between 950 $(($(now_ms) - t0)) $((1200 + SLOW)) "-w 1 (ms)"
    done
    K=$holder
    touch "$T/end"
    status=0
    wait_exit 5 "$K" || status=$?
    assert_rc 5
    [ "$(count_seen main sig 15)" = 0 ]
    [ "$(rcli exists "$NAME")" = 0 ]
}
