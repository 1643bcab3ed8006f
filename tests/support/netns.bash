# netns.bash - a network of two machines that only this test sees: network namespaces joined by a
# veth pair, with a redis-server on the second one. Needs root, else it skips. Load after
# common.bash; all of it ends with the test: teardown ends the processes, and so the namespaces.
#
#     net_up [ARG...]     ARG: for redis-server. SERVER and PORT say where it is
#     client CMD...       CMD on the first machine (same pid, same folder). Its /etc/hosts and
#                         /etc/resolv.conf are below $T: write into them, do not replace them
#     server CMD...       CMD on the second machine;  srv ARG...: redis-cli there
#     net_hold ARG...     dlock on the first machine, without a terminal; its pid in $K, its output
#                         in $T/out
#     server_is_up PORT   a redis-server there answers
#     left_is_over MS     so much is left of the lease, as the file's own `left` says
#     client_timed ARG... run dlock on the first machine; $status, $output, $took (ms)
#     net_cut             everything is dropped, silently;  net_mend: neither machine has a rule
#     net_lose_replies    only what the server says is dropped; connections still come about
#     net_reset           the answer to every packet is a TCP reset;  net_was_reset: one was sent
#     net_refusing ADDR   the server has that address too, and nothing listens there
#     net_dns_silent      the name server drops every question;  net_dns_asked: how many there were
#     net_dns_bounds URI HOST
#                         what must hold then for a lock at the server HOST (load fake.bash too)

CLIENT=10.77.0.1 SERVER=10.77.0.2 PORT=6379

client() { exec_in nsenter -t "$NET_C" -n -m -w -- "$@"; }
server() { exec_in nsenter -t "$NET_S" -n -- "$@"; }
# A function that `start` runs in the background is a subshell of its own: there exec keeps the pid.
exec_in() {
    if [ "$BASHPID" != "$NET_SHELL" ]; then exec "$@" 3>&-; else "$@" 3>&-; fi
}
net_hold() {
    start_log "$T/out" client "$HELPERS/launch" -d -s "$DLOCK" "$@"
    K=$STARTED
}
client_timed() { timed_run nsenter -t "$NET_C" -n -m -w -- "$DLOCK" "$@"; }
srv() { server redis-cli -h 127.0.0.1 -p $PORT "$@"; }
server_is_up() { [ "$(server redis-cli -p "$1" ping 2>&1)" = PONG ]; }
left_is_over() { [ "$(left)" -gt "$1" ]; }

net_up() {
    unshare -n -m true 2>/dev/null || skip "needs the right to make network namespaces"
    NET_SHELL=$BASHPID
    mkdir -p "$T/etc"
    : >"$T/etc/resolv.conf"
    echo "127.0.0.1 localhost" >"$T/etc/hosts"
    echo "hosts: files dns" >"$T/etc/nsswitch.conf"
    # Not with the marker's own processes: `start` knows their pids.
    start_log "$T/etc/client.log" unshare -n -m --propagation private sh -c '
        for f in resolv.conf hosts nsswitch.conf; do
            [ -e "/etc/$f" ] || : >"/etc/$f" || exit
            mount --bind "etc/$f" "/etc/$f" || exit
        done
        : >etc/client && exec sleep infinity'
    NET_C=$STARTED
    start_log "$T/etc/server.log" unshare -n sh -c ': >etc/server && exec sleep infinity'
    NET_S=$STARTED
    wait_for 10 test -e "$T/etc/client" || { cat "$T/etc/client.log" >&2; return 1; }
    wait_for 10 test -e "$T/etc/server" || { cat "$T/etc/server.log" >&2; return 1; }
    client ip link add link0 type veth peer name link0 netns "$NET_S" || return
    net_machine client $CLIENT && net_machine server $SERVER || return
    start_log "$T/etc/redis.log" server redis-server --port $PORT --bind 127.0.0.1 $SERVER \
        --protected-mode no --save '' --appendonly yes \
        --appendfsync no --daemonize no --dir "$T/etc" --logfile '' "$@"
    NET_REDIS=$STARTED
    wait_for 10 net_answers || { cat "$T/etc/redis.log" >&2; return 1; }
}
net_answers() { [ "$(srv ping 2>&1)" = PONG ]; }
net_machine() {
    "$1" ip addr add "$2/24" dev link0 && "$1" ip link set link0 up && "$1" ip link set lo up
}

# Questions first: the other way round a last renewal would be served and its answer lost.
net_cut() {
    server iptables -I INPUT -i link0 -j DROP && client iptables -I INPUT -i link0 -j DROP
}
net_mend() { server iptables -F && client iptables -F; }
# A reply carries data; SYN+ACK (60 bytes) and ACK (52) do not.
net_lose_replies() {
    client iptables -I INPUT -i link0 -p tcp --sport $PORT -m length --length 61:65535 -j DROP
}
net_reset() {
    server iptables -I INPUT -i link0 -p tcp --dport $PORT -j REJECT --reject-with tcp-reset
}
net_was_reset() {
    [ "$(server iptables -L INPUT -v -x -n | awk '/reject-with/ { print $1 }')" -ge 1 ]
}
net_refusing() { server ip addr add "$1/24" dev link0; }
net_dns_silent() {
    server iptables -I INPUT -i link0 -p udp --dport 53 -j DROP &&
        server iptables -I INPUT -i link0 -p tcp --dport 53 -j DROP &&
        echo "nameserver $SERVER" >"$T/etc/resolv.conf"
}
# net_dns_bounds URI HOST: dlock there keeps its time bounds and names HOST; TERM and HUP end it.
net_dns_bounds() {
    local sig asked t0
    client_timed -w 0.3 "$1" touch "$T/ran"
    assert_rc 69 && assert_out "$2" &&
        assert_between 300 "$took" $((450 + SLOW + BUSY)) "-w 0.3 (ms)" || return
    client_timed --connect-timeout 1 "$1" touch "$T/ran"
    assert_rc 69 && assert_out "$2" && assert_out "name look-up" || return
    [ "${#lines[@]}" = 1 ] || fail "more than one line: $output" || return
    assert_between 1000 "$took" $((1250 + SLOW)) "--connect-timeout 1 (ms)" || return
    client_timed --status --connect-timeout 0.5 "$1"
    assert_rc 69 && assert_between 500 "$took" $((750 + SLOW + BUSY)) "--status (ms)" || return
    asked=$(net_dns_asked)
    [ "$asked" -ge 3 ] || fail "$asked questions" || return
    for sig in TERM HUP; do
        asked=$(net_dns_asked)
        net_hold --connect-timeout 20 "$1" $SUBJECT
        wait_for 5 eval '[ "$(net_dns_asked)" -gt "$asked" ]' || return
        t0=$(now_ms)
        kill -$sig "$K"
        ended
        assert_rc $((128 + $(kill -l $sig))) || return
        assert_between 0 $(($(now_ms) - t0)) $((300 + SLOW + BUSY)) "time to die by $sig (ms)" ||
            return
    done
    [ ! -e "$T/ran" ] && [ ! -e "$C/events" ] || fail "the command ran"
}
net_dns_asked() { server iptables -L INPUT -v -x -n | awk '/udp dpt:53/ { print $1 }'; }
