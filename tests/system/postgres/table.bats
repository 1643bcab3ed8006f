#!/usr/bin/env bats
# table.bats - the lease table of PostgreSQL (?mode=lease): how it is made, the roles that use it,
# rows, --status, names, secrets. Faults are in table_faults.bats, waiting in table_wait.bats;
# through PgBouncer: pgbouncer.bats.

# bats file_tags=long
load ../../support/pgtable

# ------------------------------------------------------------------ table ---

@test "ten clients wait for one that has begun to create the table" {
    local i end
    # Then it is there, or not. Readers need the second table, too.
    for end in commit rollback; do
        NAME=$NAME.$end
        own_database dlock_locks
        session -d "$DB"
        { echo begin\;; "$DLOCK" --schema "$L" | sed '/;$/q'; echo '\echo made'; } >&8
        wait_for 5 file_has session.log made
        for i in $(seq 10); do
            start_log "w$i.log" "$DLOCK" -s --connect-timeout 20 "$L$i" true 8>&-
            pids[i]=$STARTED
        done
        wait_for 10 blocked_are 10
        session_ends $end
        for i in $(seq 10); do exits 0 20 "${pids[i]}"; done
        [ "$(in_db -c 'select count(*) from dlock_locks')" = 10 ]
    done
}

@test "clients of all kinds make the tables at once" {
    local n i pids kinds=('' -s '--slots 2' --once) tables=dlock_locks,dlock_locks_holders
    own_database dlock_locks
    for n in $(seq "$(amount first_uses)"); do
        pids=()
        for i in {0..7}; do
            # shellcheck disable=SC2086
            start_log "w$i.log" "$DLOCK" --connect-timeout 20 ${kinds[i % 4]} "$L.$n.$i" \
                sh -c 'echo >>ran'
            pids+=("$STARTED")
        done
        for i in "${pids[@]}"; do exits 0 20 "$i"; done
        in_db -c "drop table $tables,dlock_locks_runs"
    done
    [ "$(wc -l <ran)" -eq $((8 * n)) ]
}

@test "a role without the right is told one command, after which all kinds of locks work" {
    own_database dlock_locks
    local way
    as_role
    in_db -c 'create schema s'
    for way in '' '&table=s.t'; do
        L="postgres://$R@127.0.0.1:$PG_PORT/$DB?mode=lease$way#$NAME"
        run -77 run_t 5 "$DLOCK" "$L" touch ran
        assert_out ": permission denied for schema "
        # A schema that is closed to the role hides whether the table is there.
        [ "$way" ] ||
            assert_out "; as a role with that permission run: dlock --schema LOCK | psql ..."
        refute_out "CREATE TABLE"
        [ ! -e ran ]
        "$DLOCK" --schema "$L" | in_db
        for kind in -x -s '--slots 2' --once; do
            run -0 run_t 5 "$DLOCK" $kind "$L" touch ran
        done
        rm ran
    done
    L="postgres://$R@127.0.0.1:$PG_PORT/$DB?mode=lease#$NAME"
    # Waiting, too, and asking.
    hold
    start_log w.log "$DLOCK" "$L" true
    wait_for 5 called_are 1
    says 75 "pid $STARTED" --status "$L"
    hand_over
}

@test "--schema prints what works, and connects to nothing" {
    own_database dlock_locks
    run -64 "$DLOCK" --schema "postgres://127.0.0.1:1/x#$NAME"
    run -0 "$DLOCK" --schema "postgres://127.0.0.1:1/x?mode=lease&table=s.\"t#$NAME"
    assert_out '"s"."""t"'
    in_db -c 'create schema s'
    run -0 "$DLOCK" --schema "postgres://127.0.0.1:1/x?mode=lease&table=s.t#$NAME"
    in_db <<<"$output"
    [[ $output == *"-- GRANT SELECT, INSERT, UPDATE, DELETE ON"*"--     TO ROLE;"* ]] ||
        fail "$output"
    ! grep -E '.{101}|;.' <<<"$output" || fail "a long line, or two statements on one"
    # Twice does no harm.
    in_db <<<"$output"
    as_role
    in_db -c "grant usage on schema s to $R; grant select, insert, update, delete on s.t to $R"
    L="postgres://$R@127.0.0.1:$PG_PORT/$DB?mode=lease&table=s.t#$NAME"
    run -75 run_t 5 "$DLOCK" "$L" "$DLOCK" --no-reentrant -n "$L" true
    [ "$(in_db -c 'select count(*) from s.t')" = 1 ]
    [ -z "$(in_db -c "select to_regclass('public.dlock_locks')")" ]
}

