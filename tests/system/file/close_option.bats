#!/usr/bin/env bats
# Which process keeps a file lock: with -o the guard has the descriptor, and the lock outlasts the
# command's whole tree whichever process is killed or stopped; without -o the command has it. And
# file systems that cannot be trusted.

load ../../support/common
load ../../support/filelock
load ../../support/fake

setup() {
    filelock_setup
    fake_setup
}
teardown() { filelock_teardown; }

# The next holder writes into $T/in: 1 if it entered while a process of the tree was alive, else 0.
next_holder() {
    start_log next "$DLOCK" x.lock sh -c 'flock -sn command/witness true; echo $? >in'
    NEXT=$STARTED
    wait_for 5 queued x.lock
}
not_before_the_tree() {
    wait_for 5 file_nonempty in
    [ "$(cat in)" = 0 ] || fail "the next one has the lock while the tree lives"
    wait_exit 5 "$NEXT"
}

@test "with -o, the tree of a killed guard or keeper ends before the lock is free" {
    for who in G K G K G K; do
        rm -rf in "$C"/*
        starts 4 -o x.lock $SUBJECT -t -k
        find_guard
        next_holder
        kill -KILL "${!who}"
        killed=$(now_ns)
        if [ $who = G ]; then
            ended
            assert_rc 71
            assert_out "guard process $G was killed"
            [ "$(wc -l <out)" -le 1 ]
        fi
        not_before_the_tree
        assert_between 1 "$(last_beat)" $((killed + (500 + SLOW) * NS)) "last sign of life"
        [ "$(count_seen main sig 15)" = 0 ]
        wait_for 2 pid_gone "$G"
        settle 2
    done
}

@test "with -o, a stopped keeper changes nothing" {
    starts 1 --ttl 1 -o x.lock $SUBJECT -u "$T/end" -r 6
    kill -STOP "$K"
    wait_for 5 beyond $(($(now_ms) + 1300))
    run -1 flock -n x.lock true
    [ "$(count_seen main sig 15)" = 0 ]
    pid_alive "$(pid_of main)"
    kill -CONT "$K"
    finish 6
    flock -n x.lock true
}

@test "without -o, the command of a killed keeper keeps the lock" {
    starts 4 x.lock $SUBJECT -t -u "$T/end"
    kill -KILL "$K"
    wait_for 2 pid_gone "$K"
    run -1 flock -n x.lock true
    for who in main child session daemon; do pid_alive "$(pid_of $who)"; done
    touch end
    # The others have the descriptor, too.
    wait_for 2 pid_gone "$(pid_of main)"
    run -1 flock -n x.lock true
    for who in child session daemon; do kill -KILL "$(pid_of $who)"; done
    wait_for 2 flock -n x.lock true
}

# --- network file systems -----------------------------------------------------------------------

@test "warns once of a lock file on NFS" {
    mkdir locks
    for lock in x.lock "file://$T/locks#n"; do
        run -0 preloaded nfs "$DLOCK" "$lock" sh -c 'echo ran'
        [ "${#lines[@]}" = 2 ]
        [[ ${lines[0]} == "dlock: "*"network file system (NFS)"*"local_lock"* ]] || fail "$output"
        [ "${lines[1]}" = ran ]
        run -0 run_t 5 "$DLOCK" "$lock" true # it is the file system, not the lock
        [ -z "$output" ]
        run -75 preloaded nfs "$DLOCK" -q "$lock" "$DLOCK" --no-reentrant -q -n "$lock" true
        refute_out ran
    done
    # A wait says it once, too.
    hold "$DLOCK" x.lock
    run -75 preloaded nfs "$DLOCK" -w 0.2 x.lock touch ran
    [ "$(grep -c NFS <<<"$output")" = 1 ]
    # Where /proc/locks is not believed --status tries the lock.
    run -75 preloaded nfs "$DLOCK" --status x.lock
    assert_out held
    let_go
    run -0 preloaded nfs "$DLOCK" --status x.lock
    assert_out free
    [ ! -e ran ]
}

# --- a process that cannot be killed ------------------------------------------------------------

# The user nobody runs dlock, and the command becomes root by a setuid copy of setpriv, as by sudo.
become_root() {
    need_root
    open_folder
    chmod 777 "$OPEN"
    install -m 4755 "$(command -v setpriv)" "$OPEN/become"
    nobody=(setpriv --reuid=nobody --regid=nogroup --clear-groups)
    [ "$(cd "$OPEN" && "${nobody[@]}" ./become --reuid=0 id -u)" = 0 ] ||
        skip "setuid does not work here"
    install -m 755 "$DLOCK" "$HELPERS/subject" "$OPEN"
    cd "$OPEN" && mkdir -m 777 store command
    S=$OPEN/store C=$OPEN/command L=fake://$S#$NAME
}
as_nobody() {
    start_log "$T/out" "$HELPERS/launch" -d -s "${nobody[@]}" ./dlock "$@" \
        ./become --reuid=0 ./subject command -k -t -u "$T/end"
    K=$STARTED
}
stuck_said() { grep -c 'cannot be killed' "$T/out"; }

# bats test_tags=slow
@test "keeps the lock while a process cannot be killed, and says so once" {
    become_root
    as_nobody -q --ttl 1.5 "$L"
    wait_for 5 running 4
    tell renew unclear
    wait_for 5 grep -q 'cannot be killed' "$T/out"
    # The kill is repeated silently, and the lock renewed meanwhile, if the store answers.
    tell renew ok
    wait_for 5 beyond $(($(now_ms) + 1500))
    pid_alive "$K"
    pid_alive "$(pid_of main)"
    [ -e "$S/held" ]
    ! store_did release || fail "released"
    [ "$(count_seen main sig 15)" = 0 ]
    for who in child session daemon; do kill -KILL "$(pid_of $who)"; done
    finish 79
    [ "$(stuck_said)" = 1 ]
    [ "$(grep -c '^dlock: ' "$T/out")" = 2 ]
    store_did release
    [ "$(at release)" -gt "$(last_beat)" ]
    settle 1
}

@test "with -o, a process that cannot be killed keeps the lock even when the keeper dies" {
    become_root
    as_nobody -o ./x.lock
    wait_for 5 running 4
    kill -KILL "$K"
    wait_for 5 beyond $(($(now_ms) + 700))
    pid_alive "$(pid_of main)"
    run -1 flock -n x.lock true
    for who in main child session daemon; do kill -KILL "$(pid_of $who)"; done
    wait_for 2 flock -n x.lock true
    settle 1
}
