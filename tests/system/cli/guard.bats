#!/usr/bin/env bats
# guard.bats - the dead man's switch: the command's whole tree is gone before the lease ends,
# whichever process is killed or stopped, and the lock is released after that. What the keeper does
# when the lock is lost is in lease.bats.

# bats file_tags=long
load ../../support/fake

@test "tells why the guard could not be set up" {
    # Linux has no timer with a signal for it then.
    for lock in "$L" "-o $T/x.lock"; do
        run -71 run_t 5 prlimit --sigpending=0 "$DLOCK" $lock touch ran
        assert_out "cannot set up the guard process: Resource temporarily unavailable" "ulimit -i"
        [ "${#lines[@]}" = 1 ] || fail "$output"
        [ ! -e ran ]
    done
}

# --- one of us is killed -----------------------------------------------------

# found PID: does `pkill dlock`, or `pkill -f dlock`, mean that process?
found() { grep -qx "$1" "$T/found"; }

@test "pkill -9 dlock leaves a guard that ends the tree at once" {
    for lock in "$L" "-o $T/o.lock"; do
        starts 4 --ttl 30 $lock $SUBJECT -t -k
        find_guard
        # Only for their names: what it finds may be others' as well.
        { pgrep dlock && pgrep -f dlock; } >"$T/found"
        found "$K" || fail "$lock: the keeper is not found"
        ! found "$G" || fail "$lock: the guard is found: $(tr '\0' ' ' <"/proc/$G/cmdline")"
        [ "$(ps -o args= "$G")" = "lock-guard of $K" ]
        kill -KILL "$K"
        gone_by $((500 + SLOW)) "$(now_ns)"
        wait_for 2 pid_gone "$G"
        settle 2
    done
    # The lease is left behind, as by a crash: there was no release.
    [ -e "$S/held" ]
    ! store_did release || fail "found"
}

@test "the caller of a killed keeper sees SIGKILL" {
    run -137 run_t 20 bash -c '"$@" & wait $!' - "$DLOCK" "$L" sh -c \
        'kill -KILL $(ps -o ppid= $(ps -o ppid= $PPID)); sleep 20'
}

waits() {
    tell acquire wait
    background "$L" $SUBJECT
    wait_for 5 store_did acquire
    find_guard
}

@test "a keeper or a guard killed while it waits starts nothing, the guard's place is given up" {
    waits
    kill -KILL "$K"
    wait_for 2 pid_gone "$G"
    rm "$S/log"
    waits
    kill -KILL "$G"
    ends_with 71
    store_did release
    [ ! -e "$C/events" ]
}

