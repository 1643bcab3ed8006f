#!/usr/bin/env bats
# table.bats - the lease table of PostgreSQL (?mode=lease): how it is made, the roles that use it, rows, --status,
# names, secrets. Faults are in table_faults.bats, waiting in table_wait.bats; through PgBouncer: pgbouncer.bats.

# bats file_tags=long
bats_require_minimum_version 1.5.0
load ../../support/common
load ../../support/fake
load ../../support/postgres
load ../../support/pgtable

setup_file() {
    export BATS_NO_PARALLELIZE_WITHIN_FILE=true
    pgtable_start
}
teardown_file() { pg_stop_all; }

setup() {
    dlock_setup
    fake_setup # the command that tells what happens to it
    pgtable_setup
}
teardown() {
    thaw
    dlock_teardown
}

# ---------------------------------------------------------------- helpers ---

# own_database: a new one on the file's server, without the table; $DB.
own_database() {
    DB=$NAME
    pgsql -c "create database \"$DB\" template postgres" -c "\\c \"$DB\"" -c 'drop table public.dlock_locks'
    L="postgres://$AT/$DB?mode=lease#$NAME"
}
in_db() { pgsql -d "$DB" "$@"; }

# ------------------------------------------------------------------ table ---

@test "ten clients create the table at once" {
    local i n
    for n in 1 2 3; do
        NAME=$NAME.$n
        own_database
        for i in $(seq 10); do
            start_log "w$i.log" "$DLOCK" --connect-timeout 20 "$L" sh -c 'echo >>ran'
            pids[i]=$STARTED
        done
        for i in $(seq 10); do exits 0 20 "${pids[i]}"; done
        [ "$(in_db -c 'select count(*) from dlock_locks')" = 1 ]
    done
    [ "$(wc -l <ran)" -eq 30 ]
    # Another has begun to make it: all of them wait for that one, and then it is there, or not.
    local end
    for end in commit rollback; do
        NAME=$NAME.$end
        own_database
        session -d "$DB"
        { echo begin\;; "$DLOCK" --schema "$L"; echo '\echo made'; } >&8
        wait_for 5 file_has session.log made
        for i in $(seq 10); do
            start_log "w$i.log" "$DLOCK" --connect-timeout 20 "$L$i" true 8>&-
            pids[i]=$STARTED
        done
        wait_for 10 blocked_are 10
        session_ends $end
        for i in $(seq 10); do exits 0 20 "${pids[i]}"; done
        [ "$(in_db -c 'select count(*) from dlock_locks')" = 10 ]
    done
}

