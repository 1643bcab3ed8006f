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

# What would run if the refusal failed.
TRACE='touch ran'

@test "refuses a missing lock or command and extra words" {
    refused 64
    refused 64 --
    refused 64 -n
    refused "64 no command" ./x
    refused "64 --json needs --status" --json ./x
    refused 64 -w 1 ./x --
    refused 64 ''
    refused "64 empty" '' true
    refused 64 ./x -c
    refused 64 ./x -c "$TRACE" more
    refused "64 dlock LOCK -c" -c "$TRACE" ./x
    refused 64 "./$(printf '%5000s' | tr ' ' x)" touch ran
}

@test "refuses unknown, ambiguous and incomplete options" {
    refused "64 --bogus" --bogus ./x touch ran
    refused 64 --bogus="$SECRET" ./x touch ran
    refused "64 -Z" -Z ./x touch ran
    refused "64 ambiguous" --no ./x touch ran
    refused 64 --json=1 --status ./x
    refused 64 --ttl
    refused 64 -w
    refused 64 --note
    refused 64 $'-\a' ./x touch ran
    refused 64 $'--\e[31mred' ./x touch ran
}

@test "refuses invalid exit codes" {
    for v in 256 -1 '' ' 1' 1x 0x10 99999999999999999999 1.0 +1; do
        refused "64 option -E" -E "$v" ./x touch ran
        refused "64 --lost-exit-code" --lost-exit-code "$v" ./x touch ran
    done
}

# The same words are given to the parser in unit/lib/test_duration.c, 80 processes less.
# bats test_tags=plain
@test "refuses invalid durations" {
    for opt in -w --ttl --grace --connect-timeout; do
        for v in -1 -0.5 '' ' 1' 1x abc . s 1e3 0x10 inf nan 1,5 '1 s' 1S 10000000000d \
            99999999999999999999 $'1\n'; do
            refused "64 option" "$opt" "$v" ./x touch ran
        done
    done
    refused 64 --connect-timeout 0 ./x touch ran
}

@test "checks values of the lease for a file too" {
    for v in 0 0.999 1ms; do
        refused "64 option --ttl: \"$v\" is not a ttl of at least 1 s" --ttl "$v" ./x touch ran
        refused 64 --ttl "$v" "file://$T/store#$NAME" touch ran
        refused 64 --ttl "$v" --status ./x
        refused 64 --ttl "$v" 9
    done
    refused 64 --grace -1 ./x touch ran
    run_t 10 "$DLOCK" --ttl 1 --grace 0 "file://$T/store#$NAME" true
}

@test "refuses invalid keywords" {
    for v in '' TERM kil kill,term; do
        refused "64 kill, term or warn" --on-lost "$v" ./x touch ran
    done
}

@test "refuses options that exclude each other" {
    refused "64 -o and -F" -F -o ./x touch ran
    refused 64 -o -F ./x touch ran
    refused 64 -u --status ./x
    refused 64 --status -u 9
    refused 64 --status ./x touch ran
}

@test "refuses what a store cannot do" {
    refused "64 --no-fork" -F "fake://$T/store#$NAME" touch ran
    refused 64 -F "redis://127.0.0.1:1#$NAME" touch ran
    refused 64 --slots 2 "redlock://127.0.0.1:1,127.0.0.2:1,127.0.0.3:1#$NAME" touch ran
    says "slots are not available for redlock"
}

@test "names the smallest ttl that fits the grace" {
    refused "64 at least 1 s" --ttl 0.5 "fake://$T/store#$NAME" touch ran
    refused "64 at least 1 s" --ttl 0 "fake://$T/store#$NAME" touch ran
    refused "64 at least 8.3 s" --ttl 8.2 --grace 5 "fake://$T/store#$NAME" touch ran
    refused "64 at least 5934.1 s" --grace 1h "fake://$T/store#$NAME" touch ran
    # What it names works.
    run_t 10 "$DLOCK" --ttl 8.3 --grace 5 "fake://$T/store#$NAME" true
    run_t 10 "$DLOCK" --grace 1h --ttl 5934.1 "fake://$T/store#$NAME" true
    # Killed without being asked: the grace takes no time. A file has no lease to hold the grace.
    run_t 10 "$DLOCK" --ttl 1 --grace 5 --on-lost kill "fake://$T/store#$NAME" true
    run_t 10 "$DLOCK" --ttl 1 --grace 1h "file://$T/store#$NAME" true
    run ls -A .
    [ -z "$output" ]
}

