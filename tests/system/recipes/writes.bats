#!/usr/bin/env bats
# writes.bats - the recipes for migrations and for fenced writes, with a PostgreSQL server behind a
# PgBouncer and with an object store.

# bats file_tags=plain
load ../../support/recipes
source "$ROOT/tests/support/postgres.bash"

setup_file() {
    redis_start
    pg_start
}
teardown_file() {
    redis_stop
    pg_stop_all
}

@test "migrations exclude each other, and one host migrates for a release behind PgBouncer" {
    [ -x /usr/sbin/pgbouncer ] || skip "pgbouncer is not installed"
    recipe migrate
    pgb_start
    for name in bin/rails python alembic flyway; do program $name "$(at_a_time)"; done
    export DATABASE_URL=postgres://postgres@127.0.0.1:$PG_PORT/postgres RELEASE=7
    export POOL_URL=postgres://postgres@127.0.0.1:$PGB_PORT/postgres
    start_log other.log sh -e migrate
    run -0 run_t 20 sh -e migrate
    [ -z "$output" ] || fail "$output"
    exits 0 20 "$STARTED"
    [ "$(sort ran | uniq -c | awk '{ $1 = $1; print }')" = \
        $'2 alembic upgrade head\n2 flyway migrate\n2 python manage.py migrate
3 rails db:migrate' ] || fail "$(cat ran)"
    pgb_stop
}

@test "SQL: a write with an old fence fails and changes nothing" {
    local text=$'it\'s a "text"\\\n;--' fence
    recipe write-report
    pgsql -c "create table report (id int, body text, fence bigint not null default 0)" \
        -c "insert into report values (7, '')"
    export DATABASE_URL=postgres://postgres@127.0.0.1:$PG_PORT/postgres DLOCK_STORE=$STORE
    PATH=$PG_BIN:$PATH
    run -0 run_t 10 dlock @report sh write-report "$text"
    [ -z "$output" ] || fail "$output"
    [ "$(pgsql -c 'select body from report')" = "$text" ]
    fence=$(pgsql -c 'select fence from report')
    DLOCK_FENCE=$((fence - 1)) run -3 run_t 10 sh write-report late
    assert_out "no rows"
    [ "$(pgsql -c 'select body from report')" = "$text" ]
    # The same holder writes a second time; a holder of the next grant, too.
    DLOCK_FENCE=$fence run -0 run_t 10 sh write-report again
    run -0 run_t 10 dlock @report sh write-report next
    [ "$(pgsql -c 'select body from report')" = next ]
}

@test "object store: a write with an old fence, or after another write, is refused" {
    recipe put-report
    listener object_store
    local url=http://127.0.0.1:$LISTENS/report
    export DLOCK_STORE=$STORE
    # As the page says, the object is created with the fence 0.
    curl -fsS -X PUT -H 'x-amz-meta-fence: 0' -d '' "$url"
    echo first >report
    run -0 run_t 10 dlock @report sh put-report report "$url"
    [ "$(curl -fsS "$url")" = first ]
    echo late >report
    DLOCK_FENCE=1 run -1 run_t 10 sh put-report report "$url"
    # Between the look and the write of this one another holder writes.
    DLOCK_FENCE=9000000000000000000 run -22 run_t 10 sh put-report report "$url?overtake"
    assert_out "412"
    [ "$(curl -fsS "$url")" = overtaken ]
    run -22 run_t 10 dlock @report sh put-report report "${url}s"
    assert_out "404"
}
