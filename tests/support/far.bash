# far.bash - a second machine, whose 127.0.0.1 leads to the servers of this one: they and their
# clients need no other address. Needs root. Load after common.bash.
#
#     far_namespace PROGRAM ARG...    begins this program again, in a network of its own
#     far_missing             what this machine lacks for that
#     far_up                  ${FAR[@]} is the prefix of a command that runs on the far machine
#     far_lose requests | replies | both      what comes from there, goes there, all is dropped
#     far_mend                nothing is

FAR_ADDRESS=10.77.0.1 NEAR_ADDRESS=10.77.0.2

far_namespace() {
    [ -n "${FAR_NAMESPACE:-}" ] ||
        FAR_NAMESPACE=1 exec unshare -n -- sh -c 'ip link set lo up && exec "$0" "$@"' "$@"
}
far_missing() {
    local tool
    for tool in ip iptables sysctl; do
        command -v $tool >/dev/null || { echo "$tool is not installed"; return; }
    done
    unshare -n true 2>/dev/null || echo "needs the right to make network namespaces"
}

far_up() {
    start_log "$T/far.log" unshare -n sh -c ': >far.up && exec sleep infinity'
    FAR=(nsenter -t "$STARTED" -n --)
    wait_for 5 test -e "$T/far.up" || { cat "$T/far.log" >&2; return 1; }
    ip link add link0 type veth peer name link0 netns "$STARTED" &&
        far_address $NEAR_ADDRESS && far_address $FAR_ADDRESS "${FAR[@]}" || return
    # From there to here; the servers see a client of their own machine.
    "${FAR[@]}" iptables -t nat -A OUTPUT -p tcp -d 127.0.0.1 -j DNAT --to $NEAR_ADDRESS &&
        "${FAR[@]}" iptables -t nat -A POSTROUTING -o link0 -j MASQUERADE &&
        iptables -t nat -A PREROUTING -i link0 -p tcp -j DNAT --to 127.0.0.1 &&
        iptables -t nat -A INPUT -i link0 -p tcp -j SNAT --to 127.0.0.1
}
far_address() { # ADDRESS [PREFIX...]
    local address=$1
    shift
    "$@" ip addr add "$address/24" dev link0 && "$@" ip link set link0 up &&
        "$@" ip link set lo up && "$@" sysctl -qw net.ipv4.conf.all.route_localnet=1
}

# Where they arrive: a sender must not be told. Requests first: no last one is to be served.
far_lose() {
    case $1 in requests | both) iptables -I INPUT -i link0 -j DROP || return ;; esac
    case $1 in replies | both) "${FAR[@]}" iptables -I INPUT -i link0 -j DROP ;; esac
}
far_mend() { iptables -F INPUT && "${FAR[@]}" iptables -F INPUT; }