@test "refuses an empty variable in front of the name" {
    refused "64 variable" "#nightly" touch ran
    refused "64 variable" "@" touch ran
    refused "64 empty" "redis://127.0.0.1:1#" touch ran
    refused 64 "file://$T/store#" touch ran
    refused "64 #NAME" "redis://127.0.0.1:1" touch ran
}

@test "refuses unknown schemes" {
    for uri in foo://h#x etcd://h#x http://h/x#y redi://h#x "redis+tls://u:$SECRET@h#x"; do
        refused "64 unknown store" "$uri" touch ran
    done
}

@test "refuses invalid URIs" {
    for uri in redis://h:#x redis://h:0#x redis://h:65536#x redis://h:x#x redis://h:1:2#x \
        redis://::1#x \
        'redis://[::1#x' 'redis://[::g]#x' 'redis://[::1]x#x' redis://a,b#x redis://h/x#y \
        redis://h/-1#x \
        redis://h/99999999999#x 'redis://h h#x' redis://:6379:#x redis://h%zz#x redis://h%00#x \
        redis://h#%00 \
        redis://h#%zz redis://h#% redis://h#%1 'redis://h?x=1#y' 'redis://h?=1#y' \
        'redis://h?restart-grace=x#y' 'redis://h?restart-grace=1&restart-grace=2#y' \
        'redis://h/2?db=1#y' 'redis://h?db=x#y' 'redis://h?db=1?x=1#y' \
        redis+unix://#x redis+unix:///#x redis+unix://host/path#x 'redis+unix:///p?db=x#y' \
        "redis+unix:///$(printf '%200s' | tr ' ' p)#x" \
        file://#x file://host/x file://x "file://$T/store?x=1#y" "file://$T/store#a%" ://x \
        '://#x'; do
        refused 64 "$uri" touch ran
    done
}

# Each was a file, on this machine only.
# bats test_tags=slow
@test "refuses a mistyped URI and makes no file of that name" {
    local p=$SECRET
    for uri in redis:h#x redis:/h REDIS:h file:x redis+unix:/s zk:h1,h2#x postgres:h rediss+x:h; do
        refused 64 "$uri" touch ran
        says "write ${uri%%:*}://... (for a file of that name: ./${uri%%:*}:...)"
    done
    for uri in etcd:h#x consul:x mysql:x s3:x http:x https:/x mongodb+srv:x; do
        refused 64 "$uri" touch ran
        says "\"${uri%%:*}:\", a store unknown to dlock (for a file of that name: ./${uri%%:*}:...)"
    done
    for uri in " redis://:$p@h#x" $'\t'"redis://:$p@h" $'\n'"redis://:$p@h" " x/redis://:$p@h"; do
        refused "64 LOCK begins with a blank: remove it" "$uri" touch ran
    done
    for uri in "\"redis://:$p@h#x\"" "'redis://:$p@h'#x" "\`redis://:$p@h\`"; do
        refused "64 LOCK begins with a quotation mark: remove it" "$uri" touch ran
    done
    refused '64 LOCK has "jdbc:" before "redis://": remove it' "jdbc:redis://:$p@h#x" touch ran
    for uri in "URL=redis://:$p@h#x" "<redis://:$p@h>" $'\xef\xbb\xbf'"redis://:$p@h"; do
        refused '64 something before "redis://"' "$uri" touch ran
    done
    refused 64 "@redis://:$p@h" touch ran
    for DLOCK_STORE in redis:h "'redis://:$p@h'" " redis://:$p@h" "jdbc:redis://:$p@h" etcd:h; do
        export DLOCK_STORE
        refused "64 DLOCK_STORE " @n touch ran
    done
    # Still files: what only resembles one.
    mkdir redis
    for path in redis/x.lock redis redis-1:x ./redis:h ./etcd:h a:b http; do
        run_t 10 "$DLOCK" "$path" true
    done
    rm redis-1:x redis:h etcd:h a:b http redis/x.lock
    rmdir redis
}

