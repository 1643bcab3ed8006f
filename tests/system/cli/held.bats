#!/usr/bin/env bats
# held.bats - --held: the command asks its keeper about the lock; on Redis and on files.

load ../../support/redis

setup_file() { redis_start; }
teardown_file() { redis_stop; }
setup() {
    dlock_setup
    L="redis://127.0.0.1:$REDIS_PORT#$NAME"
    F="file://$T/locks#$NAME"
    mkdir -p locks
    # --ttl 3 --grace 1: term_at is 1818 ms after the request of the grant.
    SHORT="--ttl 3 --grace 1"
    export L F SHORT
}

# holds ARG... LOCK: dlock ($HOLDER) holds it until go; `above` runs a command as if under it.
holds() {
    rm -f in go
    start_log hold.log "$DLOCK" "$@" sh -c \
        'env | grep ^DLOCK_ >in.new; echo $$ >pid; mv in.new in; exec "$HELPERS/await" go'
    HOLDER=$STARTED
    wait_for 5 test -s in || fail "$(cat hold.log)"
}
above() { env -S "$(grep -E '^DLOCK_(HELD|NAME|TOKEN)=' in | sed 's/.*/"&"/' | tr '\n' ' ')" "$@"; }
ask() { above "$DLOCK" --held "$@"; }
# Milliseconds, at most $1, and not many less: a busy machine.
is_about() { # MOST TEXT
    [[ $2 =~ ^[0-9]+$ ]] || fail "no number: $2"
    assert_between $(($1 - 900 - SLOW > 0 ? $1 - 900 - SLOW : 1)) "$2" "$1" ms
}
# Is the answer 79, within the bound, with one line that has this text?
not_held() { # TEXT [ARG...]
    local text=$1 t0
    shift
    t0=$(now_ms)
    run -79 --separate-stderr ask "$@"
    took=$(($(now_ms) - t0))
    [ -z "$output" ] && [ "${#stderr_lines[@]}" -eq 1 ] && [[ $stderr == *"$text"* ]] ||
        fail "$output $stderr"
    [ $took -le $((2000 + SLOW)) ] || fail "took $took ms"
}
# Less than the second that an answer may take, with the start of all processes.
at_once() { [ $took -lt $((990 + SLOW)) ] || fail "took $took ms"; }

@test "a lease tells the time to its end, a file has none; nothing on stderr" {
    local lock
    run -0 run_t 10 "$DLOCK" $SHORT "$L" sh -c \
        '"$DLOCK" --held && "$DLOCK" --held "$DLOCK_NAME" && "$DLOCK" --held "$1"' - "$L"
    [ "${#lines[@]}" -eq 3 ] || fail "$output"
    for lock in "${lines[@]}"; do is_about 1818 "$lock"; done
    for lock in "$F" "$T/plain" "-o $T/plain" "--fcntl $T/plain" "--slots 2 $T/plain"; do
        run -0 run_t 10 "$DLOCK" $lock sh -c \
            '"$DLOCK" --held && "$DLOCK" --held "$DLOCK_NAME" && "$DLOCK" --held "$1"' - \
            "${lock##* }"
        [ "$output" = $'inf\ninf\ninf' ] || fail "$lock: $output"
    done
    # The manual's idioms.
    run -0 run_t 10 "$DLOCK" $SHORT "$L" sh -c \
        '"$DLOCK" --held >/dev/null || exit 1; left=$("$DLOCK" --held) && echo ok'
    [ "$output" = ok ]
    run -71 run_t 10 "$DLOCK" "$F" sh -c '"$DLOCK" --held >/dev/full'
}

@test "LOCK by another spelling; a lock that is not there: 64" {
    local name
    : >plain
    ln -s plain link
    DLOCK_STORE=file://$T/locks holds --fcntl plain
    for name in plain ./link "file://$T/plain"; do
        run -0 ask "$name"
        [ "$output" = inf ] || fail "$name: $output"
    done
    for name in other "$F" "redis://u:hidden@h#$NAME" redis://u:hidden@h @none; do
        DLOCK_STORE=file://$T/locks run -64 --separate-stderr ask "$name"
        [ -z "$output" ] && [ "${#stderr_lines[@]}" -eq 1 ] && [[ $stderr != *hidden* ]] ||
            fail "$name: $output $stderr"
    done
    DLOCK_STORE=file://$T/locks run -0 run_t 5 "$DLOCK" @job sh -c \
        '"$DLOCK" --held @job && "$DLOCK" --held job && "$DLOCK" --held "file://$1/locks#job"' - \
        "$T"
    [ "$output" = $'inf\ninf\ninf' ]
}

