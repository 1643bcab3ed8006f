# common.bash - for every .bats file: load ../../support/common, or fake or redis, which load it. A
# file with a setup or a teardown of its own calls dlock_setup or dlock_teardown there.
#
# $DLOCK is the program under test, build/test/dlock: build/dlock, which users get, plus a scripted
# fake store. $HELPERS is the folder of the compiled helpers, $T this test's own folder, and $NAME a
# lock name that no other test uses. Every process that the test starts carries DLOCK_TEST_ID in its
# environment; a process that is left at the end is killed and fails the test.
# Tests wait for events (wait_for, fifos) and do not sleep.

# Without a process: this file is read once for each test.
cd "${BASH_SOURCE[0]%/*}/../.." || return
cd - >/dev/null || return
ROOT=$OLDPWD
export ROOT
: "${BUILD:=build}"
case $BUILD in /*) ;; *) BUILD=$ROOT/$BUILD ;; esac
export BUILD
export DLOCK=${DLOCK:-$BUILD/test/dlock}
export HELPERS=${HELPERS:-$BUILD/test}
# The caller's environment must not change what is tested. A test that wants to see what dlock tells
# the talkative sets CI=1, or uses -v.
unset CI DLOCK_STORE DLOCK_NAME DLOCK_TOKEN DLOCK_HELD DLOCK_FENCE DLOCK_SLOT DLOCK_TIMEOUT \
    DLOCK_TTL DLOCK_NOTE DLOCK_EVENTS LISTEN_PID LISTEN_FDS WATCHDOG_PID
export DLOCK_STORE_FILE= # not /etc/dlock/store of this machine
unset SUDO_UID REDISCLI_AUTH REDIS_URL SSL_CERT_FILE SSL_CERT_DIR
export LC_ALL=C.UTF-8 TZ=UTC
source "$ROOT/tests/support/stack_trace.bash"
source "$ROOT/tests/support/amounts.bash"
! declare -F bats_require_minimum_version >/dev/null || bats_require_minimum_version 1.5.0

setup() { dlock_setup; }
teardown() { dlock_teardown; }

# ---------------------------------------------------------------- set-up ---

# For tests that need root, or namespaces. In strict mode a skip is a failure, but for an ordinary
# user not one that "needs root" or "needs the right" (see tests/run). In a chroot unshare(1) cannot
# make the mounts private unless the root is a mount point: they would be seen outside of the test.
need_root() { [ "$(id -u)" -eq 0 ] || skip "needs root"; }
need_mounts() {
    need_root
    unshare -m true 2>/dev/null ||
        skip "needs the right to mount, and a root that is a mount point (mount --bind DIR DIR)"
}
need_pid_namespace() {
    unshare --pid --fork --mount-proc true 2>/dev/null ||
        skip "needs the right to make PID namespaces, and a root that is a mount point"
}

dlock_setup() {
    T=$BATS_TEST_TMPDIR
    NAME=t${BATS_SUITE_TEST_NUMBER:-0}-$$
    STARTED_PIDS=()
    # SLOW (ms): the delay of the start and end of a process by a sanitizer, another suite or a
    # slow machine, for upper bounds of these only.
    # BUSY (ms): the delay by tests beside this one, for single measurements.
    SLOW=0 BUSY=300
    case ${SAN:-} in *address* | *thread*) SLOW=1500 BUSY=1500 ;; esac
    [ -z "${DLOCK_SLOW:-}" ] || SLOW=1500 BUSY=1500
    export T NAME DLOCK_TEST_ID=${BATS_SUITE_TEST_NUMBER:-0}.$BASHPID.$RANDOM
    cd "$T" || return 1
}

# Ends the processes of `start`, and those that wait for the file go; then looks for what is left.
dlock_teardown() {
    local pid left

    [ -n "${BATS_TEST_COMPLETED:-}" ] || { san_reports; overlaps; } >&2
    [ -p "$T/go" ] || : >"$T/go"
    for pid in "${STARTED_PIDS[@]}"; do
        ! is_child "$pid" || kill -CONT "$pid" 2>/dev/null || :
        ! is_child "$pid" || kill -TERM "$pid" 2>/dev/null || :
    done
    [ ${#STARTED_PIDS[@]} -eq 0 ] || wait_for 1 started_gone 2>/dev/null || :
    for pid in "${STARTED_PIDS[@]}"; do
        ! is_child "$pid" || kill -KILL "$pid" 2>/dev/null || :
        wait "$pid" 2>/dev/null || :
    done
    declare -F redis_stop_all >/dev/null && redis_stop_all
    declare -F pg_stop_all >/dev/null && pg_stop_all
    declare -F my_stop_all >/dev/null && my_stop_all
    declare -F zk_stop_all >/dev/null && zk_stop_all
    # A process that is dying is no leak.
    settle 1 && return 0
    left=$(test_pids)
    [ -n "$left" ] || return 0
    for pid in $left; do
        echo "left behind: $pid $(tr '\0' ' ' <"/proc/$pid/cmdline") ($(proc_state "$pid"))"
        kill -KILL "$pid" || :
    done >&2 2>/dev/null
    return 1
}

started_gone() {
    local pid
    for pid in "${STARTED_PIDS[@]}"; do ! is_child "$pid" || pid_gone "$pid" || return; done
}
# Of this shell. The number of one that was reaped may be another test's process by now: a fast
# machine goes through all numbers in half a minute.
is_child() {
    local stat=
    { read -r stat <"/proc/$1/stat"; } 2>/dev/null || return
    [[ ${stat##*) } == ?" $BASHPID "* ]]
}

# Prints the sanitizers' reports so far with the failed test: a process with a report only shows
# exit code 134, and the suite lists the reports at its end.
san_reports() {
    local f
    for f in "${SAN_REPORTS:-/nonexistent}"/*; do
        [ -e "$f" ] || continue
        echo "${f##*/}:"
        sed -n 1,40p "$f"
    done
}

