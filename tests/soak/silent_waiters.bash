#!/usr/bin/env bash
# tests/soak/silent_waiters.bash [--ttl SECONDS[,WAITERS]] STORE [N...] - idle behind such waiters
#
# STORE is one of tests/contract/stores: redis, pgtable, postgres, zookeeper, ... For each N (0 1 2
# 6) there are N waiters in line whose keeper and guard are stopped (SIGSTOP), and a live one behind
# them. Then the holder releases the lock, or its keeper is killed. Printed is the delay of the live
# waiter's command in ms: from the end of the holder's command; from the end of the lease that the
# store tells of, or (zookeeper) of a whole ttl after the kill, or (postgres) from the kill, since
# there the session ends with the processes. All cases run side by side. --ttl: of the holder (6),
# and of the waiters where it is another one.
#
# Environment: DLOCK, the program; LIMIT, how many seconds a case may take (40 and two of each ttl).
set -u
. "$(dirname "$0")/../support/script.bash"

ttl=6
[ "${1:-}" != --ttl ] || { ttl=$2; shift 2; }
[ $# -gt 0 ] || { sed -n '2,${/^#/!q;s/^# \?//p}' "$0" >&2; exit 64; }
store=$1
shift
waiters_ttl=${ttl#*,} ttl=${ttl%,*}
ns=("$@")
[ ${#ns[@]} -gt 0 ] || ns=(0 1 2 6)
limit=${LIMIT:-$((40 + 2 * ttl + 2 * waiters_ttl))}

script_setup silent "$store"
store_up || exit 69

# ------------------------------------------------------------------ a case ---

stamp() { date +%s%3N; }
waiters_are() { [ "$("$DLOCK" --status --json "$L" | grep -o '"place"' | wc -l)" -eq "$1" ]; }
# What the store tells of the lease, in ms; else the ttl, or nothing where a session ends at once.
left() {
    local ms
    ms=$("$DLOCK" --status --json "$L" | grep -o '"lease_left_ms": *[0-9]*' | head -n 1)
    ms=${ms##*[!0-9]}
    case $store in
    postgres) echo 0 ;;
    zookeeper) echo $((ttl * 1000)) ;;
    *) echo "$ms" ;;
    esac
}
# waits NUMBER CMD...: one more waiter, in its own folder; the shell tells nothing of its end.
waits() {
    local n=$1
    shift
    "$DLOCK" --ttl "$waiters_ttl" -q "$L" "$@" >"w$n.log" 2>&1 </dev/null &
    waiter=$!
    wait_for 15 waiters_are "$n"
}

# one N HOW: the delay.
one() {
    local n=$1 how=$2 i waiter silent=() holder from
    mkdir "$tmp/$how$n" && cd "$tmp/$how$n" && export BATS_TEST_TMPDIR=$PWD || return
    L=$(store_lock "silent-$how-$n")
    "$DLOCK" --ttl "$ttl" -q "$L" sh -c \
        'date +%s%3N >held; "$HELPERS/await" go; date +%s%3N >ended' >holder.log 2>&1 </dev/null &
    holder=$!
    wait_for 15 test -s held || return
    for ((i = 1; i <= n; i++)); do
        waits "$i" true || return
        silent+=("$waiter" $(children "$waiter"))
    done
    waits "$((n + 1))" sh -c 'date +%s%3N >got; "$HELPERS/await" end' || return
    [ "$n" -eq 0 ] || kill -STOP "${silent[@]}"
    if [ "$how" = release ]; then
        : >go
        wait_for 10 test -s ended || return
        from=$(cat ended)
    else
        from=$(($(left) + $(stamp)))
        kill -KILL "$holder"
    fi
    wait_for "$limit" test -s got || return
    echo $(($(cat got) - from)) >delay
    : >end
}

# ------------------------------------------------------------------- table ---

cases=() rc=0
for how in release kill; do
    for n in "${ns[@]}"; do
        one "$n" "$how" 2>"$tmp/$how$n.log" &
        cases+=($!)
    done
done
wait "${cases[@]}" 2>/dev/null
printf '%-10s ttl %-5s %-8s' "$store" "$ttl,$waiters_ttl" silent
printf '%8s' "${ns[@]}"
echo
for how in release kill; do
    printf '%20s %-8s' '' "$how"
    for n in "${ns[@]}"; do
        printf '%8s' "$(cat "$tmp/$how$n/delay" 2>/dev/null || echo failed)"
        [ -e "$tmp/$how$n/delay" ] || { sed "s/^/$how $n: /" "$tmp/$how$n.log" >&2; rc=1; }
    done
    echo
done
exit $rc
