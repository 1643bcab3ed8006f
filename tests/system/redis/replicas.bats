#!/usr/bin/env bats
# replicas.bats - wait-replicas: WAIT confirms what a connection has written, so each script with a
# confirmed answer writes, also when it finds its work done.

# bats file_tags=long
load ../../support/common
load ../../support/redis
load ../../support/redislock

setup() {
    dlock_setup
    own_server --repl-diskless-sync-delay 0 --repl-ping-replica-period 3600
    redis_start_in replica --replicaof "127.0.0.1 ${REDIS_PORTS[own]}"
    wait_for 5 follows
    SRC=$ROOT/lib/backends/redis
}
teardown() {
    kill -CONT "${REDIS_PIDS[replica]}" || :
    dlock_teardown
}

# ---------------------------------------------------------------- helpers ---

# A write of this connection has arrived: WAIT alone counts a replica that still loads.
follows() { [ "$(printf '%s\n' 'set warm 1' 'wait 1 100' 'del warm' | own | sed -n 2p)" = 1 ]; }
offset() { own info replication | tr -d '\r' | sed -n 's/^master_repl_offset://p'; }

# numbered SCRIPT: its text, where a number stands in front of each answer {1, ...} or
# {'granted', ...}.
numbered() {
    awk -v plain=1 -f "$SRC/scripts/embed.awk" "$SRC/scripts/$1.lua" | awk '{
        while (match($0, /[{](1|.granted.),/)) {
            printf "%s", substr($0, 1, RSTART) ++n "," substr($0, RSTART + 1, RLENGTH - 1)
            $0 = substr($0, RSTART + RLENGTH)
        }
        print
    }'
}
answers() { numbered "$1" | grep -oE "[{][0-9]+,(1|'granted')," | wc -l; }

# writes SCRIPT ARG...: the answer is "ours" or "granted", and replicas are sent something.
writes() {
    local before answer
    [ -e "$1.lua" ] || numbered "$1" >"$1.lua"
    before=$(offset)
    answer=$(own --raw eval "$(cat "$1.lua")" 1 "$NAME" 0 "{$NAME}:dlock:" "${@:2}" |
        head -n 2 | paste -sd' ')
    case $answer in
    [0-9]*' 1' | [0-9]*' granted') echo "$1 ${answer% *}" >>seen ;;
    *) fail "$*: $answer" || return ;;
    esac
    [ "$(offset)" -gt "$before" ] || fail "answer ${answer% *} of $1.lua is no write ($*)"
}
# again SCRIPT ARG...: so is the answer to a second request, after a lost answer to the first.
again() { writes "$@" && writes "$@"; }

# ------------------------------------------------------------------ tests ---

@test "each answer that replicas confirm is a write, also to a repeated request" {
    local token=0123456789abcdef0123456789abcdef who='dlock1 host=h pid=1' x v end script files
    x="$token $who ttl=60000" end='succeeded 0 3600000'
    local begin="0 3600000 dlock-run1 running -1 5 $token 0 0 3600000 $who"
    # Exclusive, marked by --break, --min-hold.
    again try "$x" '' 60000 '0 0 0'
    again renew "$x" 60000
    again keep "$x" 60000 0 0 0
    writes leave "$x" '' 0
    for script in leave drop; do
        local id=()
        [ $script = drop ] || id=('')
        own set "$NAME" "$x break=1" px 60000
        again renew "$x" 60000
        again keep "$x" 60000 0 0 0
        writes $script "$x" "${id[@]}" 0
        writes try "$x" '' 60000 '0 0 60000'
        writes $script "$x" "${id[@]}" 60000
        own del "$NAME"
        # --once, also with --min-hold.
        for v in 0 60000; do
            again try "$x" '' 60000 "0 3600000 $v"
            again keep "$x" 60000 0 0 "$begin"
            again $script "$x" "${id[@]}" "$v $end"
            own del "$NAME" "{$NAME}:dlock:once"
        done
        for v in "s:$x" "n2:$x"; do
            again try "$v" '' 60000 '0 0 0'
            again renew "$v" 60000
            writes $script "$v" "${id[@]}" 0
        done
    done
    again try "s:$x" '' 60000 '0 0 0'
    again keep "s:$x" 60000 0 0 0
    # No script is forgotten, nor any of its answers.
    files=$(grep -l 'redis_route_ask_confirmation(&' "$SRC"/*.c)
    [ "$(wc -w <<<"$files")" -ge 2 ]
    # shellcheck disable=SC2086
    for script in $(grep -ohE '\<SCRIPT_[A-Z_]+' $files "$SRC/node.c" | sort -u); do
        script=${script#SCRIPT_} script=${script,,}
        [ "$(grep "^$script " seen | sort -u | wc -l)" = "$(answers "$script")" ] ||
            fail "not all of the $(answers "$script") answers of $script.lua were seen"
    done
}

@test "a success that no replica has is not recorded, also when its answer was lost" {
    own_replied() { [[ $(own get "{$NAME}:dlock:once") == "dlock-run1 succeeded "* ]]; }
    listener proxy "${REDIS_PORTS[own]}" lose 'succeeded 0 '
    L="redis://127.0.0.1:$LISTENS?wait-replicas=1#$NAME" hold --ttl 3 --once
    stop_pid "${REDIS_PIDS[replica]}"
    : >go
    wait_for 5 own_replied
    exits 79 9 "$HOLDER"
    file_has hold.log "its run is not recorded: "
    file_has hold.log "confirmed"
    # With the replica the repeated request counts.
    kill -CONT "${REDIS_PIDS[replica]}"
    run -0 run_t 5 "$DLOCK" --forget --yes "$L"
    listener proxy "${REDIS_PORTS[own]}" lose 'succeeded 0 '
    run -0 run_t 9 "$DLOCK" -q --ttl 5 --once "redis://127.0.0.1:$LISTENS?wait-replicas=1#$NAME" \
        touch ran
    [ -z "$output" ] || fail "$output"
    own_replied
}
