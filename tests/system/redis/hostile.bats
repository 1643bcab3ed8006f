#!/usr/bin/env bats
# hostile.bats - Redis servers that lie, talk nonsense, are slow, or refuse, around a lock. What
# befalls a sane one is in faults.bats, faults of our machine are in machine_faults.bats.

# bats file_tags=long
load ../../support/redisfile

setup_file() { redis_start && redis_warm; }

# liar HOW...: its lock is $L.   proxy FAULT...: the same, before the file's server.
liar() {
    listener hostile_server "$@"
    L="redis://127.0.0.1:$LISTENS#$NAME"
}
liar_gone() {
    kill "$LISTENER"
    wait_for 5 pid_gone "$LISTENER"
}
proxy() {
    listener proxy "$REDIS_PORT" "$@"
    L="redis://127.0.0.1:$LISTENS#$NAME"
}

# --- a server that is none ---------------------------------------------------

@test "a hostile server gets no command run, and no memory" {
    limit='prlimit --as=150000000'
    [ -z "${SAN:-}" ] || limit=
    lie() { # CODE HOW [TEXT]
        local want=$1 t0
        shift
        liar "$@"
        t0=$(now_ms)
        run run_t 10 $limit "$DLOCK" --connect-timeout 0.4 "${L/\/\//\/\/$password}" touch "$T/ran"
        [[ $status =~ ^($want)$ ]] || fail "$*: exit code $status, not $want: $output"
        assert_between 0 $(($(now_ms) - t0)) $((1900 + SLOW)) "$*: time (ms)"
        [ "${#lines[@]}" = 1 ] || fail "$*: $output"
        [ "${#output}" -lt 600 ] || fail "$*: a long message"
        refute_out secret
        [ ! -e "$T/ran" ] || fail "$*: the command ran"
        run run_t 10 $limit "$DLOCK" --connect-timeout 0.2 --status "$L"
        [[ $status =~ ^(69|76)$ ]] || fail "$*: --status: exit code $status: $output"
        liar_gone
    }
    password=
    lie 76 say ':1\r\n'
    lie 76 say '*5\r\n$7\r\ngranted\r\n$2\r\nxx\r\n:1\r\n:1\r\n$0\r\n\r\n'
    lie 76 greet 'HTTP/1.0 400 Bad\r\n\r\n'
    lie 76 say '+OK\r\n'
    lie 76 say '$-1\r\n'
    lie 76 say '*0\r\n'
    lie 76 say '*-1\r\n'
    lie 76 say '-WHATEVER this is\r\n'
    lie 76 say '-\r\n'
    lie 76 say '%1\r\n+granted\r\n+1\r\n'
    lie '69|76' say '%2\r\n' # hiredis 1.0 and later wait for the rest of the map
    lie 76 say '\0\0\0\0\0\0\0\0'
    lie 76 say '$-7\r\n'
    lie 76 say ':99999999999999999999999999\r\n'
    lie 69 nothing
    lie 69 go
    lie 69 reset
    lie 69 say-and-go '*5\r\n$7\r\ngran'
    lie 76 greet 'SSH-2.0-OpenSSH_9.2\r\n'
    lie 69 greet '-ERR max number of clients reached\r\n'
    lie 76 for-ever '+OK\r\n'
    lie 76 for-ever '*1\r\n'
    lie 76 for-ever 'x'
    lie 76 for-ever '*5\r\n$7\r\ngranted\r\n'
    password=:secret@
    lie 69 say '+OK\r\n' # the answer to AUTH, and no more comes
    lie 69 say '-WHATEVER this is\r\n'
    lie 76 for-ever '+OK\r\n'
    # One answer of 900 MB, of which it takes no more than it needs to see that.
    liar for-ever '$900000000\r\n'
    run run_t 20 /usr/bin/python3 -c 'import resource, subprocess, sys
print(subprocess.call(sys.argv[1:]), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)' \
        $limit "$DLOCK" --connect-timeout 3 "$L" touch "$T/ran"
    [ ! -e "$T/ran" ]
    [[ ${lines[1]} == "76 "* ]] || fail "$output"
    [ -n "${SAN:-}" ] || assert_between 0 "${lines[1]#* }" 40000 "its memory (KiB)"
}

@test "nonsense during a hold ends the command in time" {
    liar say '*5\r\n$7\r\ngranted\r\n$1\r\n5\r\n:1000\r\n:0\r\n$0\r\n\r\n'
    starts 4 --ttl 1 "$L" $SUBJECT -t -k
    ended 10
    assert_rc 79
    assert_out "could not be renewed in time"
    # One answer to a message of several commands.
    [[ $output =~ "unexpected answer"|"no answer within" ]]
    lease_times 1000 "$(seen main start '')"
    [ "$(last_beat)" -lt "$DEADLINE" ]
    ! pid_alive "$(pid_of daemon)" || fail "found"
}

