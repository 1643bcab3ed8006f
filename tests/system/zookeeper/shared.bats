#!/usr/bin/env bats
# shared.bats - readers and slots in ZooKeeper: Curator's and kazoo's locks beside them, what a
# hand-off costs, waiters that are stopped. What all stores promise is in the contract suite.

# bats file_tags=long,slow
load ../../support/zkline

setup_file() {
    export BATS_NO_PARALLELIZE_WITHIN_FILE=true
    curator_build
    zk_start
}

# --------------------------------------------------------------- interplay ---

# foreign ID CMD...: kazoo_lock or curator_lock of KIND, until foreign_end ID.
foreign() {
    local id=$1
    shift
    rm -f "go.$id"
    start_log "foreign.$id" "$@" "$T/go.$id"
    PIDS[$id]=$STARTED
}
has_it() { grep -q ^held "foreign.$1"; }

# dlock_gets KINDS: which of these it gets now without waiting, of the others it says 75; 0 stands
# for --slots 2.
dlock_gets() {
    local opt
    for opt in x s 0; do
        [[ $opt != 0 || $L != *layout* ]] || continue
        run run_t 5 "$DLOCK" -n $([ $opt = 0 ] && echo --slots=2 || echo -$opt) "$L" true
        [[ $status = 75 || $status = 0 ]] || fail "$opt: $output"
        [ $status = $([[ $1 == *$opt* ]] && echo 0 || echo 75) ] || fail "$opt beside $2: $status"
    done
}

curator_each() {
    run_t 40 bash -c '. "$ROOT/tests/support/zookeeper.bash"; curator_lock "$1" each' - "/$NAME"
}

# The manual has this as a table.
@test "Curator's locks exclude readers and slots as documented" {
    local kind curator=(mutex read write)
    for kind in "${curator[@]}"; do
        foreign $kind curator_lock "/$NAME-$kind" $kind
    done
    for kind in "${curator[@]}"; do
        wait_for 30 has_it $kind
        for L in "zk://$H#$NAME-$kind" "zk://$H?layout=curator-rw#$NAME-$kind"; do
            dlock_gets "$([ $kind != read ] || echo s0)" "$kind"
        done
        end $kind
    done
}

