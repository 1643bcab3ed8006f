# tls.bash - certificates, and redis servers that speak nothing but TLS.
#
#     load ../../support/redis
#     load ../../support/tls
#     tls_certs                    in setup_file: files in $TLS, which is exported
#     tls_redis NAME [ARG...]      a server; its port ${REDIS_PORTS[NAME]}; redis_stop NAME ends it
#     tls_cli [-n NAME] ARG...     asks it, through its Unix socket
#     never CODE LOCK TEXT...      refused in one line that has all TEXTs, within $CONNECT_TIMEOUT
#                                  (4); nothing is run, and $SECRET is not shown
#
# In $TLS: ca.crt; made out to localhost and 127.0.0.1: server, expired, self; to other.example:
# wrong; for clients: client; by an unknown authority: stranger; each .crt and .key.

tls_certs() {
    export TLS=$BATS_FILE_TMPDIR/tls
    mkdir "$TLS" || return
    local here="subjectAltName=DNS:localhost,IP:127.0.0.1"
    (
        # Each with &&: set -e has no effect in a subshell in a condition.
        cd "$TLS" || exit
        # tls_key NAME ARG...: a key and what `openssl req` makes of it.
        tls_key() {
            openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout "$1.key" \
                -subj "/CN=$1" "${@:2}"
        }
        # tls_sign NAME EXTENSION CA
        tls_sign() {
            tls_key "$1" -addext "$2" -out "$1.csr" &&
                openssl x509 -req -in "$1.csr" -CA "$3.crt" -CAkey "$3.key" -CAcreateserial \
                    -out "$1.crt" -days 2 -copy_extensions copy
        }
        # tls_sign_past NAME EXTENSION CA: for one day, long ago. `openssl x509` has no dates before
        # OpenSSL 3.4, and since then refuses -days -1.
        tls_sign_past() {
            : >index
            printf '%s\n' '[ca]' 'database = index' 'new_certs_dir = .' 'rand_serial = yes' \
                'default_md = sha256' \
                'copy_extensions = copy' 'policy = any' '[any]' 'commonName = supplied' >ca.cnf &&
                tls_key "$1" -addext "$2" -out "$1.csr" &&
                openssl ca -batch -notext -config ca.cnf -name ca -cert "$3.crt" -keyfile "$3.key" \
                    -in "$1.csr" -out "$1.crt" -startdate 20200101000000Z -enddate 20200102000000Z
        }
        tls_key ca -x509 -days 2 -out ca.crt &&
            tls_key noca -x509 -days 2 -out noca.crt &&
            tls_key self -x509 -days 2 -addext "$here" -out self.crt &&
            tls_sign server "$here" ca &&
            tls_sign_past expired "$here" ca &&
            tls_sign wrong "subjectAltName=DNS:other.example" ca &&
            tls_sign client "extendedKeyUsage=clientAuth" ca &&
            tls_sign stranger "$here" noca &&
            chmod 600 ./*.key
    ) >"$TLS/log" 2>&1 || { cat "$TLS/log" >&2; return 1; }
}

tls_ready() { grep -q 'eady to accept connections' "${dir:?}/log"; }

# The folder belongs to the file or test that starts it.
tls_redis() {
    local name=$1 dir port try
    shift
    dir=$(mktemp -d "${BATS_TEST_TMPDIR:-${BATS_FILE_TMPDIR:?}}/r.XXXXXX") || return
    for try in 1 2 3 4 5 6 7 8 9 10; do
        port=$(some_port)
        REDIS_READY=tls_ready redis_launch "$name" "$dir" 0 --appendonly yes --appendfsync no \
            --tls-port "$port" --unixsocket "$dir/s" --tls-auth-clients no \
            --tls-cert-file "$TLS/server.crt" --tls-key-file "$TLS/server.key" \
            --tls-ca-cert-file "$TLS/ca.crt" "$@" && {
            REDIS_PORTS[$name]=$port
            [ "$name" != default ] || redis_export
            return 0
        }
        grep -q 'Failed listening\|Address already in use' "$dir/log" || break
    done
    cat "$dir/log" >&2
    return 1
}

tls_cli() {
    local name=default
    [ "$1" != -n ] || { name=$2; shift 2; }
    local dir=${REDIS_DIRS[$name]:-}
    redis-cli -s "${dir:-$REDIS_DIR}/s" "$@" 3>&-
}

never() {
    local code=$1 lock=$2 text
    shift 2
    run run_t 10 "$DLOCK" --connect-timeout "${CONNECT_TIMEOUT:-4}" -n "$lock" touch "$T/ran"
    assert_rc "$code"
    [ ${#lines[@]} -eq 1 ] || fail "${#lines[@]} lines: $output"
    for text; do assert_out "$text"; done
    refute_out "$SECRET"
    [ ! -e "$T/ran" ] || fail "it ran"
}