@test "replies may come one byte at a time" {
    proxy drip
    starts 1 -q --ttl 3 "$L" $SUBJECT -u "$T/end" -r 9
    lives_for 3100 # renewed, too
    unharmed 9
    [ "$output" = "" ]
    [ "$(rcli exists "$NAME")" = 0 ]
}

@test "a cut or wrong reply starts nothing and is undone" {
    cut=0 whole=0
    for fault in 'cut 0' 'cut 1' 'cut 4' 'cut 8' 'cut 20' 'cut 50' 'cut 55' 'cut 56' 'cut 57' \
        'cut 200' \
        'flip 0' 'flip 1' 'flip 2' 'flip 5' 'flip 8' 'flip 10' 'always-cut 0' 'always-cut 30'; do
        rm -f "$T/ran"
        proxy $fault
        run run_t 10 "$DLOCK" --ttl 30 --connect-timeout 0.5 "$L" touch "$T/ran"
        case $status in
        0) [ -e "$T/ran" ] && whole=$((whole + 1)) ;;
        69 | 76) [ ! -e "$T/ran" ] && cut=$((cut + 1)) ;;
        *) fail "$fault: exit code $status: $output" ;;
        esac || fail "$fault: exit code $status: $output"
        [ "${#lines[@]}" -le 1 ]
        # The undo may be on its way still; the lease is 30 s.
        wait_for 2 eval '[ "$(rcli exists "$NAME")" = 0 ]' || fail "$fault: the lock is left behind"
        kill "$LISTENER"
        wait_for 5 pid_gone "$LISTENER"
    done
    [ $cut -ge 10 ]
    [ $whole -ge 1 ]
}

@test "a slow server's reply counts from its request" {
    proxy late 0.4
    run -0 run_t 10 "$DLOCK" --ttl 6 "$L" sh -c 'echo ran'
    assert_out ran
    # 0.4 s is more than a quarter of what can be used of it, and no renewal is answered in time
    # either.
    run -69 run_t 10 "$DLOCK" --ttl 1 -n "$L" touch "$T/ran"
    [ ! -e "$T/ran" ]
    wait_for 2 eval '[ "$(rcli exists "$NAME")" = 0 ]'
}

# --- a server that refuses ---------------------------------------------------

# refused_acquire WORD: the server says WORD now: 69 with that word, nothing runs, nothing is left.
refused_acquire() {
    local limit
    for limit in --connect-timeout -w; do
        timed $limit 0.6 "$L" touch "$T/ran"
        assert_rc 69 || return
        assert_out "$1" || return
        [ "${#lines[@]}" = 1 ] || fail "$output" || return
        assert_between 0 $took $((1800 + SLOW)) "time (ms)" || return
        [ ! -e "$T/ran" ] || final "the command ran" || return
    done
}

