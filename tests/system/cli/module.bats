#!/usr/bin/env bats
# Backends that are loaded on first use: where a module is looked for, which ones are refused, and
# that nobody pays for a module that is not used. Most tests put one of tests/support/modules in the
# place of the real one.

load ../../support/common

setup() {
    dlock_setup
    "$BUILD/dlock" --version | grep -q 'postgres (module)' ||
        skip "postgres is not a module of this build"
    # Nothing listens there.
    PG="postgres://127.0.0.1:1/x#$NAME"
    place "$HELPERS/mod_good.so"
}
teardown() {
    dlock_teardown
    [ -z "${OPEN:-}" ] || rm -r "$OPEN"
}

# place MODULE [DIR]: a program of its own, $DIR/dlock, with this file as its module.
place() {
    DIR=${2:-$T/bin}
    rm -rf "$DIR/dlock-modules"
    install -d -m 755 "$DIR" "$DIR/dlock-modules"
    install -m 755 "$DLOCK" "$DIR/dlock"
    install -m 755 "$1" "$DIR/dlock-modules/postgres.so"
    MODULE=$DIR/dlock-modules/postgres.so
}
# take ARG...: try to use it. Nothing is ever run.
take() { run run_t 10 "$DIR/dlock" -n "$@" "$PG" touch "$T/ran"; }
# refused CODE TEXT...: in one line that has all TEXTs, without having used it.
refused() {
    local text
    take
    assert_rc "$1"
    [ ${#lines[@]} -eq 1 ] || fail "${#lines[@]} lines: $output"
    for text in "${@:2}"; do assert_out "$text"; done
    refute_out "mod_good"
    [ ! -e "$T/ran" ]
}
# not_here: no module, but where `make install` puts it. One of this build that is there serves.
not_here() {
    read -ra where <"$BUILD/build-id"
    if [ -e "${where[-1]}/postgres.so" ]; then
        take
        assert_rc 69
        [[ $output == *"${where[-1]}"* || $output == *"Connection refused"* ]] || fail "$output"
    else
        refused 69 "not in ${where[-1]}" dlock-postgres
    fi
}
good() {
    take "$@"
    assert_rc 65
    assert_out "mod_good was asked"
}

# --- where it is -------------------------------------------------------------

@test "both programs find the modules of the build tree" {
    for program in "$BUILD/dlock" "$DLOCK"; do
        for scheme in postgres postgresql; do
            run -69 run_t 10 "$program" -n "$scheme://127.0.0.1:1/x#$NAME" touch "$T/ran"
            assert_out "127.0.0.1"
            refute_out "postgres.so"
        done
    done
    [ ! -e "$T/ran" ]
}

@test "a link to the program finds the program's modules" {
    install -d -m 755 other other/dlock-modules
    install -m 755 "$HELPERS/mod_none.so" other/dlock-modules/postgres.so
    ln -s "$DIR/dlock" other/dlock
    run -65 run_t 10 other/dlock -n "$PG" true
    # Nor does the name matter by which the program was called.
    run -65 run_t 10 bash -c 'exec -a "$0" "$@"' "$T/other/dlock" "$DIR/dlock" -n "$PG" true
}

@test "the module directory may be a link, but not come from the environment" {
    mv "$DIR/dlock-modules" real
    ln -s ../real "$DIR/dlock-modules"
    good
    rm real/postgres.so
    install -d -m 755 elsewhere
    install -m 755 "$HELPERS/mod_good.so" elsewhere/postgres.so
    export LD_LIBRARY_PATH=$T/elsewhere DLOCK_MODULES=$T/elsewhere
    cd elsewhere
    refused 69 "not in $DIR/dlock-modules"
}

@test "names the package of a missing module" {
    rm "$MODULE"
    refused 69 "postgres:// needs the module postgres.so" "not in $DIR/dlock-modules" \
        "install the package dlock-postgres"
    rmdir "$DIR/dlock-modules"
    not_here
}

@test "--version lists the modules without loading them" {
    place "$HELPERS/mod_none.so"
    list() { run -0 run_t 5 "$@" "$DIR/dlock" --version; }
    list
    missing="mysql (module, not installed) zookeeper (module, not installed)"
    missing+=" tls (module, not installed)"
    [[ ${lines[1]} = "backends: file"*" postgres (module) $missing" ]] || fail "${lines[1]}"
    if [ -z "${SAN:-}" ]; then # LeakSanitizer does not work under strace
        list strace -f -o trace -e trace=openat,open,connect
        ! grep -E 'postgres\.so|libpq|libcrypto|connect' trace || fail "--version loads a module"
    fi
    rm "$MODULE"
    list
    missing="postgres (module, not installed) $missing"
    [[ ${lines[1]} = *" $missing" ]] || fail "${lines[1]}"
    mkfifo "$MODULE"
    list
    [[ ${lines[1]} = *" $missing" ]] || fail "${lines[1]}"
}

@test "module: --version says whether ZooKeeper's module has the packet guard" {
    local module=$BUILD/dlock-modules/zookeeper.so
    [ -e "$module" ] || skip "zookeeper is not a module of this build"
    run run_t 5 "$BUILD/dlock" --version
    # Only a library that is linked statically can be guarded.
    if readelf -d "$module" | grep -q 'NEEDED.*libzookeeper'; then
        assert_out " zookeeper (module, no packet guard) "
    else
        assert_out " zookeeper (module, packet guard) "
    fi
}

# archive CALL...: lib.a calls them.
archive() {
    { printf 'int %s(void);\n' "$@" && echo 'int f(void);' && echo 'int f(void) { return 0' &&
        printf ' + %s()\n' "$@" && echo '; }'; } >lib.c
    "$CC" -w -fno-builtin -c -o lib.o lib.c && rm -f lib.a && ar qcs lib.a lib.o
}
# guarded CODE [VAR=VALUE...]: would the build link lib.a? check CODE: the same, without make.
guarded() {
    run "-$1" run_t 20 env -u MAKEFLAGS -u MAKELEVEL "${MAKE:-make}" -s -C "$ROOT" \
        BUILD="$T/build" WITH_ZOOKEEPER=module ZK_STATIC=yes ZK_ARCHIVE="$T/lib.a" "${@:2}" \
        "$T/build/zk-calls"
}
check() {
    run "-$1" run_t 5 "$ROOT/lib/backends/zookeeper/wire/check-calls" stamp \
        "$T/lib.a" $(sed -n 's/^ *ZK_CALLS *:= //p' "$ROOT/Makefile")
}

# bats test_tags=slow
@test "module: the build refuses a libzookeeper that bypasses the packet guard" {
    local call used=(socket connect getsockopt send recv close pthread_create poll read write pipe)
    for call in __poll_chk recvmsg recvfrom readv __read_chk writev sendmsg sendto epoll_wait \
        syscall dup __sendmsg64 __ppoll64_chk; do
        archive "${used[@]}" $call
        check 1
        assert_out "$T/lib.a calls $call, which bypasses the packet guard"
        [ ! -e stamp ]
    done
    archive "${used[@]/recv/other}"
    check 1
    assert_out "does not call recv"
    # What does not matter to the guard.
    archive "${used[@]}" open fcntl memcpy __snprintf_chk setsockopt shutdown getpeername
    check 0
    [ -s stamp ]

    archive "${used[@]}" __recv_chk
    guarded 2
    assert_out "calls __recv_chk, which bypasses the packet guard" "ZK_STATIC=no"
    archive "${used[@]}"
    guarded 0
    # An archive is looked at once; another one in its place is looked at again.
    guarded 0 NM=false
    archive "${used[@]}" dup2
    guarded 2
}

# --- owner and modes ---------------------------------------------------------

@test "refuses a module that others can write" {
    for mode in 775 757 777 1777; do
        chmod $mode "$DIR/dlock-modules"
        refused 77 "$DIR/dlock-modules can be changed by others" "mode $(printf %04d $mode)" \
            "chmod go-w"
    done
    chmod 755 "$DIR/dlock-modules"
    for mode in 775 757 664 602; do
        chmod $mode "$MODULE"
        refused 77 "$MODULE can be changed by others" "chmod go-w"
    done
    # A user without read permission cannot load it; nothing more is checked.
    chmod 400 "$MODULE"
    good
}

@test "refuses a module that belongs to another user" {
    need_root
    chown 54321 "$DIR/dlock-modules"
    refused 77 "$DIR/dlock-modules belongs to user 54321"
    chown 0 "$DIR/dlock-modules"
    chown 54321 "$MODULE"
    refused 77 "$MODULE belongs to user 54321"
    chown 0 "$MODULE"
    good
}

@test "refuses a module that is not a regular file, without waiting" {
    mv "$MODULE" real.so
    for make in 'mkfifo -m 700' "ln -s $T/real.so" 'install -d -m 755'; do
        $make "$MODULE"
        refused 77 "$MODULE is not a regular file"
        rm -d "$MODULE"
    done
    # The directory is none.
    rmdir "$DIR/dlock-modules"
    : >"$DIR/dlock-modules"
    not_here
}

@test "an unprivileged user can load modules" {
    need_root
    as_nobody() { # CODE
        run "-$1" run_t 10 setpriv --reuid=nobody --regid=nogroup --clear-groups "$DIR/dlock" -n \
            "$PG" true
    }
    OPEN=$(mktemp -d /tmp/dlock-module.XXXXXX) # bats' own folder is closed to others
    chmod 755 "$OPEN"
    place "$BUILD/dlock-modules/postgres.so" "$OPEN/real"
    as_nobody 69
    assert_out "127.0.0.1"
    refute_out "postgres.so"
    place "$HELPERS/mod_good.so" "$OPEN/good"
    as_nobody 65
    chown nobody "$MODULE" "$DIR/dlock-modules"
    as_nobody 65
    chown 54321 "$MODULE"
    as_nobody 77
    assert_out "54321"
    chown 0 "$MODULE"
    chmod 700 "$MODULE"
    as_nobody 69
    assert_out "Permission denied"
}

# --- its name ----------------------------------------------------------------

# The umask may let the group write; $TMPDIR may lead through links.
in_safe_folder() { cd -P . && T=$PWD && chmod go-w . ..; }
# named FILE: a good one is loaded under this name.
named() {
    good
    [[ $output = *" as "$1 ]] || fail "not as $1: $output"
}
# A sanitizer's reports need a name of which they can open the file.
by_descriptor() {
    if [ -n "${SAN:-}" ]; then named "$MODULE"; else named "/proc/self/fd/*/postgres.so"; fi
}

@test "a module has its real path in debuggers and backtraces" {
    in_safe_folder
    place "$HELPERS/mod_good.so"
    named "$MODULE"
    # Without links.
    mv "$DIR/dlock-modules" real
    ln -s ../real "$DIR/dlock-modules"
    ln -s "$DIR" link
    DIR=$T/link named "$T/real/postgres.so"
    # Others may write in a sticky folder, but not change what is ours there.
    chmod 1777 "$T"
    named "$T/real/postgres.so"
}

@test "a folder that others can change gives a module no path" {
    in_safe_folder
    place "$HELPERS/mod_good.so" "$T/a/b"
    local mode
    for mode in 757 775 777; do
        chmod $mode a
        by_descriptor
    done
    chmod 755 a
    named "$MODULE"
    # The linker would replace this.
    if [ -z "${SAN:-}" ]; then
        place "$HELPERS/mod_good.so" "$T/\$ORIGIN"
        by_descriptor
    fi
    if [ "$(id -u)" = 0 ]; then
        place "$HELPERS/mod_good.so" "$T/a/b"
        chown 54321 a
        by_descriptor
        # In a sticky folder, too, the owner of an entry can change it.
        install -d -m 1777 s
        place "$HELPERS/mod_good.so" "$T/s/b"
        named "$MODULE"
        chown 54321 s/b
        by_descriptor
    fi
}

# --- what it is --------------------------------------------------------------

interface() { sed -n 's/^#define DLOCK_BACKEND_ABI //p' "$ROOT/lib/backend.h"; }

@test "refuses a module of another build, interface or store" {
    build=$("$BUILD/dlock" --version | sed -n 's/^dlock //p')
    one="reinstall dlock and its modules from one build"
    while read -r module text; do
        place "$HELPERS/mod_$module.so"
        refused 69 "$MODULE $text" "$one"
    done <<END
build is of build 0.0.0+other, this dlock of $build
nobuild is of build (none)
abi is for interface $(($(interface) + 1)), this dlock has $(interface)
scheme does not serve postgres://
none is not a module of dlock
END
}

@test "refuses a missing or wrong TLS module" {
    local tls=$DIR/dlock-modules/tls.so
    PG="rediss://127.0.0.1:1#$NAME"
    refused 69 "dlock: rediss://" "dlock-tls" \
        "needs the module tls.so, which is not in $DIR/dlock-modules: install the package"
    install -m 755 "$HELPERS/mod_good.so" "$tls"
    refused 69 "$tls is for interface $(interface), this dlock has 1002"
    install -m 755 "$BUILD/dlock-modules/tls.so" "$tls"
    refused 69 "rediss://127.0.0.1:1/0: cannot connect"
    chmod 777 "$tls"
    refused 77 "can be changed by others"
    place "$BUILD/dlock-modules/tls.so"
    PG="postgres://127.0.0.1:1/x#$NAME"
    refused 69 "is for interface 1002, this dlock has $(interface)"
}

@test "says why a module cannot be loaded and what to install" {
    echo garbage >"$MODULE"
    refused 69 "$MODULE cannot be loaded" "dlock-postgres"
    refute_out /proc/self
    : >"$MODULE"
    refused 69 "$MODULE cannot be loaded"
    place "$HELPERS/mod_undefined.so"
    refused 69 "$MODULE cannot be loaded" "dlock_no_such_function"
    refute_out /proc/self
    # No lack of memory, which could pass.
    place "$HELPERS/mod_tls.so"
    refused 69 "$MODULE cannot be loaded: cannot allocate memory in static TLS block"
    # A system without libpq, to the dynamic linker.
    place "$BUILD/dlock-modules/postgres.so"
    sed -i 's/libpq\.so\.5/libno.so.5/g' "$MODULE"
    refused 69 "$MODULE cannot be loaded: libno.so.5: cannot open" \
        "dlock-postgres and the libraries it needs"
}

@test "says that modules need /proc" {
    [ -z "${SAN:-}" ] || return 0 # a sanitizer does not start without /proc
    need_mounts
    run -71 run_t 5 unshare -m sh -c 'mount -t tmpfs none /proc && exec "$@"' - "$DLOCK" --status \
        "$PG"
    assert_out "mount /proc"
}

@test "a statically linked program is told that it can load no module" {
    [ -z "${SAN:-}" ] || return 0 # sanitizers are not linked statically
    cat >static.c <<'END'
#include "dlock.h"
#include <stdio.h>
int main(int argc, char **argv)
{
    struct dlock_error err;
    for (dlock *lk; argc-- > 1; dlock_close(lk)) {
        lk = NULL;
        int rc = dlock_open(&lk, argv[argc], NULL, &err);
        printf("%s: %s\n", dlock_error_name(rc), rc < 0 ? err.msg : "");
    }
}
END
    "$CC" -static -w -I "$ROOT/lib" -o static static.c "$BUILD/libdlock.a" -lhiredis -lpthread \
        -ldl 2>log || skip "no static libraries: $(tail -n 1 log)"
    run -0 run_t 5 ./static rediss://h#x zk://h#x postgres://h#x redis://h#x "$T/x"
    [ "${lines[0]} ${lines[1]}" = "DLOCK_OK:  DLOCK_OK: " ] || fail "$output"
    local i want="DLOCK_ENOBACKEND: *, which a statically linked program cannot load: *"
    for i in 2 3 4; do
        # shellcheck disable=SC2053
        [[ ${lines[$i]} = $want ]] || fail "$output"
    done
}

# --- an upgrade --------------------------------------------------------------

# waits ARG...: `dlock --retry ARG...` has found no usable module, and goes on.
waits() {
    : >out.log
    start_log out.log "$DIR/dlock" -v --retry "$@" "$PG" touch "$T/ran"
    wait_for 5 file_has out.log "trying again"
}

@test "--retry waits for a module that an upgrade replaces" {
    local before build name
    for before in missing build none garbage; do
        place "$HELPERS/mod_good.so"
        case $before in
        missing) rm "$MODULE" ;;
        garbage) echo garbage >"$MODULE" ;;
        *) install -m 755 "$HELPERS/mod_$before.so" "$MODULE" ;;
        esac
        # As today where --retry is not given.
        take
        assert_rc 69
        refute_out "trying again"
        waits
        # As dpkg does it.
        install -m 755 "$HELPERS/mod_good.so" "$DIR/dlock-modules/postgres.so.dpkg-new"
        mv "$DIR/dlock-modules/postgres.so.dpkg-new" "$MODULE"
        exits 65 5 "$STARTED"
        file_has out.log "mod_good was asked"
        [ "$(grep -c "trying again" out.log)" = 1 ] || fail "$(cat out.log)"
    done
    # The real ones, with the libraries that they need; nothing listens there.
    place "$BUILD/dlock-modules/postgres.so"
    build=$("$DIR/dlock" --version | sed -n 's/^dlock //p')
    sed -i "s/$build/${build//?/x}/g" "$MODULE"
    for name in postgres tls; do
        [ $name = postgres ] || PG="rediss://127.0.0.1:1#$NAME"
        waits -w 30
        install -m 755 "$BUILD/dlock-modules/$name.so" new.so
        mv new.so "$DIR/dlock-modules/$name.so"
        wait_for 5 file_has out.log "waiting without a connection"
        kill -TERM "$STARTED"
        exits 143 5 "$STARTED"
    done
    [ ! -e ran ]
}

