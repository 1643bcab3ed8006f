#!/usr/bin/env bats
# tls.bats - a Redlock through TLS: a server is a vote only when its certificate is good, and is
# told nothing before. What a certificate must be is in redis/tls.bats; the contract of a lock is
# kept through TLS: contract/stores/redlocks.bash.

load ../../support/common
load ../../support/redis
load ../../support/redlock
load ../../support/tls
load ../../support/redlocks

SECRET=c4n4ry

setup_file() {
    export RLS_PASS=$SECRET
    tls_certs
    rls_start 5
}
teardown_file() { rl_stop_file; }
setup() {
    dlock_setup
    CA="cacert=$TLS/ca.crt"
    L=$(rls_uri "$NAME")
}
teardown() {
    local k
    for k in 1 2 3 4 5; do rls_cert $k server; done
    dlock_teardown
}

# holds: on how many nodes the key is.
holds() {
    local k n=0
    for k in 1 2 3 4 5; do n=$((n + $(rl $k exists "$NAME"))); done
    echo $n
}
free() { [ "$(holds)" = 0 ]; }

# granted: it is, nothing is said, and nobody else gets it meanwhile.
granted() {
    run -75 run_t 10 "$DLOCK" "$L" "$DLOCK" --no-reentrant -q -n "$L" touch ran
    [ -z "$output" ] || fail "said: $output"
    [ ! -e ran ]
    wait_for 2 free
}

# no_majority LOCK TEXT...: 69, see never; and nothing is left.
no_majority() {
    CONNECT_TIMEOUT=1 never 69 "$@"
    wait_for 2 free
}
# recorders K...: there it is written to ./told.K what the server is told; $R is the lock with them.
# $CERT: what they show, without one they speak no TLS.
recorders() {
    local k RL_PORTS=$RL_PORTS
    for k; do
        rm -f "port.$k" "told.$k"
        start "$ROOT/tests/support/helpers/hostile_server.py" say '-ERR no\r\n' "told.$k" \
            ${CERT:+"$TLS/$CERT.crt" "$TLS/$CERT.key"} >"port.$k"
        wait_for 5 test -s "port.$k"
        rl_put "$k" "$(cat "port.$k")"
    done
    R=$(rls_uri "$NAME")
}
untold() {
    local k
    for k; do
        ! grep -aE "AUTH|EVAL|HELLO|INFO|PING|$SECRET|$NAME" "told.$k" ||
            fail "${CERT:-without TLS}: node $k was told"
        [ -z "$CERT" ] || [ ! -s "told.$k" ] || fail "$CERT: node $k was told $(cat "told.$k")"
    done
}

@test "a bad certificate costs a vote" {
    rls_cert 2 wrong
    granted
    rls_cert 5 expired
    granted
    rls_cert 1 self
    no_majority "$L" "2 of 5" certificate
    run -69 run_t 10 "$DLOCK" --connect-timeout 2 --status "$L"
    assert_out certificate
    rls_cert 1 wrong
    rls_cert 5 wrong
    no_majority "$L" "2 of 5" "not valid for localhost"
    # Nobody is asked to do without.
    run -0 run_t 10 "$DLOCK" -q -n "${L/$CA/insecure=1}" true
}

# bats test_tags=slow
@test "a hold survives two certificates that become bad" {
    start_log hold.log "$DLOCK" --ttl 2 --grace 0.2 "$L" "$HELPERS/witness" "$T" 60000 tree
    wait_for 5 file_has history enter
    cut() {
        rls_cert "$1" wrong
        rl "$1" client kill type normal
    }
    cut 1
    cut 2
    local end rc=0
    end=$(($(now_ms) + 2200))
    wait_for 5 eval "[ \$(now_ms) -gt $end ]"
    pid_alive "$STARTED"
    cut 3
    wait_exit 4 "$STARTED" || rc=$?
    [ "$rc" -eq 79 ] || fail "exit code $rc: $(cat hold.log)"
    echo "$(cat hold.log)"
    file_has hold.log certificate
    flock -sn witness true
    for k in 1 2 3; do rls_cert $k server; done
    run -0 run_t 5 "$DLOCK" -w 3 "$L" true
    wait_for 2 free
    [ -z "$(rl_left)" ]
}

@test "sends nothing to a node before its certificate is verified" {
    local cert
    for CERT in wrong expired self stranger ''; do
        recorders 2 4
        run -0 run_t 10 "$DLOCK" "$R" true
        untold 2 4
        recorders 2 4 5
        no_majority "$R" "2 of 5"
        run -69 run_t 10 "$DLOCK" --retry "$R" touch ran
        run -69 run_t 10 "$DLOCK" --connect-timeout 1 --status "$R"
        untold 2 4 5
    done
    # They do write down what they are told.
    CERT=server
    recorders 2 4 5
    run run_t 10 "$DLOCK" --connect-timeout 1 -n "$R" true
    [ "$status" -ne 0 ]
    for k in 2 4 5; do file_has told.$k "$SECRET" || fail "node $k"; done
}

@test "redlock:// and redlocks:// do not mix" {
    no_majority "redlock://$(rls_hosts)?restart-grace=0#$NAME" "0 of 5"
    rl_start 3
    # These say nothing at all to what they take for the beginning of a line.
    no_majority "$(rls_uri "$NAME")" "no answer"
}

@test "certificates of ours, for servers that want them" {
    local k
    for k in 1 2 3; do rl $k config set tls-auth-clients yes >/dev/null; done
    run run_t 10 "$DLOCK" --connect-timeout 2 -n "$L" touch ran
    local without=$status said=$output
    L=$(rls_uri "$NAME" "restart-grace=0&cert=$TLS/client.crt&key=$TLS/client.key")
    run run_t 10 "$DLOCK" -n "$L" true
    for k in 1 2 3; do rl $k config set tls-auth-clients no >/dev/null; done
    assert_rc 0
    [ ! -e ran ]
    [ "$without" -eq 77 ] || fail "exit code $without: $said"
    [[ $said == *"certificate"* ]]
}