@test "outside of a command, under -F and with garbage in DLOCK_HELD: 64" {
    local value
    for value in '' ' ' x ::: "$(head -c 100000 /dev/zero | tr '\0' :)"; do
        DLOCK_HELD=$value run -64 --separate-stderr run_t 5 "$DLOCK" -q --held
        [ -z "$output" ] && [[ $stderr == "dlock: --held is for a command that dlock runs: "* ]] ||
            fail "$output $stderr"
    done
    run -64 run_t 5 "$DLOCK" -F "$T/plain" "$DLOCK" --held
    # Under -F and another lock, that one's is told, but not its own.
    run -64 run_t 5 "$DLOCK" "$F" "$DLOCK" -F "$T/plain" sh -c \
        '"$DLOCK" --held; "$DLOCK" --held "$DLOCK_NAME"'
    [ "${lines[0]}" = inf ] && assert_out 'names no lock that this process runs under'
}

@test "of several locks, and of the dlocks above, the least time; each by its name" {
    run -0 run_t 10 "$DLOCK" $SHORT --also "$F" "$L" sh -c \
        '"$DLOCK" --held; "$DLOCK" --held "$1"; "$DLOCK" --held "$F"' - "$L"
    is_about 1818 "${lines[0]}"
    is_about 1818 "${lines[1]}"
    run -0 run_t 10 "$DLOCK" $SHORT "$L" "$DLOCK" "$F-2" sh -c \
        '"$DLOCK" --held "$DLOCK_NAME"; "$DLOCK" --held; "$DLOCK" --held "$L"'
    [ "${lines[0]}" = inf ]
    is_about 1818 "${lines[1]}"
    is_about 1818 "${lines[2]}"
    run -0 run_t 10 "$DLOCK" $SHORT "$L" "$DLOCK" --ttl 60 "$L-2" sh -c \
        '"$DLOCK" --held "$DLOCK_NAME"; "$DLOCK" --held'
    [ "${lines[0]}" -gt 30000 ]
    is_about 1818 "${lines[1]}"
}

@test "a nested one knows the outer one's end, which is earlier than its own" {
    run -0 run_t 10 "$DLOCK" $SHORT "$L" "$DLOCK" --grace 0.1 "$L" "$DLOCK" --grace 0.1 "$L" \
        sh -c 'for i in 1 2 3 4 5 6 7 8 9; do "$DLOCK" --held || exit; sleep 0.1; done'
    # Renewed twice meanwhile.
    for left in "${lines[@]}"; do is_about 1818 "$left"; done
    [ "${#lines[@]}" -eq 9 ]
}

@test "a lost lock: 79, in the whole set and in nested ones" {
    holds --on-lost warn --ttl 1 --also "$F" "$L"
    run -0 ask "$F"
    rcli del "$NAME"
    wait_for 5 file_has hold.log lost
    not_held "has lost the lock '$NAME', or is about to lose it"
    not_held "has lost the lock '$NAME', or is about to lose it" "$F"
    let_go 79
    rm -f in go
    start_log outer.log "$DLOCK" --on-lost warn --ttl 1 "$L" "$DLOCK" --on-lost warn "$L" sh -c \
        'echo >in; "$HELPERS/await" go; "$DLOCK" --held; echo $? >rc'
    wait_for 5 test -s in
    rcli del "$NAME"
    wait_for 5 file_has outer.log lost
    : >go
    exits 79 5 "$STARTED"
    [ "$(cat rc)" = 79 ] || fail "$(cat rc outer.log)"
}

