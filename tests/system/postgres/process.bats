#!/usr/bin/env bats
# process.bats - what befalls our processes and clocks around a lock in PostgreSQL, in both modes:
# keeper and guard killed, a machine that slept, a server whose clock is set.

# bats file_tags=long
load ../../support/pgtable
load ../../support/clock

MODES='advisory lease'

lock_of() { echo "postgres://postgres@127.0.0.1:$PG_PORT/postgres?mode=$1#$NAME.$1${2:+.$2}"; }
beyond() { [ "$(now_ms)" -ge "$1" ] || pid_gone "$K"; }

# --- killed ---------------------------------------------------------------------------------------

@test "the command gets no descriptor of ours" {
    run -0 run_t 5 sh -c 'ls /proc/self/fd' # without dlock
    local plain=$output
    for mode in $MODES; do
        run -0 run_t 5 "$DLOCK" "$(lock_of $mode)" sh -c 'ls /proc/self/fd'
        [ "$output" = "$plain" ] || fail "$mode: $output, not $plain"
    done
}

@test "the guard keeps the session of each lock of a set" {
    local one two
    one=$(lock_of advisory 1) two=$(lock_of advisory 2)
    start_log set.log "$DLOCK" --ttl 20 --also "$one" --also "$T/file" "$two" "$HELPERS/witness" \
        "$T" 60000 tree
    wait_for 5 file_has history enter
    local K=$STARTED lock
    find_guard
    kill -STOP "$G"
    kill -KILL "$K"
    for lock in "$one" "$two" "$T/file"; do run -75 run_t 5 "$DLOCK" -w 0.2 -q "$lock" true; done
    kill -CONT "$G"
    for lock in "$one" "$two" "$T/file"; do
        run -0 run_t 5 "$DLOCK" -w 4 "$lock" flock -sn witness true
    done
}

# The command of the next test: what it leaves in a session of its own, without an ear for TERM, it
# ends itself, and itself, too, if its keeper lives. Else they are for somebody else to end.
INSIDE='exec 9>"$1/witness"
    flock -n 9 || echo overlap >>"$1/violations"
    read -r _ _ _ keeper _ <"/proc/$PPID/stat"
    setsid sh -c "trap \"\" TERM; exec sleep 30" &
    sleep 0.3
    kill -0 "$keeper" 2>/dev/null || exec sleep 30
    kill -KILL $!'

# The points of a run: "MODE NAME K", the K-th call of that name, from the guard's fork on; of each
# name the first two, which is the way to the lock, and the last three, which is the hold and its
# end.
points() {
    mkdir "$T/run.$1"
    strace -o "$T/trace" "$DLOCK" --ttl 1 "$(lock_of $1)" sh -c "$INSIDE" - "$T/run.$1"
    awk -v mode="$1" 'match($0, /^[a-z_0-9]+\(/) {
             name = substr($0, 1, RLENGTH - 1); n[name]++
             if (name ~ /^(clone|clone3|fork|vfork)$/) forked = 1
             if (forked && name !~ /^exit/ && !(name in first)) first[name] = n[name]
         }
         END {
             for (name in first) for (k = first[name]; k <= n[name]; k++)
                 if (k < first[name] + 2 || k > n[name] - 3) print mode, name, k
         }' "$T/trace"
}

# one_point MODE NAME K: with a lock of its own, and what must be true then. Complaints go to
# $T/bad.
one_point() {
    local point=$1:$2:$3 rc=0 i dir lock
    dir=$T/point.$point
    lock=$(lock_of "$1" "$2.$3")
    mkdir "$dir"
    # In braces: bash tells about everybody who is killed.
    {
        timeout -k 2 15 strace -o /dev/null -e trace="$2" -e inject="$2:signal=SIGKILL:when=$3" \
            "$DLOCK" --ttl 1 "$lock" sh -c "$INSIDE" - "$dir" >"$dir/out" 2>&1 </dev/null 3>&- ||
            rc=$?
    } 2>/dev/null
    echo "$rc" >"$dir/rc"
    # A killed keeper's guard does not wait for the end of the lease (25 ms a turn, and more).
    for ((i = 0; i < 20; i++)); do
        [ -e "$dir/witness" ] || break
        flock -sn "$dir/witness" true && break
        sleep 0.025
    done
    [ $i -lt 20 ] || echo "$point: the tree lives on" >>"$T/bad"
    # Whoever comes next gets it within the ttl and a second, and nobody is inside any more.
    timeout -k 2 15 "$DLOCK" -w 2.2 "$lock" flock -sn "$dir/witness" true >"$dir/next" 2>&1 3>&- ||
        echo "$point: exit code of the next one: $?, and it says: $(cat "$dir/next")" >>"$T/bad"
    [ ! -e "$dir/violations" ] || echo "$point: overlap" >>"$T/bad"
    case $rc in
    0 | 137) [ ! -s "$dir/out" ] || echo "$point: $(cat "$dir/out")" >>"$T/bad" ;;
    *) echo "$point: exit code $rc: $(cat "$dir/out")" >>"$T/bad" ;;
    esac
}

