#!/usr/bin/env bats
# memory.bats - our own allocations in the ZooKeeper module fail, each once, in each operation; its
# library ends the process where it gets none. All allocations of a run, on all stores, fail in
# failures.bats, those of a program that uses libdlock in lib/memory.bats.

# bats file_tags=long
load ../../support/common
load ../../support/zookeeper

setup_file() { export BATS_TEST_TIMEOUT=200; }

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

# Our own allocations are those whose caller is in lib/backends/zookeeper, and not in wire/calls.c,
# which stands between the library and libc. ours FILE: their numbers among the logged ones.
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
