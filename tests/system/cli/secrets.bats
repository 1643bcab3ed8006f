#!/usr/bin/env bats
# A password, wherever it comes from, is seen by nobody: not in the process list, in what the
# command is given, in messages, in the status, in the store, in a core or in the memory of our
# processes. And what the compiler can do for the program is done.

load ../../support/redis

# Part of every password and of nothing else.
CANARY=c4n4ry

setup_file() {
    # Two users: the default one and one with a name.
    redis_start --requirepass c4n4ry-pw --user app on '>c4n4ry/app' '~*' '&*' +@all
}
teardown_file() { redis_stop; }

setup() {
    dlock_setup
    AT=127.0.0.1:$REDIS_PORT
    L="redis://app:c4n4ry%2Fapp@$AT#$NAME"
}

store() { REDISCLI_AUTH=c4n4ry-pw rcli "$@"; }
queue_is() { [ "$(store zcard "{$NAME}:dlock:queue")" = "$1" ]; }

# no_canary WHAT TEXT
no_canary() {
    case $2 in *"$CANARY"*) fail "$1 shows the secret: ${2//[[:cntrl:]]/ }" ;; *) ;; esac
}
no_canary_in() {
    ! grep -qaF "$CANARY" "$@" || fail "the secret is in: $(grep -laF "$CANARY" "$@" | tr '\n' ' ')"
}
no_canary_in_store() {
    no_canary "the store" "$(store --raw get "$NAME"; store --raw hgetall "{$NAME}:dlock:waiters"
        store --raw --scan; store client list; store slowlog get)"
}
args_of() { tr '\0' ' ' <"/proc/$1/cmdline"; }

# hold ARG...: dlock holds $NAME until the file "go" appears; $HOLDER and its guard $GUARD.
hold() {
    rm -f held go
    start_log hold.log "$DLOCK" -v "$@" sh -c \
        'env >env; echo $$ >held.new; mv held.new held; "$HELPERS/await" go'
    HOLDER=$STARTED
    wait_for 5 test -e held
    guard_of "$HOLDER"
}
let_go() {
    : >go
    wait_exit 5 "$HOLDER"
}

# shown WANT CMD...: what --status says of a holder that runs CMD, which waits for "go".
shown() {
    local want=$1 L="file://$T#shown"
    shift
    rm -f held go
    PATH=$PWD/bin:$PATH start_log hold.log "$DLOCK" "$L" "$@"
    wait_for 5 test -e held || fail "$*: $(cat hold.log)"
    run -75 run_t 5 "$DLOCK" --status "$L"
    [[ $output == *", pid $STARTED ($want)"* ]] || fail "$*: not $want: $output"
    no_canary "$*" "$output$(cat "$T"/*.lock)"
    : >go
    exits 0 5 "$STARTED"
}

@test "what a shell runs is shown, without its secrets" {
    local program long
    mkdir bin
    for program in deploy mysql; do
        printf '#!/bin/sh\n: >%s/held; exec "%s" %s/go\n' "$PWD" "$HELPERS/await" "$PWD" \
            >bin/$program
        chmod +x bin/$program
    done
    shown 'sh -c "deploy prod"' sh -c 'deploy prod'
    shown 'sh -c " cd bin && ./deploy eu  exit 0;"' sh -euc $' cd bin && ./deploy eu\n\nexit 0;'
    shown 'bash -c "deploy a >>log 2>&1"' bash -o pipefail -c 'deploy a >>log 2>&1'
    shown "sh bin/deploy" sh bin/deploy prod
    shown "bin/deploy" bin/deploy prod
    shown 'cd . && deploy prod' -c 'cd . && deploy prod'
    shown 'mysql --password=*** db' -c "mysql --password=$CANARY db"
    shown 'sh -c "PGPASSWORD=*** deploy"' sh -c "PGPASSWORD='$CANARY' deploy"
    shown 'sh -c "deploy --token=***"' sh -c "deploy --token=$CANARY"
    shown 'sh -c "deploy redis://***@h; true"' sh -c "deploy redis://u:$CANARY@h; true"
    shown "sh -c \"deploy$(printf '; true%.0s' {1..9})...\"" \
        sh -c "deploy$(printf '; true%.0s' {1..20})"
    # Across the 60th byte: a secret, and a character of two bytes.
    long=$(printf '; true%.0s' {1..6})
    shown "sh -c \"deploy$long; P_TOKEN=*** true\"" \
        sh -c "deploy$long; P_TOKEN=$CANARY$CANARY$CANARY true"
    shown "sh -c \"deploy$long; true x........x...\"" \
        sh -c "deploy$long; true x........x"$'\303\244 true'
}

