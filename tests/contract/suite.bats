# The contract of every store. tests/run makes build/contract/STORE.bats of it for each
# tests/contract/stores/STORE.bash, which says how to reach that store and what it offers.
# STORE_PAUSES: it goes on as before when store_pids were stopped for 2 s; STORE_TAKES: store_take
# NAME takes the lock away from its holder; STORE_SHARED, STORE_SLOTS: it has them, STORE_NUMBERS:
# and numbers the slots; STORE_TURNS: a waiting writer is served after the readers before it;
# STORE_ONCE: it has run records; STORE_STAYS: it keeps the lock for --min-hold by an expiry of its
# own; STORE_TICKS: seconds by which a crash is noticed later;
# STORE_TWIN: but for TLS it is the store of another file; STORE_KIN: the same server and scripts as
# in another file, found by another way. store_end_sessions: of clients that have gone while the
# server was silent, where such a session outlasts the test. Hooks for the records of --once:
#     store_has_run STATE         the store has a record of a run in that state
#     store_record                the record, or what is in its place, as text
#     store_spoil N      puts foreign data number N in the record's place; WHAT: what messages say
#                        of it. 1: no more. 0: in the place of a good record
#     store_ends MS      the record's run ended at that time, in Unix ms
#     store_unanswered begin|end
#                        P: the lock, behind a proxy that holds back the answer to the write that
#                        begins or ends a run
#     store_own          a server of the test's own, which keeps its data; L: the lock there
#     store_restart stop|kill     ends that server, and starts it again
# These two lines are replaced by that store's:
# bats file_tags=contract
STORE=none CONTRACT=.

bats_require_minimum_version 1.5.0
export BATS_TEST_TIMEOUT=300
SUPPORT=$CONTRACT/../support
load "$SUPPORT/holders"
load "$SUPPORT/clock"
load "$CONTRACT/stores/$STORE"

setup_file() {
    export BATS_NO_PARALLELIZE_WITHIN_FILE=true
    store_up
}
teardown_file() { store_down; }
setup() {
    dlock_setup
    L=$(store_lock "$NAME")
}
teardown() {
    # shellcheck disable=SC2086
    [ -z "${SILENT:-}" ] || kill -CONT $SILENT 2>/dev/null || :
    : >go # whatever waits for that may end
    dlock_teardown
}

needs() {
    local have=STORE_$1
    [ -n "${!have}" ]
}

# What the store without TLS (twin), or the store with the same scripts (kin), has passed runs again
# only in the soak: tests of minutes or of a hundred runs, tests of what the client does alone, and
# further tests of a script that another test of the same store sends.
twin() { needs TWIN && [ -z "${DLOCK_SOAK:-}" ]; }
kin() { { needs TWIN || needs KIN; } && [ -z "${DLOCK_SOAK:-}" ]; }

# waits ARG... CMD...: dlock ARG..., $waiter, is the first in the queue.
waits() {
    start_log waiter.log "$DLOCK" "$@"
    waiter=$STARTED
    wait_for 5 waiters_are 1
}

ms_between() { echo $((($(<"$2") - $(<"$1")) / NS)); } # files of helpers/clock

@test "-n is refused while the lock is held, and names the holder" {
    hold --note "the nightly run"
    CI=1 run -75 --separate-stderr run_t 5 "$DLOCK" -n "$L" touch "$T/ran"
    [ -z "$output" ]
    [ ! -e "$T/ran" ]
    [ "${#stderr_lines[@]}" -eq 1 ]
    [[ $stderr == "dlock: "*"$NAME"*" is busy: held "*"pid $HOLDER ("*'note "the nightly run"' ]] ||
        [[ $STORE == postgres && $stderr == *"pid "* ]] || fail "$stderr"
    run -3 run_t 5 "$DLOCK" -q -n -E 3 "$L" true
    [ -z "$output" ]
    run -0 run_t 5 "$DLOCK" -n -E 0 "$L" false
    let_go
    run -0 run_t 5 "$DLOCK" -n "$L" true
    store_clean "$NAME"
}

# silent RC ARG...: so many runs of dlock, each of which exits with RC.
silent() {
    local rc i want=$1
    shift
    for ((i = 0; i < n; i++)); do
        rc=0
        timeout 10 "$DLOCK" "$@" "$L" true || rc=$?
        [ $rc -eq "$want" ] || { echo "run $i: exit code $rc"; return 1; }
    done 3>&-
}

# bats test_tags=plain
@test "as a cron job it prints nothing, not even when the lock is held" {
    local n
    n=$(amount silent_runs)
    ! twin || n=$((n / 10))
    ! declare -F store_as_shipped >/dev/null || store_as_shipped
    silent 0 >said 2>&1 </dev/null || fail "$(cat said)"
    hold
    silent 75 -n >>said 2>&1 </dev/null || fail "$(cat said)"
    [ ! -s said ] || fail "$(head -n 5 said)"
    # There is something to say.
    CI=1 run -75 run_t 10 "$DLOCK" -n "$L" true
    assert_out "'$NAME' is busy: held "
    let_go
}

# best_of_six RC ENOUGH CMD...: the shortest of six times in ms, or of three if that is ENOUGH: a
# busy machine delays some of them.
best_of_six() {
    local rc=$1 enough=$2 try took
    shift 2
    best=9999
    for try in 1 2 3 4 5 6; do
        "$HELPERS/clock" "$T/before"
        run "-$rc" run_t 10 "$@"
        "$HELPERS/clock" "$T/after"
        took=$(ms_between before after)
        [ "$took" -ge "$best" ] || best=$took
        [ "$try" -lt 3 ] || [ "$best" -gt "$enough" ] || break
    done
}

# Of -w only the wait counts, not what a busy machine adds to the life of a process: minus the time
# of a refusal without waiting.
# bats test_tags=plain
@test "-n answers at once, and -w waits as long as it says" {
    best_of_six 0 200 "$DLOCK" -n "$L" true
    assert_between 0 "$best" $((200 + SLOW)) "a free lock, in ms"
    hold
    best_of_six 75 200 "$DLOCK" -q -n "$L" touch "$T/ran"
    assert_between 0 "$best" $((200 + SLOW)) "a held lock, in ms"
    if ! kin; then
        refusal=$best
        best_of_six 75 400 "$DLOCK" -w 0.3 "$L" touch "$T/ran"
        assert_out "held"
        [ "$best" -ge 300 ]
        assert_between 0 $((best - refusal)) $((400 + SLOW)) "wait in ms, less that of a refusal"
    fi
    [ ! -e "$T/ran" ]
    waiters_are 0
    let_go
    store_clean "$NAME"
}

@test "a waiter gets the lock as soon as it is released" {
    hold
    waits -v --events ev "$L" "$HELPERS/clock" "$T/entered"
    ! needs LEASE || wait_for 5 file_has ev '"holder":{'
    "$HELPERS/clock" "$T/left"
    let_go
    wait_exit 5 "$waiter"
    # First of all: which lock it is.
    sed -n 1p waiter.log | grep -q "^dlock: .*the lock is .*$NAME" || fail "$(cat waiter.log)"
    grep -Eq "^dlock: got '.*$NAME.*' after [0-9.]+ ?m?s$" waiter.log || fail "$(cat waiter.log)"
    # With the start of the process; polling the store would take longer on average.
    assert_between 0 $(ms_between left entered) $((400 + SLOW)) "hand-off in ms"
    run_t 5 "$ROOT/tests/support/helpers/events.py" ev "
assert names[-3:] == ['granted', 'released', 'end'] and set(names[:-3]) <= {'waiting'}, names
assert end['outcome'] == 'exited' and end['lock'] == '$NAME' and int(end['fence']) > 0, end
assert end['wait_ms'] >= 0 and len(starts) == 1 and starts[0]['kind'], end
assert all(e['holder']['pid'] == $HOLDER for e in by['waiting'] if 'holder' in e), events"
    store_clean "$NAME"
}

@test "a cancelled waiter leaves the queue and dies by the signal" {
    hold
    for sig in TERM INT HUP; do
        # A shell ignores INT in its background jobs, and what is ignored stays ignored.
        start_log "$T/waiter.log" "$HELPERS/launch" -d "$DLOCK" "$L" touch "$T/ran"
        wait_for 5 waiters_are 1
        kill -"$sig" "$STARTED"
        exits $((128 + $(kill -l "$sig"))) 5 "$STARTED"
        waiters_are 0
    done
    [ ! -e "$T/ran" ]
    let_go
    store_clean "$NAME"
}

