# What a lock leaves behind in MySQL's tables, and when it goes.
# bats file_tags=plain
bats_require_minimum_version 1.5.0
export BATS_TEST_TIMEOUT=60
load ../../support/common
load ../../support/mysql

setup_file() { my_start; }
teardown_file() { my_stop_all; }
setup() {
    dlock_setup
    L=mysql://dl:pw@127.0.0.1:$MY_PORT/app#$NAME
}
teardown() { dlock_teardown; }

# lock_row NAME FENCE EXPIRES RUN_STATE RUN_UNTIL
lock_row() {
    mysql -e "INSERT INTO dlock_locks VALUES ('$1', 1, $2, '', $3, '1970-01-01', '', '$4', 0, 0,
        REPEAT('a', 32), '', 1, '', '', '', '1970-01-01', '1970-01-01', $5)" app
}

@test "unused rows are removed after a week, with the rows of their clients" {
    local us="TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))" i
    local past="'1970-01-01'"
    run_t 5 "$DLOCK" "$L" true
    for i in 1 2 3; do lock_row "old$i" 5 "$past" '' "$past"; done
    lock_row old4 5 "UTC_TIMESTAMP(6) - INTERVAL 8 DAY" succeeded \
        "UTC_TIMESTAMP(6) - INTERVAL 1 DAY"
    lock_row 'old-held' 5 "UTC_TIMESTAMP(6) + INTERVAL 1 DAY" '' "$past"
    lock_row 'old-kept' 5 "$past" succeeded "UTC_TIMESTAMP(6) + INTERVAL 1 DAY"
    lock_row 'old-late' "$us - 604800000000 + 60000000" "$past" '' "$past"
    mysql -e "INSERT INTO dlock_locks_clients VALUES
        ('old1', 'waited', '', -1, 7, '1970-01-01', ''),
        ('old1', 'waits', '', -1, $us, '1970-01-01', ''),
        ('old2', 'read', 'shared:1:read', 0, 0, '1970-01-01', '')" app
    # A release in a hundred does it.
    always run_t 5 "$DLOCK" "$L" true
    swept() {
        [ "$(mysql -e "SELECT GROUP_CONCAT(name ORDER BY name) FROM dlock_locks
            WHERE name LIKE 'old%'" app)" = old-held,old-kept,old-late ] &&
            [ "$(mysql -e "SELECT GROUP_CONCAT(token) FROM dlock_locks_clients" app)" = waits ]
    }
    wait_for 5 swept || fail "$(mysql -e "SELECT name FROM dlock_locks" app)"
    # In use.
    [ "$(mysql -e "SELECT COUNT(*) FROM dlock_locks WHERE name = '$NAME'" app)" = 1 ]
}
