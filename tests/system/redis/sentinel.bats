#!/usr/bin/env bats
# sentinel.bats - the master behind Sentinel: discovery, failover in the middle of a hold, replicas
# that confirm.

# bats file_tags=long
load ../../support/common
load ../../support/redis
load ../../support/sentinel

setup_file() {
    # The short time of a failed failover lets the next one begin soon.
    SENT_FAILOVER=2000 sentinel_start
}
teardown_file() { sentinel_stop; }

setup() {
    dlock_setup
    # After a test that has upset them.
    [ ! -e "$BATS_FILE_TMPDIR/upset" ] || sentinel_agree
    rm -f "$BATS_FILE_TMPDIR/upset"
    L="$(sentinel_uri)#$NAME"
    read -r S1 S2 S3 <<<"$SENT_PORTS"
    read -ra SPID <<<"$SENT_PIDS"
    MASTER=$(sentinel_master) REPLICA=$(others "$NODE_PORTS")
}
teardown() {
    local pid
    for pid in $SENT_PIDS $NODE_PIDS; do kill -CONT "$pid"; done
    dlock_teardown
}

# ---------------------------------------------------------------- helpers ---

others() { tr ' ' '\n' <<<"$1" | grep -vx "$MASTER" | grep . ; }
# The process of the server at a port.
pid_at() {
    local ports pids i
    read -ra ports <<<"$NODE_PORTS"
    read -ra pids <<<"$NODE_PIDS"
    for i in "${!ports[@]}"; do [ "${ports[i]}" != "$1" ] || echo "${pids[i]}"; done
}
# fake ANSWER...: a sentinel that gives these answers; its port is in FAKE.
fake() {
    local n=$((FAKES += 1))
    printf '%s\n' "$@" >"fake$n"
    listener fakesentinel "fake$n" 2>"fake$n.log"
    FAKE=$LISTENS
}
# A port without a listener.
nobody() {
    /usr/bin/python3 -c 'import socket
s = socket.socket()
s.bind(("127.0.0.1", 0))
print(s.getsockname()[1])'
}
names_another() { [ "$(sentinel_master)" != "$MASTER" ]; }
free_at() { [ "$(ncli "$1" exists "$NAME")" = 0 ]; }

upset() { : >"$BATS_FILE_TMPDIR/upset"; }

# -------------------------------------------------------------- discovery ---

@test "the lock is the key in the master, and gone afterwards" {
    run -0 run_t 5 "$DLOCK" "$L" timeout 5 redis-cli -p "$MASTER" exists "$NAME"
    [ "$output" = 1 ]
    free_at "$MASTER"
    run run_t 5 "$DLOCK" "${L/svc#/svc/3#}" timeout 5 redis-cli -n 3 -p "$MASTER" exists "$NAME"
    [ "$output" = 1 ]
    CI=1 says 0 "a password was sent, but this server has none" "${L/:\/\//://:c4nary@}" true
    refute_out c4nary
}

@test "URIs and services that cannot be" {
    says 69 "no service 'other' (3 of 3 have answered): check the service name" \
        -n "${L/svc#/other#}" touch ran
    assert_out "$S1"
    # A server is no sentinel, and a sentinel is no server.
    says 76 "no sentinel" -n "$(sentinel_uri "$MASTER")#$NAME" touch ran
    says 64 "is a Sentinel: write redis+sentinel://" -n "redis://127.0.0.1:$S1#$NAME" touch ran
    says 64 "is a Sentinel: write redis+sentinel://" \
        --status "redis://ann:c4nary@127.0.0.1:$S1#$NAME"
    refute_out c4nary
    says 64 "is a Sentinel" -n "redlock://127.0.0.1:$S1,127.0.0.1:$S2,127.0.0.1:$S3#$NAME" touch ran
    says 64 "9 sentinels are more than" -n "redis+sentinel://a,b,c,d,e,f,g,h,i/svc#x" touch ran
    for bad in x -1 '' 1.5 1001; do
        says 64 "wait-replicas=$bad" -n "${L/svc#/svc?wait-replicas=$bad#}" touch ran
    done
    [ ! -e ran ]
}

