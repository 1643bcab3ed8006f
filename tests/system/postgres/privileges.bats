#!/usr/bin/env bats
# privileges.bats - databases in which other roles made what dlock's statements could meet: operators, functions, casts,
# types and views in a schema of the search_path, and a lease table that is not what it seems. None of their code runs.

# bats file_tags=long
bats_require_minimum_version 1.5.0
load ../../support/common
load ../../support/postgres

setup_file() {
    export BATS_NO_PARALLELIZE_WITHIN_FILE=true
    pg_start
    pgsql -c 'create role mallory login'
    export URI="postgres://postgres@127.0.0.1:$PG_PORT/postgres"
}
teardown_file() { pg_stop_all; }

setup() {
    dlock_setup
    DB=$NAME
    pgsql -c "create database \"$DB\" template postgres"
    AT="127.0.0.1:$PG_PORT/$DB"
    in_db -c 'grant create on schema public to mallory'
}
teardown() { dlock_teardown; }

in_db() { pgsql -d "$DB" "$@"; }
# Counts by a sequence, which no rollback resets.
was_called() { [ "$(in_db -c 'select is_called from public.calls')" = t ]; }

# What mallory makes in public: an operator for each pair of the types that dlock's statements have; namesakes of all
# functions, types and relations of pg_catalog that can be made; a type to which everything is cast.
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
    types text[] = '{text,name,"char",int2,int4,int8,oid,numeric,float8,bool,timestamptz,interval,pg_lsn,regclass,text[],anyelement,anynonarray}';
    body text = 'begin perform public.called(); return null; end';
    made int = 0;
    l text; r text; o text; f record;
begin
    foreach l in array types loop
        execute format('create function public.cast_of(pg_catalog.%s) returns public.thing language plpgsql as %L', l, body);
        begin
            execute format('create cast (pg_catalog.%s as public.thing) with function public.cast_of(pg_catalog.%s) as implicit', l, l);
        exception when others then null; end;
        foreach r in array types loop
            begin
                execute format('create function public.op(pg_catalog.%s, pg_catalog.%s) returns pg_catalog.bool language plpgsql as %L', l, r, body);
                foreach o in array '{=,<>,<,<=,>,>=,+,-,*,/,||,~~,~}'::text[] loop
                    execute format('create operator public.%s (leftarg = pg_catalog.%s, rightarg = pg_catalog.%s, function = public.op)', o, l, r);
                    made = made + 1;
                end loop;
            exception when others then null; end;
        end loop;
    end loop;
    assert made > 2000, format('operators: %s', made);
    made = 0;
    for f in select p.proname, pg_get_function_identity_arguments(p.oid) args, format_type(p.prorettype, null) type, p.proretset
        from pg_proc p where p.pronamespace = 'pg_catalog'::regnamespace and p.prokind = 'f' and not p.proretset
        and (p.proname::text ~ '^(pg_|set_config|current|concat|host|version|count|make_|substr|clock|date_part|extract|to_|text|int|float|oid|timestamptz|interval|format|acl)')
    loop
        begin
            execute format('create function public.%I(%s) returns %s language plpgsql as %L', f.proname, f.args, f.type, body);
            made = made + 1;
        exception when others then null; end;
    end loop;
    assert made > 100, format('functions: %s', made);
    for o in select relname from pg_class where relnamespace = 'pg_catalog'::regnamespace and relkind in ('r', 'v') loop
        execute format('create view public.%I as select public.called() as pid', o);
    end loop;
    foreach l in array '{text,int4,int8,oid,float8,timestamptz,interval,numeric,bool,name}'::text[] loop
        execute format('create domain public.%I as pg_catalog.%I check (public.called())', l, l);
    end loop;
end $$;
SQL
}

# All that dlock does with a lock: a hold with a renewal, a waiter, --status, and -n on a held one.
everything() {
    local t
    hold --ttl 1.5
    start_log w.log "$DLOCK" -w 20 "$L" true
    t=$STARTED
    run run_t 5 "$DLOCK" -n "$L" true
    assert_rc 75
    run run_t 5 "$DLOCK" --status "$L"
    assert_rc 75
    assert_out "pid $HOLDER"
    wait_for 5 renewed
    let_go
    exits 0 5 "$t"
    run run_t 5 "$DLOCK" --status "$L"
    assert_rc 0
    was_called && fail "code of another role was run: $L" || :
}
# The holder's session has sent a statement after the one that was granted.
renewed() {
    [ "$(pgsql -c "select count(*) from pg_stat_activity where datname = '$DB' and application_name like 'dlock:%'
        and (query ~ ' fence=' or query ~ 'WITH u AS')")" -ge 1 ]
}

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