# refused_hold FAULT MEND: FAULT for a second is ridden out, FAULT for good is 79, with the tree
# gone before the lease is over (the server's clock says when).
refused_hold() {
    rm -f "$C"/*
    starts 4 --ttl 3 "$L" $SUBJECT -t -k
    # For longer than there is between two renewals.
    $1
    run sleep 1 # the fault itself
    $2
    wait_for 3 own_left_is_over 2300
    pid_alive "$K"
    [ "$(count_seen main sig 15)" = 0 ]
    $1
    lost=$(now_ns)
    ended 10
    $2
    assert_rc 79
    assert_out "could not be renewed in time"
    # Nothing was confirmed after that.
    [ "$(last_beat)" -lt $((lost + 2968 * NS)) ]
    [ "$(seen main sig 15)" -lt $((lost + 2400 * NS)) ]
    settle 2
}
said() { own info errorstats | grep -q "errorstat_$1:"; }

@test "LOADING is waited for and ridden out" {
    own_server --save '' --appendonly yes --appendfsync always
    for i in 1 2 3; do own eval 'for i=1,5000 do redis.call("SET","fill"..ARGV[1]..i,i) end' 0 $i; \
        done >/dev/null
    own bgrewriteaof >/dev/null
    rewritten() {
        own info persistence >info && grep -q "aof_rewrite_in_progress:0" info &&
            grep -q "aof_rewrite_scheduled:0" info &&
            grep -q "aof_base_size:[1-9][0-9][0-9][0-9]" info
    }
    wait_for 5 rewritten
    # A busy machine loads for seconds: after 11 s without a renewal the holder would say so.
    starts 1 --ttl 30 "$L" $SUBJECT -u "$T/end" -r 3
    redis_kill own 2>/dev/null
    # 15000 keys of 0.1 ms each and a bit: more than both refusals take.
    start_log "$T/loading.log" redis-server --port "${REDIS_PORTS[own]}" --bind 127.0.0.1 --save \
        '' --appendonly yes \
        --dir "${REDIS_DIRS[own]}" --logfile '' --key-load-delay 100 \
        --loading-process-events-interval-bytes 1024
    wait_for 5 eval 'own ping | grep -q LOADING'
    start_log "$T/patient" "$DLOCK" --connect-timeout 20 "$L.2" true
    patient=$STARTED
    L=$L.3 refused_acquire LOADING
    own ping | grep -q LOADING
    wait_exit 15 "$patient"
    wait_for 8 own_left_is_over 28500
    unharmed 3
    [ "$output" = "" ] || fail "$output"
}

# No slot is served.
@test "CLUSTERDOWN never counts as success" {
    own_server --cluster-enabled yes
    refused_acquire CLUSTERDOWN
}

busy() {
    start_log "$T/busy" redis-cli -p "${REDIS_PORTS[own]}" eval 'while true do end' 0
    wait_for 5 eval 'own ping | grep -q BUSY'
}
not_busy() { own script kill; }
# bats test_tags=slow
@test "BUSY never counts as success" {
    own_server --lua-time-limit 50
    busy
    refused_acquire BUSY
    not_busy
    wait_for 5 own_gone
    refused_hold busy not_busy
}

disk_full() { own config set stop-writes-on-bgsave-error yes; }
disk_free() { own config set stop-writes-on-bgsave-error no; }
@test "MISCONF never counts as success" {
    own_server --save '100000 100000'
    # What it would save to is a folder.
    mkdir "${REDIS_DIRS[own]}/dump.rdb"
    wait_for 5 eval 'own bgsave >/dev/null
        own info persistence | grep -q rdb_last_bgsave_status:err'
    disk_full
    refused_acquire MISCONF
    own_gone
    disk_free
    refused_hold disk_full disk_free
    said MISCONF
}

replicas() { own config set min-replicas-to-write "$1"; }
few_replicas() { replicas 1; }
no_replicas() { replicas 0; }
@test "NOREPLICAS never counts as success" {
    own_server
    few_replicas
    refused_acquire NOREPLICAS
    own_gone
    no_replicas
    refused_hold few_replicas no_replicas
    said NOREPLICAS
}

demote() { own replicaof 127.0.0.1 1; }
promote() { own replicaof no one; }
# bats test_tags=slow
@test "READONLY and MASTERDOWN never count as success" {
    own_server
    demote
    refused_acquire READONLY
    own config set replica-serve-stale-data no
    refused_acquire MASTERDOWN
    promote
    own_gone
    refused_hold demote promote
    own config set replica-serve-stale-data yes
    refused_hold demote promote
    said READONLY
    said MASTERDOWN
}

@test "a server out of memory grants nothing but renews" {
    own_server
    starts 1 --ttl 2 "$L" $SUBJECT -u "$T/end" -r 3
    own config set maxmemory 1
    L=$L.2 refused_acquire OOM
    lives_for 2200
    [ "$(own exists "$NAME.2")" = 0 ]
    unharmed 3
    own_gone
}

# The file's descriptor is a client that keeps its place.
full_house() {
    printf 'CONFIG SET maxclients 1\r\nCLIENT KILL TYPE normal SKIPME yes\r\n' >&"$house"
    while read -r -t 5 line <&"$house"; do case $line in :*) return 0 ;; esac; done
    return 1
}
room() {
    printf 'CONFIG SET maxclients 100\r\n' >&"$house"
    read -r -t 5 line <&"$house"
}
@test "a refusal for maxclients never counts as success" {
    own_server
    exec {house}<>"/dev/tcp/127.0.0.1/${REDIS_PORTS[own]}"
    full_house
    refused_acquire "max number of clients"
    room
    own_gone
    refused_hold full_house room
    exec {house}>&-
}

asleep() {
    start_log "$T/asleep" redis-cli -p "${REDIS_PORTS[own]}" debug sleep "$1"
}
paused() { own client pause "$1" all; }
# bats test_tags=slow
@test "a hold rides out short pauses of the server" {
    own_server --enable-debug-command local
    for fault in 'asleep 1.2' 'paused 1200'; do
        rm -f "$C"/*
        starts 1 -q --ttl 3 "$L" $SUBJECT -u "$T/end" -r 4
        $fault
        lives_for 3100
        unharmed 4
        [ "$output" = "" ]
        rm "$T/end"
    done
}
