#!/usr/bin/env bats
# login.bats - log in to MySQL and MariaDB: TLS, the accounts' plugins, and servers that must not
# learn the password.

# bats file_tags=long
load ../../support/common
load ../../support/mysql
load ../../support/tls

SECRET=hunter2-s3cr3t

setup_file() {
    export BATS_NO_PARALLELIZE_WITHIN_FILE=true # the server's counters are compared
    tls_certs
    my_start --skip-ssl
    MY_CERTS=$(server_folder my)
    export MY_CERTS TLS_PORT TLS_SOCK PLUGINS=mysql_native_password
    install -m 600 "$TLS/server.key" "$TLS/server.crt" "$TLS/ca.crt" "$MY_CERTS/"
    [ "$(id -u)" -ne 0 ] || chown nobody:nogroup "$MY_CERTS"/*
    my_start_in tls "--ssl-cert=$MY_CERTS/server.crt" "--ssl-key=$MY_CERTS/server.key" \
        "--ssl-ca=$MY_CERTS/ca.crt"
    TLS_PORT=${MY_PORTS[tls]} TLS_SOCK=${MY_SOCKS[tls]}
    account mysql_native_password
    ! mysql -e "INSTALL SONAME 'auth_ed25519'" 2>"$BATS_FILE_TMPDIR/log" ||
        ! mysql_in tls -e "INSTALL SONAME 'auth_ed25519'" || {
        account ed25519
        PLUGINS+=' ed25519'
    }
}
teardown_file() {
    my_stop_all
    rm -rf "$MY_CERTS"
}
# An account of that name and plugin on both servers.
account() {
    local name
    for name in default tls; do
        mysql_in $name -e "CREATE USER $1 IDENTIFIED VIA $1 USING PASSWORD('$SECRET');
            GRANT ALL ON app.* TO $1"
    done
}
setup() {
    dlock_setup
    CA=ssl-ca=$TLS/ca.crt
}

# at USER PORT [PARAMETER...]: a lock there.
at() {
    local IFS='&'
    echo "mysql://$1:$SECRET@${HOST:-127.0.0.1}:$2/app?${*:3}#$NAME"
}
handshakes() { # without one for the question
    MY_SOCK=$TLS_SOCK mysql --skip-ssl -e "SHOW GLOBAL STATUS LIKE 'Ssl_accepts'" | cut -f 2
}

# logs_in LOCK: and takes it; $TLS_USED: the TLS handshakes of the second server for it.
logs_in() {
    local before
    before=$(handshakes)
    run -0 run_t 10 "$DLOCK" -n "$1" true
    [ -z "$output" ] || fail "$1: $output" || return
    TLS_USED=$(($(handshakes) - before))
}

@test "every ssl-mode logs in with every plugin, or refuses the server" {
    local plugin mode
    for plugin in $PLUGINS; do
        for mode in disabled preferred required verify_identity; do
            [ $mode = verify_identity ] && local ca=$CA HOST=localhost || local ca= HOST=127.0.0.1
            logs_in "$(at "$plugin" "$TLS_PORT" ssl-mode=$mode $ca)"
            case $mode in
            disabled) [ $TLS_USED = 0 ] || fail "$plugin $mode: TLS is used" ;;
            *) [ $TLS_USED -gt 0 ] || fail "$plugin $mode: TLS is not used" ;;
            esac
            case $mode in
            disabled | preferred) logs_in "$(at "$plugin" "$MY_PORT" ssl-mode=$mode)" ;;
            required) never 69 "$(at "$plugin" "$MY_PORT" ssl-mode=$mode)" 'not offer TLS' ;;
            *) never 69 "$(at "$plugin" "$MY_PORT" ssl-mode=$mode $ca)" TLS ;;
            esac
        done
    done
    # Nothing is said of it: TLS where the server has it.
    logs_in "$(at "$plugin" "$TLS_PORT")"
    [ $TLS_USED -gt 0 ]
}

@test "refuses a server of another authority, and of another name" {
    local HOST=localhost mode
    for mode in verify_identity verify_ca; do
        never 69 "$(at mysql_native_password "$TLS_PORT" ssl-mode=$mode "ssl-ca=$TLS/noca.crt")" \
            certificate
    done
    # A file of authorities is enough.
    never 69 "$(at mysql_native_password "$TLS_PORT" "ssl-ca=$TLS/noca.crt")" certificate
    logs_in "$(at mysql_native_password "$TLS_PORT" "$CA")"
    [ $TLS_USED -gt 0 ]
    never 69 "$(at mysql_native_password "$TLS_PORT" "ssl-ca=/nonexistent")" ''
    fake full '' wrong
    never 69 "$(at u "$LISTENS" "$CA")" certificate
    nothing_given
    # The plugin that asks for the password has it only from such a server.
    fake full '' server
    run -76 run_t 5 "$DLOCK" -n "$(at u "$LISTENS" "$CA")" true
    grep -qaF "$SECRET" wire.inside || fail "$(told)"
    ! grep -qaF "$SECRET" wire.wire || fail "plain text"
}

@test "refuses a wrong password, and a database that is not there or not for us" {
    local plugin
    for plugin in $PLUGINS; do
        SECRET=hunter2-wr0ng never 77 "$(SECRET=hunter2-wr0ng at "$plugin" "$MY_PORT")" \
            "Access denied for user '$plugin'"
    done
    mysql -e "CREATE DATABASE IF NOT EXISTS other; CREATE OR REPLACE USER everywhere IDENTIFIED BY
        '$SECRET'; GRANT ALL ON *.* TO everywhere"
    never 77 "mysql://$plugin:$SECRET@127.0.0.1:$MY_PORT/other#$NAME" "Access denied" other
    never 69 "mysql://everywhere:$SECRET@127.0.0.1:$MY_PORT/nowhere#$NAME" "database 'nowhere'"
    # Not even whether it is there.
    never 77 "mysql://$plugin:$SECRET@127.0.0.1:$MY_PORT/nowhere#$NAME" "Access denied" nowhere
}

# ------------------------------------------------------- servers not to trust ---

# fake HOW [PLUGIN [CERTIFICATE]]: it listens at $LISTENS; wire and wire.wire: what it was told.
fake() {
    fresh wire wire.wire wire.inside
    listener fakemysql wire "$1" "${2:-}" ${3:+"$TLS/$3.crt" "$TLS/$3.key"}
}
told() { cut -c 1-300 wire | head -n 20; }
# Neither the password, in TLS or not, nor the answer to the request for it, nor a file.
nothing_given() {
    ! grep -aF -e GIVEN -e "$SECRET" wire wire.wire wire.inside || fail "given away: $(told)"
}

@test "the password goes to no server that asks for it without TLS" {
    local mode plugin
    # never: a line that says why, within the time.
    for mode in disabled preferred required; do
        fake full
        never 77 "$(at u "$LISTENS" ssl-mode=$mode)" 'asks for the password itself'
        nothing_given
        # It has tried, and the second time with a scramble alone.
        [ "$(grep -c 'plain .*caching_sha2_password' wire)" -ge 1 ] || fail "$(told)"
    done
    for plugin in mysql_clear_password dialog sha256_password mysql_old_password no_such_plugin; do
        for mode in disabled preferred required; do
            fake switch $plugin
            never 77 "$(at u "$LISTENS" ssl-mode=$mode)" 'not safe'
            nothing_given
        done
    done
    fake switch caching_sha2_password
    never 77 "$(at u "$LISTENS")" 'asks for the password itself'
    nothing_given
}

@test "in TLS only MySQL's own plugin has the password, and in plain text none" {
    local plugin mode
    for plugin in mysql_clear_password dialog sha256_password no_such_plugin; do
        fake switch $plugin server
        never 77 "$(at u "$LISTENS")" 'not safe'
        nothing_given
        # Also where the server is verified.
        HOST=localhost never 77 "$(HOST=localhost at u "$LISTENS" "$CA")" 'not safe'
        nothing_given
    done
    for mode in preferred required; do
        fake full '' server
        never 76 "$(at u "$LISTENS" ssl-mode=$mode)" 'unexpected answer'
        grep -qaF "$SECRET" wire.inside || fail "not in TLS: $(told)"
        ! grep -qaF "$SECRET" wire.wire || fail "plain text"
    done
    fake full '' server
    never 77 "$(at u "$LISTENS" ssl-mode=disabled)" 'asks for the password itself'
    nothing_given
}

@test "a server without TLS gets a scramble at most where TLS is required" {
    local how
    for how in fast full; do
        fake $how
        CODE=77
        [ $how = full ] || CODE=69
        never $CODE "$(at u "$LISTENS" ssl-mode=required)" ''
        nothing_given
    done
    fake fast
    never 69 "$(HOST=localhost at u "$LISTENS" "$CA")" TLS
    nothing_given
    # And no statement.
    ! grep -F "b'\\x03" wire || fail "it was asked"
}

@test "nonsense and silence end with a line within the time" {
    local how way CONNECT_TIMEOUT=1
    for how in babble half; do
        fake $how
        never 69 "$(at u "$LISTENS")" ''
        nothing_given
    done
    # The library takes it for the name of a plugin.
    fake garbage
    never 77 "$(at u "$LISTENS")" 'not safe'
    nothing_given
    for how in 'greet SSH-2.0-x\r\n' 'for-ever x' 'greet \xff' go reset; do
        listener hostile_server $how
        never 69 "$(at u "$LISTENS")" ''
    done
    for how in silence mute; do
        fake $how
        for way in --connect-timeout=0.5 '-w 0.5'; do
            timed $way "$(at u "$LISTENS")" touch ran
            assert_rc 69
            [ "${#lines[@]}" = 1 ] || fail "$output"
            refute_out "$SECRET"
            assert_between 400 "$took" $((1000 + BUSY + SLOW)) "$how $way (ms)"
        done
        nothing_given
        # A signal ends it as well.
        fake $how
        start_log w.log "$DLOCK" "$(at u "$LISTENS")" touch ran
        wait_for 5 file_has wire open
        kill -TERM "$STARTED"
        exits 143 3 "$STARTED"
    done
    [ ! -e ran ]
}

@test "what a server that was logged in to may not do" {
    local CONNECT_TIMEOUT=1
    fake infile
    never 69 "$(at u "$LISTENS")" ''
    nothing_given
    fake odd
    never 76 "$(at u "$LISTENS")" 'unexpected answer'
    says 76 'unexpected answer' --status "$(at u "$LISTENS")"
    says 76 'unexpected answer' --list "$(at u "$LISTENS")"
    fake fast
    never 76 "$(at u "$LISTENS")" 'unexpected answer'
    # Without end: within the time, and bounded. Which of the two comes first is the machine's.
    fake rows
    case ${SAN:-} in *address* | *thread*) return ;; esac
    run run_t 20 "$ROOT/tests/support/helpers/peak_rss.py" most "$DLOCK" --connect-timeout 1 \
        "$(at u "$LISTENS")" touch ran
    [[ $status.$output == 71.*memory* || $status.$output == 69.*"no answer"* ]] || fail "$output"
    [ "${#lines[@]}" = 1 ] || fail "$output"
    [ "$(cat most)" -lt 250 ] || fail "$(cat most) MiB"
    [ ! -e ran ]
}
