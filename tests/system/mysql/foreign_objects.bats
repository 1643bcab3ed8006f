#!/usr/bin/env bats
# foreign_objects.bats - tables of MySQL that others made, accounts with fewer rights, odd names.

# bats file_tags=long
load ../../support/common
load ../../support/mysql

setup_file() {
    export BATS_NO_PARALLELIZE_WITHIN_FILE=true
    my_start
}
teardown_file() { my_stop_all; }

# A database of the test, and a lock there, of an account $R that may do all in it.
setup() {
    dlock_setup
    DB=d${NAME//-/} R=r${NAME//-/}
    mysql -e "CREATE DATABASE $DB"
    account ALL
    KINDS=('' -s '--slots 2' --once)
}
account() { # RIGHTS
    mysql -e "CREATE OR REPLACE USER $R IDENTIFIED BY 'pw'; GRANT $1 ON $DB.* TO $R"
    U="mysql://$R:pw@127.0.0.1:$MY_PORT/$DB"
    L="$U#$NAME"
}
in_db() { mysql "$@" $DB; }

# refuses CODE TEXT...: a run of each kind, in a line that has each TEXT.
refuses() {
    local kind
    for kind in "${KINDS[@]}"; do
        # shellcheck disable=SC2086
        run run_t 5 "$DLOCK" -n $kind "$L" touch ran
        [ "$status" = "$1" ] && [ "${#lines[@]}" = 1 ] || fail "$kind: $status: $output" || return
        assert_out "${@:2}" || return
    done
    [ ! -e ran ]
}
works() {
    local kind
    for kind in "${KINDS[@]}"; do
        # shellcheck disable=SC2086
        run run_t 5 "$DLOCK" $kind "$L$kind" true
        [ "$status" = 0 ] && [ -z "$output" ] || fail "$kind: $status: $output" || return
    done
}

# ------------------------------------------------------------------- tables ---

# A function that writes where only its caller may, and a view that calls it for each row, in the
# place of the table $1.
view_for() {
    local columns
    columns=$(in_db -e "SELECT GROUP_CONCAT(column_name ORDER BY ordinal_position)
        FROM information_schema.columns WHERE table_schema = '$DB' AND table_name = '$1'")
    in_db -e "RENAME TABLE $1 TO other; CREATE SQL SECURITY INVOKER VIEW $1 AS
        SELECT ${DB}x.f(name) AS name,${columns#name,} FROM other"
}
calls() { mysql "${DB}x" -e "SELECT COUNT(*) FROM witness"; }
not_called() { [ "$(calls)" = 0 ] || fail "code of the view was run: $*"; }

@test "code of a view in a table's place never runs with our rights" {
    local table what kind
    mysql -e "CREATE DATABASE ${DB}x; GRANT ALL ON ${DB}x.* TO $R"
    mysql "${DB}x" -e "CREATE TABLE witness (who TEXT)"
    printf '%s\n' 'DELIMITER //' 'CREATE FUNCTION f(v VARBINARY(255)) RETURNS VARBINARY(255)' \
        'MODIFIES SQL DATA SQL SECURITY INVOKER BEGIN' \
        'INSERT INTO witness VALUES (CURRENT_USER());' \
        'RETURN v; END//' | mysql "${DB}x"
    for table in dlock_locks dlock_locks_clients; do
        in_db -e "DROP VIEW IF EXISTS dlock_locks, dlock_locks_clients;
            DROP TABLE IF EXISTS dlock_locks, dlock_locks_clients, other"
        works
        # Connections that have found good tables, and then meet a view: a holder's, ...
        kind=-x
        [ $table = dlock_locks ] || kind=-s
        rm -f begun
        # shellcheck disable=SC2016
        start_log hold.log "$DLOCK" --ttl 2 $kind "$L" sh -c 'echo >begun; exec "$0" go' \
            "$HELPERS/await"
        wait_for 5 test -e begun
        view_for $table
        exits 79 8 "$STARTED"
        not_called "$table, by a renewal"
        in_db -e "DROP VIEW $table; RENAME TABLE other TO $table"
        # ... and a waiter's. Its sleep keeps the table for a while.
        in_db -e "UPDATE dlock_locks SET owner = 'x', expires = UTC_TIMESTAMP(6) + INTERVAL 1 HOUR
            WHERE name = '$NAME-s'"
        start_log wait.log "$DLOCK" "$L-s" touch ran
        wait_for 5 waiters_are 1 "$L-s"
        view_for $table
        exits 69 8 "$STARTED"
        not_called "$table, by a waiter"
        # The view works for a program that does not look.
        mariadb --no-defaults -h 127.0.0.1 -P "$MY_PORT" -u "$R" -ppw "$DB" >select.log \
            -e "INSERT IGNORE INTO other SET name = 'x'; SELECT name FROM $table"
        [ "$(calls)" -ge 1 ]
        mysql "${DB}x" -e "TRUNCATE witness"
        refuses 77 "the table $DB.$table is not safe to use: it is no InnoDB table"
        for what in "--status $L" "--list $U" "--forget --yes $L" "--break --yes $L" \
            "--check $L"; do
            # shellcheck disable=SC2086
            run -77 run_t 5 "$DLOCK" $what
            assert_out "not safe to use"
        done
        not_called $table
    done
}
is_held() { says 75 "" --status "$L"; }

@test "refuses tables without transactions, and with other columns" {
    local table
    for table in dlock_locks dlock_locks_clients; do
        works
        in_db -e "ALTER TABLE $table ENGINE=MyISAM"
        refuses 77 "the table $DB.$table is not safe to use: it is no InnoDB table"
        in_db -e "ALTER TABLE $table ENGINE=InnoDB"
    done
    works
    in_db -e "ALTER TABLE dlock_locks RENAME COLUMN version TO revision"
    refuses 69 "Unknown column 'l.version'"
    in_db -e "DROP TABLE dlock_locks; CREATE TABLE dlock_locks (name VARBINARY(255) PRIMARY KEY)"
    refuses 69 "Unknown column"
    says 69 "Unknown column" --status "$L"
    in_db -e "DROP TABLE dlock_locks"
    # Without the keys.
    works
    in_db -e "ALTER TABLE dlock_locks_clients DROP KEY line"
    refuses 69 "Key 'line' doesn't exist"
}

@test "a missing table is made, also the second one alone" {
    local table
    says 0 ": free" --status "$L"
    run -0 run_t 5 "$DLOCK" --list "$U"
    [ -z "$output" ]
    [ "$(in_db -e 'SHOW TABLES')" = '' ] || fail "a question made a table"
    works
    for table in dlock_locks dlock_locks_clients; do
        in_db -e "DROP TABLE $table"
        works
    done
    # By many at once.
    local pid pids=()
    in_db -e "DROP TABLE dlock_locks, dlock_locks_clients"
    for i in 0 1 2 3 4 5 6 7; do
        # shellcheck disable=SC2086
        start_log "w$i.log" "$DLOCK" --connect-timeout 20 ${KINDS[i % 4]} "$L.$i" true
        pids+=("$STARTED")
    done
    for pid in "${pids[@]}"; do exits 0 20 "$pid"; done
    [ ! -s w0.log ] || fail "$(cat w0.log)"
}

# ------------------------------------------------------------------- rights ---

@test "an account without rights is told what to do, and then all kinds work" {
    account SELECT
    refuses 77 'cannot be created' 'run: dlock --schema LOCK | mariadb' denied
    "$DLOCK" --schema "$L" >schema.sql
    [ "$(grep -c '^-- GRANT SELECT, INSERT, UPDATE, DELETE ON .* TO ROLE;$' schema.sql)" = 2 ] ||
        fail "$(cat schema.sql)"
    sed -i "s/^-- //; s/ ROLE;/ $R;/" schema.sql
    in_db <schema.sql
    mysql -e "REVOKE ALL, GRANT OPTION FROM $R"
    refuses 77 denied
    # Twice does no harm, and that is all that it needs.
    in_db <schema.sql
    works
    start_log hold.log "$DLOCK" "$L" "$HELPERS/await" go
    wait_for 5 is_held
    start_log w.log "$DLOCK" "$L" true
    wait_for 5 waiters_are 1
    wait_for 5 says 75 "pid $STARTED" --status "$L"
    wait_for 5 says 0 ", 1 waiting" --list "$U"
    : >go
    exits 0 5 "$STARTED"
    run -0 run_t 5 "$DLOCK" --forget --yes "$L"
    # Without one of the rights.
    local right table
    for table in dlock_locks dlock_locks_clients; do
        for right in INSERT UPDATE SELECT; do
            [ $table.$right != dlock_locks.INSERT ] || continue # the row is there
            mysql -e "REVOKE $right ON $DB.$table FROM $R"
            KINDS=(-s)
            refuses 77 "$right command denied" "$table"
            mysql -e "GRANT $right ON $DB.$table TO $R"
        done
    done
    KINDS=('')
    mysql -e "REVOKE INSERT ON $DB.dlock_locks FROM $R"
    L+=.new
    refuses 77 "INSERT command denied"
}

@test "an account that may only read sees locks, and another one's database none" {
    works
    start_log hold.log "$DLOCK" -s "$L" "$HELPERS/await" go
    wait_for 5 is_held
    account SELECT
    says 75 "pid ${STARTED_PIDS[-1]}" --status "$L"
    says 0 "$NAME" --list "$U"
    KINDS=('' -s --once)
    refuses 77 "command denied"
    account USAGE
    run -77 run_t 5 "$DLOCK" --status "$L"
    assert_out "Access denied"
    : >go
}

@test "--schema prints what works, and connects to nothing" {
    run -0 "$DLOCK" --schema "mysql://u@127.0.0.1:1/x?table=s.t#$NAME"
    assert_out '`s`.`t`' '`s`.`t_clients`'
    ! grep -E '.{101}|;.' <<<"$output" || fail "a long line, or two statements on one"
    local t
    for t in 'Locks' 'l"x' "l'x" 'a b; drop' '%25s.%25n' 'a\b' '@T' 'Sché' "$(printf '%056d' 1)"; do
        [[ $t != *.* ]] || mysql -e 'CREATE DATABASE `%s`'
        mysql -e "GRANT ALL ON *.* TO $R"
        run -0 "$DLOCK" --schema "$U?table=$t#$NAME"
        in_db <<<"$output"
        run -75 run_t 5 "$DLOCK" "$U?table=$t#$NAME" "$DLOCK" --no-reentrant -q -n -s \
            "$U?table=$t#$NAME" true
    done
    for t in 'a`b' 'a.b.c' '' "$(printf '%057d' 1)"; do
        run -64 run_t 5 "$DLOCK" "$U?table=$t#$NAME" touch ran
    done
    says 69 "Unknown database 'nowhere'" "$U?table=nowhere.t#$NAME" touch ran
    [ ! -e ran ]
}

# -------------------------------------------------------------------- names ---

@test "odd names and notes are texts, whatever sql_mode and character set" {
    local n enc note="it's \"%s%n\" \\' ; drop table x; -- zehn € 🔒 /*"
    mysql -e "SET GLOBAL sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT,ORACLE'"
    enc() { enc=$(printf %s "$1" | od -An -v -tx1 | tr -d '\n' | tr ' ' %); }
    local names=("quote'" "''" 'double"' 'back\' '%' '%s%n' '{name}' '{changed}' '@T' ' ' 'a b'
        'a ' 'ä' 'A' 'a' '#' "'); drop table dlock_locks; --" '🔒' "$(printf '%0255d' 0)"
        "$(printf '%0255d' 1)" "$(printf 'ä%.0s' {1..127})x")
    for n in "${names[@]}"; do
        enc "$n"
        L="$U#$enc"
        run -75 run_t 5 "$DLOCK" -q --note "$note" "$L" "$DLOCK" --status --json "$L"
        printf '%s\n%s\n' "$n" "$output" >>told
        run -75 run_t 5 "$DLOCK" -q -s --note "$note" "$L" "$DLOCK" --no-reentrant -q -n "$L" true
        [ "$(in_db -e "SELECT COUNT(*) FROM dlock_locks WHERE name = x'${enc//%/}'")" = 1 ]
    done
    mysql -e "SET GLOBAL sql_mode = DEFAULT"
    [ "$(in_db -e 'SELECT COUNT(*) FROM dlock_locks')" = ${#names[@]} ]
    /usr/bin/python3 -c 'import json, sys
lines = sys.stdin.read().split("\n")
for name, text in zip(lines[::2], lines[1::2]):
    s = json.loads(text)
    assert s["lock"] == name and s["holders"][0]["note"] == sys.argv[1], (name, s)' "$note" <told
    # Longer ones are not cut: two of them would be one lock.
    says 64 "a lock's name is at most 255 bytes long" "$U#$(printf '%0256d' 0)" touch ran
    says 64 "at most 255 bytes" "$U#$(printf 'ä%.0s' {1..128})" touch ran
    [ ! -e ran ]
}

@test "a foreign row counts as held and is shown safely" {
    local text
    works
    for text in '' garbage 'dlock1 pid=x' $'dlock1 host=a\e[31m pid=1' '%s%n%00'; do
        in_db -e "UPDATE dlock_locks SET owner = 'x', holder = x'$(hex "$text")',
            expires = UTC_TIMESTAMP(6) + INTERVAL 1 HOUR WHERE name = '$NAME'"
        says 75 held --status "$L"
        refute_out $'\e'
        run -75 run_t 5 "$DLOCK" -vn "$L" true
        refute_out $'\e'
        says 0 "$NAME" --list "$U"
        refute_out $'\e'
    done
    in_db -e "UPDATE dlock_locks SET expires = '1970-01-01', owner = '',
        fence = 9223372036854775807 WHERE name = '$NAME'"
    says 65 "in the row of '$NAME' in \`$DB\`.\`dlock_locks\` is not between 1 and" "$L" touch ran
    [ ! -e ran ]
}
hex() { printf %s "$1" | od -An -v -tx1 | tr -d ' \n'; }

@test "--check tells what a run would meet" {
    says 1 "table: dlock_locks does not exist yet" --check "$L"
    works
    says 1 "use ssl-mode=verify_identity" --check "$L"
    assert_out "proxy: none" "read_only: off" "innodb_flush_log_at_trx_commit: 1" \
        "table: as --schema prints it" "clock: as this machine's" "version: "
    says 0 "connection: $MY_SOCK, user $R, database $DB" \
        --check "mysql:///$DB?user=$R&password=pw&socket=$MY_SOCK#$NAME"
    refute_out warning
    mysql -e "SET GLOBAL innodb_flush_log_at_trx_commit = 2"
    says 1 "a crash may lose a lock; set it to 1" --check "$L"
    mysql -e "SET GLOBAL innodb_flush_log_at_trx_commit = 1; SET GLOBAL read_only = 1"
    says 69 "read_only: on, so no lock can be taken here; name the primary" --check "$L"
    mysql -e "SET GLOBAL read_only = 0"
}