passes_on() { # CODE CMD...
    local rc=0
    run_t 5 "$DLOCK" "$L" "${@:2}" >"$T/out" 2>&1 || rc=$?
    case $rc in
    "$1") ;;
    69 | 71 | 124) fail "exit code $rc: $(cat "$T/out")" ;;
    *) final "exit code $rc instead of the command's $1: $(cat "$T/out")" ;;
    esac
}

# bats test_tags=plain
@test "the command's exit code is passed on, and the lock is free" {
    ! kin || return 0
    for code in 0 1 42 75 79 255; do
        passes_on "$code" sh -c "exit $code"
    done
    passes_on 143 sh -c 'kill -TERM $$'
    passes_on 137 sh -c 'kill -KILL $$'
    passes_on 127 ./no-such-command
    passes_on 126 /etc/passwd
    run -0 run_t 5 "$DLOCK" -n "$L" true
    store_clean "$NAME"
}

@test "--status tells free from held, and in JSON describes the holder and the waiters" {
    says 0 ": free" --status "$L"
    before=$(date +%s%3N)
    hold --ttl 20 --note 'say "hi"'
    says 75 ": held" --status "$L"
    assert_out "sh"
    for who in 1 2; do
        start_log "$T/w$who.log" "$DLOCK" "$L" sh -c : "waiter $who"
        waiting[who]=$STARTED
        wait_for 5 waiters_are $who
    done
    run -75 run_t 5 "$DLOCK" --status --json "$L"
    [ "${#lines[@]}" = 1 ]
    echo "$output"
    # Not every store tells others the fence and the time left.
    /usr/bin/python3 -S -c '
import getpass, json, socket, sys
status, name, holder, before, fence, tells, *waiting = sys.argv[1:]
s = json.loads(status)
assert (s["lock"], s["state"], len(s["holders"])) == (name, "held", 1) and s["store"], s
h = s["holders"][0]
assert h["host"] == socket.gethostname() and h["user"] == getpass.getuser(), h
assert h["pid"] == int(holder), h
assert h["note"] == "say \"hi\"" and h["command"].startswith("sh -c \"echo $DLOCK_FENCE >"), h
assert int(before) - 1000 <= h["since_ms"] <= int(before) + 20000, h
if "left" in tells:
    assert 10000 <= h["lease_left_ms"] <= 20000, h
else:
    assert "lease_left_ms" not in h, h
# An advisory lock tells the fence from its first renewal on.
assert h.get("fence", "" if "fence" in tells else fence) == fence, h
assert "kind" not in h and "place" not in h and "mode" not in h, h
ws = s["waiters"]
assert sorted(w["pid"] for w in ws) == sorted(map(int, waiting)), ws
for w in ws:
    assert "fence" not in w and "lease_left_ms" not in w, w
if "host" in ws[0]:
    mine = socket.gethostname(), getpass.getuser()
    assert all((w["host"], w["user"]) == mine and "sh" in w["command"] for w in ws), ws
assert [w["place"] for w in ws] == ([0, 0] if "redlock" in s["store"] else [1, 2]), ws' \
        "$output" "$NAME" "$HOLDER" "$before" "$(<held)" "$STORE_TELLS" "${waiting[@]}"
    let_go
    for who in 1 2; do wait_exit 5 "${waiting[who]}"; done
    store_clean "$NAME"
}

@test "--status tells the kinds of holders and waiters" {
    ! kin && needs SHARED && needs LEASE || return 0
    local id pids=() ids=(r w b)
    ! needs SLOTS || ids=(r s w b q)
    for id in "${ids[@]}"; do
        case $id in
        r) held r -s ;;
        s) held s --slots 3 ;;
        w) holds w && wait_for 5 waiters_are 1 ;;
        b) holds b -s && wait_for 5 waiters_are 2 ;;
        q) holds q --slots 3 && wait_for 5 waiters_are 3 ;;
        esac
        pids+=("$id=${PIDS[$id]}")
    done
    run -75 run_t 5 "$DLOCK" --status --json "$L"
    /usr/bin/python3 -S -c '
import json, sys
status, tells, numbers, *pids = sys.argv[1:]
s, pids = json.loads(status), dict(pid.split("=") for pid in pids)
def kinds(*all):
    return sorted((int(pids[who]), *kind) for who, *kind in all if who in pids)
def told(all):
    return sorted((i["pid"], i.get("mode"), i.get("slots"), i.get("slot")) for i in all)
slot = 0 if numbers and "fence" in tells else None
assert told(s["holders"]) == kinds(("r", "shared", None, None), ("s", "slots", 3, slot)), s
assert told(s["waiters"]) == kinds(("w", None, None, None), ("b", "shared", None, None),
                                   ("q", "slots", 3, None)), s
assert "s" not in pids or (s["slots"], s["slots_held"]) == (3, 1), s
assert "left" not in tells or all(h["lease_left_ms"] > 0 for h in s["holders"]), s' \
        "$output" "$STORE_TELLS" "${STORE_NUMBERS:-}" "${pids[@]}"
    ! needs SLOTS || end s
    end r
    for id in "${ids[@]}"; do [[ $id == [rs] ]] || : >"go.$id"; done
    for id in "${ids[@]}"; do [[ $id == [rs] ]] || exits 0 10 "${PIDS[$id]}"; done
    store_clean "$NAME"
}

