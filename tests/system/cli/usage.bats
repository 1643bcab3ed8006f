# What a careless caller may write: each ends with exactly one line on stderr that begins with
# "dlock: ", the documented exit code, nothing on stdout, no command run, no file left behind, and
# no password shown.

load ../../support/common

setup() {
    dlock_setup
    mkdir work store
    cd work || return 1
}

SECRET=s3kr1t-pa55

# refused CODE|"CODE TEXT" ARG...: checks all of that. $line is the message, which has the TEXT.
refused() {
    local code=${1%% *} text=${1#"${1%% *}"} rc=0
    shift
    run_t 10 "$DLOCK" "$@" >"$T/out" 2>"$T/err" </dev/null || rc=$?
    line=$(cat "$T/err")
    [ $rc -eq "$code" ] || fail "[$*] exit code $rc, not $code: $line"
    [ ! -s "$T/out" ] || fail "[$*] stdout: $(cat "$T/out")"
    [ "$(wc -l <"$T/err")" -eq 1 ] || fail "[$*] not one line: $line"
    case $line in "dlock: "?*) ;; *) fail "[$*] $line" ;; esac
    # Nothing that a terminal would obey.
    ! LC_ALL=C grep -q '[[:cntrl:]]' <<<"$line" || fail "[$*] control characters: $line"
    ! grep -qF "$SECRET" "$T/out" "$T/err" || fail "[$*] the password is shown: $line"
    [ -z "$(ls -A .)" ] || fail "[$*] left behind: $(ls -A .)"
    says "${text# }"
}
says() { case $line in *"$1"*) ;; *) fail "without '$1': $line" ;; esac }

# What is refused by which words is tested in unit/cli/test_options.c, unit/lib/test_uri.c,
# unit/lib/test_duration.c and unit/lib/test_secret.c: here is one of each kind.
@test "refuses a wrong command line" {
    refused 64
    refused "64 no command" ./x
    says "dlock-migrating(7)"
    refused 64 $'-\a' ./x touch ran
    refused 64 $'--\e[31mred' ./x touch ran
    refused 64 --bogus="$SECRET" ./x touch ran
    refused "64 option --grace" --grace $'1\n' ./x touch ran
    refused 64 "./$(printf '%5000s' | tr ' ' x)" touch ran
}

@test "refuses what a store cannot do" {
    refused "64 --no-fork" -F "fake://$T/store#$NAME" touch ran
    refused 64 -F "redis://127.0.0.1:1#$NAME" touch ran
    refused 64 --slots 2 "redlock://127.0.0.1:1,127.0.0.2:1,127.0.0.3:1#$NAME" touch ran
    says "slots are not available for redlock"
}

@test "names the smallest ttl that fits the grace, and accepts it" {
    refused "64 at least 5934.1 s" --grace 1h "fake://$T/store#$NAME" touch ran
    run_t 10 "$DLOCK" --grace 1h --ttl 5934.1 "fake://$T/store#$NAME" true
    # Killed without being asked: the grace takes no time. A file has no lease to hold the grace.
    run_t 10 "$DLOCK" --ttl 1 --grace 5 --on-lost kill "fake://$T/store#$NAME" true
    run_t 10 "$DLOCK" --ttl 1 --grace 1h "file://$T/store#$NAME" true
    run ls -A .
    [ -z "$output" ]
}

@test "refuses a wrong URI and makes no file of that name" {
    local p=$SECRET
    refused "64 variable" "#nightly" touch ran
    refused "64 variable" "@" touch ran
    refused "64 unknown store" "redis+tls://u:$p@h#x" touch ran
    for uri in 'redis://h?restart-grace=x#y' 'redis://h?restart-grace=1&restart-grace=2#y' \
        'redis://h/2?db=1#y' 'redis+unix:///p?db=x#y' "file://$T/store?x=1#y" \
        "redis+unix:///$(printf '%200s' | tr ' ' p)#x"; do
        refused 64 "$uri" touch ran
    done
    # Each was a file, on this machine only.
    refused "64 write redis://... (for a file of that name: ./redis:...)" "redis:$p@h#x" touch ran
    refused "64 LOCK begins with a blank: remove it" $'\n'"redis://:$p@h" touch ran
    refused "64 a store unknown to dlock" etcd:h#x touch ran
    refused "64 ://db1#nightly, or ./db1#nightly for a file" -n db1#nightly touch ran
    refused "64 write redis://cache1:6379#NAME" --status cache1:6379
    refused "64 write a URI, such as" -n "user:$p@db1#x" touch ran
    refused "64 -w 5" -n 5 "redis://:$p@h#x" touch ran
    for DLOCK_STORE in redis:h " redis://:$p@h"; do
        export DLOCK_STORE
        refused "64 DLOCK_STORE " @n touch ran
    done
    # Still files: what only resembles one.
    for path in 5 redis redis-1:h './$LOCK' u@h x=y; do
        run_t 10 "$DLOCK" -n "$path" true
        rm "$path"
    done
}

