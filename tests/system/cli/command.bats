#!/usr/bin/env bats
# The command must not notice that it runs under a lock: exit status, arguments, descriptors,
# signals. Each test runs with a lease and its guard, with a file lock, and with a file lock and a
# guard (-o).

load ../../support/fake

setup() {
    dlock_setup
    fake_setup
    STATE=$HELPERS/show_inherited
    LOCKS=("$L" "$T/x.lock" "-o $T/o.lock" "-F $T/f.lock")
}

try() { run "-$1" run_t 10 "${@:2}"; } # CODE CMD...

# same CMD: CMD shows the same with and without each kind of lock. CMD uses $WITH as its prefix.
same() {
    local lock rc
    # Both write to a file of the same name: it is among what is compared.
    WITH='' run_t 10 bash -c "$1" >"$T/shown" 2>&1
    mv "$T/shown" "$T/plain"
    for lock in "${LOCKS[@]}"; do
        rc=0
        WITH="$DLOCK $lock" run_t 10 bash -c "$1" >"$T/shown" 2>&1 || rc=$?
        [ $rc -eq 0 ] || fail "$lock: exit code $rc: $(cat "$T/shown")"
        # A file lock's own descriptor is a test of its own.
        diff "$T/plain" <(grep -av '[xf]\.lock fl=' "$T/shown") || fail "$lock: differs"
    done
    [ -s "$T/plain" ]
}

# --- how it ends -------------------------------------------------------------

@test "the exit code is the command's" {
    for lock in "${LOCKS[@]}"; do
        for code in 0 1 42 64 69 75 79 124 127 255; do
            try $code "$DLOCK" $lock sh -c "exit $code"
            [ "$output" = "" ] || [ $code = 124 ] || fail "$lock: $output"
        done
    done
}

@test "a library's destructor does not change the exit code" {
    if [ -n "${SAN:-}" ]; then return 0; fi # there it ends as others do: sanitizers report then
    for lock in "${LOCKS[@]}"; do
        try 42 env LD_PRELOAD="$HELPERS/exit_code.so" EXIT_CODE_IN="${DLOCK##*/}" "$DLOCK" $lock \
            sh -c 'exit 42'
    done
    try 99 env LD_PRELOAD="$HELPERS/exit_code.so" EXIT_CODE_IN=true true
}

@test "death by a signal is 128+N" {
    for lock in "$L" "$T/x.lock" "-o $T/o.lock"; do
        for sig in 15 9 11 6 1 2 10; do
            try $((128 + sig)) "$DLOCK" $lock "$HELPERS/launch" -d \
                sh -c "ulimit -c 0; kill -$sig \$\$; sleep 5"
            [ "$output" = "" ] || fail "$lock: $output"
        done
    done
}

@test "tells a missing command from one that cannot run" {
    echo text >"$T/text"
    for lock in "${LOCKS[@]}"; do
        try 127 "$DLOCK" $lock "$T/nothing"
        assert_out "$T/nothing" "No such file"
        [ "$(wc -l <<<"$output")" = 1 ]
        try 127 "$DLOCK" $lock no-such-command-anywhere
        # The message for a builtin of the shell, and for a whole command line, says what to do.
        for hint in 'ulimit: for a shell function or builtin' \
            "$T/text --now: for a whole command line"; do
            try 127 "$DLOCK" $lock "${hint%%:*}"
            hint="'${hint%%:*}': ${hint#*: } use -c"
            [ "$output" = "dlock: cannot run $hint (No such file or directory)" ]
        done
        try 126 "$DLOCK" $lock "$T/text"
        assert_out "ermission"
        try 126 "$DLOCK" $lock "$T"
        try 0 "$DLOCK" -n $lock true
    done
    [ ! -e "$S/held" ]
}

@test "says why a command was not found" {
    export PATH=$T:$PATH
    printf '#! /nosuch/sh -e\n' >"$T/lost-script"
    printf '#!/bin/sh\r\n' >"$T/dos-script"
    chmod +x "$T/lost-script" "$T/dos-script"
    local script="its interpreter '/nosuch/sh' cannot be run"
    for lock in "${LOCKS[@]}"; do
        while IFS='|' read -r word hint; do
            try 127 "$DLOCK" $lock -- "$word" x
            word=${word/hunter2/}
            [ "$output" = "dlock: cannot run '$word': $hint (No such file or directory)" ]
        done <<END
A=hunter2|write env before a variable, or use -c
-c|leave the "--" out
--nonblock|options of dlock stand before LOCK
lost-script|$script
$T/lost-script|$script
dos-script|its first line ends with a carriage return, which names no interpreter
END
        SHELL=/nosuch try 127 "$DLOCK" $lock -c true
        assert_out "cannot run '/nosuch': -c needs a shell: set SHELL to one, or unset it (No such"
        SHELL=/etc/passwd try 126 "$DLOCK" $lock -c true
        assert_out "set SHELL to one, or unset it (Permission denied)"
    done
}