@test "refuses a URI without its scheme and makes no file of that name" {
    for lock in 'db1#nightly' 'cache1:6379#nightly' 'postgres#x'; do
        refused "64 ://$lock, or ./$lock for a file of that name" -n "$lock" touch ran
        refused 64 --status "$lock"
    done
    refused 64 cache1:6379 touch ran
    says "write redis://cache1:6379#NAME, or ./cache1:6379 for a file of that name"
    for lock in 'user@db1#x' "user:$SECRET@db1#x" "db1:$SECRET#x" "host=db1 password=$SECRET#x"; do
        refused 64 -n "$lock" touch ran
        says "write a URI, such as postgres://HOST/DATABASE#NAME, or ./... for a file of that name"
    done
    for lock in '$REDIS_URL#nightly' '$LOCK'; do
        refused 64 -n "$lock" touch ran
        says "LOCK begins with '\$', which the shell did not expand: put it in double quotes"
    done
    # A path with a slash, and words as flock(1) has them.
    for lock in "$PWD/a#b" ./db1#nightly ./h:1 './$LOCK' file a:b x=y u@h; do
        run_t 10 "$DLOCK" -n "$lock" true
        rm "$lock"
    done
}

@test "refuses parameters behind the name" {
    refused 64 -n 'redis://h#r?restart-grace=30s' touch ran
    says "\"r\": a '?' after the '#': parameters stand before it (STORE?KEY=VALUE#NAME)"
    refused 64 -n "postgres://u:$SECRET@h/d#m?password=$SECRET" touch ran
    says "write a '?' in the name as %3F"
    refused 64 -n "file://$T/store#r?ttl=5s" touch ran
    DLOCK_STORE=$T/store refused 64 -n '@r?ttl=5s' touch ran
    says "write it as %3F (parameters of the store stand in DLOCK_STORE)"
    DLOCK_STORE=$T/store run_t 10 "$DLOCK" -n @r%3Fttl=5s test -e "$T/store/r?ttl=5s.lock"
    [ "$(DLOCK_STORE=$T/store run_t 10 "$DLOCK" --print-names)" = @r%3Fttl=5s ]
}

@test "refuses a wait without -w" {
    refused "64 -w 5" -n 5 "redis://:$SECRET@h#x" touch ran
    refused "64 -w 5" -n 5 " redis://:$SECRET@h#x" touch ran
    refused "64 -w 1.5m" 1.5m "redis://:$SECRET@h#x" touch ran
    refused 64 -n 5 "redis://:$SECRET@h#x"
    # flock(1)'s own: a file, whatever the command is.
    run_t 10 "$DLOCK" -n 5 true
    rm 5
}

# bats test_tags=slow
@test "shows no password of an invalid URI" {
    local p=$SECRET
    for uri in "redis://u:$p@h" "redis://u:$p@h#" "redis://u:$p@h:x#n" "redis://u:$p@h:0#n" \
        "redis://u:$p@h/x#n" \
        "redis://u:$p@h?x=1#n" "redis://u:$p@h?x=$p#n" "redis://u:$p@h?password=$p#n" \
        "redis://u:$p%zz@h#n" "redis://u:%$p@h#n" "redis://:$p" "redis://:$p#n" "redis://u:$p#n" \
        "redis://u:a/$p@h#n" "redis://u:a#$p@h" "redis://u:a?$p@h#n" "redis://u:a#$p@h#%zz" \
        "redis://u:$p@[::1#n" "redis://u:$p@a,b#n" "redis://u:$p@h h#n" "redis://u:$p@h#a%01" \
        "redis+unix://u:$p@/#n" "redis+unix://u:$p@h/p#n" "file://u:$p@/x#n" "foo://u:$p@h#n" \
        "redis://u:$p@h?password-file=/nonexistent/dir&x=$p#n"; do
        rc=0
        run_t 10 "$DLOCK" -n --connect-timeout 1 "$uri" touch ran >"$T/out" 2>"$T/err" </dev/null ||
            rc=$?
        case $rc in 64 | 77) ;; *) fail "$uri: exit code $rc: $(cat "$T/err")" ;; esac
        [ "$(grep -c '^dlock: ' "$T/err")" -eq 1 ] && [ "$(wc -l <"$T/err")" -eq 1 ] ||
            fail "$uri: $(cat "$T/err")"
        ! grep -qF "$p" "$T/out" "$T/err" || fail "$uri: shown: $(cat "$T/err")"
        [ -z "$(ls -A .)" ]
    done
    # A server that is not there, options after it, and $DLOCK_STORE.
    refused 69 -n "redis://u:$p@127.0.0.1:1#n" touch ran
    refused 69 --status --json "redis://u:$p@127.0.0.1:1#n"
    REDISCLI_AUTH=$p refused 69 -n "redis://127.0.0.1:1#n" touch ran
    DLOCK_STORE="redis://u:$p@127.0.0.1:1" refused 69 -n @n touch ran
    DLOCK_STORE="redis://u:$p@127.0.0.1:x" refused 64 -n @n touch ran
    DLOCK_STORE="redis://u:$p@127.0.0.1:1#x" refused 64 -n @n touch ran
    DLOCK_STORE="u:$p@127.0.0.1" refused 64 -n @n touch ran
    refused 64 "redis://u:$p@h#n"
    refused 64 -F "redis://u:$p@h#n" touch ran
    refused 64 -u "redis://u:$p@h#n"
}

