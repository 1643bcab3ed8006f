#!/usr/bin/env bats
# foreign_objects.bats - databases in which other roles made what dlock's statements could meet:
# operators, functions, casts, types and views in a schema of the search_path, and a lease table
# that is not what it seems. None of their code runs.

# bats file_tags=long
load ../../support/pgtests

setup_file() {
    export BATS_NO_PARALLELIZE_WITHIN_FILE=true
    pg_start
    pgsql -c 'create role mallory login'
}
setup() {
    dlock_setup
    DB=$NAME
    pgsql -c "create database \"$DB\" template postgres"
    AT="127.0.0.1:$PG_PORT/$DB"
    in_db -c 'grant create on schema public to mallory'
}
CALLS="'begin perform nextval(''public.calls'');"
# Counts by a sequence, which no rollback resets.
was_called() { [ "$(in_db -c 'select is_called from public.calls')" = t ]; }

# What mallory makes in public: an operator for each pair of the types that dlock's statements have;
# namesakes of all functions, types and relations of pg_catalog that can be made; a type to which
# everything is cast.
hostile_schema() {
    in_db >hostile.log 2>&1 <<'SQL'
set session authorization mallory;
set client_min_messages = error;
create sequence public.calls;
grant all on public.calls to public;
create function public.called() returns bool language plpgsql as
    'begin perform pg_catalog.nextval(''public.calls''); return true; end';
create type public.thing as (x int);
do $$
declare
    types text[] = '{text,name,"char",int2,int4,int8,oid,numeric,float8,bool,timestamptz,interval,
        pg_lsn,regclass,text[],anyelement,anynonarray}';
    body text = 'begin perform public.called(); return null; end';
    made int = 0;
    l text; r text; o text; f record;