@test "accepts odd table names and refuses invalid ones" {
    own_database dlock_locks
    local t
    in_db -c 'create schema "Sché""ma"' -c "create schema \"a b; drop\"" -c 'create schema "%s"'
    for t in 'public.Locks' 'public.l"x' "public.l'x" 'Sché"ma.t' 'a b; drop.t--' '%25s.%25n' \
        'public.a\b' 'public./*' 'public.@T'; do
        L="postgres://$AT/$DB?mode=lease&table=$t#$NAME"
        run -75 run_t 5 "$DLOCK" "$L" "$DLOCK" --no-reentrant -q -n "$L" true
    done
    in_db >tables <<<"select schemaname || '.' || tablename from pg_tables
        where schemaname !~ '^(pg_|information)' order by 1"
    printf '%s\n' public.Locks 'public.l"x' "public.l'x" 'Sché"ma.t' 'a b; drop.t--' '%s.%n' \
        'public.a\b' 'public./*' public.@T | LC_ALL=C sort | diff tables - || fail "other tables"
    t=$(printf '%0128d' 0 | sed 's/0/a/;s/0/./2')
    run -64 run_t 5 "$DLOCK" "postgres://$AT/$DB?mode=lease&table=$t#$NAME" touch ran
    says 69 nowhere "postgres://$AT/$DB?mode=lease&table=nowhere.t#$NAME" touch ran
    [ ! -e ran ]
}

# ------------------------------------------------------------------ roles ---

# bats test_tags=slow
@test "settings of the role do not matter" {
    local setting texts i name=$NAME n=0
    pgsql -c "create schema if not exists odd"
    # Those that change texts alone are together one case.
    for setting in default_transaction_isolation=serializable statement_timeout=100ms \
        lock_timeout=50ms \
        "default_transaction_isolation=repeatable read" idle_session_timeout=300ms \
        idle_in_transaction_session_timeout=1ms synchronous_commit=remote_apply texts; do
        NAME=$name-$((n += 1))
        texts=(search_path=odd standard_conforming_strings=off client_encoding=LATIN1
            datestyle=German
            intervalstyle=iso_8601 extra_float_digits=-15 timezone=Asia/Kathmandu \
                application_name=mine
            backslash_quote=off row_security=off)
        [ "$setting" = texts ] || texts=("$setting")
        as_role "${texts[@]}"
        mkdir h$n
        for i in 1 2 3; do
            start_log "w$i.log" bash -c 'for i in 1 2 3; do "$@" || exit; done' - "$DLOCK" --ttl 5 \
                "$L" "$HELPERS/witness" "$T/h$n" 2
            pids[i]=$STARTED
        done
        for i in 1 2 3; do exits 0 10 "${pids[i]}" || fail "$setting"; done
        run -0 "$ROOT/tests/support/helpers/check_history.py" "$T/h$n" 9
        # One that is held: others are told, renewals succeed.
        says 75 ", pid " "$L" "$DLOCK" --no-reentrant -vn "$L" true
    done
}