# granted_after MS: the holder's record tells a grant since then.
granted_after() {
    local status
    status=$("$DLOCK" --status --json "$L") || :
    [[ $status =~ \"since_ms\":([0-9]+),\"waited_ms\": ]] && [ "${BASH_REMATCH[1]}" -ge "$1" ]
}

@test "--status shows when a waiter was granted the lock, and its wait" {
    local began seen released
    hold
    began=$(date +%s%3N)
    waits --ttl 6 "$L" sh -c ': >entered; "$HELPERS/await" stop'
    seen=$(date +%s%3N)
    released=$(date +%s%3N)
    let_go
    wait_for 5 test -e entered
    wait_for 5 granted_after "$released" # in ZooKeeper a write of its own
    run -75 run_t 5 "$DLOCK" --status --json "$L"
    /usr/bin/python3 -S -c '
import json, sys
h, = json.loads(sys.argv[1])["holders"]
waiter, began, seen, released, now = map(int, sys.argv[2:])
assert h["pid"] == waiter and h["since_ms"] <= now, (h, now)
assert released - seen <= h["waited_ms"] <= now - began, (h, released - seen, now - began)' \
        "$output" "$waiter" "$began" "$seen" "$released" "$(date +%s%3N)"
    : >stop
    wait_exit 5 "$waiter"
    store_clean "$NAME"
}

# bats test_tags=plain
@test "the fence grows with each grant" {
    last=0
    for i in {1..10}; do
        fence=$(run_t 5 "$DLOCK" "$L" sh -c 'echo $DLOCK_FENCE')
        [ "$fence" -gt "$last" ]
        last=$fence
    done
}

# bats test_tags=plain
@test "odd names are locks of their own" {
    for name in 'a b' 'x%2Fy' '%7Bt%7D' '..' 'a:b' 'k%23' "%C3%A4" "quote'"; do
        l=$(store_lock "$NAME$name")
        run -75 run_t 5 "$DLOCK" "$l" "$DLOCK" --no-reentrant -q -n "$l" true
        run -0 run_t 5 "$DLOCK" "$l" "$DLOCK" -q -n "$L" true
    done
}

# bats test_tags=plain
@test "each of six waiters gets the lock once" {
    hold
    for i in 1 2 3 4 5 6; do
        start_log "$T/w$i.log" "$DLOCK" "$L" sh -c "echo $i >>order"
        pids[i]=$STARTED
        wait_for 5 waiters_are "$i"
    done
    let_go
    for i in 1 2 3 4 5 6; do wait_exit 10 "${pids[i]}"; done
    [ "$(sort "$T/order" | tr -d '\n')" = 123456 ]
    ! needs FIFO || [ "$(tr -d '\n' <"$T/order")" = 123456 ]
    store_clean "$NAME"
}

# pids_in_line: the pids of the waiters, in order.
pids_in_line() {
    "$DLOCK" --status --json "$L" | /usr/bin/python3 -S -c '
import json, sys
ws = json.load(sys.stdin)["waiters"]
assert [w["place"] for w in ws] == list(range(1, len(ws) + 1)), ws
print(*[w["pid"] for w in ws])'
}

# bats test_tags=slow
@test "twenty waiters are served in the order that --status shows" {
    ! kin && needs FIFO || return 0
    for round in 1 2 3; do
        rm -f "$T/held" "$T/order"
        hold
        for i in $(seq 20); do
            start_log "$T/w$i.log" "$DLOCK" "$L" sh -c "echo $i >>order"
            number[STARTED]=$i
            pids[i]=$STARTED
        done
        wait_for 20 waiters_are 20
        want=$(for pid in $(pids_in_line); do echo "${number[pid]}"; done)
        let_go
        for i in $(seq 20); do wait_exit 20 "${pids[i]}"; done
        [ "$(cat "$T/order")" = "$want" ] ||
            fail "round $round: $(paste -sd' ' "$T/order"), not $(paste -sd' ' <<<"$want")"
    done
    store_clean "$NAME"
}

@test "the command gets no descriptor of ours, not after a wait either" {
    ! kin && needs LEASE || return 0
    local show=(sh -c 'ls /proc/self/fd') f
    start_log plain.log "${show[@]}"
    wait_exit 5 "$STARTED"
    hold
    waits "$L" "${show[@]}"
    let_go
    wait_exit 5 "$waiter"
    start_log quick.log "$DLOCK" "$L" "${show[@]}"
    wait_exit 5 "$STARTED"
    for f in quick.log waiter.log; do cmp plain.log $f || fail "$(cat plain.log $f)"; done
}

# The kernel holds a lock without a lease: it stays with the command when the keeper dies.
kernel_keeps_it() {
    hold
    kill -"$1" "$HOLDER"
    run -75 run_t 5 "$DLOCK" -q -w 0.3 "$L" true
    : >go
    kill -CONT "$HOLDER" || : # a stopped keeper has it too, until it has reaped the command
    run -0 run_t 5 "$DLOCK" -w 5 "$L" true
    store_clean "$NAME"
}

# holds_tree [ARG...]: a dlock ($holder) whose command has descendants holds the lock.
holds_tree() {
    start_log "$T/holder.log" "$DLOCK" "$@" "$L" "$HELPERS/witness" "$T" 60000 tree
    holder=$STARTED
    wait_for 5 file_has "$T/history" enter
}

# bats test_tags=plain
@test "a killed keeper's lock is free within ttl + 1 s" {
    needs LEASE || { kernel_keeps_it KILL; return; }
    holds_tree --ttl 2
    waits --ttl 2 "$L" "$HELPERS/clock" "$T/entered"
    "$HELPERS/clock" "$T/killed" # before the kill: some stores free the lock at once
    kill -KILL "$holder"
    # Every descendant holds the witness.
    wait_for 1 flock -sn "$T/witness" true
    wait_exit 5 "$waiter"
    assert_between 0 $(ms_between killed entered) 3000 "take-over in ms"
    store_clean "$NAME"
}

@test "no renewal revives a lease that ended during a suspend" {
    ! kin && needs LEASE || return 0
    local t0
    export WALLCLOCK_SUSPEND=1
    with_clock holds_tree --ttl 3
    jump 10
    t0=$(now_ms)
    exits 79 5 "$holder"
    # At the latest when it wakes up for the next renewal. A server has not slept: an answer that is
    # still read may say that its clock is behind.
    assert_between 0 $(($(now_ms) - t0)) $((1300 + SLOW)) "time until the end (ms)"
    file_has holder.log "could not be renewed in time: this process did not run for"
    [ "$(grep -vc 'clock was set back by 10 s' holder.log)" = 1 ] || fail "$(cat holder.log)"
    wait_for 1 flock -sn witness true
    wait_for 5 store_clean "$NAME"
}

# bats test_tags=plain
@test "a killed guard ends the tree before the lock is free" {
    ! kin || return 0
    close=
    needs LEASE || close=-o # otherwise there is none
    holds_tree --ttl 20 $close
    wait_for 5 guard_of "$holder"
    waits "$L" sh -c 'flock -sn "$1" true; echo $? >"$2"' - \
        "$T/witness" "$T/in"
    "$HELPERS/clock" "$T/killed"
    kill -KILL "$G"
    # The waiter looks: a lock taken by the test would block it. The holder ends after its tree.
    exits 71 5 "$holder"
    "$HELPERS/clock" "$T/over"
    assert_between 0 $(ms_between killed over) $((1000 + SLOW)) "the tree's end in ms"
    [ "$(grep -c "guard process $G was killed" "$T/holder.log")" -eq 1 ]
    # Released, not expired: the ttl is 20 s. And not before the tree was gone.
    wait_exit 5 "$waiter"
    [ "$(cat "$T/in")" -eq 0 ]
    run -0 run_t 5 "$DLOCK" -n "$L" true
    store_clean "$NAME"
}

# bats test_tags=plain
@test "a stopped keeper's tree is gone before the next holder enters" {
    ! kin || return 0
    needs LEASE || { kernel_keeps_it STOP; return; }
    holds_tree --ttl 2 --grace 0.2
    "$HELPERS/clock" "$T/stopped"
    kill -STOP "$holder"
    run -0 run_t 10 "$DLOCK" "$L" \
        sh -c '"$HELPERS/clock" entered; exec "$HELPERS/witness" "$1" 10' - "$T"
    [ ! -e "$T/violations" ]
    assert_between 0 $(ms_between stopped entered) $((3000 + 1000 * ${STORE_TICKS:-0} + SLOW)) \
        "take-over in ms"
    kill -CONT "$holder"
    exits 79 5 "$holder"
}

# silence: the store says nothing more, but keeps its connections; speak: it goes on.
silence() {
    SILENT=$(store_pids)
    # One that came to its end meanwhile, as an autovacuum worker does, is silent, too.
    # shellcheck disable=SC2086
    kill -STOP $SILENT 2>/dev/null || :
}
speak() {
    # shellcheck disable=SC2086
    kill -CONT $SILENT
    SILENT=''
}

# holder_said REGEX...: these lines and no others, and each names the store and the lock once.
holder_said() {
    local n=0 line
    local -a said
    mapfile -t said <hold.log
    [ ${#said[@]} -eq $# ] || fail "$(cat hold.log)" || return
    for line in "${said[@]}"; do
        n=$((n + 1))
        [[ $line =~ ^"dlock: "[^\ ]+": the lock '$NAME' "${!n}$ ]] || fail "line $n: $line" ||
            return
        [ "$(grep -o '://' <<<"$line" | wc -l) $(grep -o "$NAME" <<<"$line" | wc -l)" = "1 1" ] ||
            fail "line $n: $line" || return
    done
}
SECONDS_RE='[0-9.]+ (s|ms)'
TROUBLE="has not been renewed for $SECONDS_RE: .+; the command will be ended in $SECONDS_RE unless"
TROUBLE+=" the store answers"

# bats test_tags=plain
@test "a store that is silent for half of the time costs two lines" {
    needs PAUSES || return 0
    unset CI
    # After the first line, a server that was stopped needs its time for an answer.
    start_log hold.log "$DLOCK" --ttl 6 "$L" sh -c 'echo >held; "$1" go; exit 7' - "$HELPERS/await"
    wait_for 5 test -s held
    silence
    wait_for 5 grep -q 'has not been renewed' hold.log
    speak
    wait_for 5 grep -q 'is renewed again' hold.log
    : >go
    exits 7 8 "$STARTED"
    holder_said "$TROUBLE" "is renewed again after $SECONDS_RE"
    store_clean "$NAME"
}

@test "a loss ends the tree in time, and names the store, the lock and the cause once" {
    local lock=$L
    unset CI
    if needs PAUSES; then
        fake_setup # the command that tells what happens to it
        L=$lock
        tree --ttl 2 "$L"
        silence
        times_out 2000 "$(now_ns)"
        speak
        mv out hold.log
        holder_said "$TROUBLE" "could not be renewed in time: .+; ending the command"
    fi
    if needs TAKES; then
        run_t 10 "$DLOCK" -w 8 "$L" true
        hold --ttl 2
        store_take "$NAME"
        exits 79 8 "$HOLDER"
        holder_said "is lost: .+; ending the command"
    fi
}

# ended_late STATUS CODE OPTION...: the command exits with CODE, dlock with STATUS. The store is
# silent from the grant until the lease is over.
ended_late() {
    local over
    fresh held go
    start_log hold.log "$DLOCK" --ttl 2 "${@:3}" "$L" \
        sh -c ': >held; "$HELPERS/await" go; exit "$1"' - "$2"
    wait_for 5 test -e held
    silence
    over=$(($(now_ms) + 2100))
    : >go
    wait_for 5 beyond "$over"
    speak
    exits "$1" 8 "$STARTED"
}

@test "a release that is answered after the end of the lease keeps the command's status" {
    ! kin && needs PAUSES && needs STAYS || return 0 # where a session is the lease, it may go on
    ended_late 3 3
    file_has hold.log "is not confirmed: the answer came after the end of the lease" ||
        fail "$(cat hold.log)"
    ended_late 3 3 --once
    # A success that is not recorded.
    ended_late 79 0 --once
    file_has hold.log "is not recorded" || fail "$(cat hold.log)"
}

# bats test_tags=slow
@test "a silent store delays no -w, no signal and no end, and ends no other wait" {
    needs PAUSES || return 0
    local long unheard short t0
    hold --ttl 9 --connect-timeout 1
    start_log long.log "$DLOCK" --ttl 1 --connect-timeout 1 "$L" touch got
    long=$STARTED
    start_log unheard.log "$DLOCK" --ttl 1 --connect-timeout 1 -w 5 "$L" touch ran
    unheard=$STARTED
    wait_for 5 waiters_are 2
    # This one has heard lately that the lock is held.
    start_log short.log sh -c '"$0" before; "$1" --ttl 5 -w 1.2 "$2" touch ran; echo $? >code
        exec "$0" after' "$HELPERS/clock" "$DLOCK" "$L"
    short=$STARTED
    wait_for 5 waiters_are 3
    silence
    exits 0 5 "$short"
    [ "$(cat code)" = 75 ] || fail "$(cat code short.log)"
    assert_between 1200 $(ms_between before after) $((1500 + SLOW + BUSY)) "-w 1.2 (ms)"
    t0=$(now_ms)
    let_go
    assert_between 0 $(($(now_ms) - t0)) $((1700 + SLOW)) "time to the end (ms)"
    file_has hold.log "the release of '$NAME' is not confirmed" || fail "$(cat hold.log)"
    takes 0 1200 69 "$DLOCK" --ttl 2 -n --connect-timeout 0.5 "$L" touch ran
    takes 390 $((700 + BUSY)) 69 "$DLOCK" --ttl 2 -w 0.4 "$L" touch ran
    takes 0 $((700 + BUSY)) 69 "$DLOCK" --status --connect-timeout 0.4 "$L"
    start_log new.log "$DLOCK" --ttl 2 "$L" touch ran
    wait_for 5 grep -qx dlock "/proc/$STARTED/comm" # the shell itself could miss the signal
    dies_by TERM 2000
    exits 69 7 "$unheard"
    file_has unheard.log "no answer" || fail "$(cat unheard.log)"
    pid_alive "$long" && [ ! -e got ] || fail "$(cat long.log)"
    speak
    # What the holder has sent is served now, or its ttl ends.
    exits 0 20 "$long"
    [ -e got ] && [ ! -e ran ]
    ! needs STAYS || store_clean "$NAME" # elsewhere a session may be left, until its ttl is over
    ! offers end_sessions || store_end_sessions
}

# ---------------------------------------------------------------- shared, slots ---

refused() { run -75 run_t 5 "$DLOCK" -q -n "$@" "$L" touch ran && [ ! -e ran ]; }
granted() { run -0 run_t 5 "$DLOCK" -n "$@" "$L" true; }

@test "shared holders stand together, and a writer is alone" {
    needs SHARED || return 0
    held a -s
    held b -s
    refused -x
    granted -s
    run -75 run_t 5 "$DLOCK" --status "$L"
    ! needs LEASE || [ "$(grep -c 'held (shared)' <<<"$output")" -eq 2 ] || fail "$output"
    end a
    refused -x
    end b
    granted -x
    held w
    refused -s
    holds c -s
    wait_for 5 waiters_are 1
    is_out c
    end w
    is_in c
    end c
    store_clean "$NAME"
}

# bats test_tags=plain
@test "readers that come behind a waiting writer let it in first" {
    needs TURNS || return 0
    held a -s
    holds w
    wait_for 5 waiters_are 1
    refused -s
    CI=1 says 75 "'$NAME' is busy: kept for an earlier waiter; held (shared) " -n -s "$L" true
    holds b -s
    holds c -s
    wait_for 5 waiters_are 3
    is_out w
    is_out b
    end a
    is_in w
    is_out b
    is_out c
    end w
    is_in b
    is_in c
    end b c
    store_clean "$NAME"
}

@test "slots: so many stand together, and the next one gets the first that is free" {
    needs SLOTS || return 0
    local id used='' t0 took
    for id in a b c; do
        held $id --slots 3
        used+=$(cat slot.$id)
    done
    [ "$(fold -w1 <<<"$used" | sort | tr -d '\n')" = "$(needs NUMBERS && echo 012)" ] ||
        fail "slots $used"
    refused --slots 3
    refused -x
    says 75 '3 of 3 slots' --status "$L"
    holds d --slots 3
    wait_for 5 waiters_are 1
    is_out d
    t0=$(now_ms)
    end b
    is_in d
    took=$(($(<in.d) / NS - t0))
    ! needs LEASE || assert_between 0 $took $((1000 + SLOW + BUSY)) "hand-off (ms)"
    ! needs NUMBERS || [ "$(cat slot.d)" = "${used:1:1}" ] || fail "slot $(cat slot.d) after $used"
    refused --slots 3
    end a c
    granted --slots 3
    refused -x
    end d
    granted -x
    store_clean "$NAME"
}

@test "a shared holder stands beside slots and takes none" {
    ! kin && needs SLOTS || return 0
    held a --slots 1
    held r -s
    end a
    refused -x
    granted --slots 1
    held b --slots 1
    end r
    refused -x
    end b
    granted -x
    store_clean "$NAME"
}

@test "another number of slots is refused with 65, and both are named" {
    ! kin && needs SLOTS || return 0
    held a --slots 2
    for wait in -n '-w 5'; do
        # shellcheck disable=SC2086
        run -65 run_t 3 "$DLOCK" $wait --slots 3 "$L" touch ran
        [ ! -e ran ]
        assert_out "with 2 slots" "not 3" "$NAME"
    done
    granted --slots 2
    end a
    granted --slots 3
    if needs LEASE; then
        # The first only waits.
        held w
        holds a --slots 2
        wait_for 5 waiters_are 1
        says 65 "with 2 slots, which are not 3" --slots 3 "$L" true
        end w
        is_in a
        end a
    fi
    store_clean "$NAME"
}

# bats test_tags=plain
@test "fences of shared holders and slots stand between those of writers" {
    ! kin && needs SHARED && needs FENCE || return 0
    local before after kind
    for kind in -s '--slots 2'; do
        [ "$kind" = -s ] || needs SLOTS || continue
        before=$("$DLOCK" "$L" sh -c 'echo $DLOCK_FENCE')
        # shellcheck disable=SC2086
        for id in a b; do held $id $kind; done
        end a b
        after=$("$DLOCK" "$L" sh -c 'echo $DLOCK_FENCE')
        for id in a b; do
            [ "$(cat fence.$id)" -ge "$before" ] && [ "$(cat fence.$id)" -lt "$after" ] ||
                final "$kind: $before, $(cat fence.$id), $after"
        done
    done
}

# bats test_tags=plain
@test "a crashed shared holder and a crashed slot are out of the way within ttl + 1 s" {
    ! kin && needs SHARED && needs LEASE || return 0
    local kind id
    for kind in -s --slots=2; do
        [ $kind = -s ] || needs SLOTS || continue
        held live --ttl 2 $kind
        held dead --ttl 2 $kind
        holds w --ttl 2 "$([ $kind = -s ] && echo -x || echo $kind)"
        wait_for 5 waiters_are 1
        [ $kind != -s ] || end live
        kill -KILL "${PIDS[dead]}"
        is_in w $((3 + ${STORE_TICKS:-0}))
        [ $kind = -s ] || end live
        cmp slot.w slot.dead
        end w
    done
    # A server may hear from the dead holder a moment later than the others did.
    wait_for 2 is_clean || store_clean "$NAME"
}
is_clean() { store_clean "$NAME" >is_clean.log 2>&1; }

# bats test_tags=slow
@test "a writer is served while readers come without pause" {
    ! kin && needs TURNS || return 0
    local i
    # Their holds overlap, and are longer than a writer waits at a time in any store.
    for i in 1 2 3 4 5 6 7 8; do
        start_log "reader$i.log" sh -c 'sleep 0.$3; until [ -e stop ]; do
            "$1" -s --ttl 5 "$2" sh -c "echo >>reads; sleep 1.2" || exit; done' - \
            "$DLOCK" "$L" $i
    done
    wait_for 9 reads_are 10
    timed -w 8 --ttl 5 "$L" touch ran
    assert_rc 0
    assert_between 0 "$took" $((4000 + SLOW + BUSY)) "the writer's wait (ms)"
    : >stop
    for i in "${STARTED_PIDS[@]}"; do exits 0 5 "$i"; done
    [ -e ran ]
}
reads_are() { [ "$(wc -l <reads)" -ge "$1" ]; }

@test "nested three deep, a lock is granted at once with one token, and released last" {
    ! kin || return 0
    cat >deep.sh <<'END'
echo $$ >command.$2
echo "$DLOCK_TOKEN ${DLOCK_FENCE:-}" >in.$2
[ $2 -lt 3 ] || exec "$HELPERS/await" go
"$DLOCK" -n "$1" sh deep.sh "$1" $(($2 + 1)) & echo $! >pid.$2
"$HELPERS/await" in.3
exit $2
END
    start_log outer.log "$DLOCK" "$L" sh deep.sh "$L" 1
    wait_for 10 test -s in.3 || fail "$(cat outer.log)"
    cmp in.1 in.2 && cmp in.1 in.3 || final "$(cat in.?)"
    # All commands but the innermost one have ended.
    run -75 run_t 5 "$DLOCK" --status "$L"
    [ "$(grep -c 'held by' <<<"$output")" -le 1 ] || fail "$output"
    refused
    : >go
    exits 1 8 "$STARTED"
    pid_gone "$(cat command.3)" || final "released before the innermost command ended"
    # These may take a moment to exit.
    wait_for 5 pid_gone "$(cat pid.1)"
    wait_for 5 pid_gone "$(cat pid.2)"
    store_clean "$NAME"
}

# What the inner command rests on when nothing is left of the outer dlock: the inner one is no
# descendant of it, and its keeper cannot act. A file is kept by the copy of its descriptor.
# bats test_tags=plain
@test "a killed outer dlock leaves the lock to the inner command" {
    ! kin || return 0
    local inner close=
    needs LEASE || close=-o
    start_log outer.log "$DLOCK" $close --ttl 2 --grace 0.2 "$L" \
        sh -c 'echo "$DLOCK_HELD" >held; exec "$HELPERS/await" go'
    holder=$STARTED
    wait_for 10 test -s held || fail "$(cat outer.log)"
    DLOCK_HELD=$(cat held) start_log inner.log "$DLOCK" $close --grace 0.2 "$L" \
        "$HELPERS/witness" "$T" 60000 tree
    inner=$STARTED
    wait_for 10 file_has history enter || fail "$(cat inner.log)"
    kill -STOP "$inner"
    kill -KILL "$holder"
    if needs LEASE; then
        run -0 run_t 10 "$DLOCK" "$L" "$HELPERS/witness" "$T" 10
        [ ! -e "$T/violations" ] || final overlap
        kill -CONT "$inner"
        exits 79 5 "$inner"
    else
        run -75 run_t 5 "$DLOCK" -w 0.5 -q "$L" true
        kill -CONT "$inner"
        kill -TERM "$inner"
        run -0 run_t 5 "$DLOCK" -w 4 "$L" flock -sn witness true
    fi
    store_clean "$NAME"
}

# bats test_tags=soak,slow
@test "20 processes take turns without overlap, and fences grow" {
    ! twin || return 0
    turns=$(amount swarm_turns) long=$(amount swarm_long) longer_than_ttl=$(amount swarm_longer)
    mkdir "$T/h"
    "$ROOT/tests/support/helpers/swarm.py" 20 $((180 + 4 * turns)) bash -c '
        for ((n = 0; n < $3; n++)); do
            # One of the holds, or two, is longer than the ttl, and a few take a while.
            hold=0
            [ $((n % 10)) -ne 5 ] || hold=20
            [ $n-$I != $(($3 / 2))-7 ] || hold=$4
            [ $n-$I != $(($3 / 5))-13 ] || hold=$5
            "$DLOCK" --ttl "$6" "$1" "$HELPERS/witness" "$2" "$hold" tree || exit
        done' - "$L" "$T/h" $turns $long $longer_than_ttl $((2 + SLOW / 750))
    run -0 "$ROOT/tests/support/helpers/check_history.py" "$T/h" $((20 * turns)) \
        $(! needs FENCE || echo fence)
    store_clean "$NAME"
}

# KINDS_SEED: that of a failure, so that its operations come in the same order.
# bats test_tags=soak,slow
@test "random operations of all kinds keep to the model while holders crash and stop" {
    local fact
    local -a facts=("ticks=${STORE_TICKS:-0}" "ttl=$((2 + SLOW / 750))"
        "seed=${KINDS_SEED:-}"
        "other=${DLOCK_OTHER:-}")
    ! kin || return 0
    for fact in SHARED SLOTS NUMBERS FENCE LEASE; do ! needs $fact || facts+=("${fact,,}"); done
    # LeakSanitizer stops the process itself and does not survive a SIGSTOP meanwhile.
    export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0
    mkdir "$T/h"
    run_t 1500 "$ROOT/tests/support/helpers/kinds.py" "$DLOCK" "$L" "$HELPERS/kinds" "$T/h" \
        "$(amount kinds_operations)" "${facts[@]}" >kinds.log || fail "$(cat kinds.log)"
    sed -n 's/.* operations in .*/# &/p' kinds.log >&3
    store_clean "$NAME"
}

# ---------------------------------------------------------------- once, least time ---

# once RC ARG... -- CMD...: a run of dlock --once that prints nothing, every second time of
# $DLOCK_OTHER if there is one.
once() {
    local rc=$1 programs=("$DLOCK" "${DLOCK_OTHER:-$DLOCK}")
    shift
    run "-$rc" run_t 20 "${programs[(ONCE_CALLS += 1) % 2]}" -q --ttl 2 --once "$@"
    [ -z "$output" ] || fail "$output"
}
forget() { run -0 run_t 5 "$DLOCK" --forget --yes "$L"; }
ran() { [ "$(cat ran 2>/dev/null || :)" = "$1" ] || final "the commands that ran: $(cat ran)"; }
# shellcheck disable=SC2016
ADD='echo "$0" >>ran; exit "$1"'
state_is() { "$DLOCK" --status "$L" | grep -q "last run: $1"; }
# The free lock with its run's state, STATE, is listed with --all, and once.
lists_run() { # STATE
    local store=${L%"$NAME"}
    run -0 run_t 10 "$DLOCK" --list "${store}*$NAME*"
    [ -z "$output" ] || fail "$output"
    run -0 run_t 10 "$DLOCK" --list --all "${store}*$NAME*"
    [[ $output == "$NAME  free, last run: $1 "* && ${#lines[@]} = 1 ]] || fail "$output"
    run -0 run_t 10 "$DLOCK" --list --all --json "${store}*$NAME*"
    [[ $output == *"\"lock\":\"$NAME\",\"state\":\"free\","*'"last_run":{"state":"'"$1"'",'* ]] ||
        fail "$output"
}

@test "--once: what has succeeded is not run again, until it is forgotten" {
    needs ONCE || return 0
    once 0 "$L" sh -c "$ADD" a 0
    once 0 "$L" sh -c "$ADD" b 0
    once 5 --skip-exit-code 5 -n "$L" sh -c "$ADD" c 0
    ran a
    CI=1 says 0 "not run: " --once "$L" true
    run -0 run_t 5 "$DLOCK" --status "$L"
    [[ $output == *"last run: succeeded "* ]] || fail "$output"
    lists_run succeeded
    # Without --once the record counts for nothing.
    run -3 run_t 5 "$DLOCK" -q "$L" sh -c "$ADD" d 3
    state_is succeeded
    forget
    once 0 "$L" sh -c "$ADD" e 0
    [ "$(tr -d '\n' <ran)" = ade ] || fail "$(cat ran)"
    forget
    says 0 "'$NAME' has no record of a run" --forget --yes "$L"
    hold --ttl 4
    says 0 "'$NAME' has no record of a run; the lock is held" --forget --yes "$L"
    assert_out "pid $HOLDER"
    let_go
    store_clean "$NAME"
}

@test "--once: what has failed is run again, and a running one holds the lock" {
    needs ONCE || return 0
    once 1 "$L" false
    state_is "failed .* with status 1"
    lists_run failed
    once 137 "$L" sh -c 'kill -KILL $$'
    run -127 run_t 20 "$DLOCK" -q --ttl 2 --once "$L" "$T/nothing"
    state_is "failed .* with status 127"
    once 24 --success-codes 0,24 "$L" sh -c 'exit 24'
    state_is succeeded
    once 0 "$L" touch no
    [ ! -e no ]
    forget
    hold --once
    run -75 run_t 5 "$DLOCK" -q --once -n "$L" touch no
    run -75 run_t 5 "$DLOCK" --status "$L"
    [[ $output == *"last run: began "* ]] || fail "$output"
    run -75 run_t 5 "$DLOCK" --forget --yes "$L"
    # A waiter that finds a success leaves, and so does the next one.
    for i in 1 2; do
        start_log w$i.log "$DLOCK" --once "$L" touch no
        pids[i]=$STARTED
    done
    wait_for 5 waiters_are 2
    let_go
    for i in 1 2; do exits 0 5 "${pids[i]}"; done
    [ ! -e no ] || final "run again after a success"
    forget
    store_clean "$NAME"
}

@test "--once: --forget leaves a record alone that has changed while it asked" {
    ! kin && needs ONCE || return 0
    once 1 "$L" false
    says_yes 75 "the record has changed" another_run --forget "$L"
    state_is succeeded
    forget
    store_clean "$NAME"
}
another_run() { once 0 "$L" true; }

runs_again() {
    run_t 5 "$DLOCK" -q --once=200ms "$L" sh -c "$ADD" a 0 && [ "$(wc -l <ran)" -eq 2 ]
}

@test "--once: a success counts for the time that the next run names" {
    ! kin && needs ONCE || return 0
    once 0 "$L" sh -c "$ADD" a 0
    run -0 run_t 5 "$DLOCK" -q --once=1h "$L" sh -c "$ADD" b 0
    ran a
    wait_for 5 runs_again
    once 0 "$L" sh -c "$ADD" c 0
    [ "$(tr -d '\n' <ran)" = aa ] || final "$(cat ran)"
    forget
    store_clean "$NAME"
}

# crowd CODE: many processes at the same moment. Each that runs writes a line and ends with CODE.
crowd() {
    local i pids=() n
    n=$(amount once_crowd)
    rm -f go crowd
    for ((i = 0; i < n; i++)); do
        # shellcheck disable=SC2016
        sh -c '"$1" go; exec "$2" -q --ttl 4 --once "$3" sh -c "echo x >>crowd; exit $4"' - \
            "$HELPERS/await" "$DLOCK" "$L" "$1" 3>&- &
        pids+=("$!")
    done
    : >go
    for i in "${pids[@]}"; do
        wait_exit 60 "$i" || [ $? -eq "$1" ] || fail "exit code of one"
    done
}

# bats test_tags=plain
@test "--once: of many at the same moment one runs, after failures too" {
    ! kin && needs ONCE || return 0
    crowd 0
    [ "$(wc -l <crowd)" -eq 1 ] || final "$(wc -l <crowd) ran"
    forget
    crowd 7
    [ "$(wc -l <crowd)" -eq "$(amount once_crowd)" ] || fail "$(wc -l <crowd) ran"
    crowd 0
    [ "$(wc -l <crowd)" -eq 1 ] || final "$(wc -l <crowd) ran"
    crowd 0
    [ ! -e crowd ] || final "ran after a success"
    forget
    store_clean "$NAME"
}

@test "--once: after a crash the next one runs, and no record of success is made up" {
    ! kin && needs ONCE || return 0
    hold --ttl 1 --once
    kill -KILL "$HOLDER"
    run -0 run_t 8 "$DLOCK" -q --ttl 1 --once "$L" sh -c "$ADD" a 0
    ran a
    forget
    # The command succeeds, and its keeper dies before it can record that: at least once.
    # shellcheck disable=SC2016
    start_log hold.log "$DLOCK" --ttl 3 --once "$L" sh -c 'echo $$ >command; "$HELPERS/await" last'
    wait_for 5 test -s command
    kill -STOP "$STARTED"
    : >last
    wait_for 5 pid_gone "$(cat command)"
    kill -KILL "$STARTED"
    run -0 run_t 8 "$DLOCK" -q --ttl 1 --once "$L" sh -c "$ADD" b 0
    once 0 "$L" sh -c "$ADD" c 0
    [ "$(tr -d '\n' <ran)" = ab ] || fail "$(cat ran)"
    forget
    store_clean "$NAME"
}

has_no_run() { ! "$DLOCK" --status "$L" | grep -q "last run"; }
is_held() { ! "$DLOCK" -qn "$L" true; }

# L is granted first: '~' comes behind each name of a test.
# bats test_tags=plain
@test "--once: a set that does not get all its locks leaves the record alone" {
    needs ONCE || return 0
    local also=(--also "file://$T#~")
    L=${also[1]} hold
    once 75 -n "${also[@]}" "$L" touch no
    has_no_run
    once 0 "$L" true
    # A success of 1 ms ago counts no more.
    run -75 run_t 5 "$DLOCK" -q --once=1ms -n "${also[@]}" "$L" touch no
    state_is succeeded
    start_log set.log "$DLOCK" --ttl 2 --once=1ms "${also[@]}" "$L" touch no
    wait_for 5 is_held
    state_is succeeded
    kill -KILL "$STARTED"
    once 0 -w 6 "$L" touch no
    [ ! -e no ] || final "a command ran without its locks"
    forget
    # shellcheck disable=SC2016
    start_log set.log "$DLOCK" --ttl 2 --once "${also[@]}" "$L" \
        sh -c '"$DLOCK" --status "$1" >during; exit 3' - "$L"
    wait_for 5 is_held
    has_no_run
    let_go
    exits 3 5 "$STARTED"
    file_has during "last run: began" || fail "$(cat during set.log)"
    state_is "failed .* with status 3"
    once 0 "${also[@]}" "$L" sh -c "$ADD" a 0
    once 0 "${also[@]}" "$L" sh -c "$ADD" b 0
    ran a
    forget
    store_clean "$NAME"
}

# day NUMBER HOST: that host's cron starts the job of the day. The wall clocks are 5 s apart.
day() {
    local lock
    lock=$(store_lock "$NAME-$1")
    WALLCLOCK=$T/clock.$2 preload wallclock \
        timeout 20 "$DLOCK" -n --once "$lock" sh -c 'echo "$0" >>days' "$1"
}

# ended_at MS: a record, without an end of line, whose run ended at that time.
ended_at() { sed -E "s/^(([^ ]+ ){6})[^ ]+/\1$1/" | tr -d '\n'; }
# offers HOOK: the store's file defines it (the head of this file lists the hooks).
offers() { declare -F "store_$1" >/dev/null; }

@test "--once: foreign data in the record's place is refused, and left alone" {
    offers spoil || return 0
    local n before WHAT
    once 0 "$L" true
    for ((n = 0; ; n++)); do
        store_spoil "$n" || break
        before=$(store_record)
        run -65 run_t 5 "$DLOCK" -q --ttl 2 --once "$L" touch no
        [ "${#lines[@]}" = 1 ] && [ ${#output} -lt 800 ] || fail "$WHAT: $output"
        assert_out "$WHAT"
        [[ $output != *[$'\e\a']* ]] || fail "a control character"
        # Without --once the data is in no command's way; --status tells it, and shows the rest.
        run -0 run_t 5 "$DLOCK" -n --ttl 2 "$L" true
        CI=1 says 0 free --status "$L"
        assert_out "$WHAT"
        refute_out "last run"
        CI=1 run -65 run_t 5 "$DLOCK" --forget --yes "$L"
        [ ${#output} -lt 800 ] || fail "$WHAT: $output"
        [ "$(store_record)" = "$before" ] || fail "$WHAT: changed: $(store_record)"
    done
    [ "$n" -ge 3 ] || fail "only $n kinds of foreign data"
    [ ! -e no ] || final "a command ran"
}

@test "--once: a success in the far future is no success" {
    offers ends || return 0
    once 0 "$L" true
    # As if the clock had been set back by a quarter of an hour.
    store_ends $(($(date +%s%3N) + 900000))
    once 0 "$L" touch no
    [ ! -e no ] || final "run again after a success"
    store_ends $(($(date +%s%3N) + 30000000))
    CI=1 says 0 "last run: succeeded 8h" --status "$L"
    assert_out "in the future"
    says 3 "in the future: its record is forged, or the clock was set back" --once "$L" \
        sh -c "$ADD" a 3
    [ "$(grep -c 'in the future' <<<"$output")" = 1 ] || fail "$output"
    once 0 "$L" sh -c "$ADD" b 0
    [ "$(tr -d '\n' <ran)" = ab ] || fail "$(cat ran)"
    once 0 "$L" touch no
    [ ! -e no ] || final "run again after a success"
}

@test "--once: a set refuses foreign data that comes while it waits" {
    offers spoil || return 0
    local also=(--also "file://$T#~")
    once 0 "$L" true
    L=${also[1]} hold
    start_log set.log "$DLOCK" --ttl 2 --once=1ms "${also[@]}" "$L" touch no
    wait_for 5 is_held
    store_spoil 0
    let_go
    exits 65 5 "$STARTED"
    file_has set.log "$WHAT" || fail "$(cat set.log)"
    [ ! -e no ] || final "a command ran"
    run -0 run_t 5 "$DLOCK" -n "$L" true
}

# Killed before the command starts: a record and no run. Killed after the release: a success.
# bats test_tags=plain
@test "--once: a keeper killed around a write leaves what the store has" {
    offers unanswered || return 0
    local step state P
    # The first run makes what the later ones write into.
    once 0 "$L" true
    forget
    for step in begin:running end:succeeded; do
        state=${step#*:} step=${step%:*}
        store_unanswered $step
        start_log $step.log "$DLOCK" --ttl "${STORE_UNANSWERED_TTL:-60}" --once "$P" sh -c \
            "$ADD" $step 0
        wait_for 12 store_has_run $state || fail "$(cat $step.log)"
        kill -KILL "$STARTED"
        # As if the lock had expired.
        [ $step = end ] || store_take "$NAME"
        once 0 "$L" sh -c "$ADD" next 0
        if [ $step = begin ]; then ran next; else ran end; fi
        rm ran
        forget
    done
    # A session of the killed keepers that the store keeps for a ttl is not the next test's.
    ! declare -F no_session >/dev/null || wait_for 9 no_session
}

# bats test_tags=slow
@test "--once: a run and its record survive restarts of a server that keeps its data" {
    offers own || return 0
    local how
    store_own
    hold --ttl 30 --once
    store_restart kill
    let_go
    exits 0 9 "$HOLDER"
    for how in stop kill; do
        store_restart $how
        once 5 --skip-exit-code 5 "$L" touch no
    done
    [ ! -e no ] || final "run again after a success"
}

# bats test_tags=plain
@test "--once: three hosts with clocks 5 s apart run the job of a day once" {
    ! kin && needs ONCE || return 0
    local d h rc
    for h in 0 1 2; do
        /usr/bin/python3 -S -c "import struct, sys
sys.stdout.buffer.write(struct.pack('q', ($h - 1) * 5 * 10**9))" >"clock.$h"
    done
    for ((d = 1; d <= $(amount once_days); d++)); do
        # Two of them at the same moment, one afterwards.
        day $d $((d % 3)) >said.1 2>&1 3>&- &
        rc=0
        day $d $(((d + 1) % 3)) >said.2 2>&1 || rc=$?
        [ $rc -eq 0 ] || [ $rc -eq 75 ] || fail "$rc: $(cat said.2)"
        wait $! || [ $? -eq 75 ] || fail "$(cat said.1)"
        rc=0
        day $d $(((d + 2) % 3)) >said.3 2>&1 || rc=$?
        [ $rc -eq 0 ] || fail "$rc: $(cat said.3)"
        [ "$(wc -l <days)" -eq $d ] || final "day $d: $(tail -n 3 days)"
    done
    [ "$(sort -u days | wc -l)" -eq "$(wc -l <days)" ] || final "$(sort days | uniq -d)"
}

# bats test_tags=plain
@test "--min-hold keeps the lock, and those that wait get it at that moment" {
    # So long that what follows has begun by then, on a slow machine, too.
    local i w=() keep=$((2500 + SLOW))
    "$HELPERS/clock" "$T/began"
    start_log first.log "$DLOCK" -v --ttl 1 --min-hold ${keep}ms "$L" touch "$T/first"
    first=$STARTED
    wait_for 5 test -e first
    ! needs STAYS || exits 0 2 "$first"
    for i in 1 2 3; do
        start_log "w$i.log" "$DLOCK" --ttl 1 "$L" "$HELPERS/clock" "$T/in.$i"
        w+=("$STARTED")
    done
    run -75 run_t 5 "$DLOCK" -q --ttl 1 -n "$L" true
    run -75 run_t 5 "$DLOCK" --status "$L"
    for i in 0 1 2; do exits 0 5 "${w[i]}"; done
    # A process that stays says so, once; the manual names the stores.
    needs STAYS || exits 0 5 "$first"
    i=$(grep -c "stays held for .*--min-hold" first.log || :)
    [ "$i" = "$(needs STAYS && echo 0 || echo 1)" ] || fail "$(cat first.log)"
    for i in 1 2 3; do
        took=$(ms_between began in.$i)
        [ "$took" -ge $keep ] || final "waiter $i entered after $took ms"
        [ "$took" -le $((keep + 600 + SLOW + BUSY)) ] || fail "waiter $i entered after $took ms"
    done
    store_clean "$NAME"
}

# bats test_tags=plain
@test "--min-hold: a shared lock and a slot stay held, and what waits gets it at that moment" {
    ! kin && needs STAYS && needs SHARED || return 0
    local kind next keep=$((1500 + SLOW))
    for kind in -s --slots=1; do
        [ $kind = -s ] || needs SLOTS || continue
        "$HELPERS/clock" "$T/began"
        run -0 run_t 5 "$DLOCK" $kind --ttl 9 --min-hold ${keep}ms "$L" true
        next=-x
        if [ $kind = -s ]; then granted -s; else next=$kind; fi
        refused $next
        held next --ttl 9 $next
        took=$(ms_between began in.next)
        [ "$took" -ge $keep ] || final "$next entered after $took ms behind $kind"
        [ "$took" -le $((keep + 600 + SLOW + BUSY)) ] || fail "$next entered after $took ms"
        end next
    done
    store_clean "$NAME"
}

# bats test_tags=plain
@test "--min-hold: in a store no crash shortens it; elsewhere a signal does" {
    ! kin || return 0
    if needs STAYS; then
        "$HELPERS/clock" "$T/began"
        hold --ttl 1 --min-hold 2500ms
        kill -KILL "$HOLDER"
        run -0 run_t 8 "$DLOCK" -q --ttl 1 "$L" "$HELPERS/clock" "$T/in"
        took=$(ms_between began in)
        [ "$took" -ge 2500 ] || final "entered after $took ms"
    else
        start_log first.log "$DLOCK" --min-hold 1h "$L" sh -c 'trap "" TERM; touch first; exit 4'
        wait_for 5 test -e first
        # The signal may come before the end of the command, and is forwarded then.
        wait_for 5 signal_ends_it
        exits 4 5 "$STARTED"
    fi
    run -0 run_t 5 "$DLOCK" -n "$L" true
    store_clean "$NAME"
}
signal_ends_it() { kill -TERM "$STARTED" 2>/dev/null; ! kill -0 "$STARTED" 2>/dev/null; }

# ---------------------------------------------------------------- break, list ---

# broken RC [ARG...]: --break of the lock exits with RC.
broken() { run "-$1" run_t 40 "$DLOCK" --break --yes --note "100%41 stuck" "${@:2}" "$L"; }

# was_broken PID LOG: that dlock ended as one does whose hold was broken. Only TERM reaches the
# holder of a file.
was_broken() {
    local line="'$NAME' was broken by $(id -un)@$(uname -n), note \"100%41 stuck\"; ending the"
    needs LEASE || { exits 143 5 "$1"; return; }
    exits 79 5 "$1"
    [ "$(grep -c "$line" "$2")" = 1 ] || fail "$(cat "$2")"
}

@test "--break: a living holder's tree is gone before the next one enters, in order" {
    local i
    holds_tree --ttl 4 --grace 0.4
    for i in 1 2 3; do
        start_log "$i.log" "$DLOCK" "$L" sh -c 'echo "$0" >>order; exec "$HELPERS/witness" . 10' $i
        eval "waiter$i=$STARTED"
        wait_for 5 waiters_are $i
    done
    broken 0
    was_broken "$holder" holder.log
    for i in waiter1 waiter2 waiter3; do exits 0 10 "${!i}"; done
    [ ! -e violations ] || final "$(cat violations)"
    ! needs FIFO || [ "$(tr -d '\n' <order)" = 123 ] || fail "$(cat order)"
    store_clean "$NAME"
}

# bats test_tags=plain
@test "--break: of a stopped or dead holder the lock ends with the lease, after its tree" {
    local sig
    needs LEASE || return 0
    for sig in STOP KILL; do
        rm -f history
        holds_tree --ttl 2 --grace 0.2
        waits "$L" "$HELPERS/witness" "$T" 10
        kill -$sig "$holder"
        broken 0
        exits 0 10 "$waiter"
        [ ! -e violations ] || final "$sig: $(cat violations)"
        kill -CONT "$holder" 2>/dev/null || :
        wait_for 10 pid_gone "$holder"
    done
    wait_for 8 store_clean "$NAME" # a mark expires after the lease
}

@test "--break: of readers and slots one goes, and the others stay" {
    local kind
    needs SHARED || return 0
    for kind in -s '--slots 3'; do
        # shellcheck disable=SC2086
        for id in a b c; do held $id --ttl 4 --grace 0.4 $kind; done
        holds w
        wait_for 5 waiters_are 1
        broken 64
        assert_out "has 3 holders: pick one with --holder HOST:PID"
        broken 75 --holder "$(uname -n):1"
        assert_out "has no holder $(uname -n):1"
        broken 0 --holder "$(uname -n):${PIDS[b]}"
        was_broken "${PIDS[b]}" holds.b.log
        is_out w
        end a c
        is_in w
        end w
        needs SLOTS || break
    done
    store_clean "$NAME"
}

next_one_holds() { let_go && held next; }

@test "--break: nothing is touched when nobody holds the lock, or another one by now" {
    broken 0
    hold --ttl 4
    says_yes 75 "' has changed hands, nothing was done: held " next_one_holds --break "$L"
    run -75 run_t 5 "$DLOCK" --status "$L"
    refute_out broken
    end next
    store_clean "$NAME"
}

# kinds: the options for the kinds of locks that the store has, one a line.
kinds() {
    echo -x
    ! needs SHARED || echo -s
    ! needs SLOTS || echo --slots=2
}

@test "--break: by force a stopped holder's lock is free at once, and the holder is told" {
    local kind
    ! kin && needs LEASE || return 0
    for kind in $(kinds); do
        held a --ttl 30 $kind
        holds b
        wait_for 5 waiters_are 1
        kill -STOP "${PIDS[a]}"
        broken 0 --force
        is_in b
        kill -CONT "${PIDS[a]}"
        : >go.a
        exits 79 10 "${PIDS[a]}"
        end b
    done
    store_clean "$NAME"
}

@test "--break: a run of --once has failed, and no --min-hold outlasts it" {
    local kind
    ! kin && needs ONCE || return 0
    hold --ttl 3 --once --min-hold 1h
    broken 0
    was_broken "$HOLDER" hold.log
    granted
    state_is failed
    forget
    if needs STAYS; then # for those whose dlock has ended, too
        for kind in $(kinds); do
            run -0 run_t 10 "$DLOCK" $kind --min-hold 1h "$L" true
            refused
            broken 0
            granted
        done
    fi
    store_clean "$NAME"
}

# bats test_tags=plain
@test "--break: random breaks of contending holders cause no overlap and no stuck lock" {
    local n most i pid
    ! kin || return 0
    most=$(amount breaks)
    for i in 1 2 3 4 5 6 7 8; do
        start_log "c$i.log" sh -c '
            while [ ! -e over ]; do
                "$DLOCK" -q --ttl 2 --grace 0.2 "$1" sh -c "
                    [ -e over ] || exec \"$HELPERS/witness\" . 5000 tree" || :
            done' - "$L"
    done
    wait_for 5 file_has history enter
    for ((n = 0; n < most; n++)); do
        run run_t 40 "$DLOCK" --break --yes "$L"
        case $status in 0 | 75) ;; *) fail "break $n: $status $output" ;; esac
        # Of each three holders one is killed, and its guard ends the tree.
        pid=$("$DLOCK" --status --json "$L" |
            sed -n 's/.*"holders":\[{[^}]*"pid":\([0-9]*\).*/\1/p')
        [ $((n % 3)) != 2 ] || [ -z "$pid" ] || kill -KILL "$pid" 2>/dev/null || :
        [ ! -e violations ] || final "$(cat violations)"
    done
    : >over
    broken 0
    run -0 run_t 60 "$DLOCK" -w 50 "$L" true
    [ ! -e violations ] || final "$(cat violations)"
}

@test "--list: the locks that are held or waited for, with their holders" {
    local store=${L%"$NAME"} what
    store=${store%'#'}
    run -0 run_t 10 "$DLOCK" --list "$store#*$NAME*"
    [ -z "$output" ] || fail "$output"
    hold --note "the nightly run"
    waits "$L" true
    run -0 run_t 10 "$DLOCK" --list "$store#*$NAME*"
    [[ ${#lines[@]} = 1 && $output == *"$NAME  held, 1 waiting"*": "*"pid $HOLDER ("* ]] ||
        fail "$output"
    run -0 run_t 10 "$DLOCK" --list --json "$store"
    what='"state":"held","holders":1,"waiters":1,"holder":{'
    [[ $output == *'"schema":1,"lock":"'"$NAME\",$what"* ]] || fail "$output"
    run -0 run_t 10 "$DLOCK" --list "$store#no-$NAME"
    [ -z "$output" ] || fail "$output"
    let_go
    exits 0 5 "$waiter"
    run -0 run_t 10 "$DLOCK" --list "$store#*$NAME*"
    [ -z "$output" ] || fail "$output"
    if ! kin && needs SHARED && needs LEASE; then
        held a -s
        held b -s
        holds w
        wait_for 5 waiters_are 1
        run -0 run_t 10 "$DLOCK" --list "$store#*$NAME*"
        [[ $output == *"$NAME  shared 2, 1 waiting"* ]] || fail "$output"
        end a b
        is_in w
        end w
    fi
    if ! kin && needs SLOTS; then
        held a --slots 3
        held b --slots 3
        run -0 run_t 10 "$DLOCK" --list "$store#*$NAME*"
        [[ $output == *"$NAME  slots 2 of 3"* ]] || fail "$output"
        end a b
    fi
    store_clean "$NAME"
}