@test "KILL for dlock's process group leaves no command" {
    # As timeout -s KILL sends it.
    for lock in "--ttl 30 $L" "$T/x.lock" "-o $T/o.lock"; do
        rm -rf "$S"/*
        starts 1 $lock $SUBJECT -k
        kill -KILL -- "-$K"
        gone_by $((500 + SLOW)) "$(now_ns)"
    done
}

# bats test_tags=plain
@test "keeper and guard let go of the caller's descriptors, without close_range(2) too" {
    need_root # to see the descriptors of a process that is not dumpable
    local shim
    mkfifo pipe
    exec 9<>pipe
    for shim in '' "$HELPERS/no_close_range.so"; do
        LD_PRELOAD=$shim starts 1 --ttl 30 "$L" $SUBJECT
        find_guard
        ls -l "/proc/$K/fd" "/proc/$G/fd" >fds
        ! grep "$T/pipe" fds || fail "$shim: $(cat fds)"
        kill -TERM "$K"
        exits 143 5 "$K"
        rm -f "$C"/*
    done
    exec 9>&-
}

@test "a command that stops or kills its process group leaves keeper and guard alone" {
    background --ttl 1 "$L" sh -c 'echo $$ >pid; kill -STOP 0; exit 5'
    wait_for 5 file_nonempty pid
    wait_for 5 pid_stopped "$(<pid)"
    renewed=$(grep -c ok "$S/log" || :)
    wait_for 5 store_did ok $((renewed + 2))
    find_guard
    if pid_stopped "$K" || pid_stopped "$G"; then fail "stopped"; fi
    kill -CONT "$(<pid)"
    ends_with 5
    for lock in "$L" "-o $T/o.lock"; do
        background $lock sh -c 'kill -KILL 0'
        ends_with 137
        [ "$output" = "" ] || fail "$output"
    done
    store_did clean
}

# bats test_tags=plain
@test "a guard that fails on the way to the command starts nothing" {
    strace -o /dev/null true 2>/dev/null || skip "strace does not work here"
    # Its calls on the way to the command, ahead of the grant and again at the order to start; the
    # keeper makes none of them.
    for call in pipe2:1+ pipe2:2+ setpgid:1+ setpgid:2+; do
        for fault in signal=SIGKILL error=EAGAIN; do
            rm -rf "$S"/*
            run -71 run_t 10 setsid -w strace -fo trace -e "trace=${call%:*}" -e \
                "inject=${call%:*}:$fault:when=${call#*:}" \
                "$DLOCK" --ttl 30 "$L" touch ran
            grep -Eq "INJECTED|killed by SIGKILL" trace || fail "no fault at $call"
            [ "${#lines[@]}" = 1 ] || fail "$call, $fault: $output"
            [ ! -e ran ] || fail "$call, $fault: the command ran"
            [ ! -e "$S/held" ] || fail "$call, $fault: the lock is left behind"
        done
    done
}

# bats test_tags=plain
@test "a message that the kernel has no memory for is sent again" {
    local k
    for k in grandchild:sendmsg:{1,2,3} keeper:sendmsg:2; do
        run_t 10 "$HELPERS/fail_call" report "$k:105" "$DLOCK" "$L" sh -c 'exit 7'
        grep -qx struck report && grep -q '^exit 7 ' report || fail "$k: $(cat report)"
    done
}

# --- one of us is stopped ----------------------------------------------------

# stopped_too_long [OPTION]: of the subject, whose keeper is stopped until the tree is gone.
stopped_too_long() {
    starts 4 --ttl 1.5 "$L" $SUBJECT -t "$@"
    kill -STOP "$K"
    wait_for 5 tree_gone
    lease_times 1500 "$(confirmed)"
    kill -CONT "$K"
    ends_with 79
    assert_out "could not be renewed in time: this process did not run for"
    [ "$(grep -c '^dlock:' "$T/out")" = 1 ]
}

@test "a stopped keeper's command gets TERM at term_at and KILL at kill_at" {
    stopped_too_long -k
    # A renewal may have been sent and answered before the guard was told: two times are right.
    for who in main child session daemon; do
        assert_between $((TERM_AT - 500 * NS)) "$(seen $who sig 15)" $((TERM_AT + 250 * NS)) \
            "TERM for $who"
    done
    assert_between $((KILL_AT - 520 * NS)) "$(last_beat)" $((DEADLINE - 1)) "last sign of life"
    assert_between 40 $((($(last_beat) - $(seen main sig 15)) / NS)) 320 "grace (ms)"
    no_overlap
}

@test "a keeper that is continued in time loses nothing" {
    starts 1 --ttl 1.5 "$L" $SUBJECT -u "$T/end" -r 3
    wait_for 5 store_did ok
    kill -STOP "$K"
    wait_for 2 pid_stopped "$K"
    kill -CONT "$K"
    wait_for 5 store_did ok 4
    finish 3
    [ -z "$(seen main sig 15)" ]
}

@test "a stopped guard's tree is gone before the deadline" {
    starts 4 --ttl 1.5 "$L" $SUBJECT -t -k
    find_guard
    tell renew unclear
    kill -STOP "$G"
    # The keeper's END finds a stopped guard; its kernel timer kills it, the witness ends orphans.
    ends_with 79
    assert_out "could not be renewed"
    lease_times 1500 "$(confirmed)"
    wait_for 1 tree_gone
    [ "$(last_beat)" -lt "$DEADLINE" ]
    [ "$(last_beat)" -lt "$(at release)" ]
}

@test "a stopped guard's tree ends although the lock is renewed" {
    starts 4 --ttl 1.5 "$L" $SUBJECT -t -k
    find_guard
    kill -STOP "$G"
    stopped=$(now_ns)
    ended
    case $status in 71 | 79) ;; *) fail "exit code $status" ;; esac
    wait_for 1 tree_gone
    assert_between 0 "$(last_beat)" $((stopped + 1500 * NS)) "last sign of life"
    [ "$(last_beat)" -lt "$(at release)" ]
    [ ! -e "$S/held" ]
}

@test "a stopped command is ended in time" {
    starts 4 --ttl 1.5 "$L" $SUBJECT -t
    tell renew unclear
    for who in main child session daemon; do kill -STOP "$(pid_of $who)"; done
    ends_with 79
    lease_times 1500 "$(confirmed)"
    # TERM reaches it because a CONT follows.
    just_after "$TERM_AT" "$(seen main sig 15)" 250 TERM
    [ "$(last_beat)" -lt "$KILL_AT" ]
}

@test "the keeper does not signal the number of a reaped guard" {
    # A dismissed guard that does not exit is killed after 30 ms. Here it dies in that same turn.
    if [ -n "${SAN:-}" ]; then return 0; fi # its runtime reads, waits and forks as well
    tell acquire wait
    KILLS_LOG=$T/kills preload kill_guard background -w 0.5 "$L" true
    wait_for 5 store_did acquire
    find_guard
    kill -STOP "$G"
    ends_with 75
    grep -qx "living $G" "$T/kills" || fail "the guard was never killed: $(cat "$T/kills")"
    ! grep reaped "$T/kills" || fail "killed after it was reaped"
}

# --- everywhere --------------------------------------------------------------

# one_point NAME K: the keeper is killed at its K-th system call NAME.
one_point() {
    local dir=$T/point.$1.$2 rc=0 i
    mkdir -p "$dir/store" "$dir/command"
    # In braces: bash reports each killed process.
    {
        ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0 timeout -k 2 20 \
            strace -o /dev/null -e trace="$1" -e inject="$1":signal=SIGKILL:when="$2" \
            "$DLOCK" --ttl 1 "fake://$dir/store#$NAME" "$HELPERS/subject" \
            "$dir/command" -t -k -m 450 \
            >"$dir/out" 2>&1 </dev/null 3>&- || rc=$?
    } 2>/dev/null
    echo "$rc" >"$dir/rc"
    # Without a keeper no process of the tree survives.
    if [ "$rc" -ne 0 ] && [ -e "$dir/command/witness" ]; then
        local dead C=$dir/command
        dead=$(now_ns)
        for ((i = 0; i < 50; i++)); do
            flock -sn "$C/witness" true && break
            sleep 0.02
        done
        [ "$(last_beat)" -lt $((dead + (250 + SLOW) * NS)) ] ||
            echo "$1:$2: the tree lives on" >>"$T/bad"
    fi
    if [ -e "$dir/store/held" ]; then
        local until up
        read -r until _ <"$dir/store/held"
        read -r up _ </proc/uptime
        [ "$until" -lt $((10#${up/./} * 10000000 + 1020000000)) ] ||
            echo "$1:$2: held for too long" >>"$T/bad"
    fi
    grep -q overlap "$dir/command/events" 2>/dev/null && echo "$1:$2: overlap" >>"$T/bad"
    case $rc in 0 | 137) ;; *) echo "$1:$2: exit code $rc" >>"$T/bad" ;; esac
    return 0
}
export -f one_point now_ns now_ms last_beat

# A process that is killed makes no report: nothing for a sanitizer. A guard that is left alone has
# tests of its own.
# bats test_tags=plain,soak
@test "no tree survives a keeper killed at any system call" {
    strace -o /dev/null true 2>/dev/null || skip "strace does not work here"
    ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0 \
        strace -o "$T/trace" "$DLOCK" --ttl 1 "$L" $SUBJECT -t -k -m 450
    # From the guard's fork on (before it there is nothing to guard), only the first of many polls.
    awk 'match($0, /^[a-z_0-9]+\(/) {
             name = substr($0, 1, RLENGTH - 1); n[name]++
             if (name ~ /^(clone|clone3|fork|vfork)$/) forked = 1
             if (!forked || name ~ /^exit/) next
             if (++points[name] <= 16) print name, n[name]
         }' "$T/trace" >all
    [ "$(wc -l <all)" -ge 40 ]
    sample call_points <all >points
    n=$(wc -l <points)
    echo "$n points"
    export T NAME NS SLOW
    timeout 100 xargs -P 6 -L 1 bash -c 'one_point "$1" "$2"' - <"$T/points"
    killed=$(cat "$T"/point.*/rc | grep -c 137)
    echo "$killed killed"
    [ "$killed" -ge $((n / 2)) ]
    [ ! -e "$T/bad" ] || fail "$(cat "$T/bad")"
    settle 2
}