# Commands write such files when they find another holder; a test may fail before it looks there.
overlaps() {
    local f
    find "$T" -name violations |
        while IFS= read -r f; do final "overlap: $(head -n 3 "$f")"; done || :
    ! grep -shw overlap "$T/command/events" || final overlap || :
}

# settle SECONDS: wait until no process of this test is left.
settle() { none_left || wait_for "$1" none_left 2>/dev/null; }

# True if test_pids would print nothing. grep itself runs without the marker.
none_left() {
    [ -n "${DLOCK_TEST_ID:-}" ] || return 0
    if DLOCK_TEST_ID='' grep -qsaF "DLOCK_TEST_ID=$DLOCK_TEST_ID" /proc/[0-9]*/environ; then
        return 1
    fi
}

# Processes with this test's marker in their environment; a zombie has none.
test_pids() {
    local f pid
    [ -n "${DLOCK_TEST_ID:-}" ] || return 0
    for f in $(grep -lsaF "DLOCK_TEST_ID=$DLOCK_TEST_ID" /proc/[0-9]*/environ 2>/dev/null); do
        pid=${f#/proc/} pid=${pid%/environ}
        # grep itself has the marker; it is gone by now.
        [ -e "/proc/$pid/environ" ] && [ "$pid" != "$BASHPID" ] && [ "$pid" != $$ ] && echo "$pid"
    done
    return 0
}

# preload SHIM CMD...: CMD..., which may be a function, with support/preload/SHIM.c.
preload() {
    # A sanitizer's runtime wants to be the first library; being the second one is fine here.
    LD_PRELOAD=$HELPERS/$1.so ASAN_OPTIONS=${ASAN_OPTIONS:-}:verify_asan_link_order=0 "${@:2}"
}
# always CMD...: dlock's random decisions are positive: it tidies up.
always() { preload fixed_random "$@"; }

# A port below those that the kernel hands out to clients (32768...); below 10000 + SPAN.
some_port() { echo $((10000 + (SRANDOM + $$) % ${1:-22000})); }

# ------------------------------------------------------------------ time ---

# Milliseconds of the wall clock.
wall_ms() { date +%s%3N; }
# now_ms [VARIABLE]: milliseconds of CLOCK_BOOTTIME, in steps of 10. Into the variable it takes no
# process.
now_ms() {
    local up_now
    read -r up_now _ </proc/uptime
    up_now=$((10#${up_now/./} * 10))
    if [ $# -gt 0 ]; then printf -v "$1" %s $up_now; else echo $up_now; fi
}

# nap [SECONDS]: 20 ms, without starting a process and without a descriptor that the programs under
# test would inherit: a fifo that never gets data, one for all tests of a run.
nap() {
    local fifo=${BATS_RUN_TMPDIR:-${TMPDIR:-/tmp}}/.nap
    [ -p "$fifo" ] || mkfifo "$fifo" 2>/dev/null || :
    read -r -t "${1:-0.02}" <>"$fifo" || :
}

beyond() {
    local now
    now_ms now
    [ "$now" -ge "$1" ]
}

# timed ARG...: run dlock; $status, $output, $took (ms, in steps of 10). timed_run CMD...: any.
timed() { timed_run "$DLOCK" "$@"; }
# says RC TEXT ARG...: dlock ARG... ends with RC within 5 s, and TEXT is in its output.
says() {
    run "-$1" run_t 5 "$DLOCK" "${@:3}"
    assert_out "$2"
}
# says_yes CODE TEXT CMD ARG...: dlock ARG... asks at a terminal, and the answer is yes once CMD, of
# the test, has run: it ends with CODE, and TEXT is in its output.
says_yes() {
    local keyboard
    fresh keyboard asked.log
    mkfifo keyboard
    exec {keyboard}<>keyboard
    start bash -c 'exec script -qec "$0" /dev/null <keyboard >asked.log' \
        "$(printf '%q ' "$DLOCK" "${@:4}")"
    local asks=$STARTED
    wait_for 5 file_has asked.log '[y/N]' || fail "$(cat asked.log)" || return
    "$3" || return
    echo y >&"$keyboard"
    exec {keyboard}>&-
    exits "$1" 10 "$asks" || return
    output=$(cat asked.log)
    assert_out "$2"
}
timed_run() {
    local t0
    now_ms t0
    run run_t 20 "$@"
    now_ms took
    took=$((took - t0))
}

# ------------------------------------------------------------- processes ---

# run_t SECONDS CMD...: CMD, ended after SECONDS (exit 124, and a line that says so).
run_t() {
    local secs=$1 rc=0 up
    shift
    now_ms up
    timeout --foreground -k 2 "$secs" "$@" 3>&- || rc=$?
    # A command may answer 124 by itself.
    [ $rc -ne 124 ] || [ $(($(now_ms) - up)) -lt $((${secs%.*} * 1000)) ] ||
        echo "run_t: still running after $secs s: $*" >&2
    return $rc
}

# few_fds N CMD...: CMD for at most 5 s, with room for N descriptors and, whatever this shell has
# inherited, with the standard ones only.
few_fds() {
    run_t 5 bash -c 'for fd in /proc/$$/fd/*; do fd=${fd##*/}; [ "$fd" -le 2 ] || exec {fd}>&-; done
        ulimit -n "$1"; shift; exec "$@"' - "$@"
}

# start CMD...: CMD in the background, for teardown to end; its pid is in $STARTED.
start() {
    "$@" 3>&- &
    STARTED=$!
    STARTED_PIDS+=("$STARTED")
}

# start_log FILE CMD...: the same, stdout and stderr into FILE, stdin from /dev/null.
start_log() { start "${@:2}" >"$1" 2>&1 </dev/null; }

# listener HELPER ARG...: a helper (support/helpers/HELPER.py) that says at which port it listens;
# $LISTENS is that port, $LISTENER its pid.
listener() {
    local file=$T/port.$((LISTENERS += 1))
    start "$ROOT/tests/support/helpers/$1.py" "${@:2}" >"$file"
    LISTENER=$STARTED
    wait_for 5 test -s "$file"
    LISTENS=$(cat "$file")
}

# wait_for SECONDS CMD...: poll every 20 ms, later every 60 or 100 ms, until CMD succeeds. CMD sees
# the variables of the test, so none of these here may have a name that a test uses.
wait_for() {
    local wf_secs=$1 wf_now wf_end wf_pause=0.02 wf_tries=0
    shift
    now_ms wf_now
    wf_end=$((wf_now + ${wf_secs%.*} * 1000 + 5 * ${SLOW:-0}))
    while ! "$@" >/dev/null 2>&1; do
        now_ms wf_now
        if [ "$wf_now" -ge $wf_end ]; then
            echo "wait_for: not within $wf_secs s: $*" >&2
            return 1
        fi
        case $((wf_tries += 1)) in 10) wf_pause=0.06 ;; 20) wf_pause=0.1 ;; esac
        nap $wf_pause
    done
}

# wait_exit SECONDS PID: wait for a job of ours; its exit code is returned (125: still running, said
# on stderr). Not with `run`, whose subshell cannot wait: `rc=0; wait_exit 5 $pid || rc=$?`.
wait_exit() {
    wait_for "$1" pid_gone "$2" || return 125
    wait "$2"
}

exits() { # CODE SECONDS PID: a job of ours, see wait_exit
    local rc=0
    wait_exit "$2" "$3" || rc=$?
    [ $rc -eq "$1" ] || fail "exit code $rc, not $1: $(tail -n 20 ./*.log)"
}

# fresh FILE...: none of them is there any more.
fresh() {
    local file
    for file; do [ ! -e "$file" ] || rm -f "$file"; done
}
# hold [ARG...]: dlock ($HOLDER) holds $L until let_go; returns when it does. held: its fence.
hold() {
    fresh held go
    start_log hold.log "$DLOCK" "$@" "$L" sh -c 'echo $DLOCK_FENCE >held; "$HELPERS/await" go'
    HOLDER=$STARTED
    wait_for 5 test -s held || fail "$(cat hold.log)"
}
# ends_while_stopped [OPTION...]: a keeper $HOLDER that is stopped, and whose command has ended
# since.
ends_while_stopped() {
    fresh held go
    start_log hold.log "$DLOCK" "$@" "$L" sh -c 'echo $$ >held; exec "$HELPERS/await" go'
    HOLDER=$STARTED
    wait_for 5 test -s held || fail "$(cat hold.log)"
    kill -STOP "$HOLDER"
    : >go
    wait_for 5 pid_gone "$(<held)"
}
let_go() { # [CODE]: the holder's exit code, 0
    : >go
    exits "${1:-0}" 8 "$HOLDER"
}

# waiters_are N [LOCK]: so many wait for it, $L, by --status.
waiters_are() {
    local status rest
    status=$("$DLOCK" --status --json "${2:-$L}") || :
    rest=${status//\"place\"/}
    [ $(((${#status} - ${#rest}) / 7)) -eq "$1" ]
}

# until_ready SECONDS PID CMD...: until CMD succeeds. If the job PID, a server, ends before that, or
# takes too long, it is killed: 1.
until_ready() {
    local now end job=$2
    now_ms now
    end=$((now + $1 * 1000))
    shift 2
    until "$@"; do
        now_ms now
        pid_alive "$job" && [ "$now" -lt $end ] || {
            kill -KILL "$job" 2>/dev/null
            wait "$job" 2>/dev/null
            return 1
        }
        nap
    done
}
# end_job SIGNAL PID: by KILL if the signal does not do in time. The job may be stopped.
end_job() {
    kill -CONT "$2" 2>/dev/null || :
    kill -"$1" "$2" 2>/dev/null || :
    wait_for 10 pid_gone "$2" || kill -KILL "$2" 2>/dev/null
    wait "$2" 2>/dev/null || :
}

# State letter of a process (R S D T Z ...), empty when there is none.
proc_state() {
    local stat
    { read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 0
    stat=${stat##*) }
    echo "${stat%% *}"
}

# Gone, or a zombie that only waits to be reaped.
pid_gone() {
    local stat=
    { read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 0
    stat=${stat##*) }
    case ${stat%% *} in '' | Z | X) return 0 ;; *) return 1 ;; esac
}
pid_stopped() { [ "$(proc_state "$1")" = T ]; }
pid_alive() { ! pid_gone "$1"; }

# Children of a process, one a line.
children() {
    local file IFS=' '
    local -a pids
    for file in "/proc/$1/task"/*/children; do
        pids=()
        { read -r -a pids <"$file"; } 2>/dev/null || :
        [ ${#pids[@]} -eq 0 ] || printf '%s\n' "${pids[@]}"
    done
}
# guard_of KEEPER: the pids of its witness into $W, of its guard into $G.
guard_of() {
    W=$(child_named "$1" lock-witness) && G=$(child_named "$W" lock-guard)
}
child_named() {
    local pid
    for pid in $(children "$1"); do
        ! grep -qsx "$2" "/proc/$pid/comm" || { echo "$pid"; return; }
    done
    return 1
}

# ---------------------------------------------------------------- checks ---

# file_has FILE TEXT: TEXT within one line, or more.
file_has() {
    local text=
    { IFS= read -r -d '' text <"$1"; } 2>/dev/null || :
    [[ $text == *"$2"* ]]
}
file_nonempty() { [ -s "$1" ]; }

# fail MESSAGE...
fail() {
    echo "$*" >&2
    return 1
}

# final MESSAGE...: fails by an event that must never happen: two holders at a time, a fence that
# decreases, a lost exit code. tests/run does not repeat such a test.
final() { fail "FINAL: $*"; }

# assert_rc N: the exit code of the last `run`.
assert_rc() {
    [ "$status" -eq "$1" ] || fail "exit code $status, not $1; output: $output"
}

# assert_out TEXT...: the output of the last `run` contains each TEXT; refute_out TEXT...: none.
assert_out() {
    local text
    for text; do
        [[ $output == *"$text"* ]] || fail "output without '$text': $output" || return
    done
}
refute_out() {
    local text
    for text; do
        [[ $output != *"$text"* ]] || fail "output with '$text': $output" || return
    done
}

# assert_between LOW VALUE HIGH WHAT
assert_between() {
    [ "$2" -ge "$1" ] && [ "$2" -le "$3" ] || fail "${4:-value}: $2, not between $1 and $3"
}
