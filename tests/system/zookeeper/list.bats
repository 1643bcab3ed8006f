#!/usr/bin/env bats
# list.bats - the locks of a ZooKeeper server: which nodes are locks, many of them, rights that are
# missing, and connections that break.

# bats file_tags=long,thread
load ../../support/zkline

lists() { run -0 run_t 20 "$DLOCK" --list "$@"; }
names() { awk '{ print $1 }' <<<"$output" | paste -sd' '; }

# many N: N locks below /many, each held by a node that stays.
many() {
    local guid=01234567-0123-0123-0123-0123456789ab
    zk_create /many
    awk -v n="$1" -v node="_c_$guid-lock-0000000000" 'BEGIN { for (i = 0; i < n; i++) {
        printf "%05d\n", i
        printf "%05d/%s dlock1 host=db1 pid=%d user=u ", i, node, i + 1
        printf "since=1 cmd=x note= state=held\n"
    } }' | timeout 60 "$ROOT/tests/support/helpers/zk.py" "$ZK_PORT" fill /many
}

@test "a lock may have locks below, and other nodes are no locks" {
    local slots
    own_server
    L="$U#$NAME" held root
    slots="$U/app#s"
    L=$slots held a --slots 3 && L=$slots held b --slots 3
    start_log w.log "$DLOCK" "$slots" true
    zk_create /app/config/db "some data"
    foreign_hold foreign.log -s "/app/old/lock-"
    run -0 run_t 5 "$DLOCK" --once "$U#once" true
    wait_for 5 line_is 3 /app/s
    lists "$U"
    [ "$(names)" = "$NAME app/old app/s" ] || [ "$(names)" = "app/old app/s $NAME" ] ||
        fail "$output"
    assert_out "app/s" "slots 2 of 3, 1 waiting" "app/old" "another program"
    lists "$U/app"
    [ "$(names)" = "old s" ] || fail "$output"
    lists "$U#app/*"
    [ "$(names)" = "app/old app/s" ] || fail "$output"
    lists "$U#app/o*"
    [ "$(names)" = app/old ] || fail "$output"
    lists "$U/nothing"
    [ -z "$output" ] || fail "$output"
    end root a b
}

@test "--all: a record names a lock, and no other node does" {
    own_server
    run -0 run_t 5 "$DLOCK" --once "$U#a/b%25c" true
    L="$U#held" held a --once
    zk_create /app/dlock-once "other program's"
    zk_create /dlock-once/r/zz/dlock-once%2Fr%2Fzz
    zk_create /dlock-once/r/zz/gone
    lists --all "$U"
    [ "$(names)" = "a/b%c held" ] || fail "$output"
    assert_out "last run: succeeded"
    lists --all "$U#a/*"
    [ "$(names)" = "a/b%c" ] || fail "$output"
    end a
}

# bats test_tags=plain
@test "ten thousand locks: the first line soon, and little memory" {
    own_server
    many 10000
    lists --json "$U/many" # the server is warm
    timed_run "$ROOT/tests/support/helpers/peak_rss.py" "$T/rss" "$DLOCK" --list "$U/many"
    assert_between 0 "$(cat rss)" 20 "memory (MiB)"
    assert_between 0 "$took" $((10000 + SLOW)) "time (ms)" # 0.5 s of it dlock's
    [ "$(grep -c '  held, fence [0-9]*: u@db1, pid [0-9]* (x)' <<<"$output")" = 10000 ] ||
        fail "$(tail -n 3 <<<"$output")"
    [[ $output == "00000  held, fence "*": u@db1, pid 1 "* ]] || fail "${output:0:200}"
}

@test "what this user may not read is counted" {
    local secret="zk://me:secret@$H#$NAME/hidden"
    L=$secret held a
    L="zk://$H#$NAME-open" held b
    lists "$U#$NAME-open"
    [ "$(names)" = "$NAME-open" ] || fail "$output"
    lists -v "$U"
    assert_out "this user may not read 1 of the nodes"
    refute_out "hidden" secret@
    lists "zk://me:secret@$H"
    assert_out "$NAME/hidden"
    end a b
}

@test "a connection that breaks amid a list lists each lock once" {
    local i fault
    for i in 1 2 3; do L="$U#$NAME/$i" held $i; done
    for fault in 'lose ls 3' 'swallow get 2' 'after ls 1' 'lose connect 1'; do
        # shellcheck disable=SC2086
        proxy $fault
        lists "${P%#*}#$NAME/*"
        [ "$(names)" = "$NAME/1 $NAME/2 $NAME/3" ] || fail "$fault: $output"
        end_proxy
    done
    end 1 2 3
}

@test "more names than an answer holds are refused" {
    own_server
    zk_create /many
    # shellcheck disable=SC2183
    printf '%0250d\n' {1..17000} |
        timeout 60 "$ROOT/tests/support/helpers/zk.py" "$ZK_PORT" fill /many
    run -69 run_t 20 "$DLOCK" --list "$U/many"
    assert_out "17000 nodes below /many/ are too many"
}
