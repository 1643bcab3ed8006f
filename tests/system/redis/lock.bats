#!/usr/bin/env bats
# lock.bats - locks in a real redis-server: exclusion with other clients, errors, rights, the set-up
# of the server. The queue is in queue.bats, faults are in faults.bats.

load ../../support/redisfile

# -------------------------------------------------------------- exclusion ---

key_is_gone() { [ "$(rcli exists "$NAME")" = 0 ]; }

@test "SET NX by others is respected, and respects us" {
    rcli set "$NAME" x nx px 10000
    run -75 run_t 5 "$DLOCK" -n "$L" true
    [ "$(rcli get "$NAME")" = x ]
    rcli del "$NAME"
    run -0 run_t 5 "$DLOCK" "$L" redis-cli -p "$REDIS_PORT" set "$NAME" y nx px 10000
    [ -z "$output" ]
}

@test "a waiter does not poll a lock that lasts for centuries" {
    rcli set "$NAME" x ex 9999999999
    start_log w.log "$DLOCK" "$L" touch ran
    local w=$STARTED n
    wait_for 5 queue_is 1
    wait_for 5 tracked
    n=$(evals)
    run -75 run_t 5 "$DLOCK" -q -w 0.5 "$L" true
    assert_between 1 $(($(evals) - n)) 8 "EVALs in half a second"
    rcli del "$NAME"
    wait_exit 5 "$w"
    [ -e ran ]
}

@test "the fence grows with each grant, even after its key was deleted" {
    local i f last=0
    for i in $(seq 30); do
        f=$("$DLOCK" "$L" sh -c 'echo $DLOCK_FENCE' 3>&-)
        [ "$f" -gt "$last" ]
        last=$f
        [ $((i % 10)) -ne 0 ] || rcli del "{$NAME}:dlock:fence"
    done
}

@test "the fence grows although the server's counter is ahead of its clock" {
    rcli set "{$NAME}:dlock:fence" 4000000000000000
    run run_t 5 "$DLOCK" "$L" sh -c 'echo $DLOCK_FENCE'
    [ "$output" = 4000000000000001 ]
}

@test "a fence counter that cannot grow is refused, and left alone" {
    local value kind key="{$NAME}:dlock:fence"
    for value in 4503599627370496 9007199254740991 1e300 nan abc -5 1.5 ' 7' ''; do
        rcli set "$key" "$value"
        for kind in -x -s '--slots 2' --once; do
            # shellcheck disable=SC2086
            says 65 "the key '$key' holds $value, no fencing token" -n $kind "$L" touch ran
        done
        [ "$(rcli get "$key")" = "$value" ]
        [ "$(rcli --scan --pattern "*$NAME*")" = "$key" ] || fail "$value: a key is left"
    done
    [ ! -e ran ]
    # The largest token; then the next one would not be larger.
    rcli set "$key" 4503599627370495
    says 0 4503599627370496 "$L" sh -c 'echo $DLOCK_FENCE'
    says 65 "delete it" "$L" touch ran
    rcli del "$key"
    run -0 run_t 5 "$DLOCK" "$L" true
}

@test "nothing is left behind but the fence's key, which expires" {
    hold --ttl 2
    wait_in_line 1 true
    wait_in_line 2 true
    echo >go
    wait_exit 5 "$WAITER"
    wait_for 5 queue_is 0
    wait_for 5 key_is_gone
    [ "$(rcli --scan --pattern "*$NAME*")" = "{$NAME}:dlock:fence" ]
    assert_between 86000 "$(rcli ttl "{$NAME}:dlock:fence")" 86400
}

@test "odd names are locks of their own" {
    local n
    for n in 'a{b}c' '{x}' 'a}b' 'a{}b' 'a%20b' '%25d%25n' 'käse' '%7Bx'; do
        run -0 run_t 5 "$DLOCK" "redis://127.0.0.1:$REDIS_PORT#$NAME$n" sh -c 'echo "$DLOCK_NAME"'
    done
    [ "$(rcli --scan --pattern "$NAME{x}::dlock:fence")" = "$NAME{x}::dlock:fence" ]
    says 0 both "redis://127.0.0.1:$REDIS_PORT#{$NAME}" "$DLOCK" -n "$L" echo both
}