@test "-v warns of a command that changes its user" {
    need_root
    command -v su >/dev/null
    chmod 755 "$T"
    mkdir -m 777 nobody
    as_nobody() {
        run -0 run_t 5 setpriv --reuid=nobody --regid=nogroup --clear-groups "$DLOCK" "$@"
    }
    lock="fake://$T/nobody#$NAME"
    as_nobody -v "$lock" su --version
    assert_out "dlock: 'su' changes its user"
    as_nobody "$lock" su --version
    refute_out "changes its user"
    as_nobody -v "$lock" true
    refute_out "changes its user"
    rm -rf nobody/*
    run -0 run_t 5 "$DLOCK" -v "$lock" su --version
    refute_out "changes its user"
}

# --- inherited children ------------------------------------------------------

@test "an unprivileged guard finds the tree too" {
    need_root # else the unit tests have shown it
    dir=$(mktemp -d /tmp/dlock-test.XXXXXX)
    chmod 755 "$dir"
    install -m 755 "$BUILD/unit/cli/test_process_tree" "$dir/"
    cd /
    run run_t 30 setpriv --reuid=nobody --regid=nogroup --clear-groups "$dir/test_process_tree"
    rm -r "$dir"
    assert_rc 0
}

# with_a_job ARG...: exec of dlock ($K) beside a background job of the caller.
with_a_job() {
    start_log "$T/out" "$HELPERS/launch" -d -s sh -c '(while [ ! -e go ]; do sleep 0.02; done
        sh -c "echo \$\$ >job; exec sleep 60" &) & exec "$@"' - "$DLOCK" "$@"
    K=$STARTED
}
# job_goes_over: the caller's job has lost its parent: $job.
job_goes_over() {
    touch go
    wait_for 5 file_nonempty job
    job=$(<job)
}
# orphans ARG...: dlock beside a job, with a command two of whose descendants have lost their
# parent; one of them ignores TERM.
orphans() {
    rm -f go job main1 main2 started
    with_a_job --grace 300ms "$@" env -i "$BASH" -c '(sh -c "echo \$\$ >main1; exec sleep 60" &)
            (sh -c "trap \"\" TERM; echo \$\$ >main2; while :; do sleep 0.05; done" &)
            while [ ! -s main1 ] || [ ! -s main2 ]; do sleep 0.02; done; echo >started; sleep 60'
    wait_for 5 file_nonempty started
    job_goes_over
}

@test "the caller's own jobs outlive the command of exec dlock" {
    for lock in "-o ./c.lock" "--ttl 30 $L"; do
        orphans $lock
        kill -TERM "$K"
        ends_with 143
        pid_gone "$(<main1)"
        pid_gone "$(<main2)"
        pid_alive "$job"
        kill -KILL "$job"
    done
    # As under flock(1): who has the descriptor has the lock.
    orphans ./c.lock
    kill -TERM "$K"
    ends_with 143
    run -1 run_t 5 flock -n c.lock true
    kill -KILL "$job" "$(<main1)" "$(<main2)"
    wait_for 5 flock -n c.lock true
}

# strike SIGNAL PID... SIGNAL PID... The later ones may have ended by then.
strike() {
    local sig
    while [ $# -gt 0 ]; do
        if [[ $1 == [A-Z]* ]]; then sig=$1; else kill "-$sig" "$1" 2>/dev/null || :; fi
        shift
    done
}

# With a job of the caller's the keeper cannot be the one that is left: it cannot tell its children.
@test "any two of keeper, guard and witness may be killed or stopped, beside a job or not" {
    local hit job
    for hit in "KILL G" "KILL W" "KILL K G" "KILL K W" "KILL G W" "STOP W KILL G" "STOP G KILL W" \
        "STOP G KILL K" "STOP W KILL K" "STOP W K" "STOP G" "KILL K"; do
        for job in '' job; do
            [ "$hit$job" != "KILL G Wjob" ] || continue
            rm -rf "$S"/* go job
            if [ -n "$job" ]; then
                rm -f "$C"/* "$T/end"
                with_a_job --ttl 2 --grace 0.2 "$L" env -i $SUBJECT -t -k
                wait_for 5 running 4
                job_goes_over
            else
                starts 4 --ttl 2 --grace 0.2 "$L" env -i $SUBJECT -t -k
            fi
            find_guard
            strike $(sed "s/\bK\b/$K/; s/\bG\b/$G/; s/\bW\b/$W/" <<<"$hit")
            wait_for $((5 + SLOW / 200)) tree_gone || fail "$hit $job: the tree lives"
            kill -CONT "$K" "$W" "$G" 2>/dev/null || :
            wait_for 5 pid_gone "$W"
            wait_for 5 pid_gone "$G"
            [[ $hit == *K* ]] || {
                ended
                [ "$status" = 71 ] || fail "$hit $job: $status, $output"
            }
            [ -z "$job" ] || { pid_alive "$job" && kill -KILL "$job"; } || fail "$hit: the job"
        done
    done
}

# --- unusual surroundings ----------------------------------------------------

# bats test_tags=plain
@test "enters a PID namespace only whole" {
    need_pid_namespace
    run -71 run_t 5 unshare --pid "$DLOCK" --ttl 2 "$L" touch ran
    assert_out "the children of this process are in another PID namespace: use 'unshare --fork'"
    [ "${#lines[@]}" = 1 ]
    [ ! -e ran ]
    # As by docker exec: the parent is outside.
    start "$HELPERS/launch" -d -s unshare --pid --fork --mount-proc --kill-child sleep 60
    sleep_is_there() { inside=$(children "$STARTED") && [ -n "$inside" ]; }
    wait_for 5 sleep_is_there
    run -7 run_t 10 nsenter --target "$inside" --pid --mount "$DLOCK" --ttl 2 "$L" sh -c \
        '(trap "" TERM; sleep 30) & [ "$(ps -o ppid= $(ps -o ppid= $(ps -o ppid= $PPID)))" = 0 ] &&
        kill -TERM $PPID; exit 7'
    kill -TERM "$STARTED"
}

@test "the command has the terminal at a PID namespace's edge" {
    need_pid_namespace
    at_terminal <<'PY'
j = t.start(['unshare', '--pid', '--fork', '--mount-proc', '--kill-child', DLOCK, '--ttl', '20',
             LOCK, 'sh', '-c', '''read x </dev/tty; echo "got $x"; trap "echo int; exit 5" INT
                 while :; do sleep 0.05; done'''])
t.type(b'word\n')
t.until(lambda: 'got word' in t.output)
t.quiet(0.2)
t.type(b'\x03')
t.until(lambda: 'int\r\n' in t.output)
check(j.status() in ('exit 5', 'signal 2'), True, 'unshare')
PY
}

@test "with hidepid=2 a hidden command gets TERM before KILL" {
    need_mounts
    # Where others may go: $T is below a folder of root's.
    D=$(mktemp -d /tmp/dlock-test.XXXXXX)
    chmod 777 "$D"
    install -m 755 "$DLOCK" "$D/dlock"
    # The command is a dlock: it hands TERM on to its own command, which tells of it.
    start_log "$T/out" "$HELPERS/launch" -d -s unshare -m --propagation private sh -c \
        'mount -t proc -o hidepid=2 none /proc &&
            exec setpriv --reuid=nobody --regid=nogroup --clear-groups "$@"' - \
        "$D/dlock" --ttl 1.5 --grace 600ms "fake://$D#$NAME" "$D/dlock" "$D/inner.lock" \
        sh -c "trap 'echo >$D/term; exit 3' TERM; echo >$D/started; while :; do sleep 0.05; done"
    K=$STARTED
    wait_for 5 file_nonempty "$D/started"
    echo unclear >"$D/renew"
    ended
    term=$(ls "$D/term") || :
    rm -rf "$D"
    assert_rc 79
    [ -n "$term" ]
}

@test "refuses leases, not file locks, when /proc hides processes" {
    need_mounts
    [ -z "${SAN:-}" ] || return 0 # a sanitizer cannot start without /proc; the plain build shows it
    run -71 run_t 5 unshare -m sh -c 'mount -t tmpfs none /proc && exec "$@"' - "$DLOCK" \
        "$L" touch "$T/ran"
    assert_out "mount /proc"
    [ ! -e "$T/ran" ]
    [ ! -e "$S/log" ]
    run -0 run_t 5 unshare -m sh -c 'mount -t tmpfs none /proc && exec "$@"' - "$DLOCK" \
        "$T/x.lock" true
}

@test "dlock does not stay stopped when its command continues at once" {
    strace -D -o /dev/null true 2>/dev/null || skip "strace does not work here"
    # dlock is told of the stop and looks twice more, 0.5 s each: then the command runs again.
    at_terminal <<'PY'
os.environ['ASAN_OPTIONS'] = os.environ.get('ASAN_OPTIONS', '') + ':detect_leaks=0'
j = t.start(['strace', '-D', '-o', '/dev/null', '-e', 'trace=wait4',
             '-e', 'inject=wait4:delay_exit=500000',
             DLOCK, T + '/x.lock'] + SUBJECT + ['-u', T + '/end', '-r', '6'])
t.until(lambda: seen('main', 'start'))
main = int(read(C + '/events').split()[2])
t.quiet(0.1)
os.kill(main, signal.SIGTSTP)
t.quiet(1.25)
os.killpg(j.pgid, signal.SIGCONT)
t.until(lambda: state(main) != 'T')
j.finish('exit 6')
PY
}