@test "a wait for a module ends with -w, by a signal and with the guard" {
    local begin
    rm "$MODULE"
    begin=$(now_ms)
    run -69 run_t 10 "$DIR/dlock" --retry -w 0.7 "$PG" touch ran
    assert_between 700 $(($(now_ms) - begin)) $((1500 + SLOW + BUSY)) "waited (ms)"
    assert_out "install the package dlock-postgres"
    waits --events ev
    kill -TERM "$STARTED"
    exits 143 5 "$STARTED"
    run -0 cat ev
    assert_out '"event":"end"' '"outcome":"cancelled"' '"exit_code":143'
    waits
    guard_of "$STARTED"
    kill -KILL "$G"
    exits 71 5 "$STARTED"
    # What no upgrade mends is told at once.
    run -77 run_t 5 sh -c 'chmod 777 "$1" && "$2" --retry "$3" touch ran' - "$DIR/dlock-modules" \
        "$DIR/dlock" "$PG"
    run -77 run_t 5 "$DIR/dlock" --retry "rediss://127.0.0.1:1?cacert=/none#$NAME" touch ran
    [ ! -e ran ]
}

# --- where it is loaded ------------------------------------------------------

@test "only the module needs libpq, and it exports one symbol" {
    for file in "$BUILD/dlock" "$DLOCK" "$BUILD/libdlock.so"; do
        ! readelf -d "$file" | grep -E 'NEEDED.*(libpq|libcrypto|libssl)' ||
            fail "$file needs more than it should"
    done
    readelf -d "$BUILD/dlock-modules/postgres.so" | grep -q 'NEEDED.*libpq'
    readelf -d "$BUILD/dlock-modules/tls.so" | grep -q 'NEEDED.*libssl'
    for module in postgres tls; do
        run nm -D --defined-only --format=posix "$BUILD/dlock-modules/$module.so"
        [ "$(cut -d' ' -f1 <<<"$output")" = dlock_module ] || fail "$module: $output"
    done
}