# bats test_tags=slow
@test "shows no password of a URI in another place" {
    local p=$SECRET uri
    for uri in "redis://:$p@h#x" "redis://$p@h" "redis://u:my $p@h#x" "redis://u:$p my@h" \
        "redis://u:#/?@$p%@h" \
        "\"redis://u:$p\"@h#x\"" "jdbc:redis://u:$p@h" "redis://$p$(printf '%600s' | tr ' ' y)@h" \
        "postgres://h/db?x=y&password=$p#x" "redis://h#redis://:$p@x"; do
        refused 64 -w "$uri" ./x touch ran
        refused 64 -nw"$uri" ./x touch ran
        refused 64 -E "$uri" ./x touch ran
        refused 64 --on-lost "$uri" ./x touch ran
        refused 64 --ttl="$uri" ./x touch ran
        refused 64 --"$uri" ./x touch ran
        refused 64 "#$uri" touch ran
        refused 64 "$uri" -c
        refused 64 --status "$uri" touch ran
        refused 127 "$T/x" "$uri" touch ran
        refused 73 "./no/$uri" touch ran
        DLOCK_STORE="x$uri" refused 64 @n touch ran
        DLOCK_STORE="/${uri%%#*}/no" refused 73 @n touch ran
    done
}

@test "shows no password in a path" {
    local dir="$T/x:/u:$SECRET@h"
    mkdir -p "$dir"
    start_log "$T/log" "$DLOCK" -v "$T/x://u:$SECRET@h/l" sh -c \
        ': >"$1/held"; "$HELPERS/await" "$1/go"' - "$T"
    wait_for 5 test -e "$T/held"
    for mode in --status '--status --json' '-v -n' '-v -w 0.01'; do
        case $mode in --status*) command='' ;; *) command=true ;; esac
        rc=0
        run_t 10 "$DLOCK" $mode "$T/x://u:$SECRET@h/l" $command >"$T/out" 2>"$T/err" || rc=$?
        # 69: not even asked within 10 ms, on a busy machine.
        case $rc in 75 | 69) ;; *) fail "$mode: exit code $rc: $(cat "$T/err")" ;; esac
        grep -qF '://***@h/l' "$T/out" "$T/err" || fail "$mode: $(cat "$T/out" "$T/err")"
        ! grep -qF "$SECRET" "$T/out" "$T/err" || fail "$mode: $(cat "$T/out" "$T/err")"
    done
    : >"$T/go"
    wait_exit 5 "$STARTED"
    ! grep -F "$SECRET" "$T/log" || fail "the holder shows it"
}