# unseen PID...: nothing in the process list, and no token either.
unseen() {
    local pid token
    token=$(sed -n 's/^DLOCK_TOKEN=//p' env 2>/dev/null) || :
    for pid; do
        no_canary "the command line of $pid" "$(args_of "$pid")"
        [ -z "$token" ] || [[ $(args_of "$pid") != *"$token"* ]] || fail "a process shows a token"
        # The threads and the name that `ps` shows.
        no_canary "the name of $pid" "$(cat "/proc/$pid/task"/*/comm)"
    done
}

# --- while it runs -----------------------------------------------------------

@test "the process list shows no secret in a hold or wait" {
    hold "$L"
    unseen "$HOLDER" "$W" "$G" "$(cat held)"
    # It is the password that is missing, not the whole lock.
    [[ $(args_of "$HOLDER") == *"@$AT#$NAME"* ]] || fail "no lock is shown: $(args_of "$HOLDER")"
    start_log wait.log "$DLOCK" -v "$L" true
    waiter=$STARTED
    wait_for 5 queue_is 1
    guard_of "$waiter"
    unseen "$waiter" "$W" "$G"
    no_canary "the status" "$(args_of "$waiter")"
    let_go
    wait_exit 5 "$waiter"
    no_canary_in hold.log wait.log
}

@test "the process list shows no secret while the store is silent" {
    need_root # for whose connection it is
    listener hostile_server nothing
    for mode in run --status; do
        set -- "redis://:$CANARY@127.0.0.1:$LISTENS#x"
        if [ $mode = run ]; then set -- "$1" true; else set -- $mode "$1"; fi
        start_log out "$DLOCK" --connect-timeout 20 "$@"
        pid=$STARTED
        asked() { ss -Htnp state established dport = ":$LISTENS" | grep -q "pid=$pid,"; }
        wait_for 5 asked
        unseen "$pid"
        kill -TERM "$pid"
        wait_for 5 pid_gone "$pid"
        no_canary_in out
    done
}

@test "the command's environment has only what the caller exported" {
    hold "$L"
    no_canary_in env
    grep -q '^DLOCK_TOKEN=' env
    # Nor the environment of keeper and guard, which never had it.
    no_canary_in "/proc/$HOLDER/environ" "/proc/$GUARD/environ"
    let_go
    export DLOCK_STORE="redis://:c4n4ry-pw@$AT" REDISCLI_AUTH=c4n4ry-other
    hold "@$NAME"
    [ "$(grep -aF "$CANARY" env)" = "$(env | grep -F "$CANARY")" ]
    [ "$(grep -cF "$CANARY" env)" = 2 ]
    unseen "$HOLDER" "$W" "$G" "$(cat held)"
    let_go
    no_canary_in hold.log
}

@test "--status shows no secret of holder or waiter" {
    export CANARY
    start_log wait0.log "$DLOCK" "$L" sh -c ': >held; "$HELPERS/await" go' "$CANARY"
    first=$STARTED
    wait_for 5 test -e held
    start_log wait1.log "$DLOCK" "$L" true "$CANARY"
    second=$STARTED
    wait_for 5 queue_is 1
    for json in '' --json; do
        says 75 "$first" -v --status $json "$L"
        assert_out "$second"
        no_canary "--status $json" "$output"
    done
    no_canary_in_store
    : >go
    wait_exit 5 "$first"
    wait_exit 5 "$second"
}

