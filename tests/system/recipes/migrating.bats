#!/usr/bin/env bats
# migrating.bats - dlock-migrating(7): from other locks, beside the lock of a migration tool, and in
# a program. The texts in Go and Rust are not compiled here.

# bats file_tags=plain
load ../../support/recipes
source "$ROOT/tests/support/postgres.bash"

PAGE=$ROOT/man/dlock-migrating.7

setup_file() { redis_start && pg_start; }
teardown_file() { redis_stop && pg_stop_all; }

# hold LOCK: as another host, until let_go.
hold() {
    HELD=$1
    start "$DLOCK" "$HELD" "$HELPERS/await" "$T/go"
    wait_for 5 eval '! "$DLOCK" --status "$HELD" >/dev/null'
}
let_go() {
    : >go
    exits 0 5 "$STARTED"
    rm go
}

@test "the drill tells one lock of two hosts from two locks" {
    local line
    recipe drill
    mapfile -t line <drill
    [ ${#line[@]} = 3 ]
    export DLOCK_STORE=$STORE
    # Only warnings about the tests' own server.
    run run_t 10 bash -c "${line[0]}"
    [ "$status" -le 1 ] && refute_out failure
    start bash -c "exec ${line[1]/sleep 60/"'$HELPERS/await' '$T/go'"}"
    wait_for 5 eval '! "$DLOCK" --status @drill >/dev/null'
    run -0 run_t 5 bash -c "${line[2]}"
    [ "${lines[-1]}" = 75 ]
    assert_out "@$(uname -n), pid $STARTED"
    # The other host has another store.
    mkdir store
    DLOCK_STORE=$T/store run -0 run_t 5 bash -c "${line[2]}"
    [ "${lines[-1]}" = 0 ]
    assert_out "the lock is the file $T/store/drill.lock"
    let_go
}

@test "flock: a script that knows only the file and the new one exclude each other" {
    recipe from-flock
    sed -i "s,/run/lock/,$T/," from-flock
    program nightly "! flock -n '$T/nightly.lock' true"
    export DLOCK_STORE=$STORE
    run -0 run_t 5 sh from-flock
    run -75 flock -n nightly.lock timeout 5 sh from-flock
    hold "$STORE#nightly"
    run -75 run_t 5 sh from-flock
    let_go
    ran 1
}

@test "cronlock, consul and etcdctl: the job runs under both locks" {
    local words='[ "$1" != lock ] || shift
        while [[ $1 == -* ]]; do shift; done'
    export DLOCK_STORE=$STORE
    recipe from-cronlock
    recipe from-consul
    recipe from-etcdctl
    program cronlock 'exec "$@"'
    program consul "$words; shift; exec \"\$@\""
    # Without "--" it takes the options of the command for its own.
    program etcdctl "$words; [ \"\$2\" = -- ] || exit 9; shift 2; exec \"\$@\""
    for name in nightly make; do
        program $name "echo \"\$DLOCK_NAME \$DLOCK_SLOT\" >>'$T/names'"
    done
    run -0 "$ROOT/tests/support/helpers/cron.py" from-cronlock nightly
    run -0 run_t 5 sh from-consul
    run -0 run_t 5 sh from-etcdctl
    [ "$(cat names)" = $'nightly \nrender 0\nnightly ' ] || fail "$(cat names)"
    grep -qx 'make pages' ran
    hold "$STORE#nightly"
    run -75 "$ROOT/tests/support/helpers/cron.py" from-cronlock nightly
    let_go
    [ "$(grep -c '^nightly' ran)" = 2 ] || fail "$(cat ran)"
}

@test "each option in the table of words is one of dlock" {
    local known words
    known=$'\n'$("$DLOCK" --help | tr -s ' ,[=' '\n')$'\n'
    words=$(sed -n '/^\.\\" words/,/^\.El/s/^\.It .* Ta //p' "$PAGE" | grep -o 'Fl [^ ]*' | sort -u)
    [ "$(wc -l <<<"$words")" -ge 8 ] || fail "$words"
    while read -r _ word; do
        [[ $known == *$'\n'"-$word"$'\n'* ]] || fail "no option -$word"
    done <<<"$words"
}

@test "ShedLock: a skipped job is a success, and the lock stays for its least time" {
    recipe from-shedlock
    program java
    export DLOCK_STORE=$STORE
    run -0 run_t 5 sh from-shedlock
    run -0 run_t 5 sh from-shedlock
    [ "$(cat ran)" = "java -jar report.jar" ] || fail "$(cat ran)"
}

@test "steps of one command run under one hold" {
    recipe steps
    for name in build rollout; do
        program ./$name "[ \"\$DLOCK_NAME\" = release ] && dlock --held release"
    done
    export DLOCK_STORE=$STORE
    hold "$STORE#release"
    local holder=$STARTED
    start sh steps
    wait_for 5 eval '"$DLOCK" --status "$HELD" | grep -q waiting'
    ran 0
    : >go
    exits 0 5 "$holder"
    exits 0 5 "$STARTED"
    [ "$(cat ran)" = $'build\nrollout' ] || fail "$(cat ran)"
}

@test "a job waits for a migration by the key of the tool's own lock" {
    local url=postgres://postgres@127.0.0.1:$PG_PORT/shop keys key session held
    recipe no-migration
    recipe migration-key
    # As Rails 6.1.7 and golang-migrate 4.15.2 took them for this database.
    run -0 run_t 5 /usr/bin/python3 migration-key rails shop
    [ "$output" = 5939944341529942170 ]
    run -0 run_t 5 /usr/bin/python3 migration-key golang-migrate shop
    [ "$output" = 2101699660 ]
    keys=(5939944341529942170 2101699660 77433833903597 72707369 7241865325823964)
    for key in "${keys[@]:2}"; do grep -qw "$key" "$PAGE" || fail "the page lacks $key"; done
    pgsql -c 'create database shop template postgres'
    mkfifo sql
    start pg_session -d shop -f sql
    session=$STARTED
    exec 7>sql
    printf "select pg_advisory_lock(%s);\n" "${keys[@]}" >&7
    held='select count(*) = 5 from pg_locks where locktype = $$advisory$$'
    wait_for 5 eval '[ "$(pgsql -c "$held")" = t ]'
    sed 's/-w 30m/-n/' no-migration >try
    for key in "${keys[@]}"; do run -75 run_t 5 sh try "$url" "$key"; done
    start sh no-migration "$url?connect_timeout=5" "${keys[0]}"
    HELD="$url?key=${keys[0]}#migration"
    wait_for 5 eval '"$DLOCK" --status "$HELD" | grep -q waiting'
    kill "$session"
    exits 143 5 "$session"
    exits 0 10 "$STARTED"
    exec 7>&-
    # Without a key the name's own would be free.
    run run_t 5 sh no-migration "$url"
    [ "$status" -ne 0 ]
}

@test "Python: a program tells a held lock from a lost one and a failure" {
    recipe nightly.py
    program nightly 'exit ${RC:-0}'
    export DLOCK_STORE=$STORE
    run -0 run_t 5 /usr/bin/python3 nightly.py
    [ -z "$output" ] || fail "$output"
    hold "$STORE#nightly"
    run -0 run_t 5 /usr/bin/python3 nightly.py
    [ "$output" = "another host has the lock" ] || fail "$output"
    let_go
    RC=79 run -1 run_t 5 /usr/bin/python3 nightly.py
    assert_out "the lock was lost"
    RC=3 run -1 run_t 5 /usr/bin/python3 nightly.py
    assert_out "failed: 3"
    ran 3
}

@test "Python: a program does steps with the library, and releases the lock" {
    local fence
    recipe steps.py
    LD_LIBRARY_PATH=$BUILD run -0 run_t 10 /usr/bin/python3 steps.py "$STORE#steps"
    fence=${lines[0]#0 }
    [ "$fence" -gt 0 ]
    [ "$output" = "0 $fence"$'\n'"1 $fence"$'\n'"2 $fence" ] || fail "$output"
    run -0 "$DLOCK" --status "$STORE#steps"
    LD_LIBRARY_PATH=$BUILD run -1 run_t 10 /usr/bin/python3 steps.py "redis://127.0.0.1:1#steps"
    assert_out "Connection refused"
}

# compiled TEXT: a whole program ./job of the page's text. 1: there is no compiler; no package that
# the tests need has one.
compiled() {
    case $1 in
    *.go)
        command -v go >/dev/null || return
        printf '%s\n' 'package main' 'import ("errors"; "log"; "os"; "os/exec")' \
            'func main() {' "$(<"$1")" '}' >main.go
        GOCACHE=$T/cache GOTOOLCHAIN=local run -0 run_t 100 go build -o job main.go
        ;;
    *.rs)
        command -v rustc >/dev/null || return
        printf '%s\n' 'fn main() -> Result<(), Box<dyn std::error::Error>> {' "$(<"$1")" \
            'Ok(())' '}' >main.rs
        run -0 run_t 100 rustc -o job main.rs
        ;;
    esac
}

@test "Go and Rust: short texts that tell a held lock from a lost one" {
    local text
    program nightly 'exit ${RC:-0}'
    export DLOCK_STORE=$STORE
    for text in nightly.go nightly.rs; do
        sed -n "/text of $text/,/^\.Ed/{/^\./d; p}" "$PAGE" >$text
        assert_between 5 "$(wc -l <$text)" 20 "lines of $text"
        grep -q '"dlock"' $text && grep -q '"-n"' $text && grep -q DLOCK_STORE $text
        grep -qw 75 $text && grep -qw 79 $text
        compiled $text || { echo "# not run: $text: no compiler" >&3; continue; }
        run -0 run_t 5 ./job
        hold "$STORE#nightly"
        run -0 run_t 5 ./job
        assert_out "another host has the lock"
        let_go
        RC=79 run -1 run_t 5 ./job
        assert_out "the lock was lost"
        RC=3 run -1 run_t 5 ./job
        assert_out 3
    done
}

@test "a deleted lock's next fencing token is higher, and its command runs again" {
    local first keys
    mkdir store
    for DLOCK_STORE in "$STORE" "$T/store"; do
        export DLOCK_STORE
        run -0 run_t 5 "$DLOCK" --once @gone sh -c 'echo $DLOCK_FENCE'
        first=$output
        run -0 run_t 5 "$DLOCK" --once @gone echo again
        [ -z "$output" ] || fail "$output"
        run -0 run_t 5 "$DLOCK" --status @gone
        mapfile -t keys < <(rcli keys '*gone*')
        rcli del "${keys[@]}" >/dev/null
        rm -f store/gone.{lock,fence,once}
        [ -z "$(ls store)" ]
        run -0 run_t 5 "$DLOCK" --once @gone sh -c 'echo $DLOCK_FENCE'
        [ "$output" -gt "$first" ] || fail "$output after $first"
    done
}