@test "the database of the URI is used for everything" {
    L="redis://127.0.0.1:$REDIS_PORT/5#$NAME"
    run run_t 5 "$DLOCK" "$L" sh -c \
        "redis-cli -p $REDIS_PORT -n 5 exists $NAME; redis-cli -p $REDIS_PORT exists $NAME"
    [ "$output" = $'1\n0' ]
    rcli -n 5 set "$NAME" x px 600
    run -0 run_t 5 "$DLOCK" "$L" true
    says 64 database "redis://127.0.0.1:$REDIS_PORT/999#$NAME" true
}

# ----------------------------------------------------------- errors, rights ---

# made TYPE KEY
made() {
    case $1 in
        hash) rcli hset "$2" f v ;; list) rcli rpush "$2" v ;; set) rcli sadd "$2" v ;;
        zset) rcli zadd "$2" 1 v ;; stream) rcli xadd "$2" '*' f v ;; string) rcli set "$2" v ;;
    esac >/dev/null
}
# refused KEY TYPE WHY [MODE...]: each mode says so, and leaves the key alone.
refused() {
    local mode
    for mode in --status '--status --json' '--forget --yes' -n '-w 1' '-n -s' '-n --slots 2' \
        '-n --once'; do
        # shellcheck disable=SC2086
        says 65 "the key '$1' $3" $mode "$L" $([[ $mode == --* ]] || echo touch ran) || return
        [ "$(rcli type "$1")" = "$2" ] || fail "$mode: $(rcli type "$1")" || return
    done
    [ ! -e ran ]
    rcli del "$1"
}

@test "each mode names a key of another type, and leaves it alone" {
    local type p="{$NAME}:dlock:" why="not one of dlock; use another name"
    for type in hash list set zset stream; do
        made $type "$NAME"
        refused "$NAME" $type "is a $type, not a lock of dlock or SET NX; use another name"
    done
    for type in hash string; do
        made $type "${p}queue"
        refused "${p}queue" $type "is a $type, $why"
    done
    made hash "${p}fence"
    refused "${p}fence" hash "is a hash, $why"
    rcli zadd "${p}queue" 1 waiter
    made string "${p}waiters"
    refused "${p}waiters" string "is a string, $why"
    # The run record does not hide who holds the lock.
    rcli del "${p}queue"
    made hash "${p}once"
    CI=1 says 0 "a hash at the key '${p}once'" --status "$L"
    says 65 "a hash at the key '${p}once'" --forget --yes "$L"
}

@test "a holder whose key another client has, or of another type, has lost the lock" {
    hold --ttl 1
    rcli eval 'redis.call("DEL", KEYS[1]); return redis.call("HSET", KEYS[1], "f", "v")' 1 "$NAME"
    exits 79 5 "$HOLDER"
    file_has hold.log "another program took the lock"
    rcli del "$NAME"
    hold --ttl 1
    rcli set "$NAME" "$(printf %032d 7) dlock1 host=h9 pid=77 user=ann since=1 waited=0 cmd=x \
note= ttl=9000" px 9000
    exits 79 5 "$HOLDER"
    file_has hold.log "ann@h9, pid 77 holds the lock now" || fail "$(cat hold.log)"
    rcli del "$NAME"
}

@test "refuses a wrong password and does not show it" {
    own_server --requirepass right
    L="redis://:wr0ng@127.0.0.1:${REDIS_PORTS[own]}#$NAME"
    run -77 run_t 5 "$DLOCK" -v "$L" true
    refute_out wr0ng
    says 77 REDISCLI_AUTH "redis://127.0.0.1:${REDIS_PORTS[own]}#$NAME" true
    REDISCLI_AUTH=right run -0 run_t 5 "$DLOCK" "redis://127.0.0.1:${REDIS_PORTS[own]}#$NAME" true
    run -0 run_t 5 "$DLOCK" "redis://:right@127.0.0.1:${REDIS_PORTS[own]}#$NAME" true
}

