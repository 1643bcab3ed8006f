#!/usr/bin/env bats
# Each allocation fails once, or all from one on: never a command without the lock, no crash. For
# PostgreSQL see lib/memory.bats.

# bats file_tags=long
load ../../support/redis
load ../../support/zookeeper

setup_file() {
    export BATS_TEST_TIMEOUT=200
    redis_start
}
teardown_file() { redis_stop; }

# counted FILE...: how often each exit code is in these files.
counted() { sort "$@" | uniq -c | awk '{ printf "%s (%s times) ", $2, $1 }'; }

# failing DIR N CMD...: CMD, a dlock whose N-th allocation fails ("N+": and all later ones). DIR:
# "rc", "out" and, where it came to that, "failed".
failing() {
    local rc=0
    mkdir -p "$1"
    # In braces: bash reports each killed process.
    {
        NOMEMORY=$2 NOMEMORY_IN=${DLOCK##*/} NOMEMORY_LOG=$1/failed \
            LD_PRELOAD=$HELPERS/nomemory.so \
            timeout -k 2 20 "${@:3}" >"$1/out" 2>&1 </dev/null 3>&- || rc=$?
    } 2>/dev/null
    echo "$rc" >"$1/rc"
}
export -f failing

# one N: a run with that failure, in $T/run.N; complaints go to $T/bad. From KILL to the end of a
# lease of 4 s it is 242 ms, enough for a guard that waits for the processor.
one() {
    local dir=$T/run.$1 rc i name=$NAME.${1/+/x}
    failing "$dir" "$1" "$HELPERS/launch" -n "$DLOCK" --ttl 4 \
        "redis://127.0.0.1:$REDIS_PORT#$name" "$HELPERS/inside" "$dir" "$REDIS_PORT" "$name" "$HOLD"
    rc=$(cat "$dir/rc")
    # No process is left. The lock is free: released, or its lease has ended.
    for ((i = 0; i < 20; i++)); do
        [ -e "$dir/witness" ] && ! flock -sn "$dir/witness" true || break
        sleep 0.025
    done
    [ $i -lt 20 ] || echo "$1: the tree lives on" >>"$T/bad"
    for ((i = 0; i < 50; i++)); do
        [ "$(redis-cli -p "$REDIS_PORT" exists "$name")" != 0 ] || break
        sleep 0.1
    done
    [ $i -lt 50 ] || echo "$1: the lock is still held" >>"$T/bad"
    [ ! -e "$dir/violations" ] ||
        echo "$1: lived without the lock: $(head -n 1 "$dir/violations")" >>"$T/bad"
    case $rc in
    0) [ -e "$dir/witness" ] || echo "$1: exit code 0, but nothing was run" >>"$T/bad" ;;
    65 | 69 | 71 | 79) ;;
    # Memory that is there again a moment later: then the server seems to have announced too much.
    76) [[ $1 != *+ ]] || echo "$1: exit code 76: $(cat "$dir/out")" >>"$T/bad" ;;
    *) echo "$1: exit code $rc: $(tail -n 1 "$dir/out")" >>"$T/bad" ;;
    esac
    # One line for the end; before that of a loss, one about a renewal that is late.
    [ "$(grep -c '^dlock: ' "$dir/out")" = "$(grep -c . "$dir/out")" ] ||
        echo "$1: $(cat "$dir/out")" >>"$T/bad"
    [ "$rc" = 0 ] || [ "$(grep -vc ' has not been renewed for ' "$dir/out")" = 1 ] ||
        echo "$1: exit code $rc with: $(cat "$dir/out")" >>"$T/bad"
    return 0
}
export -f one

# bats test_tags=slow,plain,soak
@test "an allocation that fails never leaves a command without the lock" {
    local most
    export T NAME HOLD=5200
    # How many it makes.
    head -c 8 /dev/zero >"$T/count"
    NOMEMORY_COUNT=$T/count one 1000000000
    rm -r "$T/run.1000000000"
    most=$(($(od -An -td8 "$T/count")))
    [ ! -e "$T/bad" ] || fail "$(cat "$T/bad")"
    [ "$most" -ge 30 ]
    seq "$most" | sample memory_points >points
    points=$(wc -l <points)
    echo "# $points of $most allocations" >&3
    awk '{ print; print $1 "+" }' points | timeout 150 xargs -P 24 -n 1 bash -c 'one "$1"' -
    failed=$(ls "$T"/run.*/failed | wc -l)
    echo "# $failed failed; exit codes: $(counted "$T"/run.*/rc)" >&3
    [ "$failed" -ge "$points" ]
    # Before the grant nothing is run; behind it, where renewals fail, the command is ended.
    [ "$(cat "$T"/run.*/rc | grep -cx 71)" -ge $((points * 30 / most)) ]
    [ "$(cat "$T"/run.*+/rc | grep -cx 79)" -ge 1 ]
    [ ! -e "$T/bad" ] || fail "$(cat "$T/bad")"
}