# Who holds it, and for what, is read on other machines and kept in the server's backups.
@test "the record of a holder or waiter shows no secret" {
    "$DLOCK" --note "for https://joe:$CANARY x@ci/job?token=$CANARY#1" "$L" -c \
        "PASS=$CANARY; : >held; '$HELPERS/await' go" &
    first=$!
    wait_for 5 test -e held
    SHELL= "$DLOCK" "$L" -c "redis://:$CANARY x@h" 2>wait.log &
    second=$!
    wait_for 5 queue_is 1
    "$DLOCK" "$L" "redis://:x $CANARY@h" 2>wait2.log &
    third=$!
    wait_for 5 queue_is 2
    [[ $(args_of "$first") == *" for https://xxxx"* ]] || fail "no hidden note: $(args_of "$first")"
    for json in '' --json; do
        says 75 "PASS=" --status $json "$L"
        assert_out "for https://"
        no_canary "--status $json" "$output"
    done
    run -75 run_t 5 "$DLOCK" -v -n "$L" true
    no_canary "-n" "$output"
    no_canary_in_store
    : >go
    wait_exit 5 "$first"
    for waiter in "$second" "$third"; do
        exits 127 5 "$waiter"
    done
    # The other one is the shell's, which says what it cannot find.
    no_canary_in wait2.log
}

@test "a name that is a URI shows no password" {
    L="redis://app:c4n4ry%2Fapp@$AT#http://u:$CANARY@h/$NAME"
    hold "$L"
    unseen "$HOLDER" "$W" "$G"
    for arg in --status '--status --json' '-v -n'; do
        case $arg in --status*) command='' ;; *) command=true ;; esac
        says 75 "http://***@h/$NAME" $arg "$L" $command
        no_canary "$arg" "$output"
    done
    let_go
    no_canary_in hold.log
}

# --- messages ----------------------------------------------------------------

@test "a file's path and a note show no secret of a command line or a signed URL" {
    local note="c -u joe:$CANARY https://x/y?sig=$CANARY&X-Amz-Signature=$CANARY PGPASSWORD=$CANARY"
    local lock
    mkdir -p "x:/u:$CANARY@h"
    for lock in "x?user=u;password=$CANARY" "x?p%61ss=$CANARY" "x://u:$CANARY@h/l"; do
        start_log wait.log "$DLOCK" -v --note "$note" --events 2 "$T/$lock" sh -c '
            "$DLOCK" --held "/y?a=b;password=$0"; "$DLOCK" --status --json "$1"
            "$DLOCK" -v --no-reentrant -n "$1" true; "$DLOCK" -v --no-reentrant -w 0.1 "$1" true
            "$DLOCK" --status "$1"; echo shown; "$HELPERS/await" go' "$CANARY" "$T/$lock"
        HOLDER=$STARTED
        wait_for 5 grep -qx shown wait.log
        case $lock in # of --status, --json, -n and -w, and of -v
        x:*) [ "$(grep -c '://\*\*\*@h/l' wait.log)" -ge 8 ] || fail "$(cat wait.log)" ;;
        esac
        no_canary "the note" "$(args_of "$HOLDER" | sed 's/ sh -c .*//; q')"
        let_go
        rm go
        no_canary_in wait.log
    done
    run run_t 5 "$DLOCK" -n "jdbc:redis:u:$CANARY@h" touch ran
    assert_rc 64
    no_canary "a message" "$output"
    run run_t 5 "$DLOCK" -n "redlock://u:12,$CANARY@h#n" touch ran
    assert_rc 64
    no_canary "a message" "$output"
    [ -z "$(find . -name 'jdbc*' -o -name ran)" ]
}