@test "a read-only role is told how to lock, and sees locks" {
    local kind
    as_role default_transaction_read_only=on
    for kind in "" -s --once; do
        # shellcheck disable=SC2086
        says 77 ": ALTER ROLE $R SET default_transaction_read_only = off" $kind "$L" true
    done
    run -0 run_t 5 "$DLOCK" --status "$L"
    pgsql -c "alter role $R in database postgres set default_transaction_read_only = on"
    says 77 ": ALTER ROLE $R IN DATABASE postgres SET default_transaction" "$L" true
}

@test "a role's time-outs only repeat tries and sessions" {
    as_role statement_timeout=100ms idle_session_timeout=300ms
    hold --ttl 3
    renewed 4
    renewed 4
    waiter 1 "$HELPERS/clock" got
    hand_over
    block_row
    start_log d.log "$DLOCK" --connect-timeout 5 "$L" touch ran
    # Two of them are cancelled.
    cancelled() { [ "$(grep -c "canceling statement due to statement timeout" "$PG_LOG")" -ge 2 ]; }
    wait_for 5 cancelled
    unblock_row
    exits 0 5 "$STARTED"
    [ -e ran ]
    # Three time-outs of the wait for the row, or it has given up.
    pgsql -c "alter role $R reset statement_timeout" -c "alter role $R set lock_timeout = '50ms'"
    block_row
    start_log d.log "$DLOCK" -w 5 "$L" "$HELPERS/clock" got 8>&-
    timed_out() {
        [ "$(grep -c 'canceling statement due to lock timeout' "$PG_LOG")" -ge 3 ] ||
            pid_gone "$STARTED"
    }
    wait_for 3 timed_out
    pid_alive "$STARTED" || fail "it has ended: $(cat d.log)"
    t0=$(now_ms)
    unblock_row
    exits 0 5 "$STARTED"
    assert_between 0 $(($(cat got) / NS - t0)) $((1500 + SLOW)) "ms until the grant"
}

@test "refuses a name that the database's encoding cannot hold" {
    own_server
    pgsql -c "create database latin template postgres" -c "update pg_database set encoding
        = pg_char_to_encoding('LATIN1'), datcollate = 'C', datctype = 'C', datcollversion = null
        where datname = 'latin'"
    [ "$(pgsql -d latin -c 'show server_encoding')" = LATIN1 ]
    L="postgres://$AT/latin?mode=lease#"
    # The note is stored in a form that it can hold.
    says 75 "'käse' is busy: " --note 'zehn € für x' "${L}käse" "$DLOCK" --no-reentrant -vn \
        "${L}käse" true
    assert_out 'note "zehn € für x"'
    run -0 run_t 5 "$DLOCK" "${L}käse" "$DLOCK" -n "${L}kase" true
    # An error of the server's own words. (A transient one by its code: whoever retries retries in
    # vain.)
    says 69 'has no equivalent in encoding "LATIN1"' "${L}zehn€" touch ran
    [ ! -e ran ]
    run -69 run_t 5 "$DLOCK" --status "${L}zehn€"
    [ "$(pgsql -d latin -c "select count(*) from dlock_locks where expires > '-infinity'")" = 0 ]
}

# -------------------------------------------------------------- old rows ---

# bats test_tags=slow
@test "unused rows are removed after a week" {
    own_database dlock_locks
    local week='604800000000' now="(extract(epoch from clock_timestamp()) * 1000000)::bigint"
    run_t 5 "$DLOCK" "$L" true
    in_db -c "insert into dlock_locks
        values ('crashed', 5, 'x', clock_timestamp() - '8 days'::interval, ''),
            ('crashed lately', 5, 'x', clock_timestamp() - '6 days'::interval, ''),
            ('used lately', $now - $week + 60000000, '', '-infinity', ''),
            ('fence is ahead', 5000000000000000, '', '-infinity', ''),
            ('held', 5, 'x', clock_timestamp() + '1 h'::interval, '')" \
        -c "insert into dlock_locks select 'old' || i, $now - $week - 60000000, '', '-infinity', ''
        from generate_series(1, 60) i"
    left() {
        in_db -c "select count(*) from dlock_locks where name like 'old%' or name = 'crashed'"
    }
    # A release in a hundred does it.
    always run_t 5 "$DLOCK" "$L" true
    left_are_41() { [ "$(left)" = 41 ]; }
    wait_for 5 left_are_41
    [ "$(in_db -c "select string_agg(name, ', ' order by name) from dlock_locks
        where name !~ 'old|crashed$'")" = \
        "crashed lately, fence is ahead, held, $NAME, used lately" ]
}

