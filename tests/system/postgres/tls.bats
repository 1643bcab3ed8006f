# PostgreSQL over TLS: libpq does it, but on our non-blocking connection, and the cancel goes beside
# it.

load ../../support/pgtests
load ../../support/tls

install_certificate() {
    install -m 600 "$TLS/server.key" "$TLS/server.crt" "$PG_DIR/"
    [ "$(id -u)" -ne 0 ] || chown nobody:nogroup "$PG_DIR/server.key" "$PG_DIR/server.crt"
}
setup_file() {
    export BATS_NO_PARALLELIZE_WITHIN_FILE=true # one looks at the server's log
    tls_certs
    pg_start
    install_certificate
    # Nothing is served without TLS.
    sed -i 's/^host  *all/hostssl all/' "$PG_DIR/pg_hba.conf"
    pg_restart default fast -c ssl=on
}
setup() {
    dlock_setup
    CA="sslrootcert=$TLS/ca.crt"
    BASE="postgres://postgres@localhost:$PG_PORT/postgres"
}

# bats test_tags=thread
@test "both modes work over TLS with a verified certificate" {
    before=$(wc -l <"$PG_LOG")
    for mode in advisory lease; do
        L="$BASE?sslmode=verify-full&$CA&mode=$mode#$NAME"
        hold
        run -75 run_t 5 "$DLOCK" -w $((SLOW > 0 ? 2 : 0)).3 "$L" true
        start_log waiter.log "$DLOCK" "$L" true
        waiter=$STARTED
        wait_for 5 waiters_are 1
        let_go
        wait_exit 5 "$waiter"
    done
    # The cancel request of the wait that was over was understood: it left without a word in the
    # log.
    ! tail -n "+$((before + 1))" "$PG_LOG" | grep -E 'FATAL|could not|reset by peer' || fail "found"
}

@test "--check warns of a distant server that is not verified" {
    # For dlock this address is no loopback.
    local at="postgres://postgres@0.0.0.0:$PG_PORT/postgres"
    run -1 run_t 5 "$DLOCK" --check "$at?sslmode=require#$NAME"
    assert_out "warning  certificate: not verified; use sslmode=verify-full"
    run -1 run_t 5 "$DLOCK" --check "$at?sslmode=verify-ca&$CA#$NAME"
    assert_out "certificate: ends in "
    refute_out "not verified"
}

@test "--check tells the end of the certificate" {
    L="$BASE?sslmode=verify-full&$CA#$NAME"
    run -1 run_t 5 "$DLOCK" --check "$L"
    # In a second of its making it has two days, then one.
    [[ $output == *"warning  certificate: ends in "@(1|2)" day"*"; renew it"* ]] || fail "$output"
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 90 \
        -keyout "$PG_DIR/server.key" -out "$PG_DIR/server.crt" -subj /CN=localhost 2>/dev/null
    chown --reference="$PG_DIR/pg_hba.conf" "$PG_DIR/server.key" "$PG_DIR/server.crt"
    chmod 600 "$PG_DIR/server.key"
    pgsql -c 'select pg_reload_conf()'
    ends_late() {
        run run_t 5 "$DLOCK" --check \
            "$BASE?sslmode=verify-ca&sslrootcert=$PG_DIR/server.crt#$NAME" &&
            [[ $output == *"ok       certificate: ends in "@(89|90)" days"* ]]
    }
    wait_for 5 ends_late
    install_certificate
    pgsql -c 'select pg_reload_conf()'
}

@test "refuses a bad certificate before it sends a password" {
    local secret=postgres://u:$NAME-secret
    for p in "$secret@other.test:$PG_PORT/postgres?hostaddr=127.0.0.1&sslmode=verify-full&$CA" \
        "$secret@localhost:$PG_PORT/postgres?sslmode=verify-ca&sslrootcert=$TLS/noca.crt" \
        "$secret@localhost:$PG_PORT/postgres?sslmode=verify-full&sslrootcert=/nonexistent"; do
        says 69 certificate "$p#$NAME" touch ran
        refute_out secret
        [ ! -e ran ]
    done
}

@test "never falls back to a plain connection" {
    run -77 run_t 5 "$DLOCK" "$BASE?sslmode=disable#$NAME" touch ran
    [ ! -e ran ]
}

@test "libpq's variables for it are heeded; the URI has precedence" {
    export HOME=$T # no ~/.postgresql
    export PGSSLMODE=verify-full
    says 69 certificate "$BASE#$NAME" touch ran
    PGSSLROOTCERT=$TLS/noca.crt run -69 run_t 5 "$DLOCK" "$BASE#$NAME" touch ran
    export PGSSLROOTCERT=$TLS/ca.crt
    run -0 run_t 5 "$DLOCK" "$BASE#$NAME" true
    run -0 run_t 5 "$DLOCK" "$BASE?mode=lease#$NAME" true
    export PGSSLMODE=disable
    run -77 run_t 5 "$DLOCK" "$BASE#$NAME" touch ran
    run -0 run_t 5 "$DLOCK" "$BASE?sslmode=verify-full#$NAME" true
    [ ! -e ran ]
}

@test "heeds libpq's variables for the session only" {
    shows() {
        pgsql -c "select 1 from pg_stat_activity where application_name = 'mine'" | grep -q 1
    }
    for mode in advisory lease; do
        L="$BASE?mode=$mode#$NAME"
        PGAPPNAME=mine hold
        shows || fail "$mode: PGAPPNAME is not shown"
        PGAPPNAME=other run -75 run_t 5 "$DLOCK" --status "$L"
        assert_out ", pid $HOLDER ("
        let_go
        PGOPTIONS='-c nosuch=1' run -69 run_t 5 "$DLOCK" "$L" touch ran
        assert_out nosuch
        PGTARGETSESSIONATTRS=standby PGCLIENTENCODING=SJIS run -0 run_t 5 "$DLOCK" "${L}表" true
        [ -z "$output" ]
    done
    listener hostile_server nothing
    PGCONNECT_TIMEOUT=60 run -69 run_t 5 "$DLOCK" --connect-timeout 0.5 \
        "postgres://postgres@127.0.0.1:$LISTENS/postgres#$NAME" touch ran
    assert_out "no answer"
    [ ! -e ran ]
}