# A process that is killed makes no report: nothing for a sanitizer.
# bats test_tags=plain,slow,soak
@test "no tree survives a keeper killed at its system calls" {
    strace -o /dev/null true 2>/dev/null || skip "strace does not work here"
    for mode in $MODES; do points $mode; done >all
    [ "$(wc -l <all)" -ge 80 ]
    sample call_points <all >points
    n=$(wc -l <points)
    export T NAME INSIDE
    export -f one_point lock_of
    timeout 150 xargs -P 8 -L 1 bash -c 'one_point "$1" "$2" "$3"' - <points
    killed=$(cat point.*/rc | grep -c 137)
    echo "# $killed killed at $n points" >&3
    [ "$killed" -ge $((n / 2)) ]
    settle 2
    [ ! -e bad ] || { cat bad; false; }
}

# --- clocks ---------------------------------------------------------------------------------------

clocked() { with_clock background "$@"; }
@test "no renewal revives a lease that ended during a suspend" {
    export WALLCLOCK_SUSPEND=1
    for mode in $MODES; do
        L=$(lock_of $mode)
        RUN=clocked tree --ttl 3 "$L"
        jump 10
        t0=$(now_ms)
        lost 1 "could not be renewed in time: this process did not run for"
        # At the latest when it wakes up for the next renewal: 0.77 s.
        assert_between 0 $(($(now_ms) - t0)) $((1300 + SLOW)) "$mode: time until the end (ms)"
        wait_for 2 tree_gone
    done
}

# clocked_server: one of this test, whose clock jumps. Its user can reach neither the helpers nor
# $T.
clocked_server() {
    local dir
    dir=$(pg_folder)
    cp "$HELPERS/wallclock.so" "$dir/"
    CLOCK_FILE=$dir/offset
    HELPERS=$dir with_clock pg_start_in own
    use_server own
    CLOCK_DIR=$dir
}
server_is_ahead() { # SECONDS
    local d
    d=$(pgsql -c "select round(extract(epoch from clock_timestamp()))")
    assert_between $(($(date +%s) + $1 - 2)) "$d" $(($(date +%s) + $1 + 2)) "the server's clock"
}

@test "a lease ends when the server's clock jumps forward, not back" {
    clocked_server
    L=$(lock_of lease)
    tree --ttl 3 "$L"
    jump -60
    server_is_ahead -60
    lasts 3100
    pid_alive "$K"
    run -75 "$DLOCK" -q -n "$L" true
    [ "$(count_seen main sig 15)" = 0 ]
    jump 0
    server_is_ahead 0
    t0=$(now_ms)
    killed 1 "is lost: the lease expired"
    # Renewals are 0.74 s apart.
    assert_between 0 $(($(now_ms) - t0)) $((1100 + SLOW)) "time until it is noticed (ms)"
    wait_for 2 tree_gone
    run -0 "$DLOCK" -n "$L" true
    rm -rf "$CLOCK_DIR"
}

# PostgreSQL times a session by the wall clock: if its timer goes off between the jump and the next
# renewal, the session has been idle for a minute.
# bats test_tags=soak
@test "an advisory lock survives a clock jump or ends with its session" {
    clocked_server
    L=$(lock_of advisory)
    tree --ttl 3 "$L"
    jump -60
    server_is_ahead -60
    lasts 3100
    pid_alive "$K" || fail "$(cat out)"
    run -75 "$DLOCK" -q -n "$L" true
    local died=0 lived=0
    for i in $(seq "$(amount clock_rounds)"); do
        jump $((i * 60 - 60))
        lasts 3100
        if pid_alive "$K"; then
            lived=$((lived + 1))
            run -75 "$DLOCK" -q -n "$L" true
        else
            died=$((died + 1))
            ends 79
            assert_out "idle-session timeout"
            wait_for 2 tree_gone
            run -0 "$DLOCK" -n "$L" true
            # Killed, not asked.
            [ "$(count_seen main sig 15)" = 0 ]
            tree --ttl 3 "$L"
        fi
    done
    echo "# $died died, $lived lived on" >&3
    kill -KILL "$K"
    wait_for 2 tree_gone
    rm -rf "$CLOCK_DIR"
}
