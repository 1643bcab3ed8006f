# redlocks.bash - N independent redis servers that speak nothing but TLS. Load after redis.bash,
# redlock.bash, tls.bash.
#
#     rls_start [N [ARG...]]    N (5) new nodes; after tls_certs, in setup_file or in a test
#     rls_hosts [TEXT]          localhost:PORT,...; TEXT: before the first host
#     rls_uri NAME [PARAMS]     redlocks://... with our authority; the password is $RLS_PASS
#     rls_cert K NAME           what node K shows from now on
#
# rl, rl_pid and rl_left of redlock.bash work (through a Unix socket), rl_ask and what uses it do
# not.

rls_start() {
    local n=${1:-5} k
    [ $# -eq 0 ] || shift
    RL_PORTS='' RL_PIDS='' RLS_DIRS=''
    for ((k = 1; k <= n; k++)); do
        tls_redis "n$k" ${RLS_PASS:+--requirepass "$RLS_PASS"} "$@" || return
        RL_PORTS+="${RL_PORTS:+ }${REDIS_PORTS[n$k]}" RL_PIDS+="${RL_PIDS:+ }${REDIS_PIDS[n$k]}"
        RLS_DIRS+="${RLS_DIRS:+ }${REDIS_DIRS[n$k]}"
    done
    export RL_PORTS RL_PIDS RLS_DIRS
}
rl() {
    local -a dirs=($RLS_DIRS)
    env ${RLS_PASS:+REDISCLI_AUTH="$RLS_PASS"} redis-cli -s "${dirs[$1 - 1]}/s" "${@:2}" 3>&-
}
rls_hosts() {
    local -a ports=($RL_PORTS)
    local hosts
    hosts=$(printf ',localhost:%s' "${ports[@]}")
    echo "${RLS_PASS:+:$RLS_PASS@}${hosts#,}"
}
rls_uri() { echo "redlocks://$(rls_hosts)?cacert=$TLS/ca.crt&${2:-restart-grace=0}#$1"; }
rls_cert() { rl "$1" config set tls-cert-file "$TLS/$2.crt" tls-key-file "$TLS/$2.key" >/dev/null; }
