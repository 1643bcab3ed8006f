#!/usr/bin/env bats
# How often a signal reaches the command, by each way to send it. Waits are in keeper.bats.

load ../../support/fake

# table KIND WHERE: in the background; its lines in $T/KIND.WHERE, each begins "KIND, WHERE: ".
table() {
    local dir=$T/$1.$2.d
    mkdir -p "$dir/store" "$dir/command"
    local -a lock
    case $1 in
        lease) lock=("fake://$dir/store#$NAME") ;;
        file) lock=("$dir/x.lock") ;;
        file-o) lock=(-o "$dir/x.lock") ;;
    esac
    start_log "$T/$1.$2" env PYTHONDONTWRITEBYTECODE=1 T="$dir" S="$dir/store" C="$dir/command" L= \
        LOCK_ARGS= timeout -k 2 60 /usr/bin/python3 "$ROOT/tests/support/helpers/signal_table.py" \
        "$2" 2 "${lock[@]}"
}

# want KIND WHERE LINE... The kernel may merge two signals into one until the first is taken.
want() {
    local file=$1.$2 line
    shift 2
    for line; do
        case $line in *2*) sed -i -E "/^${line%%:*}:/s/ (1|1,2)\\b/ 2/g" "$T/$file" ;; esac
    done
    printf '%s\n' "$@" | diff - "$T/$file" || fail "$file differs"
}

# The table in the manual, SIGNALS AND TERMINAL.
@test "a signal to the whole job reaches the command once" {
    for kind in lease file; do
        for where in none terminal; do table $kind $where; done
    done
    table file-o none
    for pid in "${STARTED_PIDS[@]}"; do wait_exit 60 "$pid" || :; done
    ways=(pid group cgroup 'cgroup, guard first' 'cgroup, command first' timeout)
    once=("${ways[@]/%/: 1 1 1}")
    want lease none "${once[@]}"
    want file-o none "${once[@]}"
    # No process of dlock is in a position to see that the command's group was signalled.
    by_group=("${once[@]}")
    by_group[1]='group: 2 2 2' by_group[5]='timeout: 2 2 2'
    want lease terminal "${by_group[@]}"
    alone=("${ways[@]/%/: 2 2 2}")
    alone[0]='pid: 1 1 1'
    want file none "${alone[@]}"
    want file terminal "${alone[@]}"
}

@test "a signal from outside of the container reaches the command once" {
    need_pid_namespace
    table lease container
    wait_exit 60 "$STARTED" || :
    want lease container 'pid: 1 1 1' 'cgroup: 1 1 1' 'cgroup, guard first: 1 1 1' \
        'cgroup, command first: 1 1 1'
}

@test "a TERM to dlock alone reaches the command within 100 ms" {
    for lock in "$L" "$T/x.lock"; do
        starts 1 "$lock" $SUBJECT
        "$HELPERS/clock" "$T/sent"
        kill -TERM "$K"
        ends_with 143
        assert_between 0 $((($(seen main sig 15) - $(<"$T/sent")) / NS)) $((100 + BUSY)) \
            "time in ms"
    done
}

@test "an alarm(2) that the caller has set reaches the command" {
    for lock in "$L" "$T/x.lock"; do
        rm -f "$C"/*
        start_log out timeout 20 /usr/bin/python3 -c 'import os, signal, sys
signal.setitimer(signal.ITIMER_REAL, 0.5)
os.execv(sys.argv[1], sys.argv[1:])' "$DLOCK" "$lock" $SUBJECT -u "$T/end"
        wait_for 5 has_seen main sig 14
        [ "$(count_seen main sig 14)" = 1 ]
        : >"$T/end"
        exits 0 5 "$STARTED"
        rm -f "$T/end"
    done
}

@test "of a storm of TERM the command gets the last one, and not each" {
    for lock in "$L" "$T/x.lock"; do
        starts 1 "$lock" $SUBJECT -k
        /usr/bin/python3 - "$K" "$T/sent" <<'PY'
import os, sys, time
first = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
for _ in range(1000):
    os.kill(int(sys.argv[1]), 15)
last = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
os.kill(int(sys.argv[1]), 15)
os.kill(int(sys.argv[1]), 34)
open(sys.argv[2], 'w').write('%d %d\n' % (first, last))
PY
        wait_for 5 has_seen main sig 34
        read -r first last <"$T/sent"
        n=$(count_seen main sig 15)
        assert_between 1 "$n" $(((last - first) / (20 * NS) + 2)) "$lock: number of TERM"
        [ "$(seen main sig 15 "$n")" -gt "$last" ] || fail "$lock: the last TERM is lost"
        kill -KILL "$(pid_of main)"
        ended
    done
}

@test "signals that come while the guard stands still reach the command when it goes on" {
    starts 1 "$L" $SUBJECT -k
    find_guard
    kill -STOP "$G"
    /usr/bin/python3 - "$K" <<'PY'
import os, sys, time
for _ in range(2000):
    os.kill(int(sys.argv[1]), 15)
    time.sleep(0.0003)
os.kill(int(sys.argv[1]), 34)
PY
    # The keeper has read all of them: this one is the last.
    wait_for 5 no_signal_waits "$K"
    kill -CONT "$G"
    wait_for 5 has_seen main sig 34
    n=$(count_seen main sig 15)
    assert_between 1 "$n" 2000 "number of TERM"
    kill -KILL "$(pid_of main)"
    ended
}
no_signal_waits() { grep -q '^ShdPnd:\s*0*$' "/proc/$1/status"; }

# As one that was passed on: see "a command killed by a forwarded signal" in keeper.bats.
@test "after a TERM to each process the descendants end too" {
    starts 4 --grace 200ms "$L" $SUBJECT -t -n
    find_guard
    kill -TERM "$K" "$G" "$(pid_of main)"
    ends_with 143
    [ "$(count_seen main sig 15)" = 1 ]
    for who in child session daemon; do [ "$(count_seen $who sig 15)" = 1 ]; done
    tree_gone
    [ "$(last_beat)" -lt "$(at release)" ]
}

asleep() { [ "$(cut -d ' ' -f 2,3 "/proc/$(children "$G")/stat")" = '(sleep) S' ]; }

# As killall(1) by the name of our file does.
@test "a TERM that only the processes of dlock got reaches a command that dies by it" {
    for lock in "$L" "-o $T/x.lock"; do
        background $lock sleep 60
        find_guard
        wait_for 5 asleep
        kill -TERM "$K" "$G"
        ends_with 143
    done
}

# Else it would not come to its end: many scripts restore the default before they clean up.
@test "a command whose handler restores the default gets a signal to the whole job once" {
    background --ttl 1s "$L" sh -c 'trap "trap - TERM; sleep .2; echo >clean; exit 7" TERM
        echo $$ >pid; while :; do sleep .01; done'
    wait_for 5 store_did renew 3 # the guard has looked at it
    find_guard
    kill -TERM "$K" "$G" "$(<pid)"
    ends_with 7
    [ -e clean ]
}
