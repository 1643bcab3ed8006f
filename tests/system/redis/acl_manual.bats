#!/usr/bin/env bats
# acl_manual.bats - the smallest ACL rules, as the manual has them: they are taken out of its text,
# are enough for everything, and each right in them is used.

# bats file_tags=long
load ../../support/common
load ../../support/fake
load ../../support/redis
load ../../support/redlock
load ../../support/sentinel
load ../../support/cluster

setup() {
    dlock_setup
    # The manual's rule is for names that begin so.
    NAME=job:$NAME
}

# ------------------------------------------------------------- the manual ---

section() {
    sed -n "/^\.Ss $1\$/,/^\.S[sh] /p" "$ROOT"/man/dlock-{redis,redlock}.7 |
        sed '2,${/^\.S[sh] /d}'
}
# rule SECTION USER: the words behind ACL SETUSER USER there.
rule() {
    local text
    text=$(section "$1" | sed -n "/^ACL SETUSER $2 /,/^\.Ed/p" |
        sed '/^\.Ed/d; s/\\e$//; s/\\&//g; s/PASSWORD/pw/')
    text=$(tr -s ' \n' ' ' <<<"${text#ACL SETUSER "$2" }")
    [[ $text == "on >pw"* ]] || fail "no rule for $2 in the section $1 of the manual: $text"
    echo "${text% }"
}
# extra SECTION: the rights that its text names besides.
extra() { section "$1" | sed -n 's/^\.Li \(+[a-z|]*\).*/\1/p' | sort -u | tr '\n' ' '; }

# -------------------------------------------------------------- what is used ---

# foreign_by CLI [hash]: `foreign`, by this client.
foreign_by() {
    if [ $# -eq 1 ]; then "$1" psetex "$NAME" 60000 theirs; else "$1" hmset "$NAME" f v; fi
}
# everything WAITING: a lock is taken, renewed, asked for, waited for by two, deleted by somebody,
# given back. What makes a waiter known is the condition WAITING N; `foreign` sets a foreign lock,
# `foreign hash` something that is none, `deleted` deletes it: by other commands than ours, which
# are counted.
everything() {
    local waiting=$1 w1 w2 over
    hold --ttl 1
    run -75 run_t 5 "$DLOCK" -n "$L" true
    run -75 run_t 5 "$DLOCK" --status "$L"
    assert_out "pid $HOLDER"
    start_log w1.log "$DLOCK" "$L" true
    w1=$STARTED
    wait_for 5 "$waiting" 1
    start_log w2.log "$DLOCK" "$L" true
    w2=$STARTED
    wait_for 5 "$waiting" 2
    run -75 run_t 5 "$DLOCK" -w 0.2 "$L" true
    # Renewed: longer than its ttl.
    over=$(($(now_ms) + 1100))
    wait_for 3 eval "[ \$(now_ms) -gt $over ]"
    pid_alive "$HOLDER"
    let_go
    wait_exit 5 "$w1" || fail "$(cat w1.log)"
    wait_exit 5 "$w2" || fail "$(cat w2.log)"
    foreign
    start_log w1.log "$DLOCK" --ttl 60 "$L" true
    w1=$STARTED
    wait_for 5 "$waiting" 1
    wait_for 5 tracked
    deleted
    wait_exit 2 "$w1" || fail "$(cat w1.log)"
    foreign hash
    run -65 run_t 5 "$DLOCK" --connect-timeout 1 -n "$L" true
    deleted
    [ ! -s hold.log ] || fail "said: $(cat hold.log)"
}

# --once and --min-hold need no other rights.
records() {
    run -0 run_t 5 "$DLOCK" --ttl 1 --once --min-hold 100ms "$L" true
    run -0 run_t 5 "$DLOCK" --ttl 1 --once "$L" touch ran
    [ ! -e ran ]
    run -0 run_t 5 "$DLOCK" --forget --yes "$L"
    own hset "{$NAME}:dlock:once" f v
    run -65 run_t 5 "$DLOCK" --ttl 1 --once "$L" touch ran
    own unlink "{$NAME}:dlock:once"
}

# all_used CLI-WORD... -- RIGHT...: each right was made use of in the server that CLI-WORDs talk to.
all_used() {
    local cli=() right stats
    while [ "$1" != -- ]; do cli+=("$1") && shift; done
    shift
    stats=$("${cli[@]}" info commandstats) || return
    for right in "$@"; do
        case $right in +*) ;; *) continue ;; esac
        grep -q "^cmdstat_${right#+}:calls=[1-9]" <<<"$stats" ||
            fail "the manual's $right is not needed: $stats" || return
    done
}
no_complaint() {
    local log
    log=$("$@" acl log)
    [ -z "$log" ] || fail "refused: $log"
}

