#!/usr/bin/env bats
# unkillable.bats - a process of the command that dlock may not kill, as under sudo: the lock is
# kept until it has ended, and one line says so.

load ../../support/common
load ../../support/filelock
load ../../support/fake

setup() {
    filelock_setup
    fake_setup
}
teardown() { filelock_teardown; }

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