@test "refuses parameters behind the name" {
    refused 64 -n 'redis://h#r?restart-grace=30s' touch ran
    says "\"r\": a '?' after the '#': parameters stand before it (STORE?KEY=VALUE#NAME)"
    DLOCK_STORE=$T/store refused 64 -n '@r?ttl=5s' touch ran
    says "write it as %3F (parameters of the store stand in DLOCK_STORE)"
    DLOCK_STORE=$T/store run_t 10 "$DLOCK" -n @r%3Fttl=5s test -e "$T/store/r?ttl=5s.lock"
    [ "$(DLOCK_STORE=$T/store run_t 10 "$DLOCK" --print-names)" = @r%3Fttl=5s ]
}

# Of an invalid URI and of one in another place: unit/lib/test_secret.c, unit/cli/test_options.c.
@test "shows no password of a server, of DLOCK_STORE and of a command" {
    local p=$SECRET
    refused 69 -n "redis://u:$p@127.0.0.1:1#n" touch ran
    refused 69 --status --json "redis://u:$p@127.0.0.1:1#n"
    REDISCLI_AUTH=$p refused 69 -n "redis://127.0.0.1:1#n" touch ran
    DLOCK_STORE="redis://u:$p@127.0.0.1:1" refused 69 -n @n touch ran
    DLOCK_STORE="redis://u:$p@127.0.0.1:x" refused 64 -n @n touch ran
    DLOCK_STORE="u:$p@127.0.0.1" refused 64 -n @n touch ran
    refused 64 -F "redis://u:$p@h#n" touch ran
    for uri in "redis://:$p@h#x" "redis://u:my $p@h#x" "redis://u:#/?@$p%@h" \
        "redis://$p$(printf '%600s' | tr ' ' y)@h" "postgres://h/db?x=y&password=$p#x"; do
        refused 127 "$T/x" "$uri" touch ran
        refused 73 "./no/$uri" touch ran
        DLOCK_STORE="x$uri" refused 64 @n touch ran
        DLOCK_STORE="/${uri%%#*}/no" refused 73 @n touch ran
    done
}

# Of a file: unit/file/test_file.c; in a URI: unit/lib/test_uri.c.
@test "refuses invalid names" {
    n255=$(printf '%255s' | tr ' ' n)
    refused "64 255 bytes" "redis://127.0.0.1:1#${n255}n" touch ran
    refused 69 -n "redis://127.0.0.1:1#$n255" touch ran
    refused "64 250 bytes" "file://$T/store#${n255:4}" touch ran
    refused 64 "@${n255}n" touch ran
    refused 64 "file://$T/store#"$'\e[2J' touch ran
    DLOCK_STORE=$T/store refused "64 %23" "@a#b" touch ran
}