@test "messages with -v show no secret" {
    export DLOCK_STORE
    # EXIT-CODE LOCK. What the parser refuses is in unit/lib/test_secret.c.
    while read -r code lock; do
        run run_t 5 "$DLOCK" -v --connect-timeout 0.5 "$lock" touch ran
        [ "$status" -eq "$code" ] || fail "$lock: exit code $status: $output"
        [ -n "$output" ] || fail "$lock: silent"
        no_canary "$lock" "$output"
        run run_t 5 "$DLOCK" -v --connect-timeout 0.5 --status "$lock"
        [ "$status" -eq "$code" ] || fail "$lock: --status: exit code $status: $output"
        no_canary "$lock --status" "$output"
    done <<END
77 redis://:$CANARY-wrong@$AT#x
77 redis://app:$CANARY-wrong@$AT#x
77 redis://$CANARY:$CANARY-wrong@$AT#x
69 redis://:$CANARY@127.0.0.1:1#x
69 redis://:$CANARY@no-such-host.invalid#x
64 redis://:c4n4ry-pw@$AT/99#x
64 redis://:$CANARY#y@$AT#x
77 redis://:$CANARY@y@$AT#x
64 redis://$AT?password=$CANARY#x
64 redis://:$CANARY@$AT?bogus=$CANARY#x
64 redis://:$CANARY@$AT?restart-grace=soon#x
69 rediss://:$CANARY@127.0.0.1:1#x
64 rediss://:$CANARY@$AT?cacert=/dev/null&insecure=2#x
69 redis+unix://:$CANARY@/nonexistent/sock#x
77 redis://$AT?password-file=/nonexistent/file#x
END
    [ ! -e ran ]
    for DLOCK_STORE in "redis://:$CANARY@127.0.0.1:1" "redis://:$CANARY@$AT#x"; do
        run run_t 5 "$DLOCK" -v "@$NAME" touch ran
        case $status in 64 | 69 | 77) ;; *) fail "$DLOCK_STORE: exit code $status" ;; esac
        no_canary "$DLOCK_STORE" "$output"
    done
    REDISCLI_AUTH=$CANARY-wrong run run_t 5 "$DLOCK" -v "redis://$AT#$NAME" touch ran
    assert_rc 77
    no_canary REDISCLI_AUTH "$output"
    # A wrong use of options beside a good lock.
    for option in -F -s --bogus '--ttl 0.1' '--grace 40' -w; do
        run run_t 5 "$DLOCK" $option "$L"
        [ "$status" -eq 64 ] || fail "$option: exit code $status"
        [ "$option" = -w ] || no_canary "$option" "$output"
    done
    [ ! -e ran ]
}

@test "messages about a lost lock and an ended wait show no secret" {
    hold "$L"
    run -75 run_t 5 "$DLOCK" -v -n "$L" true
    no_canary "-n" "$output"
    run -75 run_t 5 "$DLOCK" -v -w 0.2 "$L" true
    no_canary "-w" "$output"
    store del "$NAME"
    : >go
    exits 79 5 "$HOLDER"
    no_canary_in hold.log
}

# --- where it comes from -----------------------------------------------------

@test "the password comes from the URI, password-file or REDISCLI_AUTH, in this order" {
    printf 'c4n4ry-pw\n' >pw
    printf 'c4n4ry-no\n' >no
    chmod 600 pw no
    works() { run run_t 5 "$@" "$DLOCK" "$lock" true && assert_rc 0; }
    refused() { run run_t 5 "$@" "$DLOCK" "$lock" true && assert_rc 77 &&
        no_canary "$lock" "$output"; }
    lock="redis://:c4n4ry-pw@$AT#$NAME" works env
    lock="redis://:c4n4ry-pw@$AT?password-file=$T/no#$NAME" works env REDISCLI_AUTH=c4n4ry-no
    lock="redis://:c4n4ry-no@$AT?password-file=$T/pw#$NAME" refused env REDISCLI_AUTH=c4n4ry-pw
    lock="redis://$AT?password-file=$T/pw#$NAME" works env REDISCLI_AUTH=c4n4ry-no
    lock="redis://$AT?password-file=$T/no#$NAME" refused env REDISCLI_AUTH=c4n4ry-pw
    lock="redis://$AT#$NAME" works env REDISCLI_AUTH=c4n4ry-pw
    lock="redis://$AT#$NAME" refused env
    lock="@$NAME" works env DLOCK_STORE="redis://:c4n4ry-pw@$AT"
    lock="@$NAME" works env DLOCK_STORE="redis://$AT?password-file=$T/pw"
    lock="redis://app@$AT?password-file=$T/app#$NAME"
    printf 'c4n4ry/app' >app # no end of line
    chmod 400 app
    works env
    # As Kubernetes mounts a secret.
    mkdir ..2026 && cp -p app ..2026 && chmod 440 ..2026/app
    ln -s ..2026 ..data && ln -sf ..data/app app
    works env
}

