#!/usr/bin/env bats
# list.bats - --list on PostgreSQL, in both modes. What holds on every store is in
# tests/contract/suite.bats.

# bats file_tags=long
load ../../support/pgtable

setup_file() {
    export BATS_NO_PARALLELIZE_WITHIN_FILE=true
    pgtable_start
    # The second table is there, too.
    "$DLOCK" -q -s "postgres://postgres@127.0.0.1:$PG_PORT/postgres?mode=lease#first" true 3>&-
}

use_mode() { # MODE
    U="postgres://$AT/postgres?mode=$1"
    NAME=$BATS_TEST_NUMBER-$1
    L="$U#$NAME"
}
lists_one_waiting() { "$DLOCK" --list "$U" | grep -q ", 1 waiting"; }

# bats test_tags=plain
@test "ten thousand locks need no more than 20 MB" {
    use_mode lease
    pgsql -c "insert into dlock_locks select concat('n', i), i, md5(i::text),
            now() + interval '1 hour', concat('dlock1 host=h', i, ' pid=', i,
                ' user=u since=1 cmd=', repeat('x', 200), ' note=')
        from generate_series(1, 10000) i"
    run -0 run_t 20 "$ROOT/tests/support/helpers/peak_rss.py" "$T/peak" "$DLOCK" --list "$U"
    [ "${#lines[@]}" = 10000 ] || fail "${#lines[@]} lines"
    assert_between 0 "$(cat "$T/peak")" 19 "MiB"
    pgsql -c "delete from dlock_locks where name like 'n%'"
}

@test "a role sees what it may, and is told what it does not see" {
    use_mode lease
    role_named looker
    U="postgres://looker@${AT#*@}/postgres?mode=lease"
    run -77 run_t 5 "$DLOCK" -v --list "$U"
    pgsql -c "grant select on dlock_locks to looker"
    held a -s
    run -0 run_t 5 "$DLOCK" -v --list "$U"
    assert_out "$NAME"
    assert_out "shared 1"
    assert_out "of readers and slots this role sees one holder"
    end a
    use_mode advisory
    held a
    U="postgres://looker@${AT#*@}/postgres"
    run -0 run_t 5 "$DLOCK" -v --list "$U"
    assert_out "$NAME"
    assert_out "pg_read_all_stats"
    end a
}

@test "the key stands for a name that no session tells" {
    use_mode advisory
    L="$U#odd%20$NAME"
    held a
    run -0 run_t 5 "$DLOCK" --list "$U"
    [[ $output =~ key:[0-9a-f]{16}\ +held.*pid ]] || fail "$output"
    end a
    L="${U/?mode=advisory/}?application_name=mine#n$NAME"
    held a
    holds w --ttl 30
    wait_for 5 lists_one_waiting
    run -0 run_t 5 "$DLOCK" --list "$U"
    [[ $output =~ key:[0-9a-f]{16}\ +held,\ 1\ waiting.*pid ]] || fail "$output"
    end a
    is_in w
    end w
    L="${U/?mode=advisory/}?key=7#k$NAME"
    held a
    run -0 run_t 5 "$DLOCK" --list "$U"
    assert_out "k$NAME  held"
    end a
}
