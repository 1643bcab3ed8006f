#!/usr/bin/env bash
# tests/soak/writer_waits.bash STORE [WRITERS [READERS]] - waits of writers beside constant readers.
#
# STORE is one of tests/contract/stores. Each of the READERS (20) takes the lock shared for 100 ms,
# again and again, while WRITERS (10) come one after the other. Printed is how long they waited in
# ms, with the start of the process: the shortest, the median and the longest wait, and the wait
# without readers before that.
#
# Environment: DLOCK, the program; LIMIT, how many seconds a writer waits (60).
set -u
. "$(dirname "$0")/../support/script.bash"

[ $# -gt 0 ] || { sed -n '2,${/^#/!q;s/^# \?//p}' "$0" >&2; exit 64; }
store=$1 writers=${2:-10} readers=${3:-20} limit=${LIMIT:-60}
script_setup writers "$store"
cd "$tmp" && store_up || exit 69
L=$(store_lock writers)

# wait_ms: of one writer, as its event says.
wait_ms() {
    rm -f events
    timeout $((limit + 10)) "$DLOCK" -q -w "$limit" --events events "$L" true 2>>log </dev/null ||
        return
    sed -n 's/.*"event":"granted".*"wait_ms":\([0-9]*\).*/\1/p' events
}

alone=$(wait_ms) || { cat log >&2; exit 69; }
pids=()
for ((i = 0; i < readers; i++)); do
    sh -c 'until [ -e stop ]; do
        "$DLOCK" -q -s "$1" sh -c ": >entered; exec sleep 0.1" || exit
    done' - "$L" 2>>log </dev/null &
    pids+=($!)
done
wait_for 10 test -e entered || { cat log >&2; exit 69; }
rc=0 waits=()
for ((i = 0; i < writers; i++)); do
    took=$(wait_ms) || { rc=1 took=failed; }
    waits+=("$took")
done
: >stop
wait "${pids[@]}" 2>/dev/null
mapfile -t waits < <(printf '%s\n' "${waits[@]}" | sort -n)
printf '%-10s %2d writers beside %2d readers: min %5s  median %5s  max %5s  alone %5s\n' "$store" \
    "$writers" "$readers" "${waits[0]}" "${waits[writers / 2]}" "${waits[-1]}" "$alone"
[ $rc -eq 0 ] || sort log | uniq -c | head -n 5 >&2
exit $rc
