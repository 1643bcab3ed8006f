#!/usr/bin/env bats
# hosts.bats - the recipes for cron, for a leader and for Ansible: several hosts with one store.

# bats file_tags=plain
load ../../support/recipes

# cron JOB: one host's cron runs it; what it prints is a mail.
cron() { run_t 10 "$ROOT/tests/support/helpers/cron.py" cron "$1"; }

crontab() {
    recipe cron
    rcli acl setuser app on '>a secret' '~*' '&*' +@all >/dev/null
    (umask 077 && echo 'a secret' >etc/redis.password)
    # Cron shows commands and variables in the mail and the log.
    run ! grep -E ':[^/]*@' cron
}

@test "cron: one host runs the job, and the others skip it without a mail" {
    crontab
    program nightly "'$HELPERS/await' '$T/go'"
    start_log mail "$ROOT/tests/support/helpers/cron.py" cron '@nightly'
    wait_for 5 ran 1
    run -75 cron '@nightly'
    [ -z "$output" ] || fail "mail: $output"
    : >go
    exits 0 5 "$STARTED"
    # A host whose clock is behind.
    run -75 cron '@nightly'
    [ -z "$output" ] && [ ! -s mail ] || fail "mail: $output$(cat mail)"
    ran 1
}

@test "cron: another host repeats the report of the day until one has succeeded" {
    crontab
    program report "[ -e '$T/works' ] || exit 3"
    run -3 cron '@report-'
    : >works
    run -0 cron '@report-'
    run -0 cron '@report-'
    [ -z "$output" ] || fail "mail: $output"
    ran 2
    run -0 rcli keys '*'
    [[ $output == *{report-20[0-9][0-9]-[01][0-9]-[0-3][0-9]}* ]] || fail "$output"
}

@test "cron: each host runs its job, one after the other" {
    crontab
    program reindex "$(at_a_time)"
    start cron '@reindex'
    run -0 cron '@reindex'
    exits 0 5 "$STARTED"
    ran 2
}

@test "a leader is followed by another one, and restarted when it ends" {
    recipe lead
    export DLOCK_STORE=$STORE
    program serve "[ ! -e '$T/ends' ] || { rm '$T/ends'; exit 3; }
        trap 'exit 0' TERM; while :; do read -rt 1 <>'$T/.never'; done"
    mkfifo .never
    start_log first.log sh lead serve as first
    local first=$STARTED
    wait_for 5 ran 1
    start_log second.log sh lead serve as second
    local second=$STARTED
    wait_for 5 eval '"$DLOCK" --status @leader | grep -q waiting'
    # Its next leader fails at once, and is started again.
    : >ends
    kill -TERM "$first"
    exits 0 5 "$first"
    wait_for 5 ran 3
    [ "$(cat ran)" = $'serve as first\nserve as second\nserve as second' ] || fail "$(cat ran)"
    kill -TERM "$second"
    exits 0 5 "$second"
    run -0 "$DLOCK" --status @leader
    # What no retry mends.
    run -127 run_t 5 sh lead no-such-server
    # A leader of this machine alone would be one of many.
    DLOCK_STORE='' run run_t 5 sh lead serve as third
    [ "$status" -ne 0 ] && ran 3
}

@test "Ansible: the task is one command at a time" {
    recipe ansible
    program opt/app/restart "$(at_a_time)"
    [ "$(yaml ansible 'list(d[0])')" = $'name\nansible.builtin.command\nenvironment' ]
    [ "$(yaml ansible 'd[0]["environment"]["DLOCK_STORE"]')" = '{{ dlock_store }}' ]
    mapfile -t argv < <(yaml ansible 'd[0]["ansible.builtin.command"]["argv"]')
    argv[-1]=$T${argv[-1]}
    export DLOCK_STORE=$STORE
    start "${argv[@]}"
    run -0 run_t 5 "${argv[@]}"
    exits 0 5 "$STARTED"
    ran 2
}
