#!/usr/bin/env bats
# What a lock costs: round trips, the server's work, and what must not grow over time.

# bats file_tags=long
load ../../support/common
load ../../support/fake
load ../../support/redis
load ../../support/redislock

# With a password and a database other than 0: AUTH and the request travel together.
@test "one round trip takes the lock, another one gives it back" {
    need_root # to read what a process that is not dumpable sends
    strace -o /dev/null true 2>/dev/null || skip "strace does not work here"
    redis_start_in own --requirepass pw
    L="redis://:pw@127.0.0.1:${REDIS_PORTS[own]}/3#$NAME"
    redis_warm "$L"
    ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0 run_t 10 strace -s 4096 -o tr \
        -e trace=network,read,write "$DLOCK" "$L" true
    awk '/^connect\(/ { sub(/.*connect\(/, ""); fd = $1 + 0; next }
         $0 ~ "^(sendto|sendmsg|write)\\(" fd "," {
             print "send", /AUTH/ ? "AUTH" : "", /EVALSHA/ ? "EVALSHA" : ""
         }
         $0 ~ "^(recvfrom|recvmsg|read)\\(" fd "," && !/EAGAIN/ {
             print "receive", /granted/ ? "granted" : ""
         }' tr >steps
    cat steps
    # Everything up to the grant: sent in one piece.
    sed '/granted/q' steps >acquire
    [ "$(tail -n 1 acquire)" = "receive granted" ]
    [ "$(grep -c ^send acquire)" = 1 ]
    [ "$(head -n 1 acquire)" = "send AUTH EVALSHA" ]
    # One more, the release.
    [ "$(grep -c '^send.*EVALSHA' steps)" = 2 ]
    [ "$(REDISCLI_AUTH=pw own -n 3 exists "{$NAME}:dlock:fence")" = 1 ]
}

# calls FILE [ARG...]: what the server is asked by dlock with ARG, scripts as "script".
calls() {
    own config resetstat >/dev/null
    run -0 run_t 10 "$DLOCK" -q "${@:2}"
    own info commandstats | tr -d '\r' | awk -F '[_:=,]' '
        /^cmdstat_(eval|evalsha|hello|client.tracking):/ { n[$2 ~ /^eval/ ? "script" : $2] += $4 }
        END { for (c in n) print c, n[c] }' | sort >"$1"
}

# bats test_tags=plain
@test "a hold of more than a second is told of changes for one message, a shorter one costs none" {
    own_server
    calls warm --ttl 30 "$L" sleep 1.2
    calls short --ttl 30 "$L" sleep 0.5
    [ "$(cat short)" = 'script 2' ]
    # In one message.
    calls long --ttl 30 "$L" sleep 2
    [ "$(paste -sd' ' long)" = 'client|tracking 1 hello 1 script 3' ]
    # Renewals are 0.773 s apart, and do not wake the holder.
    calls renewals --ttl 3 "$L" sleep 3.5
    grep -qx 'hello 1' renewals
    assert_between 5 "$(sed -n 's/script //p' renewals)" 6 scripts
    # Renewals of readers change the key of all readers.
    calls shared -s --ttl 30 "$L" sleep 1.2
    [ "$(cat shared)" = 'script 2' ]
}

# work: what the server has done since `config resetstat`, commands inside scripts included, without
# our own question, and without the looks of waiters (PTTL), which do not belong to a hand-off.
work() {
    own info commandstats | tr -d '\r' | sed -n 's/^cmdstat_\([^:]*\):calls=\([0-9]*\).*/\1 \2/p' |
        grep -vE '^(info|config|pttl)[| ]'
}

