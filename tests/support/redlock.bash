# redlock.bash - N independent redis servers for tests, nodes 1...N. Load after common.bash and
# redis.bash.
#
#     rl_start [N [ARG...]]     N (5) new nodes; in a test: instead of the file's
#     rl_uri NAME [PARAMS]      redlock://...?PARAMS#NAME; PARAMS: restart-grace=0, "-": none
#     rl K ARG...               redis-cli on node K
#     rl_ask K WORD...          plain words, quickly; on "K..." WORD...   on_all WORD...
#     rl_count "WORD..." WANT   on how many nodes the answer is WANT
#     rl_freeze K... rl_thaw K... rl_die K... rl_revive K...    (a revived node has lost its data)
#     rl_put K PORT             something else stands at the place of node K
#     rl_left [K...]            the keys of $NAME that are left, but for fences that expire
#
# What is stopped or killed in a test must be nodes of that test. teardown_file calls rl_stop_file.

# rl_start must not be in a subshell: the ports are in RL_PORTS, words 1...N, and the pids in
# RL_PIDS (the first ones).
rl_start() {
    local n=${1:-5} k dir
    [ $# -eq 0 ] || shift
    RL_PORTS='' RL_PIDS=''
    dir=$(mktemp -d "${BATS_TEST_TMPDIR:-${BATS_FILE_TMPDIR:?}}/nodes.XXXXXX") || return
    # All at once; a node whose port is in use starts again with another port.
    for ((k = 1; k <= n; k++)); do
        mkdir "$dir/$k"
        redis_spawn "n$k" "$dir/$k" "$(some_port)" "$@"
    done
    for ((k = 1; k <= n; k++)); do
        redis_ready "n$k" || redis_start_in "n$k" "$@" || return
        RL_PORTS+="${RL_PORTS:+ }${REDIS_PORTS[n$k]}" RL_PIDS+="${RL_PIDS:+ }${REDIS_PIDS[n$k]}"
    done
    export RL_PORTS RL_PIDS
}
# Those of setup_file: its arrays are gone.
rl_stop_file() {
    local pid
    for pid in $RL_PIDS; do kill -KILL "$pid" 2>/dev/null || :; done
    for pid in $RL_PIDS; do wait "$pid" 2>/dev/null || :; done
}

rl_port() { local -a ports=($RL_PORTS); echo "${ports[$1 - 1]}"; }
rl_all() {
    local -a ports=($RL_PORTS)
    local k
    for k in "${!ports[@]}"; do echo $((k + 1)); done
}
rl_put() {
    local -a ports=($RL_PORTS)
    ports[$1 - 1]=$2
    RL_PORTS=${ports[*]}
}
rl_hosts() {
    local -a ports=($RL_PORTS)
    local hosts
    hosts=$(printf ',127.0.0.1:%s' "${ports[@]}")
    echo "${hosts#,}"
}
rl_uri() {
    local params=${2:-restart-grace=0}
    [ "$params" != - ] || params=''
    echo "redlock://$(rl_hosts)${params:+?$params}#$1"
}

rl() { redis-cli -h 127.0.0.1 -p "$(rl_port "$1")" "${@:2}" 3>&-; }
# rl_ask K WORD...: a command of plain words, without starting a process. Its answer, if that is not
# a list, is in $ANSWER. 1: no server, or an error.
rl_ask() {
    local -a ports=($RL_PORTS)
    local fd line rc=0
    ANSWER=''
    { exec {fd}<>"/dev/tcp/127.0.0.1/${ports[$1 - 1]}"; } 2>/dev/null || return 1
    printf '%s\r\n' "${*:2}" >&"$fd"
    read -r -t 5 line <&"$fd" || rc=1
    line=${line%$'\r'}
    case $line in
    '$-1') ;;
    '$'*) read -r -t 5 -N "${line#?}" ANSWER <&"$fd" || rc=1 ;;
    -*) echo "node $1: ${*:2}: $line" >&2 && rc=1 ;;
    *) ANSWER=${line#?} ;;
    esac
    exec {fd}>&-
    return $rc
}
on() {
    local k
    for k in $1; do rl_ask "$k" "${@:2}" || return; done
}
on_all() { on "$(rl_all)" "$@"; }
rl_count() {
    local k n=0
    for k in $(rl_all); do
        # shellcheck disable=SC2086
        ! rl_ask "$k" $1 2>/dev/null || [ "$ANSWER" != "$2" ] || n=$((n + 1))
    done
    echo $n
}
# rl_holds NAME: nodes that have the key. As conditions: rl_on NAME N, at least; rl_gone NAME,
# nowhere.
rl_holds() { rl_count "exists $1" 1; }
rl_on() { [ "$(rl_holds "$1")" -ge "$2" ]; }
rl_gone() { [ "$(rl_count "exists $1" 0)" -eq "$(rl_all | wc -l)" ]; }

# Nodes of the test itself.
rl_pid() { echo "${REDIS_PIDS[n$1]}"; }
rl_freeze() {
    local k
    for k; do kill -STOP "$(rl_pid "$k")"; done
    for k; do wait_for 5 pid_stopped "$(rl_pid "$k")" || return; done
}
rl_thaw() { local k; for k; do kill -CONT "$(rl_pid "$k")"; done; }
rl_die() { local k; for k; do redis_kill "n$k" 2>/dev/null; done; }
rl_revive() {
    local k
    for k; do redis_launch "n$k" "${REDIS_DIRS[n$k]}" "${REDIS_PORTS[n$k]}" || return; done
}

