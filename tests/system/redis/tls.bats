#!/usr/bin/env bats
# rediss://: who the server is, is known before anything is said to it. The contract of a lock in
# Redis is kept through TLS: contract/stores/rediss.bash.

load ../../support/common
load ../../support/redis
load ../../support/tls

SECRET=c4n4ry

setup_file() {
    tls_certs
    tls_redis default --loglevel verbose --user app on ">$SECRET" '~*' '&*' +@all
}
teardown_file() { redis_stop; }
setup() {
    dlock_setup
    CA="cacert=$TLS/ca.crt"
    AT=localhost:$REDIS_PORT
    L="rediss://app:$SECRET@$AT?$CA#$NAME"
}

# recorder HOW TEXT [ARG...]: the hostile_server on $PORT writes down in ./told what it is told.
recorder() {
    rm -f told
    listener hostile_server "$1" "$2" told "${@:3}"
    PORT=$LISTENS
}

# --- who the server is -------------------------------------------------------

@test "accepts a certificate by name, address or another name" {
    run -0 --separate-stderr run_t 5 "$DLOCK" -n "$L" true
    [ -z "$stderr" ]
    run -0 run_t 5 "$DLOCK" -n "rediss://app:$SECRET@127.0.0.1:$REDIS_PORT?$CA#$NAME" true
    # The certificate itself, as the only one that is trusted.
    tls_redis own --tls-cert-file "$TLS/self.crt" --tls-key-file "$TLS/self.key" --tls-protocols \
        TLSv1.2
    run -0 run_t 5 "$DLOCK" -n \
        "rediss://localhost:${REDIS_PORTS[own]}?cacert=$TLS/self.crt#$NAME" true
    tls_cli -n own config set tls-cert-file "$TLS/wrong.crt" tls-key-file "$TLS/wrong.key"
    run -0 run_t 5 "$DLOCK" -n \
        "rediss://127.0.0.1:${REDIS_PORTS[own]}?$CA&sni=other.example#$NAME" true
    never 69 "rediss://localhost:${REDIS_PORTS[own]}?$CA&sni=example#$NAME" "not valid for example"
    never 64 "rediss://localhost:${REDIS_PORTS[own]}?$CA&sni=$(printf '%0256d' 0)#$NAME" \
        "TLS needs the name of the server"
    # Where the system's authorities are.
    export SSL_CERT_FILE=$TLS/ca.crt
    run -0 run_t 5 "$DLOCK" -n "rediss://app:$SECRET@$AT#$NAME" true
}

@test "refuses a bad certificate before anything is sent" {
    for cert in wrong expired self stranger server; do
        recorder say '-ERR no\r\n-ERR no\r\n' "$TLS/$cert.crt" "$TLS/$cert.key"
        at="rediss://app:$SECRET@localhost:$PORT"
        case $cert in
        wrong)
            never 69 "$at?$CA#x" "127.0.0.1:$PORT" "refused: it is not valid for localhost"
            never 69 "rediss://127.0.0.1:$PORT?$CA#x" "it is not valid for 127.0.0.1" ;;
        expired) never 69 "$at?$CA#x" "certificate has expired" ;;
        self) never 69 "$at?$CA#x" "self-signed certificate" ;;
        stranger) never 69 "$at?$CA#x" "unable to get local issuer certificate" ;;
        # A good one, which this machine knows nothing of: the system's authorities are asked.
        server) never 69 "$at#x" "unable to" ;;
        esac
        run -69 run_t 5 "$DLOCK" --status "$at?$CA&insecure=0&sni=not.me#x"
        assert_out "certificate"
        # That does not pass by itself.
        run -69 run_t 5 "$DLOCK" --retry "$at?$CA&sni=not.me#x" touch ran
        assert_out "certificate"
        [ ! -s told ] || fail "$cert: told $(cat told)"
    done
    # It does write down what it is told.
    never 77 "$at?$CA#x" "AUTH refused"
    file_has told "$SECRET"
}