@test "in the grace, after TERM: 79" {
    redis_start_in other
    # The answer must come in the grace, which ends with KILL.
    start_log hold.log "$DLOCK" --ttl 4 --grace 2 "redis://127.0.0.1:${REDIS_PORTS[other]}#x" bash \
        -c 'trap '\''"$DLOCK" --held; echo $? >rc'\'' TERM; echo >in
            "$HELPERS/await" go & wait; wait'
    wait_for 5 test -s in
    kill -STOP "${REDIS_PIDS[other]}"
    exits 79 5 "$STARTED"
    kill -CONT "${REDIS_PIDS[other]}"
    [ "$(cat rc)" = 79 ] && file_has hold.log "has lost the lock 'x', or is about to lose it" ||
        fail "$(cat rc hold.log)"
}

@test "a renewal that comes after TERM was due: still 79" {
    redis_start_in late
    renewed() { [ "$(rcli_in late pttl x)" -gt 1300 ]; }
    holds --on-lost warn --ttl 2 --grace 0.8 "redis://127.0.0.1:${REDIS_PORTS[late]}#x"
    kill -STOP "${REDIS_PIDS[late]}"
    wait_for 5 file_has hold.log 'could not be renewed in time'
    kill -CONT "${REDIS_PIDS[late]}"
    wait_for 5 renewed
    not_held "has lost the lock 'x', or is about to lose it"
    let_go 79
}

@test "stopped, killed and ended keepers: 79 within the bound" {
    holds --ttl 20 "$L" # so that the guard does not end it while it is stopped
    kill -STOP "$HOLDER"
    local text="the lock '$NAME' may not be held any more: its dlock $HOLDER has not answered"
    not_held "$text within 1 s: is it stopped?"
    [ $took -ge 990 ]
    kill -CONT "$HOLDER"
    run -0 ask
    kill -KILL "$HOLDER"
    wait "$HOLDER" || :
    not_held "the lock '$NAME' may not be held any more: its dlock has ended, or is releasing it"
    at_once
    holds "$T/plain"
    run -0 ask
    let_go
    not_held "the lock '$T/plain' may not be held any more: its dlock has ended, or is releasing it"
}

@test "forged entries, and sockets without an answer, or with nonsense, mean 79 within one bound" {
    local how i
    holds "$L"
    local good=$(sed -n 's/^DLOCK_HELD=//p' in) digest name token socket forged
    IFS=: read -r digest name token socket <<<"$good"
    for forged in "$digest:$name:${token//[0-9]/0}:$socket" \
        "${digest//[0-9]/0}:$name:$token:$socket" "$digest:0000000000000000:$token:$socket" \
        "$digest:$name:$token:${socket%?}x" "$digest:$name:$token:-"; do
        echo "DLOCK_HELD=$forged" >in
        not_held 'may not be held any more'
        at_once
    done
    for how in silent full nonsense; do
        start "$ROOT/tests/support/helpers/silent_keeper.py" $how "$T/$how"
        wait_for 5 test -s "$how"
    done
    # 31 of them, and the true one.
    many() {
        for i in {1..31}; do
            printf '%016x:%s:%s:%s ' "$i" "$name" "$token" "$(cat "${@:i % $# + 1:1}")"
        done
    }
    echo "DLOCK_HELD=$(many silent full)$good" >in
    not_held 'has not answered within 1 s'
    echo "DLOCK_HELD=$(many nonsense)$good" >in
    not_held 'does not hold it for this process'
    at_once
    echo "DLOCK_HELD=$good" >in
    run -0 ask
    let_go
}

@test "32 locks above: all are asked; few descriptors are enough" {
    local i all=()
    for i in {1..15}; do all+=("--also=$T/$i"); done
    run -0 run_t 10 "$DLOCK" "${all[@]}" "$T/a" "$DLOCK" "${all[@]/%/b}" "$T/c" bash -c \
        'echo $DLOCK_HELD | wc -w; "$DLOCK" --held
        # What the machine has open.
        for fd in /proc/$$/fd/*; do fd=${fd##*/}; [ "$fd" -le 2 ] || exec {fd}>&-; done
        ulimit -n 12; "$DLOCK" --held'
    [ "$output" = $'32\ninf\ninf' ] || fail "$output"
}

