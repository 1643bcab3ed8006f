#!/usr/bin/env bats
# server.bats - advisory locks in PostgreSQL: whom it lets in, with which roles and passwords, and
# servers that are not there, refuse, start, stand by, or are a pooler; what is said.

# bats file_tags=long
load ../../support/pgtests

# ------------------------------------------------------------------ roles ---

# role [SETTING...]: a role that may connect and nothing else; its URI becomes ours.
role() {
    ROLE=${NAME//-/_}
    role_named "$ROLE" "$@"
    U="postgres://$ROLE@127.0.0.1:$PG_PORT/postgres"
    L="$U#$NAME"
}

# In a database where nobody else has a right to anything.
bare_database() {
    pgsql -c "create database \"$NAME\" template postgres"
    pgsql -d "$NAME" -c "revoke all on schema public from public" \
        -c "revoke temp on database \"$NAME\" from public"
    U="${U%/*}/$NAME"
    L="$U#$NAME"
}

# A hold and a wait for longer than a chunk, a poll, a ttl; $took: the hand-off (ms).
hold_and_wait() {
    local t0 n
    hold --ttl 1.5
    rm -f fence
    start_log w.log "$DLOCK" "$L" sh -c 'echo $DLOCK_FENCE >fence'
    wait_for 5 sessions_are 2
    n=$(pg_statements)
    sleep 2 # that long
    pid_alive "$HOLDER"
    sessions_are 2
    # A renewal every 0.4 s, two or three chunks.
    assert_between 4 $(($(pg_statements) - n)) 13 "statements"
    says 75 "pid $HOLDER" --status "$L"
    t0=$(now_ms)
    hand_over
    took=$(($(now_ms) - t0))
    [ "$(cat fence)" -gt 0 ]
    [ ! -s hold.log ] && [ ! -s w.log ]
}

@test "a role that may connect and nothing else can do everything" {
    role
    bare_database
    hold_and_wait
    assert_between 0 $took $((400 + SLOW + BUSY)) "hand-off (ms)"
}

# bats test_tags=slow
@test "a role's time-outs end neither wait nor hold" {
    role statement_timeout=100ms lock_timeout=50ms default_transaction_isolation=serializable \
        synchronous_commit=off idle_session_timeout=200ms idle_in_transaction_session_timeout=50ms \
        intervalstyle=iso_8601 standard_conforming_strings=off search_path=nowhere \
        bytea_output=escape
    hold_and_wait
    assert_between 0 $took $((400 + SLOW + BUSY)) "hand-off (ms)"
    L="$U?fair=1#$NAME"
    hold_and_wait
}

@test "a read-only role locks, on no read-only database" {
    local kind
    role default_transaction_read_only=on
    for kind in -x -s "--slots 2"; do
        # shellcheck disable=SC2086
        hold $kind
        start_log w.log "$DLOCK" -x "$U?renew=write&restart-grace=1ms#$NAME" true
        wait_for 5 sessions_are 2
        hand_over
    done
    pgsql -c "alter role $ROLE reset default_transaction_read_only"
    bare_database
    pgsql -d "$NAME" -c "alter database \"$NAME\" set default_transaction_read_only = on"
    fails 69 "the database takes no writes" --connect-timeout 2 "$L"
}

# bats test_tags=slow
@test "a waiter without PL/pgSQL polls once a second" {
    role
    bare_database
    pgsql -d "$NAME" -c "revoke usage on language plpgsql from public"
    hold_and_wait
    assert_between 0 $took $((2000 + SLOW)) "hand-off (ms)"
    pgsql -d "$NAME" -c "drop extension plpgsql cascade"
    hold_and_wait
    assert_between 0 $took $((2000 + SLOW)) "hand-off without the language (ms)"
    # It leaves at once, too.
    hold
    takes 480 1000 75 "$DLOCK" -w 0.5 "$L" true
    let_go
}

@test "--status without rights names the holder's role and the server's process" {
    hold --note hidden
    local pid
    pid=$(pgsql -c "select pid from pg_locks where locktype = 'advisory'")
    role
    run -75 run_t 5 "$DLOCK" --status --json "$L"
    refute_out hidden
    refute_out foreign
    refute_out '"pid"'
    assert_out "\"server_pid\":$pid"
    says 75 "held by postgres, server process $pid" --status "$L"
    refute_out ", pid "
    # Waiting, too, and -n.
    says 75 "$pid" -vn "$L" true
    run -75 run_t 5 "$DLOCK" -w 1.2 "$L" true
    let_go
}

# -------------------------------------------------------- errors, servers ---

# fails CODE TEXT ARG...: dlock ARG... touch ran
fails() {
    local code=$1 text=$2
    shift 2
    run run_t 10 "$DLOCK" "$@" touch ran
    assert_rc "$code"
    assert_out "$text"
    [ "${#lines[@]}" = 1 ] || fail "more than a line: $output"
    [[ $output == dlock:\ * ]]
    [ ! -e ran ]
}

# Parameters are in unit/postgres/test_postgres.c.
@test "names a missing server, database or role" {
    fails 69 "127.0.0.1:1" "postgres://127.0.0.1:1/x#$NAME"
    fails 69 refused "postgres://127.0.0.1:1/x#$NAME"
    fails 69 nodb "postgres://postgres@127.0.0.1:$PG_PORT/nodb#$NAME"
    fails 77 norole "postgres://norole@127.0.0.1:$PG_PORT/postgres#$NAME"
    fails 64 nosuchparam "$U?nosuchparam=1#$NAME"
    fails 69 "127.0.0.1:1" "$U?port=1#$NAME" # as libpq has it
    fails 64 "24 days" --ttl 25d "$L"
    fails 69 no/where "postgres:///postgres?host=/no/where#$NAME"
    PGSERVICE=nosuch fails 64 nosuch "postgres:///postgres#$NAME"
    run -64 run_t 5 "$DLOCK" --schema "$L"
    # libpq's own names are known.
    run -0 run_t 5 "$DLOCK" \
        "$U?sslmode=disable&connect_timeout=3&application_name=mine&keepalives=1#$NAME" true
    run -0 run_t 5 "$DLOCK" "$U?options=-csearch_path%3Dx&gssencmode=disable#$NAME" true
}

# ------------------------------------------------ URLs as people have them ---

@test "spellings of one database are one lock" {
    local at=${U#*://} u
    hold
    for u in "postgresql+psycopg2://$at" \
        "postgres+asyncpg://$at?ssl=0&prepared_statement_cache_size=0" \
        "postgresql://$at?schema=public&connection_limit=1&pgbouncer=true" \
        "postgresql+pg8000://$at?pool_size=5" \
        "postgresql://postgres@localhost:1/postgres?host=$PG_SOCK&port=$PG_PORT"; do
        run -75 run_t 5 "$DLOCK" -qn "$u#$NAME" touch ran
    done
    let_go
    [ ! -e ran ]
}

@test "-v names ignored parameters; those that ask for TLS are heeded" {
    local u="$U?password=c4nary&pool=5&pgbouncer=c4nary&prepareThreshold=0" v
    for v in "" -q; do
        run -0 run_t 5 "$DLOCK" $v "$u#$NAME" true
        [ -z "$output" ] || fail "$output"
    done
    run -0 run_t 5 "$DLOCK" -v "$u#$NAME" true
    assert_out "ignored the parameters of other programs: pool, pgbouncer, prepareThreshold"
    refute_out c4nary
    # The server has no TLS.
    fails 69 SSL "$U?ssl=true#$NAME"
    fails 69 SSL "$U?sslaccept=strict#$NAME"
}

@test "refuses a key that has OpenSSL load a library" {
    printf '%s\n' '[here]' host=127.0.0.1 port="$PG_PORT" "sslkey=$T/x:y" >service
    PGSERVICEFILE=$T/service fails 64 "service's sslkey has a ':'" \
        "postgres://postgres@/postgres?service=here#$NAME"
}

@test "takes the password from every source and shows none" {
    own_server
    local H=127.0.0.1:$PG_PORT/postgres PW=c4nary-Right%x
    pgsql -c "create role u login password '$PW'"
    hba 'host all u 127.0.0.1/32 scram-sha-256' 'host all all 127.0.0.1/32 trust'
    fails 77 "password" "postgres://u:c4nary-wrong@$H#$NAME"
    refute_out c4nary
    fails 77 "password" "postgres://u@$H#$NAME"
    works() {
        run -0 run_t 5 "$DLOCK" "$@" true
        [ -z "$output" ]
    }
    works "postgres://u:c4nary-Right%25x@$H#$NAME"
    PGPASSWORD=$PW works "postgres://u@$H#$NAME"
    PGPASSWORD=$PW PGUSER=u works "postgres://$H#$NAME"
    echo "127.0.0.1:$PG_PORT:*:u:$PW" >pass
    chmod 600 pass
    PGPASSFILE=$T/pass works "postgres://u@$H#$NAME"
    printf '%s\n' '[here]' host=127.0.0.1 port="$PG_PORT" user=u dbname=postgres \
        password="$PW" >service
    PGSERVICEFILE=$T/service PGSERVICE=here works "postgres://#$NAME"
    PGSERVICEFILE=$T/service works "postgres://?service=here#$NAME"
    PGHOST=127.0.0.1 PGPORT=$PG_PORT PGUSER=u PGPASSWORD=$PW PGDATABASE=postgres works \
        "postgres://#$NAME"
    printf '%s\n' "$PW" >pw
    chmod 644 pw
    fails 77 "chmod 600" "postgres://u@$H?password-file=$T/pw#$NAME"
    chmod 600 pw
    works "postgres://u@$H?password-file=$T/pw#$NAME"
    fails 77 "password" "postgres://u:c4nary-wrong@$H?password-file=$T/pw#$NAME"
    refute_out c4nary
}

@test "takes a Unix socket from the URI and from libpq's variables" {
    local u
    for u in "postgres://postgres@/postgres?host=${PG_SOCK//\//%2F}&port=$PG_PORT" \
        "postgres:///postgres" \
        "postgresql://postgres@/postgres?host=$PG_SOCK,127.0.0.1&port=1,$PG_PORT" \
        "postgres://postgres@/postgres?hostaddr=127.0.0.1&port=$PG_PORT" \
        "postgres://postgres@localhost:$PG_PORT/postgres"; do
        [ "$u" != postgres:///postgres ] || local -x PGHOST=$PG_SOCK PGPORT=$PG_PORT PGUSER=postgres
        run -75 run_t 5 "$DLOCK" "$u#$NAME" "$DLOCK" -q -n "$L" true
        unset PGHOST PGPORT PGUSER
    done
}

@test "passes over dead and silent hosts" {
    listener hostile_server nothing
    L="postgres://postgres@127.0.0.1:1,127.0.0.1:$LISTENS,127.0.0.1:$PG_PORT/postgres#$NAME"
    takes 900 1500 0 "$DLOCK" --connect-timeout 2 "$L" echo ran
    assert_out ran
    takes 580 1000 69 "$DLOCK" --connect-timeout 0.6 \
        "postgres://postgres@127.0.0.1:$LISTENS/postgres#$NAME" touch ran
    assert_out "no answer"
    [ "${#lines[@]}" = 1 ] && [ ! -e ran ]
}

@test "tries again until the connect time-out when the server is full" {
    own_server -c max_connections=5 -c superuser_reserved_connections=3 -c max_wal_senders=0
    role
    hold
    start_log w.log pg_session -U "$ROLE" -c '\! echo >second; "$HELPERS/await" sql-go'
    wait_for 5 test -e second
    takes 950 1600 69 "$DLOCK" --connect-timeout 1 "$U#$NAME.2" touch ran
    assert_out connection
    [ "${#lines[@]}" = 1 ] && [ ! -e ran ]
    # One leaves in the meantime.
    start_log w2.log "$DLOCK" --connect-timeout 9 "$U#$NAME.2" true
    refused_often() { [ "$(grep -c "FATAL: .*connection" "$PG_LOG")" -ge 8 ]; }
    wait_for 5 refused_often
    hand_over
    [ ! -s w2.log ]
    echo >sql-go
}

@test "a server that just started grants nothing during the restart grace" {
    own_server
    L="$U?restart-grace=5#$NAME"
    says 75 "(restart-grace)" -vn "$L" touch ran
    [ ! -e ran ]
    # Without it there is no such thing.
    run -0 run_t 5 "$DLOCK" -n "$U#$NAME" true
    run -0 run_t 15 "$DLOCK" -v "$L" "${PSQL[@]}" \
        -c "select 'up for ', clock_timestamp() - pg_postmaster_start_time() between '5 s'
        and '8 s'"
    assert_out "(restart-grace)"
    assert_out "up for |t"
    run -0 run_t 5 "$DLOCK" -n "$L" true
    [ -z "$output" ]
}

@test "waits for a starting server, and the fence grows" {
    own_server
    local before after
    before=$(fence)
    pg_stop own
    # Archive recovery that lasts until the file appears.
    : >"${PG_DIRS[own]}/recovery.signal"
    chmod 666 "${PG_DIRS[own]}/recovery.signal"
    start_log starting.log sh \
        -c 'until "$1" -XAt -h 127.0.0.1 -p "$2" -U postgres -d postgres -c "select 1" 2>&1 |
            grep "starting up"; do sleep .02; done
        "$DLOCK" --connect-timeout 0.5 "$3" touch ran; echo "rc=$?"
        "$DLOCK" -w 0.5 "$3" touch ran; echo "rc=$?"
        "$DLOCK" --connect-timeout 20 "$3" sh -c "echo \$DLOCK_FENCE >after" &
        sleep .5
        echo >"$4/goes-on"
        wait $!; echo "rc=$?"' - "$PG_BIN/psql" "$PG_PORT" "$L" "$PG_SOCK"
    local script=$STARTED
    pg_restart own fast -c \
        restore_command="while [ ! -e '$PG_SOCK/goes-on' ]; do sleep .05; done; false"
    wait_exit 10 "$script"
    cat starting.log
    [ "$(grep rc= starting.log | tr '\n' ' ')" = "rc=69 rc=69 rc=0 " ]
    [ "$(grep -c '^dlock:.*starting up' starting.log)" = 2 ]
    [ ! -e ran ]
    [ "$(cat after)" -gt "$before" ]
    [ $(($(cat after) >> 48)) -gt $((before >> 48)) ]
}

@test "a standby is refused; one that is promoted grants larger fences" {
    own_server
    local before after i at
    # So that the old timeline's log is ahead of where the new one begins.
    before=$(fence)
    pg_standby standby own
    at=postgres://postgres@127.0.0.1:${PG_PORTS[standby]}
    fails 69 "" --connect-timeout 2 "$at/postgres#$NAME"
    # The primary is taken, whatever the order.
    run -75 run_t 5 "$DLOCK" "$at,127.0.0.1:$PG_PORT/postgres#$NAME" "$DLOCK" -q -n "$L" true
    wait_for 5 is_sql "pg_current_wal_lsn() = replay_lsn from pg_stat_replication"
    before=$(fence)
    pg_kill own
    use_server standby
    pgsql -c "select pg_promote()"
    for i in 1 2; do
        after=$(fence)
        [ "$after" -gt "$before" ]
        before=$after
    done
}

# A directory server that is asked for the user's name may not answer; OpenSSL takes milliseconds to
# set itself up.
# bats test_tags=plain
@test "a complete URI needs neither user database nor OpenSSL" {
    need_root # to read the paths of a process that is not dumpable
    if [ -n "${SAN:-}" ]; then return 0; fi # LeakSanitizer does not work under strace
    run -0 run_t 10 strace -f -e trace=openat -o opened "$DLOCK" "$L" true
    run grep -E 'nsswitch|openssl\.cnf' opened
    assert_rc 1
    # libpq looks who it is where nobody says it: strace would have shown that.
    run run_t 10 strace -f -e trace=openat -o opened "$DLOCK" "${L/postgres@/}" true
    grep -q nsswitch opened
}

# replayed EXPRESSION: of the standby's last replayed transaction, t.
replayed() { [ "$(pgsql_in standby -c "select $1 from pg_last_xact_replay_timestamp() t")" = t ]; }
# grace_left EXPRESSION: the milliseconds that are left of 60 s since then.
grace_left() {
    pgsql -c "select (60000 - extract(epoch from clock_timestamp() - ($1)) * 1000)::bigint"
}

@test "a promotion counts as a start for the restart grace" {
    local role since most left least
    own_server
    pgsql -c 'create role plain login'
    pg_standby standby own
    # On a timeline of its own a server was never promoted.
    L="postgres://postgres@127.0.0.1:$PG_PORT/postgres?mode=lease&restart-grace=60#$NAME"
    run -0 run_t 5 "$DLOCK" -n "$L" true
    # Old enough to be told from its promotion. A renewal leaves a transaction, also that of a plain
    # role.
    PG_PORT=${PG_PORTS[standby]} wait_for 5 is_sql \
        "clock_timestamp() - pg_postmaster_start_time() > '1 s'"
    L="postgres://plain@127.0.0.1:$PG_PORT/postgres?restart-grace=1ms#$NAME"
    hold --ttl 2
    since=$(pgsql -c 'select clock_timestamp()')
    wait_for 5 replayed "t > '$since'"
    pg_kill own
    pgsql_in standby -c 'select pg_promote()'
    wait_exit 5 "$HOLDER" || [ $? = 79 ]
    PG_PORT=${PG_PORTS[standby]}
    for role in plain postgres; do
        since='select pg_last_xact_replay_timestamp()'
        [ $role = plain ] || since="select backend_start from pg_stat_activity
            where backend_type = 'walwriter'"
        L="postgres://$role@127.0.0.1:$PG_PORT/postgres?restart-grace=60#$NAME"
        most=$(grace_left "$since")
        run -75 run_t 5 "$DLOCK" -v -n "$L" touch ran
        least=$(grace_left "$since")
        left=$(grep -o 'in [0-9.]* s (restart-grace)' <<<"$output" | awk '{ print int($2 * 1000) }')
        assert_between $((least - 1)) "$left" $((most + 1)) "left of the grace, as $role (ms)"
    done
    run -0 run_t 5 "$DLOCK" -n "${L/=60/=1ms}" true
    # The lease table: since the first try on this timeline. A lock that is held is told as such.
    L="postgres://postgres@127.0.0.1:$PG_PORT/postgres?mode=lease&restart-grace=60#$NAME"
    says 75 "(restart-grace)" -vn "$L" touch ran
    run -75 run_t 5 "$DLOCK" -w 1 "$L" touch ran
    [ ! -e ran ]
    says 75 "held by" -n "${L/&restart-grace=60/}" "$DLOCK" -vn "$L" true
    refute_out "(restart-grace)"
    pgsql -c "update dlock_locks set expires = expires - interval '1 min' where name = ''"
    run -0 run_t 5 "$DLOCK" -n "$L" true
    pgsql -c "update dlock_locks set owner = '00000001' where name = ''"
    says 75 "(restart-grace)" -vn "$L" touch ran
    [ ! -e ran ]
}