@test "a minority of dead sentinels is harmless, a majority fails in time" {
    upset
    local none none2 begin
    none=$(nobody) none2=$(nobody)
    run -0 run_t 5 "$DLOCK" "$(sentinel_uri "$none" "$S2" "$S3")#$NAME" true
    stop_pid "${SPID[0]}"
    begin=$(now_ms)
    run -0 run_t 5 "$DLOCK" "$L" true
    assert_between 0 $(($(now_ms) - begin)) $((300 + SLOW)) "ms with a hung sentinel"
    says 69 "1 of 3 sentinels names" --connect-timeout 0.5 \
        "$(sentinel_uri "$none" "$none2" "$S3")#$NAME" touch ran
    says 69 "no sentinel of 2 answers" "$(sentinel_uri "$none" "$none2")#$NAME" touch ran
    assert_out "$none"
    stop_pid "${SPID[1]}"
    stop_pid "${SPID[2]}"
    begin=$(now_ms)
    says 69 "no sentinel of 3 answers" --connect-timeout 0.5 "$L" touch ran
    assert_between 0 $(($(now_ms) - begin)) $((800 + SLOW)) "ms with none"
    [ ! -e ran ]
}

@test "sends no password to what one sentinel alone names" {
    local none none2 l
    none=$(nobody) none2=$(nobody)
    fake "127.0.0.1 $MASTER"
    l=$(SENT_AUTH=c4nary sentinel_uri "$none" "$FAKE" "$none2")#$NAME
    ncli "$MASTER" config resetstat
    says 69 "1 of 3 sentinels names 127.0.0.1:$MASTER as the master, 2 must" --connect-timeout 0.5 \
        -n "$l" touch ran
    refute_out c4nary
    says 69 "1 of 3 sentinels names 127.0.0.1:$MASTER as the master, 2 must" --connect-timeout 0.5 \
        --status "$l"
    refute_out c4nary
    run -0 ncli "$MASTER" info commandstats
    refute_out cmdstat_auth
    refute_out cmdstat_eval
    [ ! -e ran ]
}

@test "sentinels that do not agree yet are asked again" {
    # Two of three agree in the second round only.
    fake "127.0.0.1 $REPLICA" "127.0.0.1 $MASTER"
    run -0 run_t 5 "$DLOCK" "$(sentinel_uri "$FAKE" "$(nobody)" "$S3")#$NAME" true
}

@test "an old verdict of the sentinels grants a waiter nothing" {
    fake "127.0.0.1 $MASTER"
    local sentinel=$STARTED waiter l
    l=$(sentinel_uri "$FAKE")#$NAME
    ncli "$MASTER" set "$NAME" other px 600000
    start_log wait.log "$DLOCK" -v --ttl 600 --connect-timeout 2 "$l" touch ran
    waiter=$STARTED
    wait_for 5 eval "ncli $MASTER pubsub channels | grep -q '$NAME'"
    stop_pid "$sentinel"
    ncli "$MASTER" del "$NAME"
    wait_for 10 file_has wait.log "0 of 1 sentinels name 127.0.0.1:$MASTER as the master"
    [ ! -e ran ]
    kill -CONT "$sentinel"
    exits 0 8 "$waiter"
    [ -e ran ]
}

