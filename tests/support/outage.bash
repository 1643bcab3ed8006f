# outage.bash - what waiters do while a store is away, for every store. Load after common.bash.
#
#     ride_out    on the lock $L of a store that the test may stop. The file has these functions:
#         store_out     the store serves no client from now on; its data stay
#         store_back    it serves again

# stays_out MS: until the store has been away for that long.
stays_out() { [ "$(now_ms)" -ge $((OUT + $1)) ]; }
# last_line FILE REGEX: the last line of dlock's messages.
last_line() {
    local line
    line=$(tail -n 1 "$1")
    [[ $line =~ $2 ]] || fail "$1: no '$2' at the end: $(cat "$1")"
}

# The ttl of all waiters is 1 s. So the outage lasts for more than five of them.
ride_out() {
    local t0 who
    local -A client
    joins() { start_log "$1.log" "$DLOCK" "${@:2}"; client[$1]=$STARTED; }
    hold --ttl 60
    joins long --ttl 1 "$L" sh -c 'echo >got.long'
    joins short -q --ttl 1 -w 4 "$L" touch ran
    joins both --ttl 1 -w 10 "$L" touch ran
    joins cancelled --ttl 1 "$L" touch ran
    wait_for 5 waiters_are 4
    store_out
    OUT=$(now_ms)
    # Without --retry that is the end at once, with it a wait. A signal needs no undo there.
    run -69 run_t 5 "$DLOCK" --connect-timeout 1 "$L" touch ran
    joins late --retry --connect-timeout 1 --ttl 1 "$L" sh -c 'echo >got.late'
    joins quitter --retry --connect-timeout 1 "$L" touch ran
    wait_for 5 stays_out 2000
    t0=$(now_ms)
    kill -TERM "${client[cancelled]}" "${client[quitter]}"
    exits 143 3 "${client[cancelled]}"
    exits 143 3 "${client[quitter]}"
    assert_between 0 $(($(now_ms) - t0)) $((1500 + BUSY)) "ms to cancel"
    exits 69 5 "${client[short]}"
    [ "$(wc -l <short.log)" -eq 1 ] || fail "not one line: $(cat short.log)"
    last_line short.log "no answer for [0-9.]+ m?s \(lock '.*$NAME'\)$"
    wait_for 9 stays_out 5500
    pid_alive "${client[long]}" || fail "$(cat long.log)"
    store_back
    # It has been answered since: the lock is held, and that is all.
    exits 75 10 "${client[both]}"
    [ ! -e ran ]
    [ ! -e got.long ]
    [ ! -e got.late ]
    let_go
    for who in long late; do
        exits 0 10 "${client[$who]}"
        [ -e got.$who ]
    done
}
