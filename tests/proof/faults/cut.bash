FAULT_TITLE='connection reset' FAULT_ORDER=50 FAULT_QUICK=1
fault_applies() { [ -n "$STORE" ]; }
fault_missing() {
    [ "$(id -u)" -eq 0 ] || echo 'needs root'
    command -v ss >/dev/null || echo 'ss is not installed (iproute2)'
}
# Those that A's processes have open: `ss -K` ends them as a reset would.
fault_inject() {
    local pid ports
    ports=$(for pid in $(pids_of A); do
        ss -Htnp state established | grep "pid=$pid," | awk '{ print $3 }'
    done | sed 's/.*://' | sort -u)
    for pid in $ports; do ss -HtK "sport = :$pid" >/dev/null; done
}