@test "a sentinel that names a replica is not believed" {
    # ROLE is asked, and the sentinels again.
    fake "127.0.0.1 $REPLICA" "127.0.0.1 $REPLICA" "127.0.0.1 $MASTER"
    run -0 run_t 5 "$DLOCK" "$(sentinel_uri "$FAKE")#$NAME" touch ran
    [ -e ran ]
    rm ran
    [ "$(wc -l <fake1)" = 1 ]
    fake "127.0.0.1 $REPLICA"
    run -0 run_t 5 "$DLOCK" "$(sentinel_uri "$FAKE" "$S2" "$S3")#$NAME" true
    says 69 "not the master" --connect-timeout 0.5 "$(sentinel_uri "$FAKE")#$NAME" touch ran
    run -69 run_t 5 "$DLOCK" --connect-timeout 0.5 --status "$(sentinel_uri "$FAKE")#$NAME"
    [ ! -e ran ]
}

@test "answers that are names, and such that are none" {
    fake "localhost $MASTER"
    run -0 run_t 5 "$DLOCK" "$(sentinel_uri "$FAKE")#$NAME" true
    fake "no-such-host.invalid $MASTER"
    says 69 "no-such-host.invalid" "$(sentinel_uri "$FAKE")#$NAME" touch ran
    fake "a$(printf '\033')b $MASTER"
    run -76 run_t 5 "$DLOCK" "$(sentinel_uri "$FAKE")#$NAME" touch ran
    fake nil
    run -69 run_t 5 "$DLOCK" "$(sentinel_uri "$FAKE")#$NAME" touch ran
    [ ! -e ran ]
}

refused_as() { REDISCLI_AUTH=$1 redis-cli -p "$2" acl log | grep -qx auth; }

@test "a hold reads both passwords again, and rides out wrong ones" {
    SENT_PASS=oldS SENT_AUTH=oldM sentinel_start 0 1
    local s=${SENT_PORTS% } m=${NODE_PORTS% }
    L="redis+sentinel://127.0.0.1:$s/svc?password-file=$T/m&sentinel-password-file=$T/s#$NAME"
    install -m 600 /dev/null m
    install -m 600 /dev/null s
    echo oldM >m
    echo oldS >s
    hold
    REDISCLI_AUTH=oldS redis-cli -p "$s" sentinel set svc auth-pass newM
    REDISCLI_AUTH=oldS redis-cli -p "$s" acl setuser default resetpass '>newS'
    REDISCLI_AUTH=oldM redis-cli -p "$m" config set requirepass newM
    REDISCLI_AUTH=newM redis-cli -p "$m" client kill type normal
    # The sentinel comes first, and is asked anew each time.
    wait_for 5 refused_as newS "$s"
    echo newS >s
    wait_for 5 refused_as newM "$m"
    : >go
    echo newM >m
    exits 0 8 "$HOLDER"
    [ "$(REDISCLI_AUTH=newM redis-cli -p "$m" exists "$NAME")" = 0 ]
    sentinel_stop
}

@test "the sentinels' password, the master's password, and neither for the other" {
    SENT_PASS=c4naryS SENT_AUTH=c4naryM sentinel_start 0 1
    local uri rule
    uri="redis+sentinel://:c4naryM@127.0.0.1:${SENT_PORTS% }/svc"
    printf 'c4naryS\n' >s
    printf 'c4naryM\n' >m
    chmod 600 s m
    run -0 run_t 5 "$DLOCK" "$uri?sentinel-password-file=$T/s#$NAME" true
    run -0 run_t 5 "$DLOCK" \
        "${uri/:c4naryM@/}?password-file=$T/m&sentinel-password-file=$T/s#$NAME" true
    says 77 "write ?sentinel-password-file=FILE before the '#'" "$uri#$NAME" true
    says 77 "check sentinel-user= and sentinel-password-file=" \
        "$uri?sentinel-password-file=$T/m#$NAME" true
    refute_out c4nary
    run -77 run_t 5 env REDISCLI_AUTH=c4naryS "$DLOCK" \
        "${uri/:c4naryM@/}?sentinel-password-file=$T/s#$NAME" true
    assert_out "check the URI, REDISCLI_AUTH"
    refute_out c4nary
    # The least that a user of the sentinels needs.
    REDISCLI_AUTH=c4naryS redis-cli -p "${SENT_PORTS% }" acl setuser finder on '>c4naryS' \
        resetchannels '&+switch-master' -@all '+sentinel|get-master-addr-by-name' +subscribe
    run -0 run_t 5 "$DLOCK" "$uri?sentinel-user=finder&sentinel-password-file=$T/s#$NAME" true
    # And one of the master, besides the rule for one server (acl_manual.bats).
    REDISCLI_AUTH=c4naryM redis-cli -p "${NODE_PORTS% }" acl setuser runner on '>c4naryR' '~*' \
        '&*' +@all -role
    says 77 "lacks a right" "${uri/:c4naryM/runner:c4naryR}?sentinel-password-file=$T/s#$NAME" true
    REDISCLI_AUTH=c4naryM redis-cli -p "${NODE_PORTS% }" acl setuser runner +role
    run -0 run_t 5 "$DLOCK" "${uri/:c4naryM/runner:c4naryR}?sentinel-password-file=$T/s#$NAME" true
    sentinel_stop
}