# ----------------------------------------------------------------- status ---

@test "--status without a table creates none" {
    own_database dlock_locks
    says 0 ": free" --status "$L"
    says 0 '"state":"free","holders":[],"waiters":[]' --status --json "$L"
    run -0 run_t 5 "$DLOCK" --status "${L/mode=lease/"mode=lease&table=nowhere.t"}"
    [ -z "$(in_db -c "select to_regclass('public.dlock_locks')")" ]
}

@test "--status shows a role what it may read" {
    local second
    hold --ttl 20
    waiter 1 true
    waiter 2 true
    second=$WAITER
    says 75 "fence: $(row fence)" --status "$L"
    assert_out "pid $second"
    # A role that may not read the queries of others sees that there are two.
    as_role
    run -75 run_t 5 "$DLOCK" --status --json "$L"
    assert_out "\"pid\":$HOLDER"
    [ "$(grep -o '"place"' <<<"$output" | wc -l)" = 2 ]
    refute_out "\"pid\":$second"
    # And without a right to the table.
    pgsql -c "revoke all on dlock_locks from $R"
    run -77 run_t 5 "$DLOCK" --status "$L"
    let_go
    exits 0 5 "$second"
}

@test "a foreign row counts as held and is shown safely" {
    local text
    for text in '' garbage "dlock1 pid=x" $'dlock1 host=a\e[31m pid=1' '%s%n%00' \
        'dlock9 pid=1 host=h user=u since=1 cmd=c note='; do
        pgsql -v t="$text" <<<"insert into dlock_locks
            values ('$NAME', 7, 'x', clock_timestamp() + '1 h', :'t')
            on conflict (name) do update set holder = excluded.holder"
        says 75 held --status "$L"
        refute_out $'\e'
        run -75 run_t 5 "$DLOCK" -vn "$L" true
        refute_out $'\e'
        run -75 run_t 5 "$DLOCK" --status --json "$L"
        /usr/bin/python3 -c 'import json, sys
assert len(json.loads(sys.argv[1])["holders"]) == 1' "$output"
    done
}

# ------------------------------------------------------------------- names ---