@test "shows no password that the server quotes" {
    own_server --rename-command AUTH ""
    local url
    for url in "redis://:c4nary-pw@127.0.0.1" "redis://c4nary-user:c4nary-pw@127.0.0.1"; do
        # It does quote them.
        rcli_in own auth c4nary-user c4nary-pw | grep c4nary-pw
        L="$url:${REDIS_PORTS[own]}#$NAME"
        says 77 AUTH -v "$L" touch ran
        refute_out c4nary
        run -77 run_t 5 "$DLOCK" --status "$L"
        refute_out c4nary
    done
    REDISCLI_AUTH=c4nary-pw run run_t 5 "$DLOCK" -v "redis://127.0.0.1:${REDIS_PORTS[own]}#$NAME" \
        touch ran
    assert_rc 77
    refute_out c4nary
    [ ! -e ran ]
    own_gone
}

@test "a wrong user leaves no lock behind" {
    own_server
    run -77 run_t 5 "$DLOCK" "redis://nobody:wr0ng@127.0.0.1:${REDIS_PORTS[own]}#$NAME" touch ran
    [ ! -e ran ]
    own_gone
}

@test "a user without tracking polls" {
    own_server
    rcli_in own acl setuser u on '>pw' '~*' '&*' +@all -client
    L="redis://u:pw@127.0.0.1:${REDIS_PORTS[own]}#$NAME"
    rcli_in own set "$NAME" x px 60000
    start_log w.log "$DLOCK" "$L" sh -c "$(stamp got)"
    own_waits_for 1
    wakes 400 "$STARTED" own del "$NAME"
    own_gone
}

