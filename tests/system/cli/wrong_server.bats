#!/usr/bin/env bats
# wrong_server.bats - a URI that leads to no server, or to a server of another kind: the message
# names store, lock and cause, and what seems to be there.

load ../../support/redis
load ../../support/postgres
load ../../support/zookeeper

setup_file() { dlock_setup && redis_start && pg_start && zk_start; }
teardown_file() {
    redis_stop_all
    pg_stop_all
    zk_stop_all
}

@test "a server of another kind: the message says what the URI expects" {
    local uri port hint
    while read -r uri port hint; do
        [ -n "$uri" ] || continue
        says "${hint%% *}" "${hint#* }" -w 3 --connect-timeout 1 \
            "${uri%%/*}//127.0.0.1:$port/${uri#*//}#$NAME" touch ran
        [ "${#lines[@]}" = 1 ] || fail "$output"
        assert_out "dlock: ${uri%%/*}//127.0.0.1:$port/${uri#*//}" "(lock '$NAME')"
    done <<END
redis://0 $PG_PORT 69 without an answer (is it a Redis server?)
redis://0 $ZK_PORT 69 without an answer (is it a Redis server?)
redlock://0 $PG_PORT 69 without an answer (is it a Redis server?)
redis+sentinel://s/0 $ZK_PORT 69 without an answer (is it a Redis server?)
rediss://0 $PG_PORT 69 during the TLS handshake (does it speak TLS on this port?)
postgres://db $REDIS_PORT 69 no answer within 1 s: is a PostgreSQL server there?
postgres://db $ZK_PORT 69 no answer within 1 s: is a PostgreSQL server there?
zk://a $REDIS_PORT 69 is it a ZooKeeper server?
zk://a $PG_PORT 76 its answer is not ZooKeeper's protocol
END
    [ ! -e ran ]
}

# bats test_tags=plain
@test "no server, or no such host: names store and lock, and --retry beside -w" {
    local lock retry="; with --retry, -w waits for the store, too"
    for lock in redis://HOST/0 redlock://HOST/0 redis+sentinel://HOST/s/0 postgres://HOST/db \
        zk://HOST/a; do
        says 69 "cannot resolve nosuchhost.invalid: " "${lock/HOST/nosuchhost.invalid}#$NAME" true
        assert_out "dlock: ${lock%%/*}//nosuchhost.invalid:" "(lock '$NAME')"
        refute_out --retry
        says 69 "Connection refused" -w 3 "${lock/HOST/127.0.0.1:1}#$NAME" true
        assert_out "dlock: ${lock/HOST/127.0.0.1:1}: " "(lock '$NAME')$retry"
        run -69 run_t 5 "$DLOCK" -n "${lock/HOST/127.0.0.1:1}#$NAME" true
        refute_out --retry
        # The time of -w has passed: more patience was in vain.
        run -69 run_t 5 "$DLOCK" --retry -w 0.3 "${lock/HOST/127.0.0.1:1}#$NAME" true
        refute_out "; with --retry"
    done
}

@test "a missing directory is named as such" {
    says 73 "cannot open the lock file none/x.lock: its directory is missing" none/x.lock true
    says 73 "cannot open the lock directory $T/none: it is missing" "file://$T/none#x" true
}