@test "a role without the right is told the CREATE TABLE statement" {
    own_database
    local ddl role=u${NAME//-/}
    in_db -c "create role $role login"
    L="postgres://$role@127.0.0.1:$PG_PORT/$DB?mode=lease#$NAME"
    run run_t 5 "$DLOCK" "$L" touch ran
    assert_rc 77
    [ ! -e ran ]
    ddl=$(grep -o 'CREATE TABLE .*)' <<<"$output")
    # Of the table that is missing; --schema also has that of the holders.
    [[ "$("$DLOCK" --schema "$L")" = "$ddl; CREATE TABLE "*'"public"."dlock_locks_holders" '*\; ]] || fail "$ddl"
    in_db -c "$ddl"
    # It is there, and not this role's.
    run run_t 5 "$DLOCK" "$L" touch ran
    assert_rc 77
    assert_out permission
    [ ! -e ran ]
    in_db -c "grant select, insert, update, delete on public.dlock_locks to $role"
    run run_t 5 "$DLOCK" "$L" touch ran
    assert_rc 0
    [ -e ran ]
    # Waiting, too, and asking.
    hold
    start_log w.log "$DLOCK" "$L" true
    wait_for 5 called_are 1
    run run_t 5 "$DLOCK" --status "$L"
    assert_rc 75
    assert_out "pid $STARTED"
    let_go
    exits 0 2 "$STARTED"
}

@test "--schema prints what works, and connects to nothing" {
    own_database
    local role=u${NAME//-/}
    run -64 "$DLOCK" --schema "postgres://127.0.0.1:1/x#$NAME"
    run -0 "$DLOCK" --schema "postgres://127.0.0.1:1/x?mode=lease&table=s.\"t#$NAME"
    assert_out '"s"."""t"'
    in_db -c 'create schema s'
    run -0 "$DLOCK" --schema "postgres://127.0.0.1:1/x?mode=lease&table=s.t#$NAME"
    in_db <<<"$output"
    # Twice does no harm.
    in_db <<<"$output"
    in_db -c "create role $role login; grant usage on schema s to $role" \
        -c "grant select, insert, update, delete on s.t to $role"
    L="postgres://$role@127.0.0.1:$PG_PORT/$DB?mode=lease&table=s.t#$NAME"
    run run_t 5 "$DLOCK" "$L" "$DLOCK" --no-reentrant -n "$L" true
    assert_rc 75
    [ "$(in_db -c 'select count(*) from s.t')" = 1 ]
    [ -z "$(in_db -c "select to_regclass('public.dlock_locks')")" ]
}

@test "accepts odd table names and refuses invalid ones" {
    own_database
    local t
    in_db -c 'create schema "Sché""ma"' -c "create schema \"a b; drop\"" -c 'create schema "%s"'
    for t in 'public.Locks' 'public.l"x' "public.l'x" 'Sché"ma.t' 'a b; drop.t--' '%25s.%25n' 'public.a\b' 'public./*' 'public.@T'; do
        L="postgres://$AT/$DB?mode=lease&table=$t#$NAME"
        run run_t 5 "$DLOCK" "$L" "$DLOCK" --no-reentrant -q -n "$L" true
        assert_rc 75
    done
    [ "$(in_db -c "select string_agg(schemaname || '.' || tablename, ' ' order by schemaname, tablename) from pg_tables
        where schemaname !~ '^(pg_|information)'" | sort)" = \
        "$(in_db -c "select string_agg(t, ' ' order by a, b) from (values ('public', 'Locks'), ('public', 'l\"x'), ('public', 'l''x'),
            ('Sché\"ma', 't'), ('a b; drop', 't--'), ('%s', '%n'), ('public', 'a\\b'), ('public', '/*'), ('public', '@T')) v(a, b),
            lateral (select a || '.' || b) w(t)")" ]
    for t in '' x . .x x. a.b.c "$(printf '%0128d' 0 | sed 's/0/a/;s/0/./2')"; do
        run run_t 5 "$DLOCK" "postgres://$AT/$DB?mode=lease&table=$t#$NAME" touch ran
        assert_rc 64
    done
    run run_t 5 "$DLOCK" "postgres://$AT/$DB?mode=lease&table=nowhere.t#$NAME" touch ran
    assert_rc 69
    assert_out nowhere
    [ ! -e ran ]
}

@test "refuses parameters without effect" {
    local p
    for p in mode=lease\&{key=1,key=1,2,fair=1,renew=write,renew=read} table=a.b table-owner=a mode=advisory\&table=a.b \
        mode=x mode= mode=lease\&nonsense=1; do
        run run_t 5 "$DLOCK" "postgres://$AT/postgres?$p#$NAME" touch ran
        assert_rc 64
        p=${p##*&}
        assert_out "${p%%=*}"
    done
    [ ! -e ran ]
}

# ------------------------------------------------------------------ roles ---

# bats test_tags=slow
@test "settings of the role do not matter" {
    local setting r=r${NAME//-/} i last
    sql -c "create schema if not exists odd"
    for setting in "default_transaction_isolation=serializable" "default_transaction_isolation='repeatable read'" \
        "statement_timeout='100ms'" "lock_timeout='50ms'" "search_path=odd" "standard_conforming_strings=off" \
        "client_encoding=LATIN1" "idle_session_timeout='300ms'" "idle_in_transaction_session_timeout='1ms'" \
        "datestyle='German'" "intervalstyle=iso_8601" "extra_float_digits=-15" "timezone='Asia/Kathmandu'" \
        "application_name=mine" "synchronous_commit=remote_apply" "backslash_quote=off" "row_security=off"; do
        sql -c "create role $r login" -c "alter role $r set $setting" \
            -c "grant select, insert, update, delete on public.dlock_locks to $r"
        L="postgres://$r@127.0.0.1:$PG_PORT/postgres?mode=lease#$NAME"
        rm -rf h
        mkdir h
        # For the row, too.
        sql -c "delete from dlock_locks where name = '$NAME'"
        for i in 1 2 3; do
            start_log "w$i.log" bash -c 'for i in 1 2 3; do "$@" || exit; done' - "$DLOCK" --ttl 5 "$L" "$HELPERS/witness" "$T/h" 2
            pids[i]=$STARTED
        done
        for i in 1 2 3; do exits 0 10 "${pids[i]}" || fail "$setting"; done
        run -0 "$ROOT/tests/support/helpers/check_history.py" "$T/h" 9
        # One that is held: others are told, renewals succeed.
        run -75 run_t 5 "$DLOCK" "$L" "$DLOCK" --no-reentrant -vn "$L" true
        assert_out ", pid "
        sql -c "drop owned by $r; drop role $r"
    done
    # A session that cannot write is no place for a lock.
    sql -c "create role $r login" -c "alter role $r set default_transaction_read_only = on"
    run -69 run_t 5 "$DLOCK" "$L" true
    assert_out read-only
}

@test "a role's time-outs only repeat tries and sessions" {
    local r=r${NAME//-/} before
    sql -c "create role $r login" -c "alter role $r set statement_timeout = '100ms'" \
        -c "alter role $r set idle_session_timeout = '300ms'" \
        -c "grant select, insert, update, delete on public.dlock_locks to $r"
    L="postgres://$r@127.0.0.1:$PG_PORT/postgres?mode=lease#$NAME"
    hold --ttl 3
    before=$(row "$EXPIRES")
    wait_for 4 row_is_renewed "$before"
    before=$(row "$EXPIRES")
    wait_for 4 row_is_renewed "$before"
    start_log w.log "$DLOCK" --ttl 30 "$L" "$HELPERS/clock" got
    wait_for 5 called_are 1
    let_go
    exits 0 7 "$STARTED"
    block_row
    start_log d.log "$DLOCK" --connect-timeout 5 "$L" touch ran
    # Two of them are cancelled.
    wait_for 5 eval '[ "$(grep -c "canceling statement due to statement timeout" "$PG_LOG")" -ge 2 ]'
    unblock_row
    exits 0 5 "$STARTED"
    [ -e ran ]
}

@test "refuses a name that the database's encoding cannot hold" {
    own_server
    sql -c "create database latin template postgres" -c "update pg_database set encoding = pg_char_to_encoding('LATIN1'),
        datcollate = 'C', datctype = 'C', datcollversion = null where datname = 'latin'"
    [ "$(sql -d latin -c 'show server_encoding')" = LATIN1 ]
    L="postgres://$AT/latin?mode=lease#"
    # The note is stored in a form that it can hold.
    run -75 run_t 5 "$DLOCK" --note 'zehn € für x' "${L}käse" "$DLOCK" --no-reentrant -vn "${L}käse" true
    assert_out "'käse' is busy: "
    assert_out 'note "zehn € für x"'
    run -0 run_t 5 "$DLOCK" "${L}käse" "$DLOCK" -n "${L}kase" true
    # An error of the server's own words. (A transient one by its code: whoever retries retries in vain.)
    run -69 run_t 5 "$DLOCK" "${L}zehn€" touch ran
    assert_out 'has no equivalent in encoding "LATIN1"'
    [ ! -e ran ]
    run -69 run_t 5 "$DLOCK" --status "${L}zehn€"
    [ "$(sql -d latin -c "select count(*) from dlock_locks where expires > '-infinity'")" = 0 ]
}

# -------------------------------------------------------------- old rows ---

# bats test_tags=slow
@test "unused rows are removed after a week" {
    own_database
    local week='604800000000' now="(extract(epoch from clock_timestamp()) * 1000000)::bigint"
    run_t 5 "$DLOCK" "$L" true
    in_db -c "insert into dlock_locks values ('crashed', 5, 'x', clock_timestamp() - '8 days'::interval, ''),
            ('crashed lately', 5, 'x', clock_timestamp() - '6 days'::interval, ''),
            ('used lately', $now - $week + 60000000, '', '-infinity', ''),
            ('fence is ahead', 5000000000000000, '', '-infinity', ''),
            ('held', 5, 'x', clock_timestamp() + '1 h'::interval, '')" \
        -c "insert into dlock_locks select 'old' || i, $now - $week - 60000000, '', '-infinity', '' from generate_series(1, 60) i"
    left() { in_db -c "select count(*) from dlock_locks where name like 'old%' or name = 'crashed'"; }
    # A release in a hundred does it.
    always run_t 5 "$DLOCK" "$L" true
    wait_for 5 eval '[ "$(left)" = 41 ]'
    [ "$(in_db -c "select string_agg(name, ', ' order by name) from dlock_locks where name !~ 'old|crashed$'")" = \
        "crashed lately, fence is ahead, held, $NAME, used lately" ]
}

# ----------------------------------------------------------------- status ---

@test "--status without a table creates none" {
    own_database
    run -0 run_t 5 "$DLOCK" --status "$L"
    assert_out ": free"
    run -0 run_t 5 "$DLOCK" --status --json "$L"
    assert_out '"state":"free","holders":[],"waiters":[]'
    run -0 run_t 5 "$DLOCK" --status "${L/mode=lease/"mode=lease&table=nowhere.t"}"
    [ -z "$(in_db -c "select to_regclass('public.dlock_locks')")" ]
}

@test "--status tells the holder, its fence and lease, and who waits" {
    local first second f r=r${NAME//-/}
    hold --ttl 20 --note 'say "hi"'
    f=$(row fence)
    TTL=30 waiter 1 true
    first=$WAITER
    TTL=30 waiter 2 true
    second=$WAITER
    run -75 run_t 5 "$DLOCK" --status --json "$L"
    /usr/bin/python3 -c '
import json, sys
s = json.loads(sys.argv[1])
name, holder, fence, first, second = sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5]), int(sys.argv[6])
assert s["lock"] == name and s["state"] == "held" and len(s["holders"]) == 1, s
h = s["holders"][0]
assert h["pid"] == holder and h["fence"] == fence and h["note"] == "say \"hi\"" and h["command"] == "sh", s
assert 8000 < h["lease_left_ms"] <= 20000, s
assert [(w["place"], w["pid"]) for w in s["waiters"]] == [(1, first), (2, second)], s' \
        "$output" "$NAME" "$HOLDER" "$f" "$first" "$second"
    run -75 run_t 5 "$DLOCK" --status "$L"
    assert_out "pid $HOLDER"
    assert_out "fence: $f"
    assert_out "pid $second"
    # A role that may not read the queries of others sees that there are two.
    sql -c "create role $r login; grant select on dlock_locks to $r"
    run -75 run_t 5 "$DLOCK" --status --json "postgres://$r@127.0.0.1:$PG_PORT/postgres?mode=lease#$NAME"
    assert_out "\"pid\":$HOLDER"
    [ "$(grep -o '"place"' <<<"$output" | wc -l)" = 2 ]
    refute_out "\"pid\":$second"
    # And without a right to the table.
    sql -c "revoke select on dlock_locks from $r"
    run -77 run_t 5 "$DLOCK" --status "postgres://$r@127.0.0.1:$PG_PORT/postgres?mode=lease#$NAME"
    let_go
    exits 0 5 "$first"
    exits 0 5 "$second"
}

@test "a set that names one table in two ways fails with 64" {
    run -64 run_t 5 "$DLOCK" --also "${L/127.0.0.1/localhost}" "$L" touch ran
    assert_out "this is the same lock as"
    [ ! -e ran ]
}

@test "a foreign row counts as held and is shown safely" {
    local text
    for text in '' garbage "dlock1 pid=x" $'dlock1 host=a\e[31m pid=1' '%s%n%00' 'dlock9 pid=1 host=h user=u since=1 cmd=c note='; do
        sql -v t="$text" <<<"insert into dlock_locks values ('$NAME', 7, 'x', clock_timestamp() + '1 h', :'t')
            on conflict (name) do update set holder = excluded.holder"
        run -75 run_t 5 "$DLOCK" --status "$L"
        assert_out held
        refute_out $'\e'
        run -75 run_t 5 "$DLOCK" -vn "$L" true
        refute_out $'\e'
        run -75 run_t 5 "$DLOCK" --status --json "$L"
        /usr/bin/python3 -c 'import json, sys; assert len(json.loads(sys.argv[1])["holders"]) == 1' "$output"
    done
}

# ------------------------------------------------------------------- names ---

# bats test_tags=slow
@test "odd names and notes are never executed" {
    local n note="*/ ; drop table dlock_locks; -- '); drop table dlock_locks; \$1 /* \\' \" %s @T @C" enc
    own_database
    enc() { # every byte as %XX
        enc=$(printf %s "$1" | od -An -v -tx1 | tr -d '\n' | tr ' ' %)
    }
    for n in "quote'" "''" 'double"' 'back\' "back\\'" '%' '%s%n' '$1' '@T@W' "'); drop table dlock_locks; --" '*/ select 1; /*' \
        ' ' 'a b' 'a ' 'ä' 'A' 'a' '#' '?mode=advisory' "$(printf '%0255d' 0)" "$(printf '%0255d' 1)" "$(printf 'ä%.0s' {1..127})x"; do
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

@test "the command gets no descriptor of ours" {
    run -0 run_t 5 sh -c 'ls /proc/self/fd' # without dlock
    local plain=$output
    run -0 run_t 5 "$DLOCK" "$L" sh -c 'ls /proc/self/fd; ls -l /proc/self/fd >&2'
    refute_out socket:
    run -0 --separate-stderr run_t 5 "$DLOCK" "$L" sh -c 'ls /proc/self/fd'
    [ "$output" = "$plain" ] || fail "$output, not $plain"
}

@test "no password leaks" {
    own_server
    local form pw=c4n4ry-pw port=${PG_PORTS[own]} guard
    sql -c "create role app login superuser password '$pw'"
    printf '%s\n' 'host all postgres 127.0.0.1/32 trust' 'host all all 127.0.0.1/32 scram-sha-256' >"${PG_DIRS[own]}/pg_hba.conf"
    sql -c 'select pg_reload_conf()'
    wait_for 5 file_has "${PG_LOGS[own]}" 'reloading configuration files'
    # Until it is in force.
    wait_for 5 eval '! "$DLOCK" -q "postgres://app@127.0.0.1:'"$port"'/postgres?mode=lease#$NAME" true'
    (umask 077; echo "$pw" >pw)
    for form in "app:$pw@127.0.0.1:$port/postgres?mode=lease" "app@127.0.0.1:$port/postgres?password=$pw&mode=lease" \
        "app@127.0.0.1:$port/postgres?password-file=$T/pw&mode=lease"; do
        L="postgres://$form#$NAME"
        rm -f held go
        start_log hold.log "$DLOCK" -v "$L" sh -c 'env >env; echo >held; "$HELPERS/await" go'
        HOLDER=$STARTED
        wait_for 5 test -e held
        guard=$(children "$HOLDER" | head -n 1)
        start_log w.log "$DLOCK" -v "$L" true
        wait_for 5 called_are 1
        ! grep -qaF c4n4ry "/proc/$HOLDER/cmdline" "/proc/$guard/cmdline" "/proc/$STARTED/cmdline" env || fail "found"
        run -75 run_t 5 "$DLOCK" --status --json "$L"
        refute_out c4n4ry
        sql -c 'select query from pg_stat_activity' -c 'select * from dlock_locks' >rows
        let_go
        exits 0 5 "$STARTED"
        ! grep -F c4n4ry hold.log w.log rows || fail "found"
        # A wrong one is not shown either.
        [ "${form/"$pw"/}" = "$form" ] || {
            run -77 run_t 5 "$DLOCK" -v "${L/"$pw"/c4n4ry-no}" true
            refute_out c4n4ry
        }
    done
    ! grep -v '\[pgsql\]' "${PG_LOGS[own]}" | grep -F c4n4ry || fail "found"
}