# --------------------------------------------------------------- failover ---

line_at() { [ "$(ncli "$1" zcard "{$NAME}:dlock:queue")" = "$2" ]; } # PORT WAITERS

# bats test_tags=slow
@test "a failover with the keys replicated keeps the hold and the places of waiters" {
    local i waiters=()
    upset
    hold --ttl 4
    for i in 1 2 3; do
        start_log "w$i.log" "$DLOCK" -q --ttl 30 "$L" sh -c "echo $i >>order"
        waiters+=("$STARTED")
        wait_for 5 line_at "$REPLICA" "$i"
    done
    wait_for 5 left_over "$REPLICA" 0
    scli "$S1" sentinel failover svc
    wait_for 5 names_another
    # Only a renewal there makes it longer than it was.
    wait_for 5 left_over "$REPLICA" 3000
    # Longer than without renewals.
    sentinel_agree
    back() {
        line_at "$REPLICA" 3 && [ "$(ncli "$REPLICA" pubsub channels "{$NAME}*" | grep -c .)" = 3 ]
    }
    wait_for 5 back
    echo >go
    exits 0 5 "$HOLDER"
    for i in "${waiters[@]}"; do exits 0 5 "$i"; done
    [ "$(tr -d '\n' <order)" = 123 ]
    free_at "$REPLICA"
    [ "$(run_t 5 "$DLOCK" "$L" sh -c 'echo $DLOCK_FENCE')" -gt "$(cat held)" ]
}

has_run_at() { [[ $(ncli "$1" get "{$NAME}:dlock:once") == "dlock-run1 $2 "* ]]; }

# bats test_tags=slow
@test "a failover with the record replicated keeps it, before the end of the run and after" {
    upset
    hold --ttl 6 --once
    wait_for 5 has_run_at "$REPLICA" running
    scli "$S1" sentinel failover svc
    wait_for 5 names_another
    # The release may still go to the old master, which loses it.
    echo >go
    exits 0 8 "$HOLDER"
    wait_for 5 has_run_at "$REPLICA" succeeded
    sentinel_agree
    wait_for 5 has_run_at "$MASTER" succeeded
    scli "$S1" sentinel failover svc
    wait_for 5 names_first
    run -0 run_t 9 "$DLOCK" --once "$L" touch ran
    [ ! -e ran ] || final "ran after a success"
    run -0 run_t 5 "$DLOCK" --forget --yes "$L"
    [ "$(ncli "$MASTER" exists "{$NAME}:dlock:once")" = 0 ]
}
names_first() { [ "$(sentinel_master)" = "$MASTER" ]; }