@test "a keeper answers for a stopped command, and for one that ended above an inner dlock" {
    local lock
    holds $SHORT "$L"
    kill -STOP "$(cat pid)"
    run -0 ask
    is_about 1818 "$output"
    kill -CONT "$(cat pid)"
    let_go
    for lock in "$L" "$F"; do
        rm -f pid outer go2
        start_log hold.log "$DLOCK" $SHORT "$lock" sh -c 'env | grep ^DLOCK_ >in
            "$DLOCK" "$1" sh -c "echo \$\$ >pid; exec \"\$HELPERS/await\" go2" &
            until [ -s pid ]; do sleep 0.02; done; echo $$ >outer' - "$lock"
        wait_for 5 test -s outer
        wait_for 5 pid_gone "$(cat outer)"
        run -0 ask
        [ "$output" = inf ] || is_about 1818 "$output"
        : >go2
        exits 0 5 "$STARTED"
        not_held 'has ended, or is releasing it'
    done
}

@test "what is left of a file's command asks in its grace, and is told that the lock is held" {
    start_log hold.log "$DLOCK" --grace 3 "$T/plain" bash -c '"$HELPERS/await" never &
        (trap '\''"$DLOCK" --held >left; echo $? >rc; exit'\'' TERM; echo >in
        while :; do "$HELPERS/await" never; done) & wait %1'
    wait_for 5 test -s in
    kill -TERM "$STARTED"
    exits 143 5 "$STARTED"
    [ "$(cat rc left)" = $'0\ninf' ] || fail "$(cat rc left hold.log)"
}

@test "queries are no inner dlocks: they delay no end, and are answered beside too many of those" {
    holds "$L"
    # Connections that ask nothing.
    start above "$ROOT/tests/support/helpers/backlog.py" "$(sed -n 's/^DLOCK_HELD=.*://p' in)" \
        "$HELPERS/await" over
    run -0 ask
    let_go
    : >over
    rm go
    run -0 run_t 20 bash -c 'ulimit -Sn 40; exec "$DLOCK" "$L" bash -c "ulimit -Sn \$(ulimit -Hn)
            for i in {1..20}; do
                \"\$DLOCK\" \"\$L\" sh -c \"echo >in.\$i; exec \\\"\\\$HELPERS/await\\\" go\" &
            done
            wait -n; echo first \$?
            for i in 1 2 3 4 5; do \"\$DLOCK\" --held \"\$L\" >/dev/null || echo no; done
            : >go; wait"'
    assert_out 'first 71' 'too many dlocks run under dlock'
    ! grep -qx no <<<"$output" || fail "$output"
}

@test "other users, other namespaces" {
    need_root
    local open name other=(setpriv --reuid=nobody --regid=nogroup --clear-groups)
    holds "$F"
    run -79 above timeout 5 unshare -n "$DLOCK" --held
    assert_out 'is in another network namespace'
    # A machine that was started a moment ago has no earlier time.
    if unshare -T true; then
        run -0 above timeout 5 unshare -T --fork --boottime 1000 "$DLOCK" --held
    fi
    chmod 711 "$BATS_RUN_TMPDIR" "$BATS_FILE_TMPDIR" 2>/dev/null || :
    "${other[@]}" "$DLOCK" --version >/dev/null || skip 'nobody cannot run dlock here'
    run -79 above timeout 5 "${other[@]}" "$DLOCK" --held
    assert_out 'runs as uid 0, and answers only that user and root'
    # Another user's process that has taken the name. The checkout and $TMPDIR may be root's alone.
    open=$(mktemp -d /tmp/dlock-test.XXXXXX)
    chmod 755 "$open"
    mkfifo "$open/squat"
    chmod 666 "$open/squat"
    install -m 755 "$ROOT/tests/support/helpers/silent_keeper.py" "$open"
    start "${other[@]}" "$open/silent_keeper.py" held "$open/squat"
    name=$(timeout 10 cat "$open/squat")
    rm -r "$open"
    sed -i "s/\(^DLOCK_HELD=.*:\)[^:]*$/\1$name/" in
    not_held 'has ended, or is another user'
    let_go
}
