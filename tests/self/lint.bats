#!/usr/bin/env bats
# tests/lint on a small tree of cli/ and lib/: each of its rules refuses what it is for.

# bats file_tags=plain
load ../support/common

# The tree of all tests, compiled once: each test has a copy, and compiles what it changes.
setup_file() {
    cd "$BATS_FILE_TMPDIR" || return
    mkdir -p tests cli lib/tls lib/backends/{file,redis,postgres,zookeeper/wire}
    cp "$ROOT/tests/lint" tests/
    # A program in which all is well: cli -> core -> helpers, backends behind tables.
    : >lib/lease.h
    : >lib/tls/tls.h
    file lib/dlock.h 'int dlock_open(void);'
    file lib/util.h 'int dlock_fail(void);' 'int dlock_registry_tls(void);' 'int outage_over(void);'
    file lib/backends/file/flock_wait.h 'int flock_wait_start(void);'
    file lib/backends/redis/conn.h 'int redis_send(void);'
    file lib/backends/zookeeper/wire/frame.h 'int zk_frame(void);'
    file cli/run.h 'int say(void);'
    file cli/run.c '#include "run.h"' '#include "dlock.h"' '#include "backends/file/flock_wait.h"' \
        'int say(void) { return dlock_open() + flock_wait_start(); }'
    file lib/lock.c '#include "dlock.h"' '#include "util.h"' \
        'int dlock_open(void) { return dlock_registry_tls(); }'
    file lib/registry.c '#include "util.h"' 'extern const int dlock_backend_redis;' \
        'int dlock_registry_tls(void) { return dlock_backend_redis; }'
    file lib/error.c '#include "util.h"' 'int dlock_fail(void) { return 1; }'
    file lib/backends/networked.c '#include "util.h"' \
        'int outage_over(void) { return dlock_fail(); }'
    file lib/backends/file/flock_wait.c '#include "flock_wait.h"' \
        'int flock_wait_start(void) { return 0; }'
    file lib/backends/redis/conn.c '#include "conn.h"' '#include "util.h"' \
        'int redis_send(void) { return dlock_fail(); }'
    file lib/backends/redis/redis.c '#include "conn.h"' '#include "util.h"' \
        'const int dlock_backend_redis = 1;' 'int redis_run(void);' \
        'int redis_run(void) { return redis_send() + outage_over(); }'
    file lib/backends/redis/redis.h 'int redis_run(void);'
    file lib/backends/zookeeper/wire/frame.c '#include "frame.h"' 'int zk_frame(void) { return 0; }'
    file lib/backends/zookeeper/zookeeper.h 'int zk_run(void);'
    file lib/backends/zookeeper/zookeeper.c '#include "zookeeper.h"' '#include "wire/frame.h"' \
        'int zk_run(void) { return zk_frame(); }'
    find . -type f -exec touch -d '2 hours ago' {} +
    compile
    find build -type f -exec touch -d '1 hour ago' {} +
}
setup() {
    dlock_setup
    cp -a "$BATS_FILE_TMPDIR"/{tests,cli,lib,build} .
}

# file FILE LINE...: that file, of these lines. more FILE LINE...: behind what it has.
file() { printf '%s\n' "${@:2}" >"$1"; }
more() { printf '%s\n' "${@:2}" >>"$1"; }

# compile: all sources that are newer than their objects.
compile() {
    local f o
    objects=()
    for f in $(find cli lib -name '*.c'); do
        o=build/obj/${f%.c}.o
        mkdir -p "${o%/*}"
        [ "$o" -nt "$f" ] || cc -w -fPIC -iquote lib -iquote cli -c -o "$o" "$f" || return
        objects+=("$o")
    done
}
# lint: the tree compiled, and given to tests/lint.
lint() {
    local objects
    compile
    run tests/lint "${objects[@]}"
}