# --- ZooKeeper ---------------------------------------------------------------

# libzookeeper ends the process where it gets no memory, so only our own allocations count here:
# those whose caller is in lib/backends/zookeeper, and not in wire/calls.c, which stands between the
# library and libc. ours FILE: their numbers among the logged ones.
ours() {
    awk '$2 ~ /\/zookeeper.so$/ { print $1, $3 }' "$@" | while read -r n offset; do
        case $(addr2line -e "$MODULE" "$offset") in
        */wire/calls.c:*) ;;
        */lib/backends/zookeeper/*) echo "$n" ;;
        esac
    done
}
# once_zk DIR N ARG...: dlock ARG... with that failure, in $DIR/N; "failed" names the caller of the
# allocation.
once_zk() {
    local n=$2 words=("${@:3}")
    NOMEMORY_CALLER=1 DLOCK_TTL=4 failing "$1/$n" "$n" "$DLOCK" "${words[@]//%/$n}"
}
export -f once_zk

# zk_memory CODE ARG...: dlock ARG... ends with CODE; where an allocation of ours fails it ends so,
# too, or with 71. Its threads take turns, so the allocation of that number may be another one now:
# again until enough of ours have failed.
zk_memory() {
    local code=$1 tested=0 refused=0 rounds=0
    shift
    while [ "$refused" -lt 8 ] && [ $((rounds += 1)) -le 4 ]; do zk_round "$@" || return; done
    echo "# dlock $*: $tested allocations of ours failed, $refused times 71" >&3
    [ "$refused" -ge 8 ]
}
zk_round() {
    local dir=$T/zk$((++round)) n rc
    once_zk "$dir" 0 "$@"
    [ "$(cat "$dir/0/rc")" = "$code" ] || fail "$*: $(cat "$dir/0/rc"): $(cat "$dir/0/out")" ||
        return
    ours "$dir/0/failed" >"$dir.ours"
    timeout 100 xargs -P 4 -I{} bash -c 'once_zk "$@"' - "$dir" {} "$@" <"$dir.ours" || return
    for n in "$dir"/*/; do
        [ "$n" != "$dir/0/" ] && [ -e "$n/failed" ] && [ -n "$(ours "$n/failed")" ] || continue
        rc=$(cat "$n/rc")
        tested=$((tested + 1))
        case $rc in
        "$code") ;;
        71)
            refused=$((refused + 1))
            grep -Eq '^dlock: .*(out of memory|Cannot allocate memory)' "$n/out" ||
                fail "$* $n: $(cat "$n/out")" || return ;;
        *) fail "$* $n: exit code $rc ($(cat "$n/failed")): $(cat "$n/out")" || return ;;
        esac
        [ "$(grep -c '^dlock: ' "$n/out")" -le 2 ] || fail "$* $n: $(cat "$n/out")" || return
    done
}

# bats test_tags=slow,plain
@test "an allocation that fails in the ZooKeeper module ends no process" {
    local round=0
    zk_start
    export T DLOCK MODULE=$BUILD/dlock-modules/zookeeper.so
    [ -e "$MODULE" ] || skip "zookeeper is not a module of this build"
    ask=$(nm "$MODULE" | awk '$3 == "zk_conn_ask" { print "0x" $1 }')
    [[ $(addr2line -e "$MODULE" "$ask") == *.c:* ]] || skip "needs debug information"
    L=zk://127.0.0.1:$ZK_PORT#$NAME
    start_log holder.log "$DLOCK" --ttl 60 "$L" sleep 300
    holder=$STARTED
    held() { [ -n "$(zk_ls "/$NAME" 2>/dev/null)" ]; }
    wait_for 10 held
    zk_memory 0 "$L/free%/x" true
    zk_memory 75 -n "$L" true
    zk_memory 75 -w 0.5 "$L" true
    # A waiter that crashed stays in line until its session is over.
    holder_alone() { [ "$("$DLOCK" --status "$L" | grep -c waiting)" = 0 ]; }
    wait_for 10 holder_alone
    zk_memory 75 --status "$L"
    kill "$holder"
    wait_for 5 pid_gone "$holder"
    zk_stop_all
}
