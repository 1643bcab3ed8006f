#!/usr/bin/env bats
# cluster_tls.bats - rediss:// and a Redis Cluster: each node that a redirection leads to is
# verified by its own name.

# bats file_tags=long
load ../../support/common
load ../../support/redis
load ../../support/tls

SECRET=c4n4ry

setup_file() { tls_certs; }
setup() {
    dlock_setup
    CA="cacert=$TLS/ca.crt"
}

# Three masters that speak TLS with each other, too; their names, unlike their addresses, come by
# `announce`.
cluster() {
    local i ends=(0 5462 10923 16384)
    for i in 0 1 2; do
        tls_redis n$i --cluster-enabled yes --cluster-node-timeout 1000 --tls-cluster yes \
            --cluster-require-full-coverage no --requirepass "$SECRET"
        c $i cluster set-config-epoch $((i + 1))
        c $i cluster addslotsrange "${ends[i]}" $((ends[i + 1] - 1))
        [ $i -eq 0 ] || c 0 cluster meet 127.0.0.1 "${REDIS_PORTS[n$i]}"
    done >/dev/null
    for i in 0 1 2; do wait_for 15 up $i; done
}
c() { REDISCLI_AUTH=$SECRET tls_cli -n "n$1" "${@:2}"; }
up() {
    c "$1" cluster info | grep -q cluster_state:ok &&
        [ "$(c "$1" cluster nodes | grep -c ' connected')" -eq 3 ]
}
cert() { c "$1" config set tls-cert-file "$TLS/$2.crt" tls-key-file "$TLS/$2.key" >/dev/null; }

# names: a lock name for each master in N.
names() {
    local k slot
    N=()
    for ((k = 0; ${#N[@]} < 3; k++)); do
        slot=$(c 0 cluster keyslot "$NAME-$k")
        N[slot * 3 / 16384]=$NAME-$k
    done
}
# at NAME: the lock, by way of the first master.
at() { echo "rediss://:$SECRET@localhost:${REDIS_PORTS[n0]}?$CA#$1"; }
queued() { [ "$(c "$1" zcard "$2")" = 1 ]; }
evals() { c "$1" info commandstats | count_evals; }

# bats test_tags=slow
@test "one node leads to the locks of all masters" {
    cluster
    names
    local m t0
    for m in 0 1 2; do
        L=$(at "${N[m]}") hold --ttl 1
        [ "$(c $m exists "${N[m]}")" = 1 ]
        says 75 "pid $HOLDER" --status "$(at "${N[m]}")"
        start_log wait.log "$DLOCK" "$(at "${N[m]}")" true
        waiter=$STARTED
        wait_for 5 queued $m "{${N[m]}}:dlock:queue"
        t0=$(now_ms)
        wait_for 3 eval "[ \$(now_ms) -gt $((t0 + 1100)) ]"
        pid_alive "$HOLDER"
        let_go
        wait_exit 5 "$waiter"
        [ ! -s hold.log ] || fail "$(cat hold.log)"
        [ "$(c $m exists "${N[m]}")" = 0 ]
    done
}

# bats test_tags=slow
@test "a node with a wrong certificate is told nothing" {
    cluster
    names
    cert 1 wrong
    local before
    before=$(evals 1)
    run -69 run_t 5 "$DLOCK" --connect-timeout 1 -n "$(at "${N[1]}")" touch ran
    [ ${#lines[@]} -eq 1 ] || fail "$output"
    assert_out "127.0.0.1:${REDIS_PORTS[n1]}"
    assert_out "it is not valid for 127.0.0.1"
    refute_out "$SECRET"
    run -69 run_t 5 "$DLOCK" --connect-timeout 1 --status "$(at "${N[1]}")"
    [ "$(evals 1)" = "$before" ]
    [ ! -e ran ]
    run -0 run_t 5 "$DLOCK" -n "$(at "${N[0]}")" true
    run -0 run_t 5 "$DLOCK" -n "$(at "${N[2]}")" true
    cert 1 server
    run -0 run_t 5 "$DLOCK" -n "$(at "${N[1]}")" true
}

# What stands at the place that the redirection names writes down what it is told.
@test "a redirection to a server with another name sends nothing" {
    local cert
    for cert in wrong server; do
        rm -f told
        listener hostile_server say '-ERR no\r\n' told "$TLS/$cert.crt" "$TLS/$cert.key"
        listener hostile_server say "+OK\\r\\n-MOVED 7 127.0.0.1:$LISTENS\\r\\n" first \
            "$TLS/server.crt" "$TLS/server.key"
        run run_t 9 "$DLOCK" --connect-timeout 1 \
            -n "rediss://:$SECRET@localhost:$LISTENS?$CA#$NAME" touch ran
        [ "$status" -ne 0 ]
        [ ! -e ran ]
        if [ $cert = wrong ]; then
            assert_rc 69
            assert_out "it is not valid for 127.0.0.1"
            [ ! -s told ] || fail "told: $(cat told)"
        else
            # It does write it down.
            file_has told "$SECRET" || fail "told: $(cat told); $output"
        fi
    done
}

# bats test_tags=slow
@test "the name in a redirection is verified" {
    cluster
    names
    local i
    for i in 0 1 2; do
        c $i config set cluster-announce-hostname localhost
        c $i config set cluster-preferred-endpoint-type hostname
    done >/dev/null
    # The port: since Redis 7.2 a client that asks without TLS, as c does, is told that of those
    # without.
    moved() { [[ $(c 0 get "${N[2]}") == *" localhost:"* ]]; }
    wait_for 5 moved
    # Made out to localhost only: nobody verifies the address.
    (
        cd "$TLS"
        openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout byname.key \
            -subj /CN=byname -addext subjectAltName=DNS:localhost -out byname.csr
        openssl x509 -req -in byname.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out byname.crt \
            -days 2 -copy_extensions copy
    ) >certs.log 2>&1
    cert 2 byname
    run -0 run_t 5 "$DLOCK" -n "$(at "${N[2]}")" true
    for i in 0 1 2; do c $i config set cluster-preferred-endpoint-type ip; done >/dev/null
    says 69 "it is not valid for 127.0.0.1" --connect-timeout 1 -n "$(at "${N[2]}")" touch ran
    [ ! -e ran ]
}