# bats test_tags=slow
@test "odd names and notes are never executed" {
    local n enc note
    note="*/ ; drop table dlock_locks; -- '); drop table dlock_locks; \$1 /* \\' \" %s @T @C"
    own_database dlock_locks
    enc() { # every byte as %XX
        enc=$(printf %s "$1" | od -An -v -tx1 | tr -d '\n' | tr ' ' %)
    }
    for n in "quote'" "''" 'double"' 'back\' "back\\'" '%' '%s%n' '$1' '@T@W' \
        "'); drop table dlock_locks; --" '*/ select 1; /*' \
        ' ' 'a b' 'a ' 'ä' 'A' 'a' '#' '?mode=advisory' "$(printf '%0255d' 0)" \
        "$(printf '%0255d' 1)" "$(printf 'ä%.0s' {1..127})x"; do
        enc "$n"
        L="postgres://$AT/$DB?mode=lease#$enc"
        run -75 run_t 5 "$DLOCK" -q --note "$note" "$L" "$DLOCK" --no-reentrant -q -n "$L" true
        run -75 run_t 5 "$DLOCK" -q --note "$note" "$L" "$DLOCK" --status --json "$L"
        printf '%s\n%s\n' "$n" "$output" >>told
        [ "$(in_db -v n="$n" <<<"select count(*) from dlock_locks where name = :'n'")" = 1 ]
    done
    [ "$(in_db -c 'select count(*) from dlock_locks')" = 22 ]
    /usr/bin/python3 -c 'import json, sys
lines = sys.stdin.read().split("\n")
for name, text in zip(lines[::2], lines[1::2]):
    s = json.loads(text)
    assert s["lock"] == name and s["holders"][0]["note"] == sys.argv[1], (name, s)
assert len(lines) == 45' "$note" <told
    run -64 run_t 5 "$DLOCK" "postgres://$AT/$DB?mode=lease#$(printf '%0256d' 0)" true
}

# ----------------------------------------------------------------- secrets ---

# In both modes.
# bats test_tags=plain
@test "no password leaks" {
    own_server
    local form mode at guard pw=c4n4ry-pw
    pgsql -c "create role app login superuser password '$pw'"
    hba 'host all postgres 127.0.0.1/32 trust' 'host all all 127.0.0.1/32 scram-sha-256'
    is_in_line() { "$DLOCK" --status "$L" | grep -q 'waiting 1'; }
    (umask 077; echo "$pw" >pw)
    for mode in lease advisory; do
        at=127.0.0.1:$PG_PORT/postgres?mode=$mode
        for form in "app:$pw@$at" "app@$at&password=$pw" "app@$at&password-file=$T/pw"; do
            L="postgres://$form#$NAME"
            rm -f held go
            start_log hold.log "$DLOCK" -v "$L" sh -c 'env >env; echo >held; "$HELPERS/await" go'
            HOLDER=$STARTED
            wait_for 5 test -e held
            guard_of "$HOLDER"
            start_log w.log "$DLOCK" -v "$L" true
            wait_for 5 is_in_line
            ! grep -qaF c4n4ry /proc/{"$HOLDER","$G","$STARTED"}/cmdline env || fail "found"
            run -75 run_t 5 "$DLOCK" --status --json "$L"
            refute_out c4n4ry
            pgsql -c 'select query from pg_stat_activity' -c 'select * from dlock_locks' >rows
            hand_over
            ! grep -F c4n4ry hold.log w.log rows || fail "found"
            # A wrong one is not shown either.
            [ "${form/"$pw"/}" = "$form" ] || {
                run -77 run_t 5 "$DLOCK" -v "${L/"$pw"/c4n4ry-no}" true
                refute_out c4n4ry
            }
        done
    done
    ! grep -v '\[pgsql\]' "$PG_LOG" | grep -F c4n4ry || fail "found"
}

@test "a fence that none can follow is refused, and the row stays" {
    local fence kind row state="fence, owner = '' or expires < now()"
    while read -r fence kind; do
        pgsql -c "delete from dlock_locks where name = '$NAME'" -c "insert into dlock_locks
            values ('$NAME', $fence, '', '-infinity', '')"
        says 65 "in the row of '$NAME' in \"public\".\"dlock_locks\" is not between 1 and" \
            --ttl 2 $kind "$L" touch no
        [ "$(row "$state")" = "$fence|t" ] || fail "$fence $kind: $(row '*')"
    done <<<'9223372036854775807
        9223372036854775807 --once
        -1 -s
        0 --slots=2
        -9223372036854775808 -s'
    [ ! -e no ]
    # What is above the numbers of JSON readers is exact, and none comes twice.
    pgsql -c "update dlock_locks set fence = 9007199254740992 where name = '$NAME'"
    for fence in 9007199254740993 9007199254740994; do
        run -0 run_t 5 "$DLOCK" --events events "$L" sh -c \
            'echo "=$DLOCK_FENCE="; ! "$DLOCK" --status --json "$0"' "$L"
        assert_out "=$fence=" "\"fence\":\"$fence\""
        file_has events "\"fence\":\"$fence\""
    done
    pgsql -c "update dlock_locks set fence = -5 where name = '$NAME'"
    run -0 run_t 5 "$DLOCK" "$L" sh -c '[ "$DLOCK_FENCE" -gt 1700000000000000 ]'
}