rl_left() {
    local k key
    for k in ${*:-$(rl_all)}; do
        rl "$k" --scan --pattern "*$NAME*" | while read -r key; do
            case $key in
            *:dlock:claim | *:dlock:longest) ;; # for a second, for a ttl
            *:dlock:fence)
                [ "$(rl "$k" pttl "$key")" -gt 0 ] || echo "node $k: $key, which never expires"
                ;;
            *) echo "node $k: $key" ;;
            esac
        done
    done
}

# ------------------------------------------------------- for the .bats files ---
# With fake_setup in setup.

own_nodes() {
    rl_start "${1:-5}" "${@:2}"
    L=$(rl_uri "$NAME")
}

# subject ARG...: under the lock runs the command that tells what happens to it, with all its
# processes.
subject() {
    background "$@" "$L" $SUBJECT -t -k
    wait_for 5 running 4
}
# loses SECONDS TERMS SINCE MOST [LEAST]: within SECONDS the lock is lost (79). The command gets
# TERM so often ("": any number), and its tree ends LEAST (-10) to MOST ms after SINCE (ns).
loses() {
    ended "$1"
    assert_rc 79 || return
    tree_gone || fail "the tree lives on" || return
    [ -z "$2" ] || [ "$(count_seen main sig 15)" = "$2" ] ||
        fail "TERM: $(count_seen main sig 15)" || return
    assert_between "${5:-$((-10 - SLOW))}" $((($(last_beat) - $3) / NS)) "$4" "ms the tree lived"
}
# quick ARG...: it succeeds, and is not held up by a node: the best of three, since the machine may
# be busy.
quick() {
    local i QUICK=$((500 + SLOW))
    for i in 1 2 3; do
        timed "$@"
        assert_rc 0 || return
        [ "$took" -ge "$QUICK" ] || return 0
    done
    fail "not one run in less than $QUICK ms; the last: $took ms"
}

# entering: until the command runs, the best of six, in us into $took.
entering() {
    local t0 us i
    took=9999999
    for i in 1 2 3 4 5 6; do
        t0=$(clock)
        run_t 5 "$DLOCK" "$L" "$HELPERS/clock" "$T/entered"
        us=$((($(cat entered) - t0) / 1000))
        [ $us -ge $took ] || took=$us
    done
}

# unusable ALIVE ARG...: 69 within a connect time-out of a second, and how many of the five answer.
unusable() {
    local alive=$1 i
    for i in 1 2 3; do
        timed --connect-timeout 1 "${@:2}" "$L" touch "$T/ran"
        assert_rc 69 || return
        [ ! -e "$T/ran" ] || fail "the command ran" || return
        [ "${#lines[@]}" -eq 1 ] || fail "not one line: $output" || return
        # A process that gets no time may be late, and say no more than that there was no answer.
        [[ ! $output =~ $alive\ of\ (the\ )?5 || $took -gt $((1400 + SLOW)) ]] || return 0
    done
    fail "after $took ms: $output"
}

# waiter FILE [ARG...]: on nodes of this test alone; it writes the time of its entry into FILE.
# Returns when it waits.
waiter() {
    start_log "$1.log" "$DLOCK" "${@:2}" "$L" "$HELPERS/clock" "$T/$1"
    WAITER=$STARTED
    wait_for 5 watched 1
}
# in_line N: so many waiters stand in the queue of each node.
in_line() { [ "$(rl_count "zcard {$NAME}:dlock:queue" "$1")" = "$(rl_all | wc -l)" ]; }
# As many watch the lock on a majority of the nodes.
watched() {
    local k n=0 all
    all=$(rl_all)
    for k in $all; do
        ! rl_tracks "$k" "$1" || n=$((n + 1))
    done
    [ $n -gt $(($(wc -w <<<"$all") / 2)) ]
}
rl_tracks() { rl_ask "$1" info clients && [[ $ANSWER == *$'\n'"tracking_clients:$2"$'\r'* ]]; }

# promptly CMD...: another client holds the lock on all nodes, CMD ends that, and a waiter enters
# within half a second; the best of three, since the machine may be busy.
promptly() {
    local i t0 us
    for i in 1 2 3; do
        rm -f got
        on_all set "$NAME" theirs px 60000 || return
        waiter got --ttl 60 || return
        t0=$(clock)
        "$@" || return
        wait_exit 10 "$WAITER" || return
        us=$((($(cat got) - t0) / 1000))
        [ $us -ge $((500000 + 1000 * SLOW)) ] || return 0
    done
    fail "in $us us after $*"
}
# rl_renewals K N: node K's key was renewed N times since it was first asked: its time left has
# grown that often.
rl_renewals() {
    local left was=${LEFT:-999999}
    rl_ask "$1" pttl "$NAME"
    left=$ANSWER LEFT=$ANSWER
    [ "$left" -le "$was" ] || RENEWALS=$((${RENEWALS:-0} + 1))
    [ "${RENEWALS:-0}" -ge "$2" ]
}
clock() { "$HELPERS/clock"; }

# instead "K..." hostile_server HOW... | proxy FAULT...: that stands at the place of these nodes,
# for $L only.
instead() {
    local k nodes=$1 what=$2 RL_PORTS=$RL_PORTS
    shift 2
    rm -f port.*
    for k in $nodes; do
        # shellcheck disable=SC2046
        start "$ROOT/tests/support/helpers/$what.py" \
            $([ "$what" = hostile_server ] || rl_port "$k") "$@" \
            >"port.$k"
    done
    for k in $nodes; do
        wait_for 5 test -s "port.$k"
        rl_put "$k" "$(cat "port.$k")"
    done
    L=$(rl_uri "$NAME")
}

# A majority's answers end a release: another node may still have its request to read.
nothing_left() { wait_for 2 rl_clean "$@" || fail "left: $(rl_left "$@")"; }
rl_clean() { [ -z "$(rl_left "$@")" ]; }