# ------------------------------------------------------------------- Redis ---

on_queue() { [ "$(own zcount "{$NAME}:dlock:queue" -inf +inf)" = "$1" ]; }
own() { rcli_in own "$@"; }

one_server() {
    redis_start_in own "$@"
    U="redis://runner:pw@127.0.0.1:${REDIS_PORTS[own]}" L="$U#$NAME"
    waiting=on_queue
    foreign() { foreign_by own "$@"; }
    deleted() { own unlink "$NAME"; }
    tracked() { own info clients | grep -q 'tracking_clients:1'; }
}

# bats test_tags=slow
@test "the manual's ACL for Redis is sufficient and minimal" {
    one_server
    local words
    read -ra words <<<"$(rule Redis runner)"
    # Exactly this, for a user who had none.
    own acl setuser runner "${words[@]}" >/dev/null
    everything $waiting
    records
    no_complaint own
    all_used own -- "${words[@]}"
    # As the manual says: without +info all works, but for a warning and entries in the server's
    # log.
    own acl setuser runner -info
    CI=1 run -0 run_t 5 "$DLOCK" -n "$L" true
    [ "${#lines[@]}" = 1 ]
    assert_out "INFO is refused"
    [ "$(own acl log | grep -A 1 '^object$' | grep -vE '^(object|--)$' | sort -u)" = info ] ||
        fail "$(own acl log)"
    # Other names are none of its business.
    run -77 run_t 5 "$DLOCK" -n "$U#other" true
}

