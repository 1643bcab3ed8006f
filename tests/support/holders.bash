# holders.bash - holds, and how they end, for the files that test PostgreSQL and ZooKeeper. Loads
# common.bash and fake.bash; fake_setup in setup.
#
#     tree ARG...            dlock ARG... with a command of four processes that go on after TERM;
#                            all have started
#     job CODE ARG...        dlock ARG... with a command that runs until job_ends and exits with
#                            CODE; it has started. RUN=net_hold before either: on the first machine
#                            of netns.bash
#     job_ends | job_ends_silently    dlock exits with that code; silently: it said nothing, the
#                                     command got no TERM
#     undisturbed            the command runs on, and no TERM came
#     lost LINES TEXT...     dlock ends with 79, in so many lines, which have TEXT
#     killed LINES TEXT...   the same, and its command was killed, not asked to end
#     times_out TTL SINCE [EARLY]     lost after two lines; nothing was confirmed after SINCE (ns),
#                                     so TERM comes to each process by then, not more than EARLY ms
#                                     before it, and the tree is gone in time
#     follows FILE           the waiter of start_waiter FILE gets the lock after the tree's end
#     takes LOW HIGH CODE CMD...      `run` of CMD: it takes so long (ms) and exits with CODE
#     dies_by SIGNAL HIGH    the last started process dies by that signal within HIGH ms
#     ends CODE              dlock (of tree or job) ends with that code
#     lasts MS               so much time passes
#     hand_over [MAX [MIN]]  let_go of `hold`; the process that was started last ends with 0, and
#                            its clock's file "got" was written between MIN (0) and MAX ms after
#                            that
#     holds ID ARG...        one more holder or waiter, until end ID...; held ID ARG...: and it
#                            holds the lock; is_in ID: it holds the lock since the time in the file
#                            in.ID (ns), its slot is in slot.ID, its fence in fence.ID; is_out ID

source "${BASH_SOURCE[0]%/*}/common.bash"
source "$ROOT/tests/support/fake.bash"

tree() {
    rm -f "$C"/*
    "${RUN:-background}" "$@" $SUBJECT -t -k
    wait_for 5 running 4
}
job() {
    JOB_CODE=$1
    rm -f "$C"/* "$T/end"
    "${RUN:-background}" "${@:2}" $SUBJECT -m 110000 -u "$T/end" -r "$JOB_CODE"
    wait_for "${WITHIN:-5}" running
}
job_ends() { finish "$JOB_CODE"; }
job_ends_silently() {
    job_ends
    [ -z "$output" ] && [ "$(count_seen main sig 15)" = 0 ] || fail "$output"
}
undisturbed() { pid_alive "$K" && [ "$(count_seen main sig 15)" = 0 ] || fail "$(cat "$T/out")"; }

lost() {
    local text
    ended
    assert_rc 79
    [ "$(grep -c . "$T/out")" = "$1" ] || fail "not $1 lines: $output"
    for text in "${@:2}"; do assert_out "$text"; done
}
killed() {
    lost "$@"
    [ "$(count_seen main sig 15)" = 0 ]
}
times_out() {
    local who low=0
    lost 2 "has not been renewed for" "could not be renewed in time"
    lease_times "$1" "$2"
    [ -z "${3:-}" ] || low=$((TERM_AT - $3 * NS))
    for who in main child session daemon; do
        assert_between "$low" "$(seen $who sig 15)" $((TERM_AT + 250 * NS)) "TERM for $who"
        [ "$(count_seen $who sig 15)" = 1 ]
    done
    [ "$(last_beat)" -lt "$DEADLINE" ] || final "the tree lived until $(last_beat), after $DEADLINE"
}
follows() {
    wait_exit 10 "$WAITER" || fail "$(cat "$1.log")"
    no_violations || final "overlap"
    [ "$(last_beat)" -lt "$(cat "$T/$1")" ] ||
        final "the tree lived until $(last_beat), $1 entered at $(cat "$T/$1")"
}

ends() { ends_with "$1"; }
lasts() { wait_for $(($1 / 1000 + 4)) beyond $(($(now_ms) + $1)); }
hand_over() {
    local t0
    t0=$(now_ms)
    let_go
    exits 0 10 "$STARTED"
    [ -z "${1:-}" ] || assert_between "${2:-0}" $(($(cat got) / NS - t0)) $(($1 + SLOW)) \
        "hand-off (ms)"
}

takes() {
    timed_run "${@:4}"
    assert_rc "$3" || return
    assert_between "$1" "$took" $(($2 + SLOW)) "time (ms)" || fail "$output"
}
dies_by() {
    local t0
    t0=$(now_ms)
    kill -"$1" "$STARTED"
    exits $((128 + $(kill -l "$1"))) 5 "$STARTED"
    assert_between 0 $(($(now_ms) - t0)) $(($2 + SLOW + BUSY)) "ms to die by $1"
}

declare -gA PIDS
holds() {
    rm -f "in.$1" "go.$1"
    # shellcheck disable=SC2016
    start_log "holds.$1.log" "$DLOCK" "${@:2}" "$L" sh -c '
        echo "${DLOCK_SLOT:-}" >"slot.$1"; echo "${DLOCK_FENCE:-0}" >"fence.$1"
        "$HELPERS/clock" "in.$1"; "$HELPERS/await" "go.$1"' - "$1"
    PIDS[$1]=$STARTED
}
is_in() { wait_for "${2:-5}" test -s "in.$1" || fail "$1: $(cat "holds.$1.log")"; }
is_out() { [ ! -e "in.$1" ] || final "$1 holds the lock"; }
end() { # ID...
    local id
    for id; do : >"go.$id"; done
    for id; do exits 0 8 "${PIDS[$id]}"; done
}
held() {
    holds "$@"
    is_in "$1"
}