@test "refuses an unsafe password file without showing it" {
    lock="redis://$AT?password-file=$T/pw#$NAME"
    refused() {
        run run_t 5 "$DLOCK" -v "$lock" touch ran
        [ "$status" -eq 77 ] || fail "$1: exit code $status: $output"
        assert_out "$T/pw"
        no_canary "$1" "$output"
        [ "${#lines[@]}" = 1 ]
        [ ! -e ran ]
    }
    printf 'c4n4ry-pw\n' >pw
    for mode in 644 604 660 620 602 777; do
        chmod $mode pw
        refused "mode $mode"
    done
    chmod 600 pw
    if [ "$(id -u)" -eq 0 ]; then
        chown 54321 pw
        refused "another owner"
        chown 0 pw
    fi
    run -0 run_t 5 "$DLOCK" "$lock" true
    mv pw real
    ln -s real pw
    run -0 run_t 5 "$DLOCK" "$lock" true
    if [ "$(id -u)" -eq 0 ]; then
        chown -h 54321 pw
        refused "another user's link"
    fi
    rm pw
    mkdir -m 700 pw
    refused "a folder"
    rmdir pw
    mkfifo -m 600 pw
    refused "a fifo"
    rm pw
    { printf 'c4n4ry-pw\n'; head -c 5000 /dev/zero; } >pw
    chmod 600 pw
    refused "a large one"
    rm pw
    refused "a missing one"
}

# --- memory ------------------------------------------------------------------

# As a user without rights: root may look at everything.
nobody=(setpriv --reuid=54321 --regid=54321 --clear-groups --)

@test "the same user cannot inspect keeper and guard" {
    need_root
    # A leak checker that attaches to itself needs to be let in.
    [ -z "${SAN:-}" ] || return 0
    dir=$(mktemp -d /tmp/dlock-test.XXXXXX)
    install -m 755 "$DLOCK" "$dir/dlock"
    chown -R 54321 "$dir"
    chmod 755 "$dir"
    start_log out "${nobody[@]}" "$dir/dlock" "redis://app:c4n4ry%2Fapp@$AT#$NAME" sh -c \
        "echo \$\$ >$dir/held; while [ ! -e $dir/go ]; do sleep .02; done"
    holder=$STARTED
    wait_for 5 test -s "$dir/held"
    command=$(cat "$dir/held")
    start_log wait.out "${nobody[@]}" "$dir/dlock" "redis://app:c4n4ry%2Fapp@$AT#$NAME" true
    waiter=$STARTED
    wait_for 5 queue_is 1
    bad=''
    guard_of "$holder"
    pids=("$holder" "$W" "$G")
    guard_of "$waiter"
    for pid in "${pids[@]}" "$waiter" "$W" "$G"; do
        [ "$(stat -c %u "/proc/$pid/mem")" = 0 ] || bad="$bad $pid belongs to its user;"
        ! "${nobody[@]}" cat "/proc/$pid/environ" >/dev/null 2>&1 || bad="$bad environ of $pid;"
        ! "${nobody[@]}" head -c 1 "/proc/$pid/maps" >/dev/null 2>&1 || bad="$bad maps of $pid;"
        # Not by ptrace(2), which root's own rights would hide.
        ! "${nobody[@]}" timeout 1 strace -o /dev/null -p "$pid" >/dev/null 2>&1 ||
            bad="$bad ptrace of $pid;"
    done
    [ "$(stat -c %u "/proc/$command/mem")" = 54321 ] ||
        bad="$bad the command does not belong to its user;"
    "${nobody[@]}" cat "/proc/$command/environ" 2>/dev/null | grep -qa DLOCK_TOKEN ||
        bad="$bad the command is hidden;"
    : >"$dir/go"
    wait_exit 5 "$holder" || bad="$bad exit code $?;"
    wait_exit 5 "$waiter" || bad="$bad exit code $?;"
    rm -r "$dir"
    [ -z "$bad" ] || fail "$bad"
}

