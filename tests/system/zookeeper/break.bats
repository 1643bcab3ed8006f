#!/usr/bin/env bats
# break.bats - breaking a hold in ZooKeeper: the mark in the holder's node, which the holder finds
# by a heartbeat, and the end of the node by force. What holds for all stores is in the contract.

# bats file_tags=long,thread
load ../../support/zkline

# breaks RC [ARG...]: --break of the lock, or of $P where a test sets P.
breaks() { run "-$1" run_t 30 "$DLOCK" --break --yes --note "a % b" "${@:2}" "${P:-$L}"; }
marked() { [[ $(zk_get "$1") == *" state=held break="*:*"@"*",%20note%20\"a%20%25%20b\"" ]]; }

@test "the mark stays in the node until the tree is gone, and waiters are served in order" {
    tree --ttl $((9 + SLOW / 250)) --grace $((2400 + SLOW))ms --events "$T/told" "$L"
    touch stay
    waiter got
    first=$(node 1)
    start_log break.log "$DLOCK" --break --yes --note "a % b" "$L"
    wait_for 5 has_seen main sig 15
    # A heartbeat comes after the mark was found.
    after_beat "$first"
    marked "$first"
    run -75 run_t 5 "$DLOCK" --status --json "$L"
    assert_out '"host":'
    [ ! -e got ] || tree_gone || final "the waiter got the lock beside the tree"
    exits 0 10 "$STARTED"
    lost 1 "was broken by" 'note "a % b"; ending the command'
    wait_for 5 test -s got
    rm stay
    follows got
    file_has told '"event":"lost"' && file_has told '"cause":"broken"' || fail "$(cat told)"
    line_is 0
}

@test "a hold without a mark reads nothing: the heartbeats are all of its requests" {
    local n
    for n in get sync; do
        proxy count $n 0
        run -0 run_t 10 "$DLOCK" --ttl 2 "$P" sleep 1.5
        [ "$(grep -c "done" "$T/proxy")" = 0 ] || fail "$n: $(cat "$T/proxy")"
        end_proxy
    done
}

@test "a heartbeat whose answer was lost, and a node that a client touches, are no mark" {
    proxy lose set 2
    job 0 --ttl 3 "$P"
    wait_for 5 struck
    after_beat "$(node 1)"
    zk_set "$(node 1)" junk
    after_beat "$(node 1)"
    words_are held
    undisturbed
    touch end
    ended
    assert_rc 0
    refute_out broken lost
    line_is 0
}

@test "a break whose answer is lost has marked the hold" {
    local fault
    for fault in lose swallow; do
        job 0 --ttl 3 "$L"
        proxy $fault set 1
        breaks 0
        struck
        end_proxy
        unset P
        lost 1 "was broken by"
    done
}

@test "a frozen server does not take a break for done" {
    own_server
    job 0 --ttl 20 "$L"
    freeze
    breaks 69 --connect-timeout 1
    thaw
    undisturbed
    job_ends_silently
}

@test "a mark set right before the grant is found, by the run record's write first" {
    hold --ttl 3
    waiter got --ttl 12 --once
    wait_for 5 words_are held next
    next=$(node 2)
    zk_set "$next" "$(zk_get "$next") break=5:me@here"
    touch stay
    let_go
    wait_exit 10 "$WAITER" && fail "not broken" || [ $? = 79 ]
    file_has got.log "was broken by me@here" || fail "$(cat got.log)"
}

@test "holders that heed no marks end only by force" {
    local data
    for data in 'dlock1 host=h pid=5 user=u since=1 waited=0 cmd=x note= state=held' other ''; do
        foreign_hold foreign.log -s "/$NAME/_c_01234567-0123-0123-0123-0123456789ab-lock-" \
            ${data:+"$data"}
        breaks 69
        assert_out "use --force"
        [ "$(zk_get "$(node 1)")" = "$data" ]
        breaks 0 --force
        line_is 0
        kill "$STARTED"
    done
    assert_out "may still run"
}

@test "a client without the right to write breaks nothing" {
    job 0 --ttl 20 "zk://me:secret@$H?acl=read#$NAME"
    data=$(zk_get "$(node 1)")
    for force in '' --force; do
        # shellcheck disable=SC2086
        breaks 77 $force
        assert_out "no permission"
        refute_out secret
    done
    [ "$(zk_get "$(node 1)")" = "$data" ]
    job_ends_silently
}