begin
    foreach l in array types loop
        execute format('create function public.cast_of(pg_catalog.%s) returns public.thing
            language plpgsql as %L', l, body);
        begin
            execute format('create cast (pg_catalog.%s as public.thing)
                with function public.cast_of(pg_catalog.%1$s) as implicit', l);
        exception when others then null; end;
        foreach r in array types loop
            begin
                execute format('create function public.op(pg_catalog.%s, pg_catalog.%s)
                    returns pg_catalog.bool language plpgsql as %L', l, r, body);
                foreach o in array '{=,<>,<,<=,>,>=,+,-,*,/,||,~~,~}'::text[] loop
                    execute format('create operator public.%s (leftarg = pg_catalog.%s,
                        rightarg = pg_catalog.%s, function = public.op)', o, l, r);
                    made = made + 1;
                end loop;
            exception when others then null; end;
        end loop;
    end loop;
    assert made > 2000, format('operators: %s', made);
    made = 0;
    for f in select p.proname, pg_get_function_identity_arguments(p.oid) args,
            format_type(p.prorettype, null) type, p.proretset
        from pg_proc p
        where p.pronamespace = 'pg_catalog'::regnamespace and p.prokind = 'f' and not p.proretset
        and p.proname::text ~ ('^(pg_|set_config|current|concat|host|version|count|make_|substr|'
            'clock|date_part|extract|to_|text|int|float|oid|timestamptz|interval|format|acl)')
    loop
        begin
            execute format('create function public.%I(%s) returns %s language plpgsql as %L',
                f.proname, f.args, f.type, body);
            made = made + 1;
        exception when others then null; end;
    end loop;
    assert made > 100, format('functions: %s', made);
    for o in select relname from pg_class
        where relnamespace = 'pg_catalog'::regnamespace and relkind in ('r', 'v')
    loop
        execute format('create view public.%I as select public.called() as pid', o);
    end loop;
    foreach l in array '{text,int4,int8,oid,float8,timestamptz,interval,numeric,bool,name}'::text[]
    loop
        execute format('create domain public.%I as pg_catalog.%1$I check (public.called())', l);
    end loop;
end $$;
SQL
}

# All that dlock does with a lock: a hold with a renewal, a waiter, --status, and -n on a held one.
everything() {
    hold --ttl 2
    start_log w.log "$DLOCK" -w 20 "$L" true
    run -75 run_t 5 "$DLOCK" -n "$L" true
    says 75 "pid $HOLDER" --status "$L"
    wait_for 5 renewed
    hand_over
    if [[ $L == *mode=lease* ]]; then
        readers
        records
    fi
    run -0 run_t 5 "$DLOCK" --status "$L"
    ! was_called || fail "code of another role was run: $L"
}
# The same with a slot and a reader, and a writer that waits for them.
readers() {
    hold --slots 2 --ttl 2
    start_log w.log "$DLOCK" -w 20 "$L" true
    both_are_there() { [ "$(in_db -c 'select count(*) from own.locks_holders')" = 2 ]; }
    wait_for 5 both_are_there
    run -75 run_t 5 "$DLOCK" -n -s "$L" true
    run run_t 5 "$DLOCK" --status "$L"
    assert_out 'slot 0 of 2'
    hand_over
}
in_line() {
    is_sql "count(*) = 1 from pg_stat_activity where datname = '$DB'
        and application_name like 'dlock:%:%'"
}
# Run records, and locks that stay held.
records() {
    hold --once --ttl 2
    start_log w.log "$DLOCK" -w 20 --once "$L" touch ran
    wait_for 5 in_line
    hand_over
    [ ! -e ran ]
    run -0 run_t 5 "$DLOCK" --forget --yes "$L"
    run -3 run_t 5 "$DLOCK" --once --min-hold 100ms "$L" sh -c 'exit 3'
    run -0 run_t 5 "$DLOCK" --slots 2 --min-hold 100ms "$L" true
    run -0 run_t 5 "$DLOCK" -w 4 "$L" true
}
# The holder's session has sent a statement after the one that was granted.
renewed() {
    is_sql "count(*) >= 1 from pg_stat_activity where datname = '$DB'
        and application_name like 'dlock:%'
        and (query ~ ' fence=' or query ~ 'WITH u AS')"
}

# bats test_tags=plain
@test "operators, functions, types and casts of another role are never run" {
    hostile_schema || fail "$(cat hostile.log)"
    local path mode
    for path in '"$user", public' 'public, pg_catalog'; do
        pgsql -c "alter database \"$DB\" set search_path = $path"
        for mode in '' '?mode=lease&table=own.locks' '?renew=write&restart-grace=1ms'; do
            in_db -c 'create schema if not exists own'
            L="postgres://postgres@$AT$mode#$NAME"
            everything
        done
    done
}

# --- the lease table ------------------------------------------------------------------------------

# refuses WORD...: dlock refuses $L with 77, runs neither its command nor other code, and its
# message has each WORD.
refuses() {
    local how word
    for how in run --status; do
        if [ $how = run ]; then run -77 run_t 5 "$DLOCK" "$L" touch ran; else run -77 run_t 5 \
            "$DLOCK" --status "$L"; fi
        [ "${#lines[@]}" = 1 ] || fail "$output"
        for word; do assert_out "$word"; done
    done
    [ ! -e ran ]
    ! was_called || fail "code of the table's owner was run"
}

@test "refuses a lease table that another role owns, or could replace" {
    in_db -c 'create role alice login' -c "create schema mine authorization alice" >/dev/null
    in_db -c 'set session authorization mallory; create sequence public.calls' \
        -c 'grant all on public.calls to public'
    # A superuser trusts no owner but superusers, nor the schema's.
    L="postgres://postgres@$AT?mode=lease#$NAME"
    in_db -c 'set session authorization mallory' -c "$("$DLOCK" --schema "$L")" \
        -c "create function f() returns trigger language plpgsql as $CALLS return new; end'" \
        -c 'create trigger t before insert or update on dlock_locks
            for each row execute function f()'
    refuses 'it is owned by mallory (see table-owner= in dlock-postgres(7))'
    in_db -c 'drop table public.dlock_locks; grant all on schema mine to postgres, mallory'
    L="postgres://postgres@$AT?mode=lease&table=mine.locks#$NAME"
    refuses 'its schema is owned by alice'
    L="postgres://postgres@$AT?mode=lease&table=mine.locks&table-owner=mallory#$NAME"
    refuses 'its schema is owned by alice'
    run -0 run_t 5 "$DLOCK" \
        "postgres://postgres@$AT?mode=lease&table=mine.locks&table-owner=alice#$NAME" true
    # The owner of the database may do with a plain role's table what it wants, and with a
    # superuser's nothing.
    pgsql -c "alter database \"$DB\" owner to alice"
    L="postgres://postgres@$AT?mode=lease&table=public.locks#$NAME"
    refuses 'its schema is owned by alice'
    in_db -c 'alter table public.locks owner to alice'
    refuses 'owned by alice'
    in_db -c 'grant select, insert, update, delete on public.locks to mallory'
    run -0 run_t 5 "$DLOCK" "postgres://mallory@$AT?mode=lease&table=public.locks#$NAME" true
    # A superuser remains one whose role the database's owner has set: SET ROLE NONE in a trigger
    # would show it.
    in_db -c 'create table public.own (like public.locks including all)' \
        -c 'alter table public.own owner to alice' \
        -c "alter database \"$DB\" set role = alice"
    L="postgres://postgres@$AT?mode=lease&table=public.own#$NAME"
    refuses 'owned by alice'
    in_db -c "set role none; alter database \"$DB\" reset role"
    # What else gives power over it.
    in_db -c 'grant trigger on public.locks to public'
    L="postgres://mallory@$AT?mode=lease&table=public.locks#$NAME"
    refuses 'PUBLIC has the privilege TRIGGER'
    in_db -c 'revoke trigger on public.locks from public' -c 'create role bob' \
        -c 'grant references (name) on public.locks to bob'
    refuses 'bob has the privilege REFERENCES'
}

@test "refuses a lease table that is more than --schema makes" {
    local what text
    L="postgres://postgres@$AT?mode=lease&table=own.locks#$NAME"
    in_db -c 'create sequence public.calls'
    while IFS='|' read -r what text; do
        in_db >sql.log 2>&1 <<SQL || fail "$(cat sql.log)"
            drop schema if exists own cascade;
            create schema own;
            create function own.f() returns trigger language plpgsql
                as $CALLS return new; end';
            create function own.b() returns bool immutable language plpgsql
                as $CALLS return true; end';
            create function own.t() returns text immutable language plpgsql
                as $CALLS return ''''; end';
            create domain own.text as text check (own.b());
            $("$DLOCK" --schema "$L")
            ${text//LOCKS/own.locks};
            select setval('public.calls', 1, false);
SQL
        refuses '"own"."locks"' "$what"
    done <<'EOT'
it has the trigger t|create trigger t before insert or delete on own.locks execute function own.f()
it has the trigger|create table own.k (name text references own.locks on delete cascade)
it has the rule r|create rule r as on insert to own.locks do also select own.b()
it is not a plain table|drop table own.locks; create view own.locks as select own.t() name, 0 fence
it is not a plain table|alter table own.locks set unlogged
it has row security|alter table LOCKS enable row level security; create policy p on LOCKS
it inherits or is inherited|create table own.child () inherits (own.locks)
its column owner has a default|alter table own.locks alter owner set default own.t()
its column more has a default|alter table LOCKS add more text generated always as (own.t()) stored
its columns differ|alter table own.locks add more text
its columns differ|alter table own.locks alter owner type own.text
its columns differ|alter table own.locks alter owner drop not null
it has the constraint c|alter table own.locks add constraint c check (own.b())
it has an index on an expression|create index on own.locks (own.t())
it has an index on an expression|create index on own.locks (name) where own.b()
it has the statistics s|create statistics own.s on name, owner from own.locks
EOT
    # What adds no code does no harm.
    in_db -c 'drop table own.locks' -c "$("$DLOCK" --schema "$L")" \
        -c 'create index on own.locks (expires)' \
        -c 'alter table own.locks add more text; alter table own.locks drop more'
    run -0 run_t 5 "$DLOCK" "$L" true
    [ -z "$output" ] || fail "$output"
}

@test "the manual's schema for the lease table works for a plain role" {
    sed -n '/^CREATE SCHEMA dlock;/,/^\.Ed/{/^\.Ed/d;p}' "$ROOT/man/dlock-postgres.7" >manual.sql
    in_db -c 'create role app login' -f "$T/manual.sql"
    L="postgres://app@$AT?mode=lease&table=dlock.locks#$NAME"
    run -75 run_t 5 "$DLOCK" "$L" "$DLOCK" --no-reentrant -n "$L" true
    # Others may not even look.
    run -77 run_t 5 "$DLOCK" -n "${L/app@/mallory@}" true
}
