#!/usr/bin/env bats
# fence_manual.bats - the fenced write in SQL, as the manual has it: table and script are taken out
# of its text, and refuse the writes of an old holder.

# bats file_tags=plain
load ../../support/pgtests

setup_file() {
    export BATS_NO_PARALLELIZE_WITHIN_FILE=true
    pg_start
    pgsql -c 'create database app template postgres'
}
setup() {
    dlock_setup
    at_server
    # Where the script's psql finds the server.
    at_app=(env -u DLOCK_FENCE PATH="$PG_BIN:$PATH" PGHOST=127.0.0.1 PGPORT="$PG_PORT")
    at_app+=(PGUSER=postgres)
    block 1 >table.sql
    block 2 >write.sh
    app -c 'drop table if exists fences, report' 2>/dev/null
    app -f table.sql
    app -c "create table report (id int primary key, body text)"
    app -c "insert into report values (7, 'old')"
}

# block N: the N-th example of the section, as a reader sees it.
block() {
    awk -v n="$1" '/^\.S[hs] / { on = $0 == ".Ss A fence in SQL" } /^\.Ed/ { text = 0 }
        on && text && i == n; on && /^\.Bd/ { text = 1; i++ }' "$ROOT/man/dlock-guarantees.7" |
        sed 's/\\e/\\/g; s/\\&//g'
}
app() { pgsql -d app "$@"; }
# writes RC [FENCE]: the script, by a holder of that token, ends so.
writes() { run "-$1" run_t 10 "${at_app[@]}" ${2:+DLOCK_FENCE="$2"} sh -e write.sh; }
session_is() { is_sql "count(*) = 1 from pg_stat_activity where datname = 'app' and $1"; }
stored_is() {
    local is
    is=$(app -c 'select body, fence from report, fences')
    [ "$is" = "$1" ] || fail "stored: $is, not $1"
}

@test "the manual's fenced write is done under each grant of the lock" {
    local i
    for i in 1 2; do
        app -c "update report set body = 'old'"
        run -0 run_t 10 "${at_app[@]}" "$DLOCK" "$L" \
            sh -ec 'echo "$DLOCK_FENCE" >fence; . ./write.sh'
        stored_is "new text|$(cat fence)"
    done
}

@test "the manual's fenced write refuses an old holder, and one without a token" {
    writes 0 1790000000000020
    app -c "update report set body = 'theirs'"
    writes 3 1790000000000019
    assert_out '\gset'
    stored_is "theirs|1790000000000020"
    writes 3
    stored_is "theirs|1790000000000020"
    writes 0 1790000000000020
    stored_is "new text|1790000000000020"
}

@test "the manual's fenced write refuses an old holder that waits for a new one's transaction" {
    local new
    mkfifo new.sql
    start_log new.log pg_session -d app -f new.sql
    new=$STARTED
    exec 8>new.sql
    echo "begin; update fences set fence = 20; update report set body = 'theirs';" >&8
    wait_for 5 session_is "state = 'idle in transaction'"
    start_log old.log "${at_app[@]}" DLOCK_FENCE=19 sh -e write.sh
    wait_for 5 session_is "wait_event_type = 'Lock'"
    echo 'commit;' >&8
    exec 8>&-
    exits 3 5 "$STARTED"
    exits 0 5 "$new"
    stored_is "theirs|20"
}

# Why the script has \gset.
@test "psql exits with 0 when an update without the manual's \gset changes no row" {
    writes 0 20
    sed 's/^RETURNING .*/;/' write.sh >bare.sh
    ! cmp -s write.sh bare.sh || fail "no RETURNING in $(cat write.sh)"
    mv bare.sh write.sh
    writes 0 19
    assert_out "UPDATE 0"
}
