#!/usr/bin/env bats
# once.bats - the run records of a Redlock: nodes that lose them, miss them, or have something else
# in their place. What all stores keep is in contract/suite.bats.

load ../../support/common
load ../../support/redis
load ../../support/redlock

setup_file() { rl_start 5; }
teardown_file() { rl_stop_file; }
setup() {
    dlock_setup
    L=$(rl_uri "$NAME")
    KEY="{$NAME}:dlock:once"
}

# runs: with --once, the command runs. skips: it does not.
runs() {
    rm -f ran
    run -0 run_t 5 "$DLOCK" --ttl 2 --once "$L" touch ran
    [ -e ran ] || fail "not run: $output"
}
skips() {
    rm -f ran
    run -0 run_t 5 "$DLOCK" -v --ttl 2 --once "$L" touch ran
    [ ! -e ran ] || final "run again: $output"
    assert_out "not run: "
}
# healed N: N nodes have the success. A majority is enough for a run, and for a skip, which gives
# the record to the others: on a busy machine they may not have been asked when it ends.
healed() {
    local i
    for i in 1 2 3; do
        [ "$(recorded succeeded)" -ne "$1" ] || return 0
        skips
    done
    [ "$(recorded succeeded)" -eq "$1" ] || fail "healed: $(recorded succeeded)"
}
untouched() { [ ! -e ran ] || final "the command ran"; }
# recorded STATE: on how many nodes.
recorded() {
    local k n=0
    for k in $(rl_all); do
        [[ $(rl "$k" get "$KEY" 2>/dev/null) != "dlock-run1 $1 "* ]] || n=$((n + 1))
    done
    echo $n
}

@test "--once: a lost minority keeps the record, and gets it back" {
    own_nodes
    runs
    healed 5
    rl_die 1 2
    skips
    rl_revive 1 2
    [ "$(recorded succeeded)" -eq 3 ]
    local before kept
    # Each node has written its own time, and any of them may give its record to the others.
    before=$(for k in 3 4 5; do rl $k get "$KEY"; done)
    kept=$(for k in 3 4 5; do rl $k pttl "$KEY"; done | sort -n | tail -n 1)
    healed 5
    for k in 1 2; do
        grep -qxF -- "$(rl $k get "$KEY")" <<<"$before" ||
            fail "$k: $(rl $k get "$KEY"), not one of $before"
        assert_between $((kept - 60000)) "$(rl $k pttl "$KEY")" "$kept" \
            "ms for which node $k keeps it"
    done
    # So now the others may go.
    rl_die 3 4
    skips
    rl_revive 3 4
    run -0 run_t 5 "$DLOCK" --forget --yes "$L"
    runs
}

@test "--once: votes without a majority change no record" {
    runs
    healed 5
    on "1 2 3" set "$NAME" theirs px 60000
    run -75 run_t 5 "$DLOCK" -q -n --once "$L" touch ran2
    run -75 run_t 5 "$DLOCK" -q -w 1 --once "$L" touch ran2
    on "1 2 3" del "$NAME"
    [ "$(recorded succeeded)" -eq 5 ] || final "$(recorded succeeded) left"
    skips
}

@test "--once: a success that no majority confirms is told, and the next one runs" {
    own_nodes 3
    hold --ttl 2 --connect-timeout 1 --once
    rl_die 2 3
    let_go 79
    file_has hold.log "1 of 3 servers have recorded the end of the run, a majority is needed"
    [ "$(recorded succeeded)" -eq 1 ]
    rl_revive 2 3
    runs
    skips
}

@test "--once: a record on one node of three decides nothing" {
    own_nodes 3
    local record
    runs
    healed 3
    record=$(rl 1 get "$KEY")
    # The newest run has failed, says one.
    rl 1 set "$KEY" "$(sed -E 's/ succeeded 0 [0-9]+/ failed 1 9000000000000000/' <<<"$record")"
    skips
    on_all del "$KEY"
    rl 1 set "$KEY" "$record"
    runs
    # Of a node that is silent nobody knows: its record could make a majority.
    on_all del "$KEY"
    rl 1 set "$KEY" "$record"
    rl_freeze 3
    skips
    [ "$(rl 2 get "$KEY")" = "$record" ]
    rl_thaw 3
}

@test "--once: a node that --forget cannot reach keeps a success, which is told" {
    own_nodes 3
    runs
    healed 3
    says 0 "only 2 of 3 servers have removed the record" -v --forget --yes "${L/:$(rl_port 3)/:1}"
    [ "$(recorded succeeded)" -eq 1 ]
    # It says so as well of a node that answers late.
    local i
    for i in 1 2 3; do
        run -0 run_t 5 "$DLOCK" -v --forget --yes "$L"
        [[ $output == *"have removed"* ]] || break
    done
    refute_out "have removed"
    [ "$(recorded succeeded)" -eq 0 ]
    runs
}

# On a majority and on all nodes: contract/suite.bats.
@test "--once: a minority with foreign data in the place of records is harmless" {
    on "1 2" set "$KEY" theirs
    runs
    [ "$(recorded succeeded)" -eq 3 ]
    skips
    says 0 "last run: succeeded" -v --status "$L"
    assert_out "in the place of the run record"
    [ "$(rl 1 get "$KEY")" = theirs ]
    on_all del "$KEY"
}

@test "--once: a node without room for the record has no vote" {
    own_nodes 3
    on_all config set maxmemory 1
    run -69 run_t 5 "$DLOCK" --connect-timeout 1 --ttl 2 --once "$L" touch ran
    untouched
    rl_gone "$NAME"
    on "1 2" config set maxmemory 0
    runs
    skips
}

@test "--once: nodes that ran out of memory record the end" {
    own_nodes 3
    hold --ttl 2 --once
    on_all config set maxmemory 1
    let_go
    on_all config set maxmemory 0
    skips
}

@test "--min-hold: a majority keeps the lock, and a writer and readers wait for it" {
    own_nodes 3
    rl_die 3
    for mode in -x -s; do
        "$HELPERS/clock" "$T/began"
        run -0 run_t 5 "$DLOCK" $mode --ttl 1 --min-hold 2500ms "$L" true
        run -75 run_t 5 "$DLOCK" -q -n --ttl 1 "$L" true
        run -75 run_t 5 "$DLOCK" --status "$L"
        run -0 run_t 5 "$DLOCK" --ttl 1 "$L" "$HELPERS/clock" "$T/in"
        assert_between 2500 $((($(cat in) - $(cat began)) / 1000000)) $((3500 + SLOW)) "ms"
    done
    nothing_left 1 2
}
