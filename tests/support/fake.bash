# fake.bash - the scripted store (tests/support/fake/fake.c) and the command that tells what happens
# to it (tests/support/helpers/subject.c). Loads common.bash; a setup of the file calls both
# dlock_setup and fake_setup.
#
# $S the store's folder, $L its lock, $SUBJECT the command ("$HELPERS/subject FOLDER"), $C its own.

declare -F dlock_setup >/dev/null || source "${BASH_SOURCE[0]%/*}/common.bash"

NS=1000000

setup() {
    dlock_setup
    fake_setup
}
fake_setup() {
    S=$T/store C=$T/command
    mkdir "$S" "$C"
    L=fake://$S#$NAME
    SUBJECT="$HELPERS/subject $C"
}

# tell FILE WORD...: what the store does from now on. Never half-written: empty means the default.
tell() {
    echo "${*:2}" >"$S/.$1"
    mv "$S/.$1" "$S/$1"
}

# at WORD [N]: when the store did that for the N-th time (ns); -1: the last time.
at() {
    awk -v w="$1" -v n="${2:-1}" \
        '$1 == w { t[++i] = $2 } END { k = n < 0 ? i + 1 + n : n; print (k in t) ? t[k] : "" }' \
        "$S/log"
}
store_did() { [ -n "$(at "$@")" ]; }

# confirmed: when the last renewal (or acquisition) that was answered had been sent (ns).
confirmed() {
    awk '$1 == "acquire" { c = $2 } $1 == "renew" { r = $2 } $1 == "ok" { c = r } END { print c }' \
        "$S/log"
}

# The times (ns) of a lease of $1 ms confirmed at $2 (ns), grace $3 ms: TERM_AT KILL_AT DEADLINE.
lease_times() {
    local ttl=$(($1 * NS)) margin=$(($1 * NS / 20)) grace
    [ "$margin" -ge $((50 * NS)) ] || margin=$((50 * NS))
    if [ -n "${3:-}" ]; then grace=$(($3 * NS)); else grace=$((ttl / 6)); fi
    DEADLINE=$(($2 + ttl - ttl / 100 - 2 * NS))
    KILL_AT=$((DEADLINE - margin))
    TERM_AT=$((KILL_AT - grace))
}

# seen WHO WHAT ARG [N]: when the command's process WHO saw that (ns), e.g. seen main sig 15
seen() {
    awk -v w="$1" -v e="$2" -v a="$3" -v n="${4:-1}" \
        '$1 == w && $2 == e && (a == "" || $3 == a) && ++i == n { print $4; exit }' \
        "$C/events" 2>/dev/null
}
has_seen() { [ -n "$(seen "$@")" ]; }
count_seen() { grep -c "^$1 $2 $3 " "$C/events" || :; }
pid_of() { awk -v w="$1" '$1 == w && $2 == "start" { print $3; exit }' "$C/events"; }

# running [N]: the command has started, with all of its N processes.
running() { [ "$(grep -c ' start ' "$C/events" 2>/dev/null)" = "${1:-1}" ]; }

# The last sign of life of any (or of WHO: 0 main 1 child 2 session 3 daemon) of its processes (ns).
last_beat() {
    local beats
    beats=$(od -An -v -w8 -t d8 "$C/beat" | tr -d ' ')
    if [ -n "${1:-}" ]; then sed -n "$(($1 + 1))p"; else sort -n | tail -n 1; fi <<<"$beats"
}

# tree_gone: no process holds the witness any more; zombies have closed it. The tree's lock is
# exclusive, a test of it is shared, here and in a waiter's command: of two exclusive tests at a
# time each would mistake the other for the tree.
tree_gone() { flock -sn "$C/witness" true; }
no_overlap() { ! grep -q overlap "$C/events"; }

# start_waiter FILE [OPTION...]: another client of $L, in $WAITER: it writes the time of its entry
# into FILE (ns), looks at the witness before that, and stays while the file "stay" exists.
start_waiter() {
    start_log "$1.log" "$DLOCK" "${@:2}" "$L" sh -c \
        'flock -sn "$1/witness" true || echo overlap >>violations
        "$2" "$3"; while [ -e stay ]; do sleep .02; done' - "$C" "$HELPERS/clock" "$T/$1"
    WAITER=$STARTED
}
no_violations() { [ ! -e "$T/violations" ] && no_overlap; }

# The tree must be gone within $1 ms of $2 (ns).
gone_by() {
    wait_for 5 tree_gone
    assert_between 0 "$(last_beat)" $(($2 + $1 * NS)) "last sign of life of the tree"
}

# A time that was seen ($2 WHAT, ns) lies in $1..$1+$3 ms.
just_after() {
    assert_between "$1" "${2:-0}" $(($1 + $3 * NS)) "${4:-time}"
}

now_ns() { echo $(($(now_ms) * NS)); }

# background ARG...: dlock in a session of its own (no terminal), its output in $T/out, its pid $K.
background() {
    start_log "$T/out" "$HELPERS/launch" -d -s "$DLOCK" "$@"
    K=$STARTED
}
# starts N ARG...: background ARG..., whose command is the subject, not yet told to end; its N
# processes run.
starts() {
    rm -f "$C"/* "$T/end"
    background "${@:2}"
    wait_for 5 running "$1"
}
# find_guard: its pid into $G, that of its witness into $W.
guard_is_there() { guard_of "$K"; }
find_guard() {
    wait_for 5 guard_is_there
    guard_is_there
}
# kill_guard: and it is $G.
kill_guard() {
    find_guard
    kill -KILL "$G"
}

# ended [SECS]: wait for $K; its exit code in $status, its output in $output (as after `run`).
ended() {
    status=0
    wait_exit "${1:-10}" "$K" || status=$?
    output=$(cat "$T/out")
}

# unharmed RC: the command ends with RC when the test lets it end, and got no TERM.
unharmed() {
    : >end
    ended
    assert_rc "$1" || return
    [ "$(count_seen main sig 15)" = 0 ] || fail "TERM: $(count_seen main sig 15)"
}

# lives_for MS: so long, or until the keeper $K is gone.
lives_for() {
    local over=$(($(now_ms) + $1))
    past() { [ "$(now_ms)" -gt $over ] || pid_gone "$K"; }
    wait_for $(($1 / 1000 + 3)) past
    pid_alive "$K" || fail "it ended: $(cat out)"
}
ends_with() { # CODE [SECS]
    ended "${2:-10}"
    assert_rc "$1"
}
# at_terminal: the Python program on stdin, with all of helpers/terminal.py, and with a terminal t
# unless the program makes one. LOCK_ARGS: the options and the lock, $L.
at_terminal() {
    rm -f "$C"/* "$T/end"
    cat >"$T/program.py"
    {
        echo 'from terminal import *'
        grep -q '^t = ' "$T/program.py" || echo 't = Term()'
        cat "$T/program.py"
    } >"$T/test.py"
    # Not by run_t: timeout in the foreground would be the terminal's.
    S=$S C=$C L=$L LOCK_ARGS=${LOCK_ARGS-$L} SLOW=$SLOW PYTHONDONTWRITEBYTECODE=1 \
        PYTHONPATH=$ROOT/tests/support/helpers \
        timeout -k 2 40 /usr/bin/python3 "$T/test.py" 3>&- </dev/null
}

# finish CODE: lets a subject with -u "$T/end" end.
finish() {
    touch "$T/end"
    ends_with "$1"
}

ms() { echo $(($1 / NS)); }