@test "readers and slots exclude Curator's locks as documented" {
    while read -r layout opts want; do
        L="zk://$H?layout=$layout#$NAME"
        held a ${opts//_/ }
        run -0 curator_each
        [ "$output" = "$want" ] || fail "$layout $opts: $output"
        end a
    done <<'END'
curator -s mutex=refused read=held write=held
curator --slots_2 mutex=refused read=held write=held
curator-rw -x mutex=held read=refused write=refused
curator-rw -s mutex=held read=held write=refused
END
}

@test "kazoo's locks and readers exclude each other as documented" {
    local kind try=0
    L="zk://$H?layout=kazoo#$NAME"
    for kind in lock read write; do
        foreign $kind kazoo_lock "/$NAME" $kind
        wait_for 10 has_it $kind
        dlock_gets "$([ $kind != read ] || echo s)" "$kind"
        end $kind
    done
    held a -s
    for kind in lock=0 read=0 write=75; do
        run run_t 10 "$ROOT/tests/support/helpers/kazoo_lock.py" "$H" "/$NAME" ${kind%=*} \
            /dev/null --try
        [ $status = ${kind#*=} ] || fail "$kind: $status $output"
    done
    end a
    # With its own names for others, kazoo is excluded by all of the default layout, too.
    L="zk://$H#$NAME"
    for opts in -x -s --slots=2; do
        held a $opts
        run -75 run_t 10 "$ROOT/tests/support/helpers/kazoo_lock.py" "$H" "/$NAME" lock /dev/null \
            --try --extra=-lock-
        end a
    done
}

@test "readers of both programs wait behind each other's writers in order" {
    L="zk://$H?layout=curator-rw#$NAME"
    held a -s
    foreign writer curator_lock "/$NAME" write
    wait_for 30 line_is 2
    # It waits behind a writer that waits itself.
    holds b -s
    wait_for 5 watched "$(node 2)"
    run -75 run_t 5 "$DLOCK" -n -s "$L" true
    is_out b
    end a
    wait_for 5 has_it writer
    holds w
    wait_for 5 watched "$(node 2)"
    foreign reader curator_lock "/$NAME" read
    wait_for 30 line_is 4
    is_out b
    end writer
    is_in b
    is_out w
    end b
    is_in w
    run -1 has_it reader
    end w
    wait_for 5 has_it reader
    end reader
}

@test "a slot is told of the holder in its way, and a set of its own node under another name" {
    held a -s --note reader
    held b --slots 1 --note slot
    CI=1 run -75 run_t 5 "$DLOCK" -n --slots 1 "$L" true
    assert_out 'note "slot"'
    end a b
    says 64 "this is the same lock as" --also "zk://localhost:$ZK_PORT#$NAME" "$L" touch ran
    [ ! -e ran ]
}

# ----------------------------------------------------------- what it costs ---

lists() { grep -o done "$T/proxy" | wc -l; } # several may share a line
lists_are() { [ "$(lists)" -ge "$1" ]; }

@test "a writer's end wakes the readers behind it, and each looks once" {
    local i was
    proxy count ls 0
    L=$P
    held w --ttl 30
    for ((i = 1; i <= 20; i++)); do holds r$i --ttl 30 -s; done
    wait_for 20 watches_are 20
    holds w2 --ttl 30
    wait_for 5 watches_are 21
    # All of them watch the writer.
    zk_cmd wchs | grep -q ' connections watching 2 paths' || fail "$(zk_cmd wchs)"
    watched "$(node 1)" && watched "$(node 21)"
    was=$(lists)
    end w
    for ((i = 1; i <= 20; i++)); do is_in r$i; done
    assert_between 20 $(($(lists) - was)) 20 "looks at the queue"
    # The readers' ends wake nobody; that of the last one in line does.
    was=$(lists)
    for ((i = 1; i <= 19; i++)); do : >go.r$i; done
    for ((i = 1; i <= 19; i++)); do exits 0 8 "${PIDS[r$i]}"; done
    is_out w2
    assert_between 0 $(($(lists) - was)) 1 "looks at the queue"
    end r20
    is_in w2
    end w2
    end_proxy
}

@test "a slot's end wakes one waiter, and its grant the next" {
    local i was
    proxy count ls 0
    L=$P
    # No heartbeat helps it on: it comes after 50 s.
    own_ttl=(--ttl 40 --slots 3)
    for ((i = 1; i <= 10; i++)); do
        holds $i "${own_ttl[@]}"
        wait_for 5 line_is $i
        [ $i -gt 3 ] || is_in $i
    done
    # The first of the waiters watches three holders, each of the others the one in front.
    wait_for 5 watches_are 9
    for i in 2 1; do
        was=$(lists)
        end $i
        is_in $((6 - i))
        wait_for 5 lists_are $((was + 2))
        assert_between 2 $(($(lists) - was)) 2 "looks at the queue"
    done
    # Any of those in the middle may give up.
    kill -TERM "${PIDS[7]}"
    exits 143 5 "${PIDS[7]}"
    end 3 4 5
    is_in 6
    is_in 8
    is_in 9
    is_out 10
    end 8
    is_in 10
    end 6 9 10
    end_proxy
}

@test "those that will be granted together know it" {
    local i n=0
    for i in -x -s -s --slots=2 --slots=2 --slots=2 -x -s; do
        holds $((++n)) --ttl 3 $i
        wait_for 5 line_is $n
    done
    # A look at all of them takes half a second, and the words are written behind the grant.
    wait_for 15 words_are held next next next next waits waits waits
    end 1
    for i in 2 3 4 5; do is_in $i; done
    wait_for 15 words_are held held held held next waits waits
    is_out 6
    end 2 3 4 5 6 7 8
}

# ------------------------------------------------------------------ faults ---

@test "a stopped waiter for a slot is passed when its session ends" {
    local t0
    held a --slots 2 --ttl 2
    held b --slots 2 --ttl 2
    holds stopped --slots 2 --ttl 2
    wait_for 5 watches_are 2
    holds next --slots 2 --ttl 2
    wait_for 5 watches_are 3
    kill -STOP "${PIDS[stopped]}"
    t0=$(now_ms)
    end a
    is_in next
    # ttl, two ticks, a second
    assert_between 0 $(($(now_ms) - t0)) $((2000 + 400 + 1000 + SLOW)) "time (ms)"
    kill -CONT "${PIDS[stopped]}"
    wait_for 5 line_is 3
    is_out stopped
    end b
    is_in stopped
    end next stopped
}

@test "of two that name different numbers of slots at once one fails" {
    local i a b pair
    for i in 1 2 3 4 5; do
        L="zk://$H#$NAME-$i"
        holds a --slots 2
        holds b --slots 3
        a=${PIDS[a]} b=${PIDS[b]}
        one_gone() { pid_gone "$a" || pid_gone "$b"; }
        wait_for 5 one_gone
        pair=$(pid_gone "$a" && echo b a || echo a b)
        exits 65 5 "${PIDS[${pair#* }]}"
        file_has "holds.${pair#* }.log" "2 slots" || file_has "holds.${pair#* }.log" "3 slots"
        file_has "holds.${pair#* }.log" "give all its users the same number"
        is_in "${pair% *}"
        end "${pair% *}"
    done
}