@test "each missing right is named, with the manual's rule" {
    own_server
    local u="redis://u:pw@127.0.0.1:${REDIS_PORTS[own]}" p="{$NAME}:dlock:" rules options want
    local share='+zcount +zrangebyscore +zrevrangebyscore +zremrangebyscore +getrange'
    while IFS='|' read -r rules options want; do
        # shellcheck disable=SC2086
        rcli_in own acl setuser u reset on '>pw' '~*' '&*' +@all $rules
        # shellcheck disable=SC2086
        run -77 run_t 5 "$DLOCK" ${options//URI/$u}
        [[ $output == *": the ACL user lacks a right: ACL SETUSER USER $want" ]] ||
            fail "$rules: $output"
    done <<END
-eval -evalsha|-n URI#$NAME touch ran|+eval
-set -zadd -time|-n URI#$NAME touch ran|+time +set +zadd
-time -get|--status URI#$NAME|+get +time
-time -get|--forget --yes URI#$NAME|+get +time
resetkeys|-n URI#$NAME touch ran|~$NAME ~$p*
resetkeys ~$NAME|-n URI#$NAME touch ran|~$p*
${share//+/-}|-n -s URI#$NAME touch ran|$share
-zremrangebyscore|-n --slots 2 URI#$NAME touch ran|+zremrangebyscore
-info|-n URI?restart-grace=1ms#$NAME touch ran|+info
-select|-n URI/3#$NAME touch ran|+select
-wait|-n URI?wait-replicas=1#$NAME touch ran|+wait
END
    [ ! -e ran ]
    own_gone
}

@test "a refused release is not called unanswered" {
    own_server
    local p=${REDIS_PORTS[own]} rule i=0 want=('' +publish "&{$NAME.2}:dlock:*")
    # The next waiter is told by a message that this user may not send.
    for rule in '&* -publish' 'resetchannels +publish'; do
        # shellcheck disable=SC2086
        rcli_in own acl setuser u on '>pw' '~*' +@all $rule
        L="redis://u:pw@127.0.0.1:$p#$NAME.$((i += 1))" hold
        start_log w.log "$DLOCK" "redis://127.0.0.1:$p#$NAME.$i" true
        wait_for 5 eval '[ "$(rcli_in own zcard "{$NAME.$i}:dlock:queue")" = 1 ]'
        let_go 0
        file_has hold.log "redis://127.0.0.1:$p/0: the release of '$NAME.$i' is not confirmed: \
the ACL user lacks a right: ACL SETUSER USER ${want[i]}"
        [ "$(wc -l <hold.log)" = 1 ]
        exits 0 5 "$STARTED"
    done
    own_gone
}

# unconfirmed TEXT CMD...: CMD, and a release that the server does not take from then on.
unconfirmed() {
    own_server
    hold --connect-timeout 1
    "${@:2}"
    let_go 0
    file_has hold.log "is not confirmed: $1" || fail "$*: $(cat hold.log)"
    [ "$(wc -l <hold.log)" = 1 ]
}

@test "an unconfirmed release keeps the last words of the server" {
    unconfirmed "the server refuses (NOREPLICAS" own config set min-replicas-to-write 1
    unconfirmed "the server is a replica (READONLY" own replicaof 127.0.0.1 1
    unconfirmed "cannot connect: Connection refused" redis_kill own
}

@test "a Unix socket, its database, IPv6" {
    own_server --unixsocket "$T/s" --bind '127.0.0.1 ::1'
    run -0 run_t 5 "$DLOCK" "redis+unix://$T/s#$NAME" redis-cli -s "$T/s" exists "$NAME"
    [ "$output" = 1 ]
    run run_t 5 "$DLOCK" "redis+unix://$T/s?db=3#$NAME" redis-cli -s "$T/s" -n 3 exists "$NAME"
    [ "$output" = 1 ]
    run -0 run_t 5 "$DLOCK" "redis://[::1]:${REDIS_PORTS[own]}#$NAME" true
    # localhost may be ::1 first, where nobody listens
    run -0 run_t 5 "$DLOCK" "redis://localhost:$REDIS_PORT#$NAME" true
    run -69 run_t 5 "$DLOCK" "redis+unix://$T/none#$NAME" true
}

@test "a replica is refused with the reason, even if it may write" {
    rcli config set repl-diskless-sync-delay 0
    own_server --replicaof "127.0.0.1 $REDIS_PORT"
    says 69 replica --connect-timeout 2 "$L" true
    # Its copy of the key tells nothing: the lock may be free by now.
    rcli set "$NAME" x px 60000
    wait_for 5 eval '[ "$(own exists "$NAME")" = 1 ]'
    says 69 replica --connect-timeout 2 -n "$L" true
    says 69 replica --connect-timeout 2 -w 0.5 "$L" true
    says 69 replica --connect-timeout 2 --status "$L"
    rcli del "$NAME"
    # Nor may it grant anything where it may write.
    own config set replica-read-only no
    wait_for 5 own_gone
    says 69 replica --connect-timeout 2 -n "$L" touch ran
    [ ! -e ran ]
    [ -z "$(own --scan --pattern "*$NAME*")" ]
    # It is the master now.
    own replicaof no one
    run -0 run_t 5 "$DLOCK" -n "$L" true
}

# A server that is made a replica in a hold, and whose master has the key, may no longer renew it.
@test "a renewal by a replica that may write does not count" {
    rcli config set repl-diskless-sync-delay 0
    own_server --replica-read-only no
    start_log out "$DLOCK" --ttl 2 --grace 0.2 "$L" sh -c 'echo >held; exec sleep 20'
    wait_for 5 test -e held
    rcli set "$NAME" "$(own get "$NAME")" px 60000
    own replicaof 127.0.0.1 "$REDIS_PORT"
    exits 79 4 "$STARTED"
    file_has out replica || fail "$(cat out)"
    rcli del "$NAME"
}

# ------------------------------------------------- the set-up of the server ---

@test "warns of a server that evicts or forgets locks" {
    own_server --appendonly no --maxmemory 100mb --maxmemory-policy volatile-lru
    local i
    for i in 1 2 3 4 5; do
        CI=1 run -0 run_t 5 "$DLOCK" "$L" true
        [ "${#lines[@]}" = 2 ]
        assert_out "127.0.0.1:${REDIS_PORTS[own]}"
        assert_out "(maxmemory-policy volatile-lru)"
        assert_out "?restart-grace=30s before the '#' (of @NAME: in DLOCK_STORE)"
    done
    # The advice can be followed, also by a user of @NAME.
    CI=1 DLOCK_STORE=${L%#*}?restart-grace=30s run -75 run_t 5 "$DLOCK" -n "@$NAME" true
    assert_out "restart-grace: the server started recently"
    run -0 run_t 5 "$DLOCK" -q "$L" true
    [ -z "$output" ]
    # Nobody who has not been granted anything asks.
    rcli_in own set "$NAME" x px 60000
    rcli_in own config resetstat
    CI=1 run -75 run_t 5 "$DLOCK" -n "$L" true
    [ "${#lines[@]}" = 1 ]
    # The script itself has asked for the role.
    rcli_in own info commandstats | grep -q '^cmdstat_info:calls=1,' || fail "asked"
    rcli_in own del "$NAME"
    # Without a limit nothing is evicted.
    rcli_in own config set maxmemory 0
    rcli_in own config set appendonly yes
    CI=1 run run_t 5 "$DLOCK" "$L" true
    [ -z "$output" ]
}

@test "warns of a password that the server does not have" {
    local who
    for who in :c4nary default:c4nary; do
        L="redis://$who@127.0.0.1:$REDIS_PORT#$NAME"
        CI=1 says 0 "a password was sent, but this server has none" "$L" true
        [ "${#lines[@]}" = 1 ] || fail "$output"
        refute_out c4nary
        run -0 run_t 5 "$DLOCK" "$L" true
        [ -z "$output" ]
    done
}

@test "a server without INFO is warned of, and grants" {
    own_server --rename-command INFO ''
    CI=1 run -0 run_t 5 "$DLOCK" "$L" true
    [ "${#lines[@]}" = 1 ]
    assert_out "INFO is refused"
    own_gone
}

# -------------------------------------------------- URLs as people have them ---

@test "spellings of one database are one lock" {
    local at=127.0.0.1:$REDIS_PORT u
    own_server --unixsocket "$T/s"
    redis-cli -s "$T/s" -n 3 set "$NAME" x px 60000
    for u in "redis+unix://$T/s?db=3" "redis+unix://$T/s?database=3&timeout=5"; do
        run -75 run_t 5 "$DLOCK" -qn "$u#$NAME" touch ran
    done
    run -0 run_t 5 "$DLOCK" -n "redis+unix://$T/s?db=2#$NAME" true
    rcli -n 3 set "$NAME" x px 60000
    for u in "redis://$at/3" "redis://$at?db=3" "redis://$at/3?db=3" "valkey://$at/?database=3" \
        "redis://$at?virtual_host=3" \
        "redlock://$at?db=3" "redis://$at/03?pool_size=5"; do
        run -75 run_t 5 "$DLOCK" -qn "$u#$NAME" touch ran
    done
    for u in "redis://$at" "redis://$at/3?db=2" "redis://$at?pool_size=3"; do
        run run_t 5 "$DLOCK" -n "$u#$NAME" redis-cli -p "$REDIS_PORT" exists "$NAME"
        case $u in
        *3?db=2)
            assert_rc 64
            assert_out "redis://$at/3: /3 and db=2 are two databases"
            ;;
        *) # in database 0, to which redis-cli goes as well
            assert_rc 0
            [ "$output" = 1 ]
            ;;
        esac
    done
    rcli -n 3 del "$NAME"
    [ ! -e ran ]
}

@test "-v names ignored parameters, and no output has a password" {
    local u v
    rcli acl setuser "$NAME" on '>c4nary' '~*' '&*' +@all
    u="redis://$NAME:c4nary@127.0.0.1:$REDIS_PORT"
    u+="?socket_timeout=5&protocol=3&decode_responses=c4nary#$NAME"
    for v in "" -q; do
        run -0 run_t 5 "$DLOCK" $v "$u" true
        [ -z "$output" ] || fail "$output"
    done
    for v in "-v" "-v --status"; do
        # shellcheck disable=SC2086
        run -0 run_t 5 "$DLOCK" $v "$u" $([ "$v" != -v ] || echo true)
        [ "$(grep -c "redis://127.0.0.1:$REDIS_PORT/0: ignored the parameters of other programs: \
socket_timeout, protocol, decode_responses" <<<"$output")" = 1 ] ||
            fail "$output"
        refute_out c4nary
    done
    for v in "password=c4nary" "username=c4nary" "ssl_cert_reqs=c4nary" "frob=c4nary" \
        "password=a&c4nary" "db=c4nary" \
        "a=1?password=c4nary" "password=a?c4nary=1"; do
        run -64 run_t 5 "$DLOCK" -v "${u%%\?*}?$v#$NAME" touch ran
        [ "${#lines[@]}" = 1 ]
        refute_out c4nary
    done
    [ ! -e ran ]
}