# bats test_tags=slow
@test "a success counts only once the sentinels confirm the master that has it" {
    upset
    # The old master, cut off from the sentinels, still takes releases.
    fake "127.0.0.1 $MASTER"
    L=$(sentinel_uri "$FAKE")#$NAME hold --ttl 9 --once
    wait_for 5 has_run_at "$REPLICA" running
    ncli "$REPLICA" replicaof no one
    echo "127.0.0.1 $REPLICA" >fake1
    echo >go
    exits 0 5 "$HOLDER"
    has_run_at "$MASTER" succeeded
    has_run_at "$REPLICA" succeeded
    free_at "$REPLICA"
    # It has the lock no more: the success is lost, and told.
    ncli "$MASTER" flushall
    fake "127.0.0.1 $MASTER"
    rm -f go held
    L=$(sentinel_uri "$FAKE")#$NAME hold --ttl 9 --once
    ncli "$REPLICA" del "{$NAME}:dlock:once"
    echo "127.0.0.1 $REPLICA" >fake2
    echo >go
    exits 79 5 "$HOLDER"
    file_has hold.log "succeeded, but its run is not recorded"
}

@test "a failover without the key ends the hold at once" {
    upset
    # Cut off before anything is written, so that nothing is in its buffers.
    stop_pid "$(pid_at "$REPLICA")"
    ncli "$MASTER" client kill type replica
    hold --ttl 30
    ncli "$MASTER" set "$NAME.w" other px 600000
    start_log wait.log "$DLOCK" --ttl 30 "$L.w" true
    wait_for 5 sh -c "'$DLOCK' --status '$L.w' | grep -q waiting"
    stop_pid "$(pid_at "$MASTER")"
    kill -CONT "$(pid_at "$REPLICA")"
    wait_for 10 names_another
    # Well before the first renewal, and before the time-out of anything.
    exits 79 2 "$HOLDER"
    file_has hold.log "is lost: the key expired"
    wait_exit 3 "$STARTED"
}

# bats test_tags=slow
@test "a hold needs the confirmation of a majority of sentinels" {
    upset
    hold --ttl 2
    stop_pid "${SPID[0]}"
    # One of three may be missing.
    wait_for 5 left_over "$MASTER" 1900
    stop_pid "${SPID[1]}"
    # The master goes on confirming.
    exits 79 4 "$HOLDER"
    file_has hold.log "could not be renewed in time"
}

@test "only a success with --once asks the sentinels at its end" {
    local n answers left
    unasked() { wc -l <"fake$FAKES"; }
    # They are asked by the connection, and when dlock listens to them.
    settled() {
        left=$(unasked)
        nap 0.5
        [ "$left" -le 18 ] && [ "$(unasked)" = "$left" ]
    }
    for n in 0 1; do
        mapfile -t answers < <(yes "127.0.0.1 $MASTER" | head -n 20)
        fake "${answers[@]}"
        L=$(sentinel_uri "$FAKE")#$NAME hold --ttl 60 $([ $n = 0 ] || echo --once)
        wait_for 8 settled
        let_go
        [ "$(unasked)" = $((left - n)) ] || fail "$left, then $(unasked)"
    done
}

# bats test_tags=slow
@test "without a majority of sentinels no success is recorded" {
    local n
    upset
    hold --ttl 3 --once
    stop_pid "${SPID[0]}"
    stop_pid "${SPID[1]}"
    let_go 79
    file_has hold.log "its run is not recorded: 1 of 3 sentinels names 127.0.0.1:$MASTER"
    # In time it counts, and a signal ends the tries.
    kill -CONT "${SPID[0]}" "${SPID[1]}"
    for n in 0 1; do
        ncli "$MASTER" del "{$NAME}:dlock:once"
        hold --ttl 20 --once
        stop_pid "${SPID[0]}"
        stop_pid "${SPID[1]}"
        : >go
        wait_for 5 has_run_at "$MASTER" succeeded
        if [ "$n" = 0 ]; then
            kill -CONT "${SPID[0]}" "${SPID[1]}"
            exits 0 15 "$HOLDER"
        else
            kill -TERM "$HOLDER"
            exits 79 2 "$HOLDER"
        fi
    done
}

# ---------------------------------------------------------------- replicas ---