# bats test_tags=slow
@test "the manual's rights for shared locks and slots are sufficient and minimal" {
    one_server
    local words more i pids=()
    read -ra words <<<"$(rule Redis runner)"
    read -ra more <<<"$(section Redis | sed -n '/^+/p' | tr '\n' ' ')"
    own acl setuser runner "${words[@]}" "${more[@]}" >/dev/null
    hold
    pids+=("$HOLDER")
    for i in -s -s '--slots 1' '--slots 1' -x; do
        # shellcheck disable=SC2086
        start_log "w${#pids[@]}.log" "$DLOCK" --ttl 10 $i "$L" "$HELPERS/await" "$T/more"
        pids+=("$STARTED")
        wait_for 5 on_queue $((${#pids[@]} - 1))
    done
    # Longer than a look of those behind the second.
    i=$(($(now_ms) + 1600))
    wait_for 3 eval "[ \$(now_ms) -gt $i ]"
    : >go
    wait_for 5 on_queue 2
    run -75 run_t 5 "$DLOCK" --status "$L"
    assert_out "1 of 1 slots"
    : >more
    for i in "${pids[@]}"; do exits 0 5 "$i"; done
    for i in -s '--slots 1'; do
        # shellcheck disable=SC2086
        run -0 run_t 5 "$DLOCK" $i --ttl 1 --min-hold 100ms "$L" true
    done
    no_complaint own
    all_used own -- "${more[@]}"
}

# bats test_tags=slow
@test "the manual's optional rights for Redis do what it says" {
    one_server
    local words more word
    read -ra words <<<"$(rule Redis runner)"
    read -ra more <<<"$(extra Redis)"
    [ "${more[*]}" = "+role +select +wait" ] || fail "the manual names ${more[*]}"
    redis_start_in replica --replicaof "127.0.0.1 ${REDIS_PORTS[own]}" --repl-diskless-sync-delay 0
    wait_for 9 eval 'own info replication | grep -q state=online'
    own acl setuser runner "${words[@]}" +select +wait
    local select="$U/3#$NAME" info="$U?restart-grace=1ms#$NAME" wait="$U?wait-replicas=1#$NAME"
    for word in info select wait; do
        run -0 run_t 5 "$DLOCK" -n "${!word}" true
        [ -z "$output" ] || fail "$word: $output"
    done
    no_complaint own
    all_used own -- +info +select +wait
    for word in info select wait; do
        own acl setuser runner -$word
        run -77 run_t 5 "$DLOCK" -n "${!word}" touch ran
        [ ! -e ran ]
        own acl setuser runner +$word
    done
}

# ------------------------------------------------------------------ Redlock ---

rl_queue() {
    local k
    for k in 1 2 3; do [ "$(rl $k zcount "{$NAME}:dlock:queue" -inf +inf)" = "$1" ] || return; done
}

# bats test_tags=slow
@test "the manual's ACL for Redlock is sufficient and minimal" {
    rl_start 3
    local words more k
    read -ra words <<<"$(rule Redis runner)"
    read -ra more <<<"$(extra Redlock)"
    [ "${more[*]}" = "+select" ] || fail "the manual names ${more[*]}"
    for k in 1 2 3; do rl $k acl setuser runner "${words[@]}" "${more[@]}"; done
    foreign() { foreign_by on_all "$@"; }
    deleted() { on_all unlink "$NAME"; }
    tracked() { watched 1; }
    local hosts
    hosts=$(rl_hosts)
    # Until all have been up for long enough.
    run -0 run_t 9 "$DLOCK" -w 5 "redlock://runner:pw@$hosts/2?restart-grace=1ms#$NAME" true
    L="redlock://runner:pw@$hosts?restart-grace=0#$NAME"
    everything rl_queue
    L=${L/=0/=1ms}
    for k in 1 2 3; do
        no_complaint rl $k
        all_used rl $k -- "${words[@]}" "${more[@]}"
    done
    # Without +info nobody knows when they were started.
    for k in 1 2 3; do rl $k acl setuser runner -info; done
    run -77 run_t 5 "$DLOCK" -n "$L" true
    run -0 run_t 5 "$DLOCK" -n "${L/=1ms/=0}" true
    for k in 1 2 3; do rl $k acl setuser runner +info -select; done
    run -77 run_t 5 "$DLOCK" -n "${L/\?/\/2?}" true
}

# ----------------------------------------------------------------- Sentinel ---

# bats test_tags=slow
@test "the manual's ACLs for Sentinel are sufficient and minimal" {
    sentinel_start
    local master port words theirs
    read -r master _ <<<"$NODE_PORTS"
    read -ra words <<<"$(rule Redis runner)"
    read -ra theirs <<<"$(rule 'Redis behind Sentinel' finder)"
    [[ " $(extra Redis) " == *" +role "* ]]
    for port in $NODE_PORTS; do ncli "$port" acl setuser runner "${words[@]}" +role; done
    for port in $SENT_PORTS; do scli "$port" acl setuser finder "${theirs[@]}"; done
    (umask 077 && echo pw >pw)
    L=$(sentinel_uri | sed 's,//,//runner:pw@,')
    L+="?sentinel-user=finder&sentinel-password-file=$T/pw#$NAME"
    sent_queue() { [ "$(ncli "$master" zcount "{$NAME}:dlock:queue" -inf +inf)" = "$1" ]; }
    foreign() { foreign_by ncli_master "$@"; }
    ncli_master() { ncli "$master" "$@"; }
    deleted() { ncli "$master" unlink "$NAME"; }
    tracked() { ncli "$master" info clients | grep -q 'tracking_clients:1'; }
    everything sent_queue
    no_complaint ncli "$master"
    all_used ncli "$master" -- "${words[@]}" +role
    for port in $SENT_PORTS; do
        no_complaint scli "$port"
    done
    # Sentinels do not count commands: each right is missed when it is not there.
    local right
    for right in '+sentinel|get-master-addr-by-name' +subscribe '&+switch-master'; do
        [[ " ${theirs[*]} " == *" $right "* ]] || fail "no $right in the manual's ${theirs[*]}"
        for port in $SENT_PORTS; do
            # shellcheck disable=SC2046
            scli "$port" acl setuser finder reset $(printf '%s\n' "${theirs[@]}" |
                grep -vxF -- "$right")
        done
        run run_t 5 "$DLOCK" --connect-timeout 1 "$L" sleep 0.2
        [ "$(scli "${SENT_PORTS%% *}" acl log | wc -l)" -gt 0 ] || fail "nobody misses $right"
        for port in $SENT_PORTS; do
            scli "$port" acl setuser finder reset "${theirs[@]}"
            scli "$port" acl log reset
        done
    done
    [ "$(printf '%s\n' "${theirs[@]}" | grep -c '^[+&]')" -eq 3 ]
    # It hears of a failover with these rights, too.
    hold --ttl 8
    sentinel_failover_by "${SENT_PORTS%% *}"
    read -r _ port <<<"$NODE_PORTS"
    renewed() { [ "$(ncli "$port" pttl "$NAME")" -gt 6000 ]; }
    wait_for 8 renewed
    let_go
    no_complaint ncli "$port"
    sentinel_stop
}
sentinel_failover_by() {
    local was
    was=$(sentinel_master)
    scli "$1" sentinel failover svc
    another() { [ "$(sentinel_master)" != "$was" ]; }
    wait_for 8 another
}

# ------------------------------------------------------------------ Cluster ---

# bats test_tags=slow
@test "the manual's ACL for a cluster is sufficient and minimal" {
    cluster_start
    local words more n slot
    read -ra words <<<"$(rule Redis runner)"
    read -ra more <<<"$(extra 'Redis Cluster')"
    [ "${more[*]}" = "+asking +cluster|nodes" ] || fail "the manual names ${more[*]}"
    for n in 0 1 2; do ccli $n acl setuser runner "${words[@]}" "${more[@]}" >/dev/null; done
    NAME=$(name_on 0)
    slot=$(slot_of "$NAME")
    for n in 0 1 2; do ccli $n config resetstat >/dev/null; done
    # By another node, which is gone soon.
    L="redis://runner:pw@127.0.0.1:${CPORT[2]}#$NAME"
    hold --ttl 3
    # Behind its first renewal it asks for the other nodes.
    listed() { ccli 0 info commandstats | grep -q '^cmdstat_cluster|nodes:calls=[1-9]'; }
    wait_for 5 listed
    # Renewed while the slot is half moved: asked for where it is going to.
    slot_open "$slot" 0 1
    slot_keys 0 1 "$NAME"
    asked() { ccli 1 info commandstats | grep -q '^cmdstat_asking:calls=[2-9]'; }
    wait_for 6 asked
    slot_shut "$slot" 0 1
    ccli 2 client kill user runner >/dev/null
    let_go
    [ ! -s hold.log ] || fail "$(cat hold.log)"
    told() { ccli 0 info commandstats; ccli 1 info commandstats; ccli 2 info commandstats; }
    all_used told -- +asking '+cluster|nodes'
    for n in 0 1 2; do no_complaint ccli $n; done
    # By a redirection, too.
    ccli 1 acl setuser runner -set -zadd >/dev/null
    for n in 1 0; do
        says 77 "a right: ACL SETUSER USER +set +zadd" \
            "redis://runner:pw@127.0.0.1:${CPORT[n]}#$NAME" true
    done
    cluster_stop
}
