#!/usr/bin/env bats
# gss.bats - Kerberos and directory servers before PostgreSQL: libpq blocks while it asks them, and
# they may not answer.

load ../../support/pgtests

# The user has a ticket, and the Kerberos server does not answer. asked: it was asked since then.
silent_kdc() {
    listener silent_kdc "$T"
    export KRB5_CONFIG=$T/krb5.conf KRB5CCNAME=FILE:$T/ccache
    U="postgres://postgres@localhost:$PG_PORT/postgres"
    L="$U#$NAME"
}
asked() { [ -s "$T/asked" ]; }

# by_tcp METHOD: how the server of this test authenticates who comes by TCP; pgsql comes by the
# socket.
by_tcp() { hba 'local all all trust' "host all all 127.0.0.1/32 $1"; }
by_socket() {
    timeout -k 2 30 "$PG_BIN/psql" -X -q -A -t -h "$PG_SOCK" -p "$PG_PORT" -U postgres -d postgres \
        "$@" 3>&-
}

# The tests with a silent server are "plain": with a sanitizer dlock does not leave by _exit(2), and
# the exit handlers of Kerberos and LDAP destroy what the thread that still waits uses.

# bounds URI CMD...: dlock keeps its bounds, and TERM ends it at once; CMD: it has got stuck.
bounds() {
    local url=$1
    shift
    rm -f asked
    timed -w 0.5 "$url" touch ran
    assert_rc 69 && assert_between 500 "$took" $((900 + BUSY)) "-w (ms)" && "$@" || return
    timed --status --connect-timeout 0.5 "$url"
    assert_rc 69 && assert_between 500 "$took" $((900 + BUSY)) "--status (ms)" || return
    rm -f asked
    start_log out "$DLOCK" --connect-timeout 20 "$url" touch ran
    wait_for 5 "$@" || return
    dies_by TERM 400 || return
    [ ! -e ran ]
}

# bats test_tags=thread
@test "a silent Kerberos server is not asked unless GSS is wanted" {
    silent_kdc
    for mode in advisory lease; do
        run -0 run_t 10 "$DLOCK" -w 2 "$U?mode=$mode#$NAME" touch ran.$mode
        [ -e ran.$mode ]
    done
    if asked; then fail "it was asked"; fi
}

# bats test_tags=plain
@test "a silent Kerberos server delays neither -w nor TERM" {
    own_server
    silent_kdc
    # Encryption, then authentication.
    PGGSSENCMODE=prefer bounds "$L" asked
    by_tcp gss
    bounds "$U?mode=lease#$NAME" asked
}

# bats test_tags=plain
@test "no thread waits for a database server, and a silent one delays neither -w nor TERM" {
    listener silent_kdc "$T" # silent to any client
    export PGPASSWORD=x      # no password file
    for mode in advisory lease; do
        L="postgres://u@127.0.0.1:$LISTENS/x?mode=$mode#$NAME"
        bounds "$L" asked || fail "$mode"
        rm -f asked
        start_log out "$DLOCK" --connect-timeout 20 "$L" touch ran
        wait_for 5 asked
        [ "$(ls "/proc/$STARTED/task" | wc -l)" = 1 ]
        kill -TERM "$STARTED"
        exits 143 5 "$STARTED"
    done
}

# bats test_tags=plain
@test "a silent directory server delays neither -w nor TERM" {
    listener silent_kdc "$T"
    printf '%s\n' '[far]' "ldap://127.0.0.1:$LISTENS/dc=test?uid?sub?(cn=far)" >services
    export PGSERVICEFILE=$T/services
    bounds "postgres:///postgres?service=far#$NAME" asked
    run -69 "$DLOCK" -w 0.1 "postgres:///postgres?service=far#$NAME" touch ran
    assert_out "no answer within 100 ms"
    bounds "postgres://postgres@127.0.0.1:$PG_PORT/postgres?service=far&mode=lease#$NAME" asked
}

# bats test_tags=plain
@test "renewals and TERM go on while a Kerberos server is silent" {
    own_server
    silent_kdc
    PGGSSENCMODE=disable background --ttl 4 "$U?mode=lease#$NAME" $SUBJECT -k -u "$T/end" -r 7
    wait_for 5 running
    by_tcp gss
    by_socket -c "select pg_terminate_backend(pid) from pg_stat_activity
        where application_name like 'dlock:%'"
    wait_for 5 asked
    kill -TERM "$K"
    wait_for 1 has_seen main sig 15
    by_tcp trust
    is_renewed() {
        [ "$(by_socket -c "select expires - clock_timestamp() > '2.8 s' from dlock_locks
            where name = '$NAME'")" = t ]
    }
    wait_for 3 is_renewed
    touch end
    exits 7 5 "$K"
}