@test "a script without #! runs, an empty name does not" {
    echo 'exit 3' >"$T/script"
    chmod +x "$T/script"
    for lock in "${LOCKS[@]}"; do
        try 3 "$DLOCK" $lock "$T/script"
        try 127 "$DLOCK" $lock ''
    done
}

# --- what it is given --------------------------------------------------------

@test "arguments arrive byte for byte" {
    same '$WITH "'"$STATE"'" args "" "a b" "\$HOME" -c --help -- -n "$(printf "\\xff\\n\\t*")" \
        "a'\''b" \; -w'
    try 0 "$DLOCK" "$L" -- "$STATE" args -- -x
    [ "$output" = $'[--]\n[-x]' ]
}

@test "standard input reaches the command, and only what it reads is taken" {
    same 'seq 1 100000 | $WITH cksum'
    same 'printf "one\ntwo\n" >in; { $WITH head -c 4; cat; } <in'
}

@test "the command gets exactly the caller's descriptors" {
    same '$WITH "'"$STATE"'" fds'
    same 'exec 7<>seven 9</dev/null 42>>more; $WITH "'"$STATE"'" fds'
}

@test "the command gets no descriptor that the caller had closed" {
    export STATE_TO=$T/state
    same ': >state; $WITH "'"$STATE"'" fds <&-; cat state'
    same ': >state; $WITH "'"$STATE"'" fds >&-; cat state'
    same ': >state; $WITH "'"$STATE"'" fds 2>&-; cat state'
    same ': >state; $WITH "'"$STATE"'" fds <&- >&- 2>&-; cat state'
    same ': >state; exec 5<&0; $WITH "'"$STATE"'" fds <&- >&- 5<&-; cat state'
}

@test "the command inherits the file lock's descriptor, unless -o" {
    try 0 "$DLOCK" "$T/x.lock" "$STATE" fds
    echo "$output" >"$T/with"
    "$STATE" fds >"$T/without" 2>&1 3>&-
    assert_out "$T/x.lock"
    [ "$(wc -l <"$T/with")" = $(($(wc -l <"$T/without") + 1)) ]
    try 0 "$DLOCK" -o "$T/x.lock" "$STATE" fds
    refute_out x.lock
}

@test "the command gets the caller's signal settings" {
    LOCKS+=("-o $T/o2.lock")
    same '$WITH "'"$STATE"'" signals'
    same 'trap "" HUP; $WITH "'"$STATE"'" signals'
    same 'trap "" INT QUIT TERM USR1 PIPE TSTP; $WITH "'"$STATE"'" signals'
    same 'trap "" XFSZ; $WITH "'"$STATE"'" signals'
    same 'trap "" CHLD; $WITH "'"$STATE"'" signals'
    same 'nohup $WITH "'"$STATE"'" signals 2>&1'
    same '"$HELPERS/launch" -d -i 17 -i 34 -i 64 -b 10 -b 15 -b 17 -b 40 $WITH "'"$STATE"'" signals'
    same '"'"$HELPERS"'/launch" -d -i 13 $WITH "'"$STATE"'" signals'
    same '"'"$HELPERS"'/launch" -d $WITH "'"$STATE"'" signals'
}

@test "an ignored or blocked SIGCHLD does not change the exit code" {
    for lock in "${LOCKS[@]}"; do
        for how in -i -b; do try 6 "$HELPERS/launch" -d $how 17 "$DLOCK" $lock sh -c 'exit 6'; done
    done
}

