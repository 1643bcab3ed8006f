#!/usr/bin/env bats
# close_option.bats - which process keeps a file lock: with -o (--close) the guard has the
# descriptor, and the lock outlasts the command's whole tree whichever process is killed or stopped;
# without -o the command has it.

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
