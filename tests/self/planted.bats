#!/usr/bin/env bats
# Planted bugs: a suite that does not notice them proves nothing. Each is a change of one source
# file, built beside the real program and given to the one test that must fail. The change must
# apply: whoever rewrites that line finds a new one for it here.

# bats file_tags=long,slow
load ../support/common

# How the program under test is built: one command a line.
setup_file() {
    cd "$ROOT" || return
    # --always-make would not only be said for the makefile itself: there is no rule for it.
    "${MAKE:-make}" -nB V=1 BUILD="$BUILD" SAN="${SAN:-}" "$BUILD/test/dlock" 2>/dev/null |
        sed -e ':more' -e '/\\$/{N;s/\\\n//;b more' -e '}' >"$BATS_FILE_TMPDIR/commands" || :
}

# command_with WORD: the one command with that word.
command_with() {
    local found
    found=$(grep -F -- " $1 " "$BATS_FILE_TMPDIR/commands")
    [ "$(wc -l <<<"$found")" = 1 ] && [ -n "$found" ] || fail "how is $1 made? $found" || return
    echo "$found"
}

# plant SOURCE SED: the program with that change is $PLANTED. A Lua script is a part of
# redis/script.c, a store's SQL of its lease.c.
plant() {
    local source=$1 object compile link store=${1#lib/backends/}
    store=${store%%/*}
    mkdir "$T/planted"
    PLANTED=$T/planted/dlock
    sed -E "$2" "$ROOT/$source" >"$T/planted/source"
    ! cmp -s "$ROOT/$source" "$T/planted/source" ||
        fail "the plant does not apply to $source: $2" || return
    case $source in
    *.lua) plant_text "$source" redis_scripts.h lib/backends/redis/script.c || return ;;
    *.sql) plant_text "$source" "${store}_sql.h" "lib/backends/$store/lease.c" || return ;;
    *) mv "$T/planted/source" "$T/planted/source.c" ;;
    esac
    object=$BUILD/obj/${source%.c}.o
    ! grep -qF -- " -o $BUILD/obj/mod/${source%.c}.o " "$BATS_FILE_TMPDIR/commands" ||
        { plant_module "$source"; return; }
    grep -qF -- " -o $object " "$BATS_FILE_TMPDIR/commands" || object=$BUILD/obj/test/${source%.c}.o
    compile=$(command_with "-o $object") && link=$(command_with "-o $BUILD/test/dlock") || return
    # Its own headers are beside it no more.
    compile=${compile/"-o $object"/"-iquote $(dirname "$source") -o $T/planted/object.o"}
    compile=${compile%"$source"}$T/planted/source.c
    link=${link/"-o $BUILD/test/dlock"/"-o $PLANTED"}
    link=${link/" $object "/" $T/planted/object.o "}
    (cd "$ROOT" && eval "${compile/ -MMD -MP/}" && eval "$link") 3>&- || fail "it cannot be built"
}

# plant_module SOURCE: $T/planted/source.c is part of a module, found beside the program. The engine
# of the SQL stores is changed for PostgreSQL.
plant_module() {
    local source=$1 object=$BUILD/obj/mod/${1%.c}.o store so compile link map
    store=${source#lib/backends/} store=${store%%/*} store=${store/#table/postgres}
    so=$BUILD/dlock-modules/$store.so
    cp "$BUILD/test/dlock" "$PLANTED" && cp -r "$BUILD/dlock-modules" "$T/planted/dlock-modules" ||
        return
    compile=$(command_with "-o $object") && link=$(command_with "-o $so") &&
        map=$(grep -F -- "> $so.map" "$BATS_FILE_TMPDIR/commands") || return
    compile=${compile/"-o $object"/"-iquote $(dirname "$source") -o $T/planted/object.o"}
    compile=${compile%"$source"}$T/planted/source.c
    link=${link//"$so"/"$T/planted/dlock-modules/$store.so"}
    link=${link/" $object "/" $T/planted/object.o "}
    (cd "$ROOT" && eval "${compile/ -MMD -MP/}" &&
        eval "${map//"$so"/"$T/planted/dlock-modules/$store.so"}" && eval "$link") 3>&- ||
        fail "it cannot be built"
}

# plant_text SCRIPT HEADER SOURCE: $T/planted/source in the place of the script, make the header of
# all scripts, which $source, now SOURCE, includes. Beside source.c it is found first.
plant_text() {
    local dir=${1%/*} header=$BUILD/gen/$2 make
    cp -r "$ROOT/$dir" "$T/planted" || return
    mv "$T/planted/source" "$T/planted/${dir##*/}/${1##*/}" || return
    make=$(grep "^awk .*> $header\$" "$BATS_FILE_TMPDIR/commands") ||
        fail "how is $header made?" || return
    make=${make/"> $header"/"> $T/planted/$2"}
    source=$3
    cp "$ROOT/$source" "$T/planted/source.c" || return
    (cd "$ROOT" && eval "${make//"$dir/"/"$T/planted/${dir##*/}/"}") ||
        fail "no header is made: $make"
}

# try FILE NAME [VARIABLE=VALUE...]: that test, and no other one, with the plant. Not as
# a part of this run of bats: nothing of its environment, and not the bats below libexec, which is
# first in our PATH.
try() {
    run run_t 60 env -i PATH="${PATH//"$BATS_LIBEXEC:"/}" HOME="${HOME:-/}" \
        TMPDIR="${TMPDIR:-/tmp}" BUILD="$BUILD" HELPERS="$HELPERS" DLOCK="$PLANTED" "${@:3}" \
        bats --formatter tap -f "^$2\$" "$ROOT/tests/system/$1.bats"
    [ "${lines[0]}" = 1..1 ] || fail "not one test '$2' in $1.bats: $output"
}
caught() {
    try "$@"
    grep -q '^not ok 1 ' <<<"$output" || fail "not caught: $output"
}

@test "planted: nothing: what is built and run here passes" {
    plant lib/lease.c '1s/^/\n/'
    try cli/lease "a release that answers 'not ours' is a loss although the command returned 0"
    [[ ${lines[1]} == "ok 1 "* ]] || fail "$output"
}

@test "planted: DEL without a look whose lock it is" {
    plant lib/backends/redis/scripts/leave.lua 's/^local simple = /ARGV[3] = value or ARGV[3]\n&/'
    caught redis/hold "a release leaves a key alone that the command has overwritten"
}

@test "planted: a renewal that makes the key anew" {
    plant lib/backends/redis/scripts/renew.lua "s/^if value == ARGV\[3\] then/do/;
        s/redis.call\('PEXPIRE', name, ARGV\[4\]\)/redis.call('SET', name, ARGV[3], 'PX', ARGV[4])/"
    caught redis/hold "a key that is deleted, flushed or replaced ends the hold at once"
}

@test "planted: no undo of an unanswered request" {
    plant lib/backends/redis/renew.c 's/(args = \{\.value = )be->value/\1"nobody"/'
    caught redis/hostile "a cut or wrong reply starts nothing and is undone"
}

@test "planted: a majority of N/2" {
    plant lib/backends/redis/quorum.c 's,n / 2 \+ 1,(n + 1) / 2,'
    caught redlock/lock "a majority of 1, 2, 3, 4 or 5 servers is enough, one less is not"
}

@test "planted: a newcomer's own ttl as the restart grace" {
    plant lib/backends/redis/redlock_young.c \
        's/age = dlock_max\(age, y->server\[i\].longest_ms\);/;/'
    caught redlock/faults "restarted nodes do not vote while the holder's longer ttl may last"
}

@test "planted: a deadline from the time of the answer" {
    plant lib/lease.c 's/confirm\(l, ev->from, ev->raw_minus_boot, ev->ttl\)/\
        confirm(l, now.boot, now.raw - now.boot, ev->ttl)/'
    caught cli/lease "a grant after term_at never starts the command and is given back"
}

@test "planted: a late grant is good enough" {
    plant lib/lease.c 's/return later_clock\(l, now\) - l->sent > \(.*\) . part;/\
    return (void)part, (void)now, false;/'
    caught cli/lease "a late grant is confirmed by a renewal before the command starts"
}

@test "planted: no margin" {
    plant lib/lease.c 's/(t->(hard|kill)_at = t->deadline) - margin( . 2)?;/\1 + margin;/'
    caught redis/hold "a stopped keeper's tree dies before the key can be another's"
}

@test "planted: the guard reads only the clock that is slewed" {
    plant cli/guard.c 's/return dlock_lease_now\(g->raw_minus_boot\);/(void)g; return dlock_now();/'
    caught cli/slewed_clock \
        "a slewed clock does not let the command of a stopped keeper outlive the lease"
}

@test "planted: the release comes before the tree is gone" {
    plant cli/keeper.c \
        's/if \(is_ending\(k\) && !k->tree_empty\)/if (is_ending(k) \&\& k->phase == KEEPER_OVER)/'
    caught cli/lease "a command that TERM ends for want of a renewal is followed by its descendants"
}

@test "planted: no guard" {
    plant cli/guard.c 's/g->((term|kill|hard)_at) = m->.*/g->\1 = DLOCK_NEVER;/'
    run -1 run_t 60 env DLOCK="$PLANTED" "$ROOT/tests/proof/run" --ttl 1 --seed 1 \
        --fault stopped --tool dlock-redis --out "$T/proof" 3>&-
    assert_out 'NOT EXPECTED: stopped, dlock-redis: two commands ran at once'
}

@test "planted: only the command is killed, not its tree" {
    plant cli/guard.c 's/found = process_tree_kill\(&refused\);/\
        found = (refused = 0, g->command > 0 ? kill(g->command, SIGKILL) : 0);/'
    caught cli/guard "pkill -9 dlock leaves a guard that ends the tree at once"
}

@test "planted: exit code 0 although the release says that the lock was not ours" {
    plant cli/keeper.c 's/(r->how == DLOCK_RELEASE_NOT_OURS) && \(!is_lost/\1 \&\& (is_lost/'
    caught cli/lease "a release that answers 'not ours' is a loss although the command returned 0"
}

@test "planted: a password ends at the first '@'" {
    plant lib/secret.c "s/(char \*at =) find_last\((\(struct piece\)\{s.p, word\}), '@'\);/\
        \1 memchr(s.p, '@', (size_t)(word - s.p));/"
    caught cli/usage "shows no password of a server, of DLOCK_STORE and of a command"
}

@test "planted: secrets are looked for in what is left of a cut message" {
    plant lib/error.c 's/(dlock_clean_text\(cause,) sizeof\(cause\)/\1 sizeof(err->msg)/'
    caught cli/usage "shows no password of a server, of DLOCK_STORE and of a command"
}

@test "planted: a mistyped URI is a path" {
    plant lib/uri.c 's/r = dlock_uri_check_typo\(text, &why\)/r = dlock_uri_check_typo("x", \&why)/'
    caught cli/usage "refuses a wrong URI and makes no file of that name"
}

@test "planted: nothing in a module" {
    plant lib/backends/table/runs.c '1s/^/\n/'
    try postgres/once "who waits for the row of one that succeeds does not run"
    [[ ${lines[1]} == "ok 1 "* ]] || fail "$output"
}

@test "planted: a run record that is read as it was before the wait for the row" {
    plant lib/backends/postgres/sql/table_runs.sql \
        's/WHEN (r\.ended > clock_timestamp\(\) - )/WHEN r.ended < now() AND \1/'
    caught postgres/once "who waits for the row of one that succeeds does not run"
}

@test "planted: a release that reads its record before it has waited for the row" {
    plant lib/backends/table/runs.c 's/be->sql->lock_row, (be->sql->runs_end)/\1/'
    caught postgres/once "an end that comes twice at once is recorded once"
}

# finds CASES WHAT: of these cases of Redis cli/failures.bats complains in these words.
finds() {
    local title="a system call that fails once does no harm"
    [[ $1 == *call* ]] || title="an allocation that fails does no harm"
    caught cli/failures "$title" STORES=redis FAILURES="$1"
    assert_out "$2"
}

# bats test_tags=plain
@test "planted: a release that failed counts as one" {
    plant lib/backends/redis/renew.c \
        's/(end_release\(be, DLOCK_RELEASE_)UNCLEAR, &err/\1CLEAN, NULL/'
    finds '^redis call keeper:sendto:[45]:32' "the lock was kept"
}

# bats test_tags=plain
@test "planted: an exit code that the manual does not have" {
    plant lib/error.c 's/E\(NOMEM, 71,/E(NOMEM, 72,/'
    finds '^redis memory [1-9]?[0-9]$' "not a documented exit code: exit code 72"
}

# bats test_tags=plain
@test "planted: a guard that stays when the keeper has failed" {
    plant cli/guard.c 's/if \((g->keeper_gone && \(g->phase == GUARD_IDLE)/if (false \&\& \1/'
    finds '^redis memory [1-9]?[0-9]$' "lock-guard"
}

# bats test_tags=plain
@test "planted: a message to the keeper that is sent only once" {
    plant cli/spawn.c 's/dlock_may_send_later\(errno\) \? -EAGAIN : -errno/-errno/'
    finds '^redis call grandchild:sendmsg:3:105' "hangs"
}

@test "planted: a shared grant of MySQL that ignores the version of the row" {
    plant lib/backends/mysql/sql/table_shared.sql 's/ AND l\.version = @seen AND / AND /'
    caught mysql/race "clients of all kinds that do not wait exclude each other"
}