@test "refuses invalid names" {
    n255=$(printf '%255s' | tr ' ' n) n250=${n255:5} n251=${n255:4}
    refused "64 255 bytes" "redis://127.0.0.1:1#${n255}n" touch ran
    refused 69 -n "redis://127.0.0.1:1#$n255" touch ran
    refused "64 250 bytes" "file://$T/store#$n251" touch ran
    run_t 10 "$DLOCK" "file://$T/store#$n250" true
    refused 64 "file://$T/store#${n250%nn}/" touch ran
    refused 64 "@${n255}n" touch ran
    # UTF-8 counts in bytes.
    refused 64 "redis://127.0.0.1:1#$(printf '%128s' | sed 's/ /é/g')" touch ran
    for name in %01 a%0Ab a%7F %C2%80 %ff %C3 %ED%A0%80 %C0%80 $'a\nb' $'\e[2J' $'\xff'; do
        refused 64 "redis://127.0.0.1:1#$name" touch ran
        refused 64 "file://$T/store#$name" touch ran
    done
    DLOCK_STORE=$T/store refused "64 %23" "@a#b" touch ran
}

@test "a name cannot lead out of its directory" {
    for name in .. . ../x a/b /etc/x %2e%2e%2fx; do
        run_t 10 "$DLOCK" "file://$T/store#$name" true
    done
    [ -z "$(ls -A .)" ]
    run find "$T" -name '*.lock' -not -path "$T/store/*"
    [ -z "$output" ]
    run find "$T/store" -mindepth 1 -type d
    [ -z "$output" ]
}

@test "refuses what cannot be a lock file" {
    mkfifo "$T/fifo"
    ln -s "$T/nowhere/x" "$T/dangling"
    refused 73 "$T/fifo" touch ran
    refused 73 /dev/null touch ran
    refused 73 "$T/none/x" touch ran
    refused 73 "$T/dangling" touch ran
    refused 73 "file://$T/none#x" touch ran
    mkdir "$T/store/n.lock"
    refused 73 "file://$T/store#n" touch ran
    ln -s "$T/elsewhere" "$T/store/s.lock"
    refused 73 "file://$T/store#s" touch ran
    [ ! -e "$T/elsewhere" ]
}

@test "refuses an invalid fence file and frees the lock" {
    : >"$T/store/f.lock"
    for text in '' garbage 'dlock-fence1 x y' 'dlock-fence1 0 0123456789abcdef0123456789abcdef' \
        'dlock-fence2 17 0123456789abcdef0123456789abcdef'; do
        printf '%s\n' "$text" >"$T/store/f.fence"
        refused "65 f.fence" "file://$T/store#f" touch ran
        run_t 5 flock -n "$T/store/f.lock" true
    done
}

@test "refuses invalid descriptors" {
    refused 64 -u
    refused 64 -u ./x
    refused 64 -u 9 touch
    refused 64 -u 99999999999999999999
    refused 64 99999999999999999999
    refused "64 987" 987
    refused 64 -u 987
    # Not a number, and so a file: a command is missing.
    refused 64 -n -- -3
}

# What they mean is tested in unit/cli/test_options.c.
@test "variables set the defaults of -w, --ttl and --note" {
    export DLOCK_TIMEOUT=0.05 DLOCK_TTL=2 DLOCK_NOTE="for ftp://u:$SECRET@ci/7"
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
    DLOCK_TIMEOUT="redis://u:$SECRET@h" refused "64 DLOCK_TIMEOUT" ./x touch ran
    DLOCK_TTL=x DLOCK_TIMEOUT=x run -0 run_t 5 "$DLOCK" --status ./x
}

@test "says why a command cannot run" {
    for lock in "file://$T/store#$NAME" "fake://$T/store#$NAME"; do
        refused 127 "$lock" ./none
        refused 127 "$lock" "none-$NAME"
        refused 126 "$lock" "$T"
        refused 126 "$lock" /dev/null
        refused 126 -o "$lock" "$T"
    done
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

@test "does not show a LOCK in place of a forgotten value" {
    for option in --ttl -w --grace --connect-timeout -E --lost-exit-code --on-lost; do
        run -64 --separate-stderr run_t 5 "$DLOCK" "$option" 'redis://:s3cret-canary@h#x' true
        [ "${#stderr_lines[@]}" -eq 1 ]
        [[ $stderr == "dlock: "*"(a URI)"* ]]
        [[ $stderr != *canary* ]]
    done
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
