#!/usr/bin/env bats
# mysql.bats - the recipe for migrations in MySQL or MariaDB.

# bats file_tags=plain
load ../../support/recipes
source "$ROOT/tests/support/mysql.bash"

setup_file() {
    redis_start
    [ ! -x "$MY_SERVER" ] || my_start
}
teardown_file() {
    redis_stop
    my_stop_all
}

@test "migrations in MariaDB exclude each other, and one host migrates for a release" {
    [ -x "$MY_SERVER" ] || skip "no $MY_SERVER"
    recipe migrate-mysql
    for name in bin/rails python php; do program $name "$(at_a_time)"; done
    export DATABASE_URL="mysql2://dl:pw@127.0.0.1:$MY_PORT/app?pool=5" RELEASE=7
    export DB_URL="mysql://dl:pw@127.0.0.1:$MY_PORT/app?charset=utf8mb4"
    start_log other.log sh -e migrate-mysql
    run -0 run_t 20 sh -e migrate-mysql
    [ -z "$output" ] || fail "$output"
    exits 0 20 "$STARTED"
    [ "$(sort ran | uniq -c | awk '{ $1 = $1; print }')" = \
        $'2 php artisan migrate --force\n2 python manage.py migrate
3 rails db:migrate' ] || fail "$(cat ran)"
}
