# Five independent Redis servers for the contract suite, a majority of them the lock.
# bats file_tags=contract,long
load "$SUPPORT/redis"
load "$SUPPORT/redlock"
STORE_LEASE=1 STORE_FIFO='' STORE_FENCE=1 STORE_TELLS='fence left' STORE_PAUSES=1 STORE_TAKES=1 \
    STORE_SHARED=1 STORE_TURNS=1 STORE_ONCE=1 STORE_STAYS=1
store_up() { rl_start 5 && redis_warm "$(rl_uri warm)"; }
store_down() { rl_stop_file; }
store_lock() { rl_uri "$1"; }
store_clean() { nothing_left; }
store_pids() { echo "$RL_PIDS"; }
store_take() { on_all del "$1"; }

R() { echo "{$NAME}:dlock:once"; }
store_has_run() {
    local k
    for k in $(rl_all); do [[ $(rl "$k" get "$(R)") == "dlock-run1 $1 "* ]] || return; done
}
store_record() {
    local k
    for k in $(rl_all); do rl "$k" dump "$(R)" | md5sum; done
}
store_ends() {
    local k
    for k in $(rl_all); do
        rl "$k" get "$(R)" | ended_at "$1" | rl "$k" -x set "$(R)"
    done
}
store_spoil() {
    WHAT="is in the place of the run record"
    on_all del "$(R)"
    case $1 in
    0) on_all set "$(R)" other ;;
    1) on_all hset "$(R)" f v ;;
    2) # a majority
        rl 1 set "$(R)" "$(printf 'dlock-run1 succeeded 0 1 \033[31m')"
        head -c 1000000 /dev/zero | tr '\0' x | rl 2 -x set "$(R)"
        rl 3 set "$(R)" ""
        ;;
    *) return 1 ;;
    esac >/dev/null
}
# Of three round trips the second one records the begin, the third one the end.
store_unanswered() {
    local k late=()
    for k in $(rl_all); do
        listener proxy "$(rl_port "$k")" late 2
        late+=("127.0.0.1:$LISTENS")
    done
    P="redlock://$(IFS=,; echo "${late[*]}")?restart-grace=0#$NAME"
}