@test "a lock on a file or in Redis loads no module" {
    [ -z "${SAN:-}" ] || return 0 # LeakSanitizer does not work under strace
    for lock in "$T/file" "redis://127.0.0.1:1#$NAME"; do
        run run_t 10 strace -f -o trace -e trace=openat,open "$DLOCK" -n "$lock" true
        grep -q 'openat(' trace
        ! grep -E 'dlock-modules|postgres\.so|tls\.so|libpq|libcrypto|libssl' trace ||
            fail "$lock loads a module"
    done
}

@test "the guard does not load the module" {
    need_root # the memory of keeper and guard is closed to others
    listener hostile_server nothing
    start_log out "$DLOCK" --connect-timeout 20 "postgres://127.0.0.1:$LISTENS/x#$NAME" true
    keeper=$STARTED
    has() { grep -qE '/postgres\.so$' "/proc/$keeper/maps" && grep -q libpq "/proc/$keeper/maps"; }
    wait_for 10 has
    guard_of "$keeper"
    grep -q libc "/proc/$G/maps" # it can be looked into
    ! grep -E 'postgres\.so|libpq|libcrypto|libssl' "/proc/$G/maps" ||
        fail "the guard has the module"
    # No descriptor of the directory is left.
    folder_closed() { ! readlink "/proc/$keeper"/fd/* | grep -q dlock-modules; }
    wait_for 5 folder_closed
    kill -TERM "$keeper"
    wait_for 5 pid_gone "$keeper"
}