@test "nohup protects dlock and the command; other signals that the caller ignores stay so, too" {
    for lock in "$L" "$T/x.lock" "-o $T/o.lock"; do
        rm -f "$C"/* "$T/end"
        start_log "$T/out" "$HELPERS/launch" -d -s -i 2 -i 12 nohup "$DLOCK" $lock $SUBJECT \
            -u "$T/end" -r 5
        K=$STARTED
        wait_for 5 running
        for sig in HUP INT USR2 USR1; do kill -$sig "$K"; done
        wait_for 5 has_seen main sig 10
        for sig in 1 2 12; do [ "$(count_seen main sig $sig)" = 0 ]; done
        finish 5
    done
}

@test "umask, directory, nice, limits and capabilities stay unchanged" {
    same 'umask 027; cd /usr; nice -n 3 $WITH "'"$STATE"'" misc'
    same 'ulimit -c 0; ulimit -n 200; ulimit -s 1024; $WITH "'"$STATE"'" limits'
    same '$WITH "'"$STATE"'" limits'
}

@test "the environment stays unchanged but for DLOCK_*" {
    # The second name is of the counters' runtime, where COVERAGE is set.
    local but='\(DLOCK_\(NAME\|TOKEN\|FENCE\|HELD\)\|__LLVM_PROFILE_RT_INIT_ONCE\)='
    for lock in "${LOCKS[@]}"; do
        env -i A=1 'B=x y' PATH="$PATH" sh -c 'exec env' | sort >"$T/plain"
        env -i A=1 'B=x y' PATH="$PATH" sh -c 'exec "$@"' - "$DLOCK" $lock env | sort >"$T/under"
        diff "$T/plain" <(grep -v "^$but" "$T/under") || fail "$lock"
    done
}

@test "the command knows DLOCK_NAME, DLOCK_TOKEN and DLOCK_FENCE" {
    try 0 "$DLOCK" "$L" sh -c 'echo "$DLOCK_NAME|$DLOCK_TOKEN|$DLOCK_FENCE"'
    [[ $output =~ ^$NAME\|[0-9a-zA-Z_-]{16,}\|1$ ]] || fail "$output"
    first=$output
    try 0 "$DLOCK" "$L" sh -c 'echo "$DLOCK_NAME|$DLOCK_TOKEN|$DLOCK_FENCE"'
    [[ $output =~ \|2$ ]]
    [ "$output" != "$first" ]
    # The token is the one in the store.
    try 0 "$DLOCK" "$L" sh -c 'grep -c "$DLOCK_TOKEN" '"$S/held"
    [ "$output" = 1 ]
}

@test "DLOCK_* of an outer dlock do not leak into an inner one" {
    try 0 "$DLOCK" "$L" "$DLOCK" "$T/x.lock" sh -c \
        'echo "${DLOCK_FENCE-unset} $DLOCK_NAME $DLOCK_TOKEN"'
    outer=$(DLOCK_TOKEN='' "$DLOCK" "$L" sh -c 'echo $DLOCK_TOKEN')
    case $output in "unset "*x.lock*) ;; *) fail "$output" ;; esac
    [ -n "$outer" ]
    try 0 env DLOCK_FENCE=77 DLOCK_TOKEN=abc DLOCK_NAME=zzz "$DLOCK" "$T/x.lock" env
    refute_out DLOCK_FENCE=77 DLOCK_TOKEN=abc DLOCK_NAME=zzz
}

# started CMD...: as a service of systemd with one socket and a watchdog.
started() {
    run -0 run_t 10 sh -c 'export LISTEN_FDS=1 LISTEN_FDNAMES=web LISTEN_PID=$$ LISTEN_PIDFDID=7
        export WATCHDOG_USEC=9 WATCHDOG_PID=$$ NOTIFY_SOCKET=/run/notify
        exec 3<socket
        exec "$@"' - "$@"
}

@test "a service of systemd gets its sockets and its watchdog through dlock" {
    local lock show='echo $(($$ == LISTEN_PID)) $(($$ == WATCHDOG_PID)) ${LISTEN_PIDFDID-none} \
        $LISTEN_FDS $LISTEN_FDNAMES $WATCHDOG_USEC $NOTIFY_SOCKET $(cat <&3)'
    echo hello >socket
    for lock in "${LOCKS[@]}" "$L $DLOCK $T/x.lock" "$T/x.lock $DLOCK -n $L"; do
        started "$DLOCK" $lock sh -c "$show"
        case $lock in -F*) id=7 ;; *) id=none ;; esac
        [ "$output" = "1 1 $id 1 web 9 /run/notify hello" ] || fail "$lock: $output"
    done
    # Variables that name another process stay as they are.
    for lock in "${LOCKS[@]}"; do
        run -0 run_t 10 env LISTEN_PID=1 LISTEN_PIDFDID=7 WATCHDOG_PID=none "$DLOCK" $lock \
            sh -c 'echo $LISTEN_PID $LISTEN_PIDFDID $WATCHDOG_PID'
        [ "$output" = "1 7 none" ] || fail "$lock: $output"
        run -0 run_t 10 "$DLOCK" $lock sh -c 'echo ${LISTEN_PID-unset} ${WATCHDOG_PID-unset}'
        [ "$output" = "unset unset" ] || fail "$lock: $output"
    done
}

# --- process groups ----------------------------------------------------------

@test "the command can call setsid(2), as without dlock" {
    # setsid(1) calls it at once unless it leads a process group: then it forks and exits with 0.
    for lock in "$L" "$T/x.lock" "-o $T/o.lock"; do
        try 7 "$HELPERS/launch" -d -s "$DLOCK" $lock setsid sh -c 'exit 7'
        try 7 "$HELPERS/launch" -d -s "$DLOCK" $lock -c 'setsid sh -c "exit 7"'
    done
}

@test "a file lock's command is in dlock's process group, as with flock(1)" {
    try 0 "$HELPERS/launch" -d -s "$DLOCK" "$T/x.lock" sh -c 'ps -o pgid= $$; ps -o pgid= $PPID'
    set -- $output
    [ "$1" = "$2" ] || fail "$output"
}

# --- pipes -------------------------------------------------------------------

@test "yes | head ends as without dlock, and sees the error where the caller ignores SIGPIPE" {
    for lock in "${LOCKS[@]}"; do
        try 0 "$HELPERS/launch" -d bash -c '"$@" yes | head -n 1; echo "${PIPESTATUS[0]}"' - \
            "$DLOCK" $lock
        [ "$output" = $'y\n141' ] || fail "$lock: $output"
        try 0 "$HELPERS/launch" -d -i 13 bash -c '
            "$@" sh -c "while echo y; do :; done 2>/dev/null; exit 9" | head -n 1
            echo "${PIPESTATUS[0]}"' - "$DLOCK" $lock
        [ "$output" = $'y\n9' ] || fail "$lock: $output"
    done
}

# reader: a process ($R) that reads $T/pipe to its end, into $T/data. Then start the writer.
reader() {
    rm -f "$T/pipe"
    mkfifo "$T/pipe"
    start_log "$T/data" cat "$T/pipe"
    R=$STARTED
}

@test "the command's output ends although the release hangs" {
    tell release hang
    reader
    start "$DLOCK" --connect-timeout 20 "$L" sh -c 'echo data' 2>"$T/err" >"$T/pipe" 7>&1
    K=$STARTED
    wait_exit 5 "$R"
    [ "$(cat "$T/data")" = data ]
    wait_for 5 store_did release
    pid_alive "$K"
    kill -KILL "$K"
}

@test "the command's output ends although the guard is stopped" {
    reader
    start "$DLOCK" "$L" sh -c 'echo data; "$HELPERS/await" '"$T/end"'' 2>"$T/err" >"$T/pipe"
    K=$STARTED
    wait_for 5 file_nonempty "$T/data" || :
    find_guard
    wait_for 5 file_has "$T/data" data
    kill -STOP "$G"
    touch "$T/end"
    wait_exit 5 "$R"
    pid_alive "$K"
    kill -CONT "$G"
    wait_exit 5 "$K"
}

@test "the output ends when the command closes it" {
    for lock in "$L" "$T/x.lock" "-o $T/o.lock"; do
        rm -f "$T/end"
        reader
        start bash -c 'exec "$@" 2>err >pipe 7>&1' - "$DLOCK" $lock \
            sh -c 'echo data; exec >&- 7>&-; "$HELPERS/await" end'
        K=$STARTED
        wait_exit 5 "$R" || fail "$lock: $(ls -l /proc/[0-9]*/fd 2>/dev/null | grep -B9 "$T/pipe")"
        [ "$(cat "$T/data")" = data ] || fail "$lock"
        pid_alive "$K"
        touch "$T/end"
        wait_exit 5 "$K"
    done
}

@test "a writer notices that the command closed its input" {
    for lock in "$L" "$T/x.lock" "-o $T/o.lock"; do
        rm -f "$T/end"
        try 0 "$HELPERS/launch" -d bash -c 'yes | { "$@"; }; echo "${PIPESTATUS[0]}"' - \
            "$DLOCK" $lock sh -c 'exec <&-; sleep 0.1'
        [ "$output" = 141 ] || fail "$lock: $output"
    done
}

# --- what it leaves ----------------------------------------------------------

@test "a background process is left alone and keeps no lease" {
    for lock in "$L" "-o $T/o.lock"; do
        rm -rf "$C"/*
        try 3 "$DLOCK" $lock sh -c "$SUBJECT -m 8000 >/dev/null 2>&1 & exit 3"
        wait_for 5 running
        try 0 "$DLOCK" -n $lock true
        pid_alive "$(pid_of main)"
        kill -KILL "$(pid_of main)"
        wait_for 5 pid_gone "$(pid_of main)"
    done
}
