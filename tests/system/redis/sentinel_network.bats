#!/usr/bin/env bats
# sentinel_network.bats - a network that is cut between a waiter, with the old master on its side,
# and the sentinels, on whose side another master was promoted.

# bats file_tags=long
load ../../support/common
load ../../support/netns

# The server of the waiter's machine; the other one is net_up's.
old_master() { client redis-cli -h 127.0.0.1 -p $PORT "$@"; }
old_answers() { [ "$(old_master ping 2>&1)" = PONG ]; }
name_master() { # HOST: from now on the sentinels name it
    local i
    for i in 1 2 3; do echo "$1 $PORT" >"names$i.new" && mv "names$i.new" "names$i"; done
}
sentinels_up() {
    local i
    L="redis+sentinel://"
    name_master "$CLIENT"
    for i in 1 2 3; do
        start server "$ROOT/tests/support/helpers/fakesentinel.py" "names$i" "$SERVER" >"port$i" \
            2>"sentinel$i.log"
        wait_for 5 file_nonempty "port$i"
        L+="$SERVER:$(cat "port$i"),"
    done
    L="${L%,}/svc#$NAME"
}
waits_at() { "$1" timeout 5 "$DLOCK" --status "$L" | grep -q waiting; }

@test "an old master that was cut off grants its waiters nothing" {
    net_up
    start_log old.log client redis-server --port $PORT --bind 127.0.0.1 $CLIENT \
        --protected-mode no --save '' --appendonly yes --appendfsync no --dir "$T" --logfile ''
    wait_for 5 old_answers
    sentinels_up
    old_master set "$NAME" other px 600000
    net_hold --ttl 600 --connect-timeout 2 -v "$L" touch ran
    wait_for 5 waits_at client
    net_cut
    name_master "$SERVER"
    start_log hold.log server "$DLOCK" "$L" sh -c ': >held; "$HELPERS/await" go'
    local holder=$STARTED
    wait_for 5 test -e held || fail "$(cat hold.log)"
    # There it is free now.
    old_master del "$NAME"
    wait_for 10 file_has out "0 of 3 sentinels name $CLIENT:$PORT as the master, 2 must"
    [ ! -e ran ]
    net_mend
    wait_for 10 waits_at server
    [ ! -e ran ]
    [ "$(old_master exists "$NAME")" = 0 ]
    : >go
    exits 0 8 "$holder"
    exits 0 8 "$K"
    [ -e ran ]
}
