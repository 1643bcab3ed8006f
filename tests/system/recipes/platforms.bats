#!/usr/bin/env bats
# platforms.bats - the recipes for systemd, CI and Kubernetes, as these run them. systemd itself
# boots with its recipes in tests/soak/systemd.

# bats file_tags=plain
load ../../support/recipes

# ----------------------------------------------------------------- systemd ---

@test "systemd accepts the units" {
    need_mounts
    local units=(./nightly.service ./nightly.timer ./report.service ./leader.service ./leader.timer)
    for unit in "${units[@]#./}"; do recipe "$unit"; done
    # It looks into folders of its own for dlock.
    run -0 run_t 20 unshare --mount --propagation private bash -c '
        mount --bind "$T/bin" /usr/local/bin && exec systemd-analyze verify "$@"' - "${units[@]}"
    [ -z "$output" ] || fail "$output"
}

@test "systemd: the service finds its password, and skips a run when the lock is held" {
    local line
    recipe nightly.service
    rcli acl setuser job@eu on '>a secret' '~*' '&*' +@all >/dev/null
    mkdir credentials
    (umask 077 && echo 'a secret' >credentials/redis)
    program nightly
    # As systemd reads the line: \ at its end, %d and %%.
    line=$(sed -n '/^ExecStart=/,/[^\\]$/{s/^ExecStart=//; s/\\$//; p}' nightly.service)
    line=${line//%d/$T/credentials}
    [[ ${line//%%/} != *%* ]] || fail "a % alone: $line"
    read -rd '' -a argv <<<"${line//%%/%}" || :
    run -0 run_t 5 "${argv[@]}"
    run -75 run_t 5 "${argv[@]}"
    # The journal has no other trace of a skipped run.
    assert_out "until its --min-hold is over"
    grep -qx SuccessExitStatus=75 nightly.service
    ran 1
}

# ---------------------------------------------------------------------- CI ---

@test "GitLab: one deployment at a time, and the waiting one names the other" {
    local script
    recipe gitlab
    program deploy "'$HELPERS/await' '$T/go'"
    mv bin/deploy .
    export CI=true REDIS_URL=$STORE
    # As GitLab does it: only with environment:.
    CI_ENVIRONMENT_SLUG=$(yaml gitlab 'd["deploy"].get("environment", "")')
    script=$(yaml gitlab 'd["deploy"]["script"]')
    [ "$(yaml gitlab 'd["deploy"]["variables"]["DLOCK_NOTE"]')" = '$CI_JOB_URL' ]
    run run_t 5 bash -e -c "$script"
    [ "$status" -ne 0 ] && ran 0
    export CI_ENVIRONMENT_SLUG
    start_log first.log env DLOCK_NOTE=https://ci/1 bash -e -c "$script"
    local first=$STARTED
    wait_for 5 ran 1
    start_log second.log env DLOCK_NOTE=https://ci/2 bash -e -c "$script"
    wait_for 5 file_has second.log 'note "https://ci/1"'
    : >go
    exits 0 5 "$first"
    exits 0 5 "$STARTED"
    ran 2
}

@test "CI: each branch has a lock of its own, whatever its name" {
    recipe branch
    program ./publish "echo \"\$DLOCK_NAME\" >>'$T/names'"
    export DLOCK_STORE=$STORE
    for branch in main 'fix#12' 'feature/50%25-off'; do
        CI_COMMIT_REF_NAME=$branch run -0 run_t 5 sh branch
        GITHUB_REF_NAME=$branch run -0 run_t 5 sh branch
    done
    [ "$(uniq -c names | awk '{ print $1, $2 }')" = \
        $'2 publish-main\n2 publish-fix#12\n2 publish-feature/50%25-off' ] || fail "$(cat names)"
    run run_t 5 sh branch
    [ "$status" -ne 0 ] && ran 6
}

# step N: starts step N as GitHub's runner does: the command of a file, all signals as by default.
step() {
    local shell
    yaml github "d['jobs']['deploy']['steps'][$1]['run']" >"step$1"
    shell=$(yaml github "d['jobs']['deploy']['steps'][$1].get('shell', 'bash -e {0}')")
    # shellcheck disable=SC2086
    start_log "step$1.log" "$HELPERS/launch" -d ${shell/\{0\}/"step$1"}
    STEPS[$1]=$STARTED
}

# Ends with INT, but what it has started ignores signals.
stubborn='(trap "" INT TERM; while :; do read -rt 1 <>.never; done) & trap "exit 130" INT
    while :; do read -rt 1 <>.never; done'

@test "GitHub: what a step has started is gone before a cancelled step gets TERM" {
    local STEPS=() n begun
    recipe github
    mkfifo .never
    for n in deploy build publish; do program ./$n; done
    program ./deploy "$stubborn"
    program ./publish "$stubborn"
    export DLOCK_STORE=$STORE
    [ "$(yaml github 'list(d["jobs"]["deploy"]["env"].values())')" = \
        $'${{ secrets.REDIS_URL }}\nrun ${{ github.run_id }}' ]
    step 1
    step 2
    wait_for 5 ran 3
    now_ms begun
    kill -INT "${STEPS[1]}" "${STEPS[2]}"
    for n in 1 2; do exits 130 8 "${STEPS[n]}"; done
    assert_between 4500 $(($(now_ms) - begun)) 7400 "ms to the end of a step"
    for n in deploy publish; do run -0 "$DLOCK" --status @$n; done
    none_left || fail "$(test_pids)"
}

@test "GitHub: a plain bash -e step leaves dlock behind, as the page says" {
    local STEPS=()
    recipe github
    program ./deploy "'$HELPERS/await' '$T/go'"
    export DLOCK_STORE=$STORE
    sed -i "s/run: exec \(.*\)/run: '\1; true'/" github
    step 1
    wait_for 5 ran 1
    kill -INT "${STEPS[1]}"
    kill -TERM "${STEPS[1]}"
    exits 143 5 "${STEPS[1]}"
    run -75 "$DLOCK" --status @deploy
    : >go
    wait_for 5 "$DLOCK" --status @deploy
}

# -------------------------------------------------------------- containers ---

@test "container: Compose's variables and secret make a run, which ends when it is stopped" {
    local argv store from
    recipe dockerfile
    recipe compose
    from=$(sed -n 's,^COPY --from=dlock \(/.*/dlock\) .*,\1,p' dockerfile)
    grep -qF "\$out/root$from\"" "$ROOT/packaging/image" || fail "the image has no $from"
    rcli acl setuser app on '>a secret' '~*' '&*' +@all >/dev/null
    mapfile -t argv < <(sed -n 's/^\(ENTRYPOINT\|CMD\) //p' dockerfile | jq -r '.[]')
    store=$(yaml compose "d['services']['nightly']['environment']['DLOCK_STORE']")
    # The secret is a file below /run/secrets that has its name.
    for secret in $(yaml compose "d['services']['nightly']['secrets']"); do
        [ "$(yaml compose "d['secrets']['$secret']['file']")" = "./$secret" ]
        (umask 077 && echo 'a secret' >"$secret")
    done
    program nightly "trap 'echo stopped >>$T/ran; exit 3' TERM
        while :; do read -rt 1 <>'$T/.never'; done"
    mkfifo .never
    start env DLOCK_STORE="${store//\/run\/secrets/"$T"}" "${argv[@]}"
    wait_for 5 ran 1
    kill -TERM "$STARTED"
    exits 3 "$(yaml compose "d['services']['nightly']['stop_grace_period'].strip('s')")" "$STARTED"
    [ "$(cat ran)" = $'nightly\nstopped' ] || fail "$(cat ran)"
}

# -------------------------------------------------------------- Kubernetes ---

# pod FILE TEMPLATE: starts the container of this pod's template: command and args are process 1 of
# a namespace, by the template's user and groups. $STARTED is the parent of that process.
pod() {
    local uid group argv
    need_pid_namespace
    need_root
    mapfile -t argv < <(yaml "$1" "[w for c in d$2['spec']['containers']
        for w in c['command'] + c['args']]")
    uid=$(yaml "$1" "d$2['spec'].get('securityContext', {}).get('runAsUser', 0)")
    group=$(yaml "$1" "d$2['spec'].get('securityContext', {}).get('fsGroup', 0)")
    start_log pod.log unshare --pid --fork --kill-child --mount-proc \
        setpriv --reuid "$uid" --regid 0 --groups "$group" -- "${argv[@]}"
}
# end_pod CODE SECONDS: as the kubelet does.
end_pod() {
    kill -TERM "$(children "$STARTED")"
    exits "$1" "$2" "$STARTED"
}
# open_to_all: $T is a folder that the container's user can reach, with a dlock for it.
open_to_all() {
    OPEN=$(mktemp -d /tmp/dlock-recipes.XXXXXX)
    T=$OPEN
    cd "$T"
    mkdir bin etc
    install -m 755 "$DLOCK" bin
    PATH=$T/bin:$PATH
    : >ran
    chmod -R a+rX,a+w .
}
teardown() {
    cd /
    dlock_teardown
    [ -z "${OPEN:-}" ] || rm -r "$OPEN"
}
JOB="['spec']['template']"
CRON="['spec']['jobTemplate']$JOB"

@test "Kubernetes: a CronJob runs in one pod, and ends in time when the pod does" {
    local mode
    open_to_all
    recipe cronjob
    rcli acl setuser app on '>a secret' '~*' '&*' +@all >/dev/null
    # As the kubelet makes it: root's, readable for the group of fsGroup, and behind two links.
    mode=$(yaml cronjob "'%o' % d$CRON['spec']['volumes'][0]['secret']['defaultMode']")
    [ "$(yaml cronjob "d$CRON['spec']['containers'][0]['volumeMounts']")" = \
        "{'name': 'dlock', 'mountPath': '/etc/dlock'}" ]
    mkdir etc/..2026
    echo 'a secret' >etc/..2026/redis
    chmod "$mode" etc/..2026/redis
    chgrp "$(yaml cronjob "d$CRON['spec']['securityContext']['fsGroup']")" etc/..2026/redis
    ln -s ..2026 etc/..data
    ln -s ..data/redis etc/redis
    program nightly "trap 'echo stopped >>$T/ran; exit 3' TERM
        while :; do read -rt 1 <>'$T/.never'; done"
    mkfifo -m 666 .never
    pod cronjob "$CRON"
    wait_for 5 ran 1
    end_pod 3 "$(yaml cronjob "d$CRON['spec']['terminationGracePeriodSeconds']")"
    [ "$(cat ran)" = $'nightly\nstopped' ] || fail "$(cat ran)"
    # --min-hold: a second cluster's pod is done at once.
    pod cronjob "$CRON"
    exits 0 5 "$STARTED"
    ran 2
}

@test "Kubernetes: a deploy Job that was ended runs again, and not after a success" {
    recipe job
    mkfifo .never
    program ./migrate "[ ! -e '$T/slow' ] || while :; do read -rt 1 <>.never; done"
    program ./rollout
    export DLOCK_STORE=$STORE
    : >slow
    pod job "$JOB"
    wait_for 5 ran 1
    end_pod 143 "$(yaml job "d$JOB['spec']['terminationGracePeriodSeconds']")"
    rm slow
    pod job "$JOB"
    exits 0 5 "$STARTED"
    [ "$(cat ran)" = $'migrate\nmigrate\nrollout' ] || fail "$(cat ran)"
    pod job "$JOB"
    exits 0 5 "$STARTED"
    ran 3
}