# refuses WORD...: it fails, with one line, which has each WORD.
refuses() {
    local word
    lint
    assert_rc 1
    [ ${#lines[@]} = 1 ] || fail "not one line: $output"
    for word; do assert_out "$word"; done
}

@test "lint: accepts a tree in layers" {
    lint
    [ "$status" = 0 ] && [ -z "$output" ] || fail "$output"
}

@test "lint: no file includes a header of a layer that it may not know" {
    file lib/lock.h 'struct dlock { int x; };'
    while read -r from to; do
        cp -a "$from" saved
        more "$from" "#include \"${to#*/}\""
        refuses "$from includes $to"
        mv saved "$from"
    done <<'END'
cli/run.c lib/lock.h
lib/backends/redis/redis.c lib/backends/zookeeper/zookeeper.h
lib/backends/redis/redis.c lib/lock.h
lib/lock.c lib/backends/redis/conn.h
lib/error.c cli/run.h
lib/backends/zookeeper/wire/frame.c lib/backends/zookeeper/zookeeper.h
END
}

@test "lint: no header has the name of one in lib/" {
    file lib/backends/postgres/util.h 'int dlock_fail(void);'
    refuses 'lib/backends/postgres/util.h hides lib/util.h'
}

@test "lint: nothing is declared extern in a .c file" {
    more lib/error.c 'extern int somewhere;'
    refuses 'lib/error.c:' 'extern int somewhere'
}

@test "lint: no file calls a function of a layer that it may not know" {
    file lib/backends/redis/flock.c '#include "redis.h"' 'int redis_flock(void) { return 0; }'
    more lib/backends/redis/redis.h 'int redis_flock(void);'
    : >lib/tls/config.c
    while read -r from name owner; do
        cp "$from" saved
        more "$from" "int $name(void);" "static int f(void) { return $name(); }" \
            'int (*used_f)(void) = f;'
        refuses "$from uses $name() of $owner"
        mv saved "$from"
        touch "$from"
    done <<'END'
lib/error.c say cli/run.c
lib/backends/zookeeper/zookeeper.c redis_send lib/backends/redis/conn.c
lib/registry.c redis_send lib/backends/redis/conn.c
lib/backends/redis/conn.c dlock_open lib/lock.c
lib/tls/config.c dlock_registry_tls lib/registry.c
cli/run.c redis_flock lib/backends/redis/flock.c
END
}

@test "lint: only the registry knows the tables" {
    file lib/error.c 'extern_table' 'int dlock_fail(void) { return dlock_backend_redis; }'
    sed -i 's/extern_table/__extension__ extern const int dlock_backend_redis;/' lib/error.c
    refuses 'lib/error.c uses dlock_backend_redis'
}

@test "lint: a function that other files can call is declared in a header" {
    more lib/error.c 'int dlock_fail_twice(void) { return 2; }'
    refuses 'lib/error.c: dlock_fail_twice()'
}

@test "lint: at most three files of a room call each other in a circle" {
    local files=(a b c d) n i next
    for n in 3 4; do
        for ((i = 0; i < n; i++)); do
            next=${files[(i + 1) % n]}
            more lib/backends/redis/redis.h "int redis_$n${files[i]}(void);"
            file "lib/backends/redis/$n${files[i]}.c" '#include "redis.h"' \
                "int redis_$n${files[i]}(void) { return redis_$n$next(); }"
        done
        [ $n = 4 ] || { lint; [ "$status" = 0 ] || fail "a circle of three: $output"; }
    done
    refuses 'lib/backends/redis: a circle of 4 files, with lib/backends/redis/4a.c; at most three'
}

# module NAME OBJECT...: the module of these objects.
module() {
    local name=$1
    shift
    mkdir -p build/dlock-modules
    cc -shared -o "build/dlock-modules/$name.so" "${@/#/build/obj/lib/}"
}

@test "lint: a module is its folder and helpers" {
    lint
    zk='backends/zookeeper/zookeeper.o backends/zookeeper/wire/frame.o'
    module zookeeper $zk error.o backends/networked.o
    lint
    [ "$status" = 0 ] || fail "$output"
    module zookeeper $zk lock.o
    refuses 'zookeeper.so holds lib/lock.c'
    module zookeeper $zk backends/redis/conn.o
    refuses 'zookeeper.so holds lib/backends/redis/conn.c'
    module zookeeper backends/zookeeper/zookeeper.o
    refuses 'zookeeper.so lacks lib/backends/zookeeper/wire/frame.c'
}

@test "lint: SQL stands in its files, behind the path" {
    local d=lib/backends/postgres engine=lib/backends/table
    mkdir -p $d/sql $engine
    file $d/line.c '#include "line.h"' '/* SELECT */' 'const char *a = "select a slot";' \
        'static void f(void) { g("fence slot"); sql_text(0, 0, "slot"); }'
    file $d/line.h 'extern const char sql_session_path[];' 'int g(const char *);' \
        'int sql_text(int, int, const char *);'
    file $engine/send.c '/* of PQexec() */' 'struct d { void (*send)(int); };' \
        'static void f(struct d *driver) { driver->send(0); }'
    file $d/sql/table.sql '-- SELECT x FROM public.y' \
        "SELECT pg_catalog.set_config('search_path', 'pg_catalog', true)" \
        'SELECT count(*), extract(epoch FROM t.x) FROM {table} t' \
        'JOIN pg_class c ON c.oid = t.x WHERE t.y IN (1, 2)'
    lint
    [ "$status" = 0 ] || fail "$output"
    printf '%s\n' 'const char *a = "SELECT 1";' 'const char *b = "/* x */ UPDATE x";' \
        'f("LISTEN \"%s\"");' 'x = " pg_catalog.now()";' \
        'be->driver->send(c, 1, all, n);' 'x = sql_session_path;' 'sql_text(r, 0, "far");' \
        >$d/line.c
    echo 'x = PQerrorMessage(y);' >$engine/table.c
    printf '%s\n' 'SELECT pg_catalog.now()' 'SELECT 1 FROM public.t' \
        'UPDATE own.t SET x = 1' >$d/sql/table.sql
    run -1 tests/lint build/obj/lib/error.o
    for i in 1 2 3 4; do assert_out "$d/line.c:$i: SQL outside sql/*.sql"; done
    for i in 5 6; do assert_out "$d/line.c:$i: SQL: only send.c and advisory_sql.c put"; done
    assert_out "$engine/table.c:1: the engine knows no store"
    assert_out "$d/sql/table.sql:1: SQL: a needless schema"
    for i in 2 3; do assert_out "$d/sql/table.sql:$i: SQL: a table that is no place: "; done
    assert_out "SQL: no answer is asked for the column far"
    [ ${#lines[@]} = 11 ] || fail "$output"
}

# limit MESSAGE FILE N BEGIN EACH END: accepts the file with EACH N times, and not once more.
limit() {
    local n
    for n in "$3" $(($3 + 1)); do
        # shellcheck disable=SC2059
        { printf "$4" && printf "$5%.0s" $(seq "$n") && printf "$6\n"; } >"$2"
        [ "$n" != "$3" ] || { lint; [ "$status" = 0 ] || fail "$n: $output"; }
    done
    refuses "$1"
}

@test "lint: a line has at most 100 columns" {
    mkdir -p tests/self tests/soak
    limit 'tests/self/some.bats:1: a line of over 100 columns' tests/self/some.bats 98 '# ' ä
    mv tests/self/some.bats tests/soak/script
    refuses 'tests/soak/script:1: '
}

@test "lint: a function has at most 80 lines" {
    limit 'lib/error.c:3: dlock_fail() has 81 lines' lib/error.c 80 \
        '#include "util.h"\nint dlock_fail(void)\n{\n' ';\n' '}'
}

@test "lint: a function has no empty line" {
    printf '#include "util.h"\nint dlock_fail(void)\n{\n    int a;\n\n    a = 1;\n}\n' >lib/error.c
    refuses 'lib/error.c:5: an empty line in dlock_fail()'
}

# --- tests/lint-manual: the manual ---

# page NAME.N LINE...: a manual page with this text, which mandoc renders to 8 lines and the text's.
page() {
    mkdir -p man
    file "man/$1" ".Dd January 1, 2026" ".Dt ${1%.*} ${1##*.}" .Os .Sh NAME ".Nm ${1%.*}" '.Nd x' \
        '.Sh D\&ESCRIPTION' "${@:2}"
}
# pages: tests/lint-manual on them.
pages() { run "$ROOT/tests/lint-manual" "$T/man"; }
# complains MESSAGE: with this line, and no other.
complains() {
    pages
    assert_rc 1
    [ "$output" = "lint: $1" ] || fail "not '$1': $output"
}
# fill N: text of N rendered lines.
fill() { printf '.Bd -literal -compact\n'; seq "$1"; printf '.Ed\n'; }

@test "lint: a manual page is not longer than its limit, nor are all together" {
    page dlock.1 x
    pages
    [ "$status" = 0 ] && [ -z "$output" ] || fail "$output"
    local more=$((500 - $(mandoc -T ascii man/dlock.1 | wc -l) + 1)) p
    page dlock.1 "$(fill "$more")"
    pages
    [ "$status" = 0 ] || fail "$output"
    page dlock.1 "$(fill $((more + 1)))"
    complains 'dlock.1: 501 lines, at most 500'
    page dlock.1 x
    page dlock-other.7 x
    complains 'dlock-other.7: no limit of its length is known (tests/lint-manual, LIMITS)'
    rm man/dlock-other.7
    page libdlock.3 "$(fill 4000)"
    pages
    [ "$status" = 0 ] || fail "$output"
    for p in dlock-formats.5 dlock-{guarantees,locks,redis,postgres}.7; do page "$p" x; done
    sed 's/^ALL=.*/ALL=30/; s,^cd "$(dirname.*,,' "$ROOT/tests/lint-manual" >tests/lint-manual
    chmod +x tests/lint-manual
    run tests/lint-manual man
    [[ $output == 'lint: all pages: '*' lines, at most 30' ]] || fail "$output"
}

@test "lint: a page and a section that a manual page names exist" {
    page dlock.1 See '.Xr dlock-formats 5 ,' '.Xr cron 8' and '.Pq see Sx SOME THINGS No there .' \
        '.Ss Of "some" things: \&x' 'and' '.Sx Of some things: x .' '.Sh SOME THINGS'
    page dlock-formats.5 '.Xr dlock 1'
    pages
    [ "$status" = 0 ] || fail "$output"
    local fault message
    while IFS='|' read -r fault message; do
        page dlock-formats.5 "$fault"
        complains "$message"
    done <<'END'
.Pq Xr dlock-format 5 .|dlock-formats.5: names the page dlock-format.5, which does not exist
.Fl s No in Xr dlock 7|dlock-formats.5: names the page dlock.7, which does not exist
.Xr libdlock 3|dlock-formats.5: names the page libdlock.3, which does not exist
.Sx SOME THINGS .|dlock-formats.5: has no heading SOME THINGS
.Pq see Sx NAMES , x|dlock-formats.5: has no heading NAMES
END
}