# bats test_tags=slow
@test "a hand-off is the same 24 commands for 2, 10 and 40 waiters" {
    own_server
    # The script of the renewal, too: a connection that got NOSCRIPT sends texts from then on.
    run -0 run_t 10 "$DLOCK" --ttl 100 "$L" sleep 1.2
    for n in 2 10 40; do
        rm -f held go go2 order
        waiters=()
        hold --ttl 100
        for i in $(seq $((n + 1))); do
            start_log "w$i" "$DLOCK" --ttl 100 "$L" sh -c \
                "echo $i >>order; exec '$HELPERS/await' go2"
            waiters+=("$STARTED")
            own_waits_for "$i"
        done
        # Whoever came last has said so and has been told what to do.
        wait_for 5 quiet
        own config resetstat >/dev/null
        touch go
        wait_for 5 test -s order
        wait_for 5 quiet
        work >"work.$n"
        echo "# $n: $(awk '{ n += $2; s = s " " $1 "=" $2 } END { print n ":" s }' "work.$n")" >&3
        touch go2
        for w in "${waiters[@]}"; do wait_exit 20 "$w"; done
        own info commandstats | count_evals >evals
        [ "$(cat evals)" -le $((4 * n + 7)) ] || fail "$(cat evals) scripts for $((n + 1)) waiters"
    done
    diff work.2 work.10
    diff work.2 work.40
    # And few: the release with the call, the grant, and the next waiter begins to watch. INFO (is
    # it a replica?) and that waiter's PTTL make 24.
    assert_between 10 "$(awk '{ n += $2 } END { print n }' work.2)" 22 "commands of one hand-off"
}
# Nothing has been asked for 200 ms.
quiet() {
    local before after
    before=$(work)
    nap 0.2
    after=$(work)
    [ -n "$before" ] && [ "$before" = "$after" ]
}

rss() { awk '$1 == "VmRSS:" { print $2 }' "/proc/$1/status"; }
fds() { ls "/proc/$1/fd" | wc -l; }
zombies() { ps -o stat= --ppid "$1" | grep -c ^Z || :; }
connections() { own info stats | tr -d '\r' | sed -n 's/^total_connections_received://p'; }
# ask WORD...: by a connection that stays.
ask() {
    printf '%s\r\n' "$*" >&"$admin"
    IFS= read -r -t 5 answer <&"$admin"
}
connected() { [ "$(own client list | grep -c 'cmd=')" -ge "$1" ]; }

# bats test_tags=slow,soak
@test "reconnecting leaks no descriptor, memory or zombie" {
    own_server
    starts 1 -q --ttl 4 --grace 1 "$L" $SUBJECT -u "$T/end"
    start_log w "$DLOCK" -q --ttl 30 "$L" true
    waiter=$STARTED
    # Holder, waiter with its two, and the one that asks: a first contact that is cut fails.
    wait_for 5 connected 4
    exec {admin}<>"/dev/tcp/127.0.0.1/${REDIS_PORTS[own]}"
    cut() { # ROUNDS
        local i
        for ((i = 0; i < $1; i++)); do
            ask CLIENT KILL TYPE normal SKIPME yes
            ask CLIENT KILL TYPE pubsub
            nap 0.05
        done
    }
    cut 15
    own_waits_for 1
    wait_for 5 connected 5 # and admin
    before="$(fds "$K") $(fds "$waiter")" holder_kb=$(rss "$K") waiter_kb=$(rss "$waiter")
    n=$(connections)
    reconnects=$(amount reconnects)
    for ((round = 0; round < 20 &&
        $(connections) - n < reconnects * 6 / 5; round++)); do cut 15; done
    n=$(($(connections) - n))
    echo "# $n connections" >&3
    [ "$n" -ge $((reconnects * 16 / 15)) ]
    wait_for 5 connected 5
    [ "$(fds "$K") $(fds "$waiter")" = "$before" ] ||
        fail "descriptors: $before, then $(fds "$K") $(fds "$waiter")"
    [ -n "${SAN:-}" ] || {
        assert_between 0 "$(rss "$K")" $((holder_kb + 1024)) "the holder's memory (KiB)"
        assert_between 0 "$(rss "$waiter")" $((waiter_kb + 1024)) "the waiter's memory (KiB)"
    }
    [ "$(zombies "$K")" = 0 ]
    [ "$(zombies "$waiter")" = 0 ]
    exec {admin}>&-
    touch end
    ended
    assert_rc 0
    wait_exit 5 "$waiter"
}
