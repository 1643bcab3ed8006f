#!/usr/bin/env bats
# network.bats - a Redlock whose network loses packets, answers or connections, or falls in two,
# during a hold: two machines of our own, see support/netns.bash. Nodes that are dead, hang or lie
# are in faults.bats.

# bats file_tags=long
load ../../support/holders
load ../../support/redis
load ../../support/redlock
load ../../support/netns

# ---------------------------------------------------------------- helpers ---

PORTS="6379 6380 6381 6382 6383"

# five_up: five servers on the second machine; $L is the lock.
five_up() {
    local p hosts=''
    net_up
    for p in $PORTS; do
        hosts+=,$SERVER:$p
        [ $p -ne $PORT ] || continue
        mkdir "$T/etc/$p"
        start_log "$T/etc/redis$p.log" server redis-server --port $p --bind 127.0.0.1 $SERVER \
            --protected-mode no --save '' --daemonize no --dir "$T/etc/$p" --logfile ''
    done
    for p in $PORTS; do wait_for 10 server_is_up $p || return; done
    L="redlock://${hosts#,}?restart-grace=0#$NAME"
}
node() { server redis-cli -p "$((PORT - 1 + $1))" "${@:2}"; }
# left_is_over MS K...: so much is left of the lock on each of these nodes. nowhere: no node has it.
left_is_over() {
    local k
    for k in "${@:2}"; do [ "$(node "$k" pttl "$NAME")" -gt "$1" ] || return; done
}
nowhere() {
    local k
    for k in 1 2 3 4 5; do [ "$(node $k exists "$NAME")" = 0 ] || return; done
}
# rule MACHINE --sport|--dport K... -- ARG...: a rule of iptables for what comes from or goes to
# these nodes.
rule() {
    local machine=$1 side=$2 nodes=() k
    shift 2
    while [ "$1" != -- ]; do nodes+=("$1") && shift; done
    shift
    for k in "${nodes[@]}"; do
        "$machine" iptables -I INPUT -i link0 -p tcp $side $((PORT - 1 + k)) "$@" || return
    done
}
# counted MACHINE WORD: packets that the rules with that word have met.
counted() {
    "$1" iptables -L INPUT -v -x -n | awk -v w="$2" 'index($0, w) { n += $1 } END { print n + 0 }'
}

# untouched RC: the command ends by itself with that, nothing was said, and the lock is free.
untouched() {
    unharmed "$1" || return
    [ "$output" = "" ] || fail "said: $output" || return
    wait_for 3 nowhere
}

# --------------------------------------------------------------- in a hold ---

# bats test_tags=slow
@test "a hold survives lost replies of two nodes, not of three" {
    five_up
    net_hold --ttl 2 --grace 0.2 "$L" $SUBJECT -t -k
    wait_for 5 running 4
    rule client --sport 1 4 -- -m length --length 61:65535 -j DROP
    lives_for 2300
    [ "$(counted client length)" -ge 2 ]
    rule client --sport 5 -- -m length --length 61:65535 -j DROP
    # Whatever was confirmed was sent before this.
    loses 5 1 "$(now_ns)" 1980 600
    assert_out "could not be renewed in time"
    # What the three were asked neither keeps nor makes the lock.
    net_mend
    wait_for 3 nowhere
}

# bats test_tags=slow
@test "a hold rides out a short loss of all replies" {
    five_up
    net_hold --ttl 4 --grace 0.5 "$L" $SUBJECT -u "$T/end" -r 4
    wait_for 5 running
    rule client --sport 1 2 3 4 5 -- -m length --length 61:65535 -j DROP
    # A renewal has been tried, and its answer was lost.
    met() { [ "$(counted client length)" -ge 5 ]; }
    wait_for 4 met
    net_mend
    lives_for 4000
    untouched 4
}