@test "with wait-replicas a grant needs enough replicas" {
    upset
    local l
    for l in "redis://127.0.0.1:$MASTER?wait-replicas=1#$NAME" "${L/svc#/svc?wait-replicas=1#}"; do
        run -0 run_t 5 "$DLOCK" "$l" timeout 5 redis-cli -p "$REPLICA" exists "$NAME"
        [ "$output" = 1 ]
        says 69 "only 1 of 2 replicas have confirmed" --ttl 3 "${l/=1/=2}" touch ran
        free_at "$MASTER"
    done
    stop_pid "$(pid_at "$REPLICA")"
    says 69 "only 0 of 1 replicas have confirmed" --ttl 3 "$l" touch ran
    free_at "$MASTER"
    # What is held is answered at once all the same.
    L=${L/svc#/svc?wait-replicas=0#} hold --ttl 3
    local begin
    begin=$(now_ms)
    run -75 run_t 5 "$DLOCK" -n "$l" touch ran
    assert_between 0 $(($(now_ms) - begin)) $((300 + SLOW)) "ms for -n"
    # A waiter is granted it and cannot have it either; a signal does not wait for replicas.
    start_log wait.log "$DLOCK" --ttl 20 "$l" touch ran
    local waiter=$STARTED
    wait_for 5 sh -c "'$DLOCK' --status '$L' | grep -q waiting"
    echo >go
    exits 0 5 "$HOLDER"
    wait_for 5 sh -c "redis-cli -p $MASTER get '$NAME' | grep -q dlock1"
    kill -TERM "$waiter"
    exits 143 1 "$waiter"
    free_at "$MASTER"
    [ ! -e ran ]
}

waits_at() { ncli "$1" info commandstats | sed -n 's/^cmdstat_wait:calls=\([0-9]*\),.*/\1/p'; }
# succeeds_unconfirmed TTL: the master has a run's success; the replica hangs and does not confirm.
succeeds_unconfirmed() {
    hold --ttl "$1" --once
    stop_pid "$(pid_at "$REPLICA")"
    : >go
    wait_for 5 has_run_at "$MASTER" succeeded
}

# bats test_tags=slow
@test "with wait-replicas a success needs enough replicas" {
    upset
    local n
    L="redis://127.0.0.1:$MASTER?wait-replicas=1#$NAME"
    run -0 run_t 5 "$DLOCK" "$L" true
    n=$(waits_at "$MASTER")
    run -0 run_t 5 "$DLOCK" "$L" true
    [ "$(waits_at "$MASTER")" = $((n + 1)) ] # the grant
    run -0 run_t 5 "$DLOCK" --once "$L" timeout 5 true
    [ "$(waits_at "$MASTER")" = $((n + 3)) ] # the success, too
    has_run_at "$REPLICA" succeeded
    run -0 run_t 5 "$DLOCK" --forget --yes "$L"
    # The replica hangs: the success counts when it goes on, and not before.
    succeeds_unconfirmed 20
    kill -CONT "$(pid_at "$REPLICA")"
    exits 0 15 "$HOLDER"
    has_run_at "$REPLICA" succeeded
    run -0 run_t 5 "$DLOCK" --forget --yes "$L"
    succeeds_unconfirmed 3
    # Nor by a new connection, which finds the record.
    ncli "$MASTER" client kill type normal
    exits 79 5 "$HOLDER"
    file_has hold.log "its run is not recorded: "
    file_has hold.log "confirmed"
}

# bats test_tags=slow
@test "with wait-replicas a renewal needs enough replicas" {
    upset
    L="redis://127.0.0.1:$MASTER?wait-replicas=1#$NAME" hold --ttl 1.5 --grace 0.3
    wait_for 5 left_over "$MASTER" 1400
    stop_pid "$(pid_at "$REPLICA")"
    exits 79 3 "$HOLDER"
    wait_for 3 free_at "$MASTER"
}
