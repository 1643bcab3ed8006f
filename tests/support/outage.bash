# outage.bash - what waiters do while a store is away, for every store. Load after common.bash.
#
#     ride_out    on the lock $L of a store that the test may stop. The file has these functions:
#         store_out     the store serves no client from now on; its data stay
#         store_back    it serves again

# stays_out MS: until the store has been away for that long.
stays_out() { [ "$(now_ms)" -ge $((OUT + $1)) ]; }
waiting() { [ "$("$DLOCK" --status --json "$L" | grep -o '"place"' | wc -l)" -eq "$1" ]; }
# last_line FILE REGEX: the last line of dlock's messages.
last_line() {
    local line
    line=$(tail -n 1 "$1")
    [[ $line =~ $2 ]] || fail "$1: no '$2' at the end: $(cat "$1")"
}

# The ttl of all waiters is 1 s. So the outage lasts for more than five of them.
ride_out() {
    local long short both cancelled late quitter t0
    hold --ttl 60
    start_log long.log "$DLOCK" --ttl 1 "$L" sh -c 'echo >got.long'
    long=$STARTED
    start_log short.log "$DLOCK" -q --ttl 1 -w 4 "$L" touch ran
    short=$STARTED
    start_log both.log "$DLOCK" --ttl 1 -w 10 "$L" touch ran
    both=$STARTED
    start_log cancelled.log "$DLOCK" --ttl 1 "$L" touch ran
    cancelled=$STARTED
    wait_for 5 waiting 4
    store_out
    OUT=$(now_ms)
    # Without --retry that is the end at once, with it a wait. A signal needs no undo there.
    run -69 run_t 5 "$DLOCK" --connect-timeout 1 "$L" touch ran
    start_log late.log "$DLOCK" --retry --connect-timeout 1 --ttl 1 "$L" sh -c 'echo >got.late'
    late=$STARTED
    start_log quitter.log "$DLOCK" --retry --connect-timeout 1 "$L" touch ran
    quitter=$STARTED
    wait_for 5 stays_out 2000
    t0=$(now_ms)
    kill -TERM "$cancelled" "$quitter"
    exits 143 3 "$cancelled"
    exits 143 3 "$quitter"
    assert_between 0 $(($(now_ms) - t0)) $((1500 + BUSY)) "ms to cancel"
    exits 69 5 "$short"
    [ "$(wc -l <short.log)" -eq 1 ] || fail "not one line: $(cat short.log)"
    last_line short.log "no answer for [0-9.]+ m?s \(lock '.*$NAME'\)$"
    wait_for 9 stays_out 5500
    pid_alive "$long" || fail "$(cat long.log)"
    store_back
    # It has been answered since: the lock is held, and that is all.
    exits 75 10 "$both"
    [ ! -e ran ]
    [ ! -e got.long ]
    [ ! -e got.late ]
    let_go
    exits 0 10 "$long"
    exits 0 10 "$late"
    [ -e got.long ]
    [ -e got.late ]
}