# bats test_tags=slow
@test "a hold survives connection resets" {
    five_up
    net_hold --ttl 3 "$L" $SUBJECT -u "$T/end" -r 5
    wait_for 5 running
    local nodes reset
    for nodes in "2 3" "1 2 3 4 5"; do
        rule server --dport $nodes -- -j REJECT --reject-with tcp-reset
        # The next renewal meets it, 0.77 s after the last one at most.
        reset=$(wc -w <<<"$nodes")
        was_reset() { [ "$(counted server reject-with)" -ge "$reset" ]; }
        wait_for 3 was_reset
        net_mend
        lives_for 1000
        wait_for 3 left_is_over 2000 $nodes
    done
    lives_for 1100
    untouched 5
}

# bats test_tags=slow
@test "a hold rides out the loss of every fifth packet" {
    five_up
    net_hold --ttl 6 --grace 0.5 "$L" $SUBJECT -u "$T/end" -r 4
    wait_for 5 running
    server iptables -I INPUT -i link0 -m statistic --mode nth --every 5 --packet 0 -j DROP
    client iptables -I INPUT -i link0 -m statistic --mode nth --every 5 --packet 3 -j DROP
    lives_for 6500
    [ $(($(counted client statistic) + $(counted server statistic))) -ge 5 ]
    net_mend
    untouched 4
}

# ------------------------------------------------------------ a partition ---

# The holder's way to three of the nodes is cut without a word, the rival's is not. Lock and nodes
# are this machine's.
# bats test_tags=slow
@test "a partition of three nodes ends the tree before the rival enters" {
    rl_start 5
    local try direct k pid proxies=()
    direct=$(rl_uri "$NAME")
    for k in 1 2 3; do
        start "$ROOT/tests/support/helpers/proxy.py" "$(rl_port $k)" pass >"port.$k"
        proxies+=("$STARTED")
    done
    for k in 1 2 3; do
        wait_for 5 test -s "port.$k"
        rl_put $k "$(cat "port.$k")"
    done
    for try in 1 2; do
        rm -f got "$C"/*
        starts 4 --ttl 2 --grace 0.2 "$(rl_uri "$NAME")" $SUBJECT -t -k
        start_log rival.log "$DLOCK" --ttl 2 "$direct" \
            sh -c 'flock -sn "$1" true || echo overlap
            exec "$2" got' - "$C/witness" "$HELPERS/clock"
        local rival=$STARTED
        wait_for 5 eval '[ "$("$DLOCK" --status --json "$direct" | grep -c "\"place\"")" = 1 ]'
        [ $try -eq 1 ] || lives_for 700 # at another place between two renewals
        kill -STOP "${proxies[@]}"
        ended 6
        assert_rc 79
        wait_exit 6 "$rival"
        [ ! -s rival.log ] || fail "$(cat rival.log)"
        [ "$(last_beat)" -lt "$(cat got)" ] ||
            fail "the rival was in $((($(last_beat) - $(cat got)) / NS)) ms before"
        [ "$(count_seen main sig 15)" = 1 ]
        kill -CONT "${proxies[@]}"
        # What had been on its way takes nothing away, and makes nothing.
        for k in 1 2 3; do
            wait_for 3 eval "[ \"\$(redis-cli -p ${REDIS_PORTS[n$k]} exists $NAME)\" = 0 ]"
        done
    done
}

# ------------------------------------------------------------- slow nodes ---

# bats test_tags=slow
@test "slow nodes still renew a hold" {
    rl_start 5
    local case
    for case in "2 4:late 1" "1 2 3 4 5:late 0.15" "1 2 3 4 5:drip"; do
        rm -f end "$C"/*
        instead "${case%%:*}" proxy ${case#*:}
        background --ttl 2 --grace 0.2 "$L" $SUBJECT -u "$T/end" -r 6
        wait_for 5 running || fail "$case: $(cat out)"
        lives_for 2300
        unharmed 6
        [ "$output" = "" ] || fail "$case: $output"
        wait_for 3 rl_gone "$NAME"
    done
}