# A lock's own keys, nodes and files are no names of locks; in PostgreSQL a name is a row's text.
@test "no name of a lock is a part of another lock" {
    local h=127.0.0.1:1 uri name
    for uri in "redis://$h" "redis+sentinel://$h/svc" "redlock://$h" "rediss://$h?insecure=1"; do
        for name in "{q}:dlock:claim" "{q}:dlock:queue" "{q}:dlock:fence" "q::dlock:fence" \
            "{{a}b}:dlock:once"; do
            refused "64 choose another name" -n "$uri#$name" touch ran
            refused "64 choose another name" --status "$uri#$name"
        done
        refused 69 -n --connect-timeout 1 "$uri#app:dlock:nightly" touch ran
    done
    for name in dlock-once "dlock-once.2026-12-31/q" q/dlock-once \
        "q/_c_00000000-0000-0000-0000-000000000000-lock-0000000001" "q/x__lock__0000000001"; do
        refused 64 -n "zk://$h#$name" touch ran
    done
    # Of files: while q is held, each file of q as a name, with and without its ending.
    DLOCK_STORE=$T/store run -0 run_t 30 "$DLOCK" --once @q sh -ec '
        cd "$1"
        for f in * .[!.]*; do
            [ ! -f "$f" ] || { "$2" -n "@$f" true && "$2" --once "@${f%.*}x" true; }
        done
        ls >"$3"
        "$2" -n "@q.once" "$2" -n "@q.fence" "$2" -n "@q.lock" true' - \
        "$T/store" "$DLOCK" "$T/files"
    grep -qx q.fence "$T/files"
    CI=1 DLOCK_STORE=$T/store run -0 run_t 5 "$DLOCK" --once @q touch ran
    assert_out "not run: "
    [ ! -e ran ]
}

# A FIFO, a device and a missing directory: file/flock.bats and wrong_server.bats.
@test "refuses a link and a folder in a lock file's place" {
    ln -s "$T/nowhere/x" "$T/dangling"
    refused 73 "$T/dangling" touch ran
    mkdir "$T/store/n.lock"
    refused 73 "file://$T/store#n" touch ran
    ln -s "$T/elsewhere" "$T/store/s.lock"
    refused 73 "file://$T/store#s" touch ran
    [ ! -e "$T/elsewhere" ]
}

# What they mean is tested in unit/cli/test_options.c.
@test "variables set the defaults of -w, --ttl and --note" {
    export DLOCK_TIMEOUT=0.3 DLOCK_TTL=2 DLOCK_NOTE="for ftp://u:$SECRET@ci/7"
    # The holder's own default shows that the command gets the variables as they are.
    run -75 run_t 20 "$DLOCK" "file://$T/store#$NAME" sh -c '
        [ "$DLOCK_TIMEOUT $DLOCK_TTL $DLOCK_NOTE" = "$1" ] || exit 1
        "$DLOCK" --status "$2" >status
        "$DLOCK" --no-reentrant "$2" touch ran' \
        sh "$DLOCK_TIMEOUT $DLOCK_TTL $DLOCK_NOTE" "file://$T/store#$NAME"
    grep -F 'for ftp://***@ci/7' status
    ! grep -F "$SECRET" status || fail "the password is shown"
    rm status
    DLOCK_TTL=1h30 refused '64 DLOCK_TTL: "1h30" is not a duration' ./x touch ran
}

@test "--help, --version and --status write to stdout" {
    for opt in -h --help -V --version; do
        "$DLOCK" "$opt" >"$T/out" 2>"$T/err"
        [ -s "$T/out" ]
        [ ! -s "$T/err" ]
    done
    "$DLOCK" --status "file://$T/store#$NAME" >"$T/out" 2>"$T/err"
    [ -s "$T/out" ]
    [ ! -s "$T/err" ]
    [ -z "$(ls -A "$T/store")" ]
    # A full disk is no success.
    rc=0
    "$DLOCK" --help >/dev/full 2>"$T/err" || rc=$?
    [ $rc -eq 71 ] && [ "$(wc -l <"$T/err")" -eq 1 ]
}

@test "a path and a note reach no terminal or CI log as a command" {
    local f=$'::set-output name=x::\e[2J##vso[task.y]'
    start_log wait.log "$DLOCK" -v --note '##teamcity[z' --events 2 "./$f" "$HELPERS/await" go
    wait_for 5 grep -q '"event":"granted"' wait.log
    run run_t 5 "$DLOCK" --status "./$f"
    assert_rc 75
    [[ ${lines[0]} != *[[:cntrl:]]* ]]
    refute_out '##vso['
    refute_out '##teamcity['
    run run_t 5 "$DLOCK" --status --json "./$f"
    refute_out '##vso['
    # From a folder whose name begins so, and a name in it.
    run run_t 5 "$DLOCK" --status "file://$PWD#::set-output name=x::y"
    assert_out '?:set-output'
    [[ $output != ::* ]]
    : >go
    wait_exit 5 "$STARTED"
    ! grep -qF -e '##vso[' -e '##teamcity[' wait.log || fail "a command: $(<wait.log)"
}