@test "dlock leaves no core; the command's limit is its own" {
    ulimit -c unlimited
    hold "$L"
    run run_t 5 "$DLOCK" "$L.2" sh -c 'ulimit -c'
    # A sanitizer's runtime lowers it for all that follow.
    [ "$output" = unlimited ] || [ -n "${SAN:-}" ]
    # A shell's background job would ignore QUIT.
    start_log wait.log "$HELPERS/launch" -d "$DLOCK" "$L" true
    waiter=$STARTED
    wait_for 5 queue_is 1
    rc=0
    kill -QUIT "$waiter"
    wait_exit 5 "$waiter" 2>/dev/null || rc=$?
    [ $rc -eq 131 ]
    # A sanitizer takes this for its own business.
    [ -z "${SAN:-}" ] || { let_go; return; }
    {
        kill -SEGV "$HOLDER"
        kill -ABRT "$W" "$G" || : # they may have ended the tree already, and themselves
        wait_for 5 pid_gone "$HOLDER"
        wait_for 5 pid_gone "$W" "$G"
    } 2>/dev/null
    # Where cores go elsewhere (core_pattern) this shows less; the test above shows the rest.
    for core in core*; do
        [ ! -e "$core" ] || no_canary_in "$core"
    done
}

# --- the binary --------------------------------------------------------------

cet() { [[ $(readelf -n "$1" 2>/dev/null) == *IBT*SHSTK* ]]; }

@test "the program is hardened" {
    # A sanitizer's build is not for use.
    [ -z "${SAN:-}" ] || return 0
    for file in "$BUILD/dlock" "$BUILD/libdlock.so" "$BUILD"/dlock-modules/*.so; do
        head=$(readelf -h -l -d "$file")
        grep -q 'Type: *DYN' <<<"$head" || fail "$file: not position independent"
        grep -q GNU_RELRO <<<"$head" || fail "$file: no RELRO"
        grep -Eq 'BIND_NOW|FLAGS.* NOW' <<<"$head" || fail "$file: no BIND_NOW"
        # The stack is not executable, and no segment is both.
        grep -A1 GNU_STACK <<<"$head" | grep -q 'RW  ' || fail "$file: an executable stack"
        ! grep -q 'RWE' <<<"$head" || fail "$file: a segment that is writable and executable"
        ! grep -Eq 'TEXTREL|RPATH|RUNPATH' <<<"$head" || fail "$file: TEXTREL, RPATH or RUNPATH"
        symbols=$(nm -D --undefined-only "$file")
        grep -q '__stack_chk_fail' <<<"$symbols" || fail "$file: no stack protector"
        # Where something is left to check at run time.
        grep -Eq '__(snprintf|vsnprintf|memcpy|memmove|strcpy|read|recv|poll|ppoll)_chk' \
            <<<"$symbols" || fail "$file: not fortified"
    done
    # CET, of what we compile. An input without CET takes it from all that is linked: libhiredis.a
    # from the program, and the C library's start files.
    case $(uname -m) in
    x86_64)
        for file in "$BUILD"/obj/{cli,lib,lib/tls,lib/backends/*}/*.o; do
            cet "$file" || fail "$file: no CET"
        done
        cc -shared -nostartfiles -o "$T/ours.so" "$BUILD"/obj/mod/lib/backends/postgres/*.o
        cet "$T/ours.so" || fail "not marked: all of the PostgreSQL store"
        for file in crti.o crtn.o; do cet "$(cc -print-file-name=$file)" || return 0; done
        cet "$BUILD/dlock-modules/postgres.so" || fail "not marked: the module"
        ;;
    esac
    grep -q INTERP <<<"$(readelf -l "$BUILD/dlock")"
    # Not setuid, and not writable by others.
    [ -z "$(find "$BUILD/dlock" "$BUILD/dlock-modules" -perm /6022)" ]
}

@test "a setuid dlock refuses to run" {
    need_root
    [ -z "${SAN:-}" ] || return 0
    dir=$(mktemp -d /tmp/dlock-test.XXXXXX)
    install -m 755 "$DLOCK" "$dir/dlock"
    chmod 755 "$dir"
    chmod 4755 "$dir/dlock"
    run run_t 5 "${nobody[@]}" "$dir/dlock" "$dir/x.lock" true
    # Where /tmp is nosuid there is nothing to refuse.
    nosuid=$(findmnt -no OPTIONS -T "$dir" | grep -c nosuid || :)
    rm -r "$dir"
    [ "$nosuid" != 0 ] || { assert_rc 77; assert_out setuid; }
}
