# One Redis server for the contract suite.
# bats file_tags=contract,long
load "$SUPPORT/redis"
STORE_SHARED=1 STORE_SLOTS=1 STORE_NUMBERS=1 STORE_TURNS=1 STORE_LEASE=1 STORE_FIFO=1 \
    STORE_FENCE=1 STORE_TELLS='fence left' STORE_PAUSES=1 STORE_TAKES=1 STORE_ONCE=1 STORE_STAYS=1
store_up() { redis_start && redis_warm; }
store_down() { redis_stop; }
store_lock() { echo "redis://127.0.0.1:$REDIS_PORT/0#$1"; }
# A server with the configuration that Debian and Redis ship: snapshots, no append-only file.
store_as_shipped() {
    redis_start_in own --save '3600 1 300 100 60 10000' --appendonly no
    L="redis://127.0.0.1:${REDIS_PORTS[own]}/0#$NAME"
    CI=1 says 0 "no append-only file" "$L" true
}
store_clean() { only_fence_left "$1" rcli; }
store_pids() { echo "$REDIS_PID"; }
store_take() { rcli del "$1"; }

R() { echo "{$NAME}:dlock:once"; }
store_has_run() { [[ $(rcli get "$(R)") == "dlock-run1 $1 "* ]]; }
store_record() { rcli dump "$(R)" | md5sum; }
store_ends() { rcli get "$(R)" | ended_at "$1" | rcli -x set "$(R)"; }
store_spoil() {
    local token=0123456789abcdef0123456789abcdef at=1700000000000 good texts
    good="succeeded 0 5 $token $at $at 86400000 dlock1 pid=7"
    texts=('' other "dlock-run1 succeeded 0 5 $token $at" "dlock-run1 $good"$'\n'
        "dlock-run1 $good"$'\e[2J'
        "dlock-run2 $good" "dlock-run1 done${good#succeeded}" "dlock-run1 ${good/ 0 5/ 256 5}"
        "dlock-run1 ${good/$token/${token}0}" "dlock-run1 ${good/86400000/99999999999999999999}"
        "dlock-run1 ${good/ 5/ 99999999999999999999}" "dlock-run1 ${good/dlock1/dlock2}"
        "dlock-run1 running${good#succeeded} $(printf 'x%.0s' {1..1200})" $'\xff\x01')
    WHAT="is in the place of the run record"
    rcli del "$(R)" >/dev/null
    case $(($1 - ${#texts[@]})) in
    -*) rcli set "$(R)" "${texts[$1]}" ;;
    0) rcli hset "$(R)" f v ;;
    1) head -c 1000000 /dev/zero | tr '\0' x | rcli -x set "$(R)" ;;
    *) return 1 ;;
    esac >/dev/null
}
# So late that the keeper is killed before the answer on a slow machine, too.
store_unanswered() {
    listener proxy "$REDIS_PORT" late 2
    P="redis://127.0.0.1:$LISTENS#$NAME"
}
store_own() {
    redis_start_in own --appendfsync always
    L="redis://127.0.0.1:${REDIS_PORTS[own]}/0#$NAME"
}
store_restart() {
    if [ "$1" = kill ]; then redis_kill own; else redis_stop own; fi
    redis_launch own "${REDIS_DIRS[own]}" "${REDIS_PORTS[own]}" --appendonly yes \
        --appendfsync always
}