@test "insecure=1 verifies nothing and says so; -q is silent about it" {
    recorder say '-ERR no\r\n' "$TLS/expired.crt" "$TLS/expired.key"
    run -76 run_t 5 "$DLOCK" -vn "rediss://localhost:$PORT?insecure=1#x" true
    assert_out "not verified"
    insecure="rediss://app:$SECRET@127.0.0.1:$REDIS_PORT?insecure=1#$NAME"
    CI=1 run -0 run_t 5 "$DLOCK" -n "$insecure" true
    [ ${#lines[@]} -eq 1 ] || fail "$output"
    assert_out "dlock: rediss://127.0.0.1:$REDIS_PORT/0: insecure=1"
    run -0 run_t 5 "$DLOCK" -q -n "$insecure" true
    [ -z "$output" ]
    run -0 --separate-stderr run_t 5 "$DLOCK" -v --status "$insecure"
    [[ $stderr = *"not verified"* ]]
}

@test "obeys other programs' parameters that verify, and refuses those that do not" {
    run -0 run_t 5 "$DLOCK" -n \
        "rediss://app:$SECRET@$AT?ssl_cert_reqs=CERT_REQUIRED&ssl_ca_certs=$TLS/ca.crt#$NAME" true
    run -0 run_t 5 "$DLOCK" -n \
        "valkeys://app:$SECRET@$AT?ssl_check_hostname=true&$CA&pool_size=3#$NAME" true
    never 69 "rediss://app:$SECRET@$AT?ssl_ca_certs=$TLS/stranger.crt#$NAME" "certificate"
    for p in ssl_cert_reqs=none ssl_check_hostname=False skip_verify=true verifyPeer=NONE; do
        never 64 "rediss://app:$SECRET@$AT?$CA&$p#$NAME" "${p%=*}" "dlock verifies"
    done
}

# --- who we are --------------------------------------------------------------

@test "shows the server a client certificate" {
    for version in 1.2 1.3; do
        tls_redis "v$version" --tls-auth-clients yes --tls-protocols "TLSv$version"
        at="rediss://localhost:${REDIS_PORTS[v$version]}?$CA"
        run -0 run_t 5 "$DLOCK" -n "$at&cert=$TLS/client.crt&key=$TLS/client.key#$NAME" true
        never 77 "$at#$NAME" "requires our certificate" "certificate required"
        never 77 "$at&cert=$TLS/stranger.crt&key=$TLS/stranger.key#$NAME" \
            "refuses our certificate" "unknown ca"
        run -77 run_t 5 "$DLOCK" --status "$at#$NAME"
    done
}

@test "refuses bad files and parameters before it connects" {
    at="rediss://127.0.0.1:1" # nobody is there: 69
    cd "$TLS"
    never 69 "$at?$CA&cert=client.crt&key=client.key#x" "Connection refused"
    for p in "cert=client.crt" "key=client.key"; do never 64 "$at?$p#x" "go together"; done
    for p in cacert cert key sni insecure; do never 64 "$at?$p=#x" "?$p="; done
    never 64 "$at?insecure=yes#x" "insecure=yes"
    never 64 "$at?sni=.example#x" ".example"
    never 77 "$at?cacert=nowhere#x" "cacert nowhere: No such file"
    never 77 "$at?cacert=/dev/zero#x" "not a regular file"
    never 64 "$at?cacert=client.key#x" "no certificate in PEM"
    never 64 "$at?cert=client.key&key=client.key#x" "no certificate in PEM"
    install -m 600 client.crt "$T/nokey"
    never 64 "$at?cert=client.crt&key=$T/nokey#x" "no private key in PEM"
    never 64 "$at?cert=client.crt&key=server.key#x" "does not match"
    sed 's/^MI/AA/' client.crt >"$T/bad"
    never 64 "$at?cacert=$T/bad#x" "certificate 1 cannot be read"
    openssl req -x509 -newkey rsa:512 -nodes -subj /CN=x -keyout "$T/weak.key" -out "$T/weak.crt"
    never 64 "$at?cert=$T/weak.crt&key=$T/weak.key#x" "certificate 1 cannot be used: "
    mkfifo "$T/fifo"
    never 77 "$at?cert=client.crt&key=$T/fifo#x" "not a regular file"
    # Only rediss has them.
    never 64 "redis://127.0.0.1:1?insecure=1#x" 'unknown parameter "insecure"'
}

@test "refuses a key that others can read or that has a passphrase" {
    at="rediss://127.0.0.1:1?cert=$TLS/client.crt"
    install -m 640 "$TLS/client.key" k640
    install -m 604 "$TLS/client.key" k604
    if [ "$(id -u)" -eq 0 ]; then
        never 69 "$at&key=k640#x" refused
        chown 54321 k640
        never 77 "$at&key=k640#x" "another user"
    else
        never 77 "$at&key=k640#x" "chmod 600"
    fi
    never 77 "$at&key=k604#x" "chmod 600"
    (
        umask 077
        openssl pkey -in "$TLS/client.key" -aes256 -passout "pass:$SECRET" -out new.key
        openssl ec -in "$TLS/client.key" -aes256 -passout "pass:$SECRET" -out old.key
    )
    for key in new old; do
        # At a terminal, where OpenSSL would ask.
        run -64 run_t 5 script -qec "$DLOCK -n '$at&key=$key.key#x' true" /dev/null </dev/null
        assert_out "protected by a passphrase"
        refute_out "Enter"
    done
}

# --- what is no TLS, or breaks off -------------------------------------------

@test "sends nothing in plain text to a server without TLS" {
    recorder say '-ERR unknown command\r\n'
    never 69 "rediss://app:$SECRET@127.0.0.1:$PORT?$CA#x" "does not speak TLS"
    ! grep -aE 'AUTH|EVAL|'"$SECRET" told || fail "in the clear"
    recorder say '-ERR no\r\n' "$TLS/server.crt" "$TLS/server.key" oldest
    never 69 "rediss://127.0.0.1:$PORT?$CA#x" "TLS handshake failed"
    # And the other way round.
    never 69 "redis://127.0.0.1:$REDIS_PORT#x"
}

@test "a server that says nothing is given up in time" {
    listener hostile_server nothing
    at="rediss://127.0.0.1:$LISTENS?$CA#x"
    for args in "--connect-timeout 0.5" "-w 0.5" "--connect-timeout 0.5 --status"; do
        "$HELPERS/clock" begin
        # shellcheck disable=SC2086
        if [[ $args = *status ]]; then run run_t 5 "$DLOCK" $args "$at"; else run run_t 5 \
            "$DLOCK" $args "$at" touch ran; fi
        "$HELPERS/clock" end
        assert_rc 69
        assert_out "no answer"
        [[ $args = -w* ]] || assert_out "does the server speak TLS on this port?"
        assert_between 500 $((($(cat end) - $(cat begin)) / 1000000)) $((1100 + SLOW)) "ms of $args"
    done
    [ ! -e ran ]
}

# through FAULT...: a proxy before the server; its lock is $L.
through() {
    listener proxy "$REDIS_PORT" "$@"
    L="rediss://app:$SECRET@localhost:$LISTENS?$CA#$NAME"
}

@test "a cut or changed connection grants nothing" {
    through drip
    run -0 run_t 25 "$DLOCK" --connect-timeout 20 -n "$L" true
    # The server's part of the handshake has some 1200 bytes, then come session tickets and answers.
    for n in 0 90 1100; do
        through always-cut $n
        never 69 "$L"
    done
    for n in 1 900; do
        through flip $n
        never 69 "$L"
    done
    through flip 1300
    run run_t 5 "$DLOCK" -n "$L" true
    [ "$status" -eq 69 ] || [ "$status" -eq 0 ] || fail "exit code $status: $output"
    # What a try that was cut off may have set is undone.
    run -0 run_t 5 "$DLOCK" --status "rediss://app:$SECRET@$AT?$CA#$NAME"
}

@test "an answer without an end is cut" {
    recorder for-ever '$900000000\r\n' "$TLS/server.crt" "$TLS/server.key"
    never 76 "rediss://localhost:$PORT?$CA#x" "too long"
}

# --- while it is held --------------------------------------------------------

@test "a hold survives a time with a bad certificate" {
    hold -v --ttl 4
    tls_cli config set tls-cert-file "$TLS/expired.crt" tls-key-file "$TLS/expired.key"
    tls_cli client kill user app
    # A renewal was tried, and the server is told why it failed.
    wait_for 5 file_has "$REDIS_DIR/log" 'alert certificate expired'
    tls_cli config set tls-cert-file "$TLS/server.crt" tls-key-file "$TLS/server.key"
    back() { [ "$(tls_cli client list | grep -c user=app)" -eq 1 ]; }
    wait_for 5 back
    let_go
    run -0 run_t 5 "$DLOCK" -n "$L" true
}

@test "a hold reads its certificates again when they have changed" {
    local own
    tls_redis own --loglevel verbose --tls-auth-clients yes
    own=${REDIS_DIRS[own]}
    install -m 600 "$TLS/ca.crt" "$TLS/client.crt" "$TLS/client.key" .
    L="rediss://localhost:${REDIS_PORTS[own]}?cacert=$T/ca.crt&cert=$T/client.crt"
    L+="&key=$T/client.key#$NAME"
    hold
    # Another authority at each end: first the server's certificate, then ours is not known.
    tls_cli -n own config set tls-cert-file "$TLS/self.crt" tls-key-file "$TLS/self.key" \
        tls-ca-cert-file "$TLS/noca.crt"
    tls_cli -n own client kill type normal
    wait_for 5 file_has "$own/log" 'alert unknown ca'
    cp "$TLS/self.crt" ca.crt
    wait_for 5 file_has "$own/log" 'certificate verify failed'
    cp "$TLS/stranger.crt" client.crt
    cp "$TLS/stranger.key" client.key
    back() { tls_cli -n own client list | grep -q 'addr=127.0.0.1'; }
    wait_for 5 back
    let_go
    [ "$(tls_cli -n own exists "$NAME")" = 0 ]
}

@test "the command has no descriptor of ours; nothing shows the password" {
    list='ls -l /proc/self/fd | sed "s/.*-> //" | grep -v "^/proc/"'
    sh -c "$list" >without 2>/dev/null 3>&- </dev/null
    run_t 5 "$DLOCK" -n "$L" sh -c "$list; cat /proc/\$PPID/cmdline | tr '\\0' ' '; env" >with \
        2>/dev/null </dev/null
    ! grep -E 'socket:|\.so|\.pem|\.crt|anon_inode' <(grep -v = with) ||
        fail "descriptors: $(cat with)"
    ! grep "$SECRET" with || fail "found"
    hold -v
    ! grep -aF "$SECRET" "/proc/$HOLDER/cmdline" hold.log || fail "found"
    # Nor is a file of ours left open in the keeper.
    ! readlink "/proc/$HOLDER"/fd/* | grep -E 'crt|key|dlock-modules' || fail "open"
    let_go
}

# bats test_tags=plain
@test "what the kernel has no memory to send is sent again" {
    sends_again
}
