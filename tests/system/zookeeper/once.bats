#!/usr/bin/env bats
# once.bats - the run records of --once in ZooKeeper: where they are, what is in their place,
# answers that are lost around them, crashes at each step, and how they go when they have expired.

# bats file_tags=long,thread
load ../../support/zkline

# Each test has a chroot, and so records, of its own.
setup() {
    dlock_setup
    at_server "$ZK_PORT"
    S="zk://127.0.0.1:$ZK_PORT/$NAME" L="$S#job"
    R=/$NAME/dlock-once
    RECORD=$R/r/fa/job
}

# once RC ARG...: a run that prints nothing.
once() {
    run "-$1" run_t 10 "$DLOCK" -q --ttl 2 --once "${@:2}"
    [ -z "$output" ] || fail "$output"
}
forget() { run -0 run_t 5 "$DLOCK" --forget --yes "$L"; }
# What the commands have written.
ran() { [ "$(tr -d '\n' <ran 2>/dev/null)" = "$1" ] || final "the commands that ran: $(cat ran)"; }
add() { echo "echo $1 >>'$T/ran'"; }
state() { zk_get "$RECORD" | cut -d' ' -f2; }
state_is() { [ "$(state)" = "$1" ]; }
token() { zk_get "$RECORD" | cut -d' ' -f5; }
free() { line_is 0 "/$NAME/job"; }
indexes() { zk_tree "$R/d" | grep -c '/d/.*/.*/' || :; }
# The proxy before the server; P is the lock by way of it.
through() {
    proxy "$@"
    P="zk://127.0.0.1:$(head -n 1 "$T/proxy")/$NAME#job"
}

# ------------------------------------------------------------------ the nodes ---

@test "a record and its index node have one form, and names with any characters" {
    local day soon
    soon=$(date -u -d '30 days' +%F)
    once 0 --note 'a b' "$L" true
    day=$(zk_ls "$R/d")
    [ "$day" = "$soon" ] || [ "$day" = "$(date -u -d '30 days' +%F)" ] || fail "day $day"
    run -0 zk_get "$RECORD"
    form="^dlock-run1 succeeded 0 [0-9]+ [0-9a-f]{32} [0-9]{13} [0-9]{13} 2592000000"
    [[ $output =~ $form" dlock1 host=".*" note=a%20b day=$day"$ ]] || fail "$output"
    [ "$(zk_stat "$R/d/$day/fa/job" dataLength)" = 0 ]
    # The same day: no other index node.
    once 0 --skip-exit-code 0 "$L" false
    [ "$(zk_tree "$R" | wc -l)" = 7 ] || fail "$(zk_tree "$R")"
    forget
    [ "$(zk_tree "$R" | wc -l)" = 5 ] || fail "$(zk_tree "$R")"
    for odd in 'a/b%25c' 'a%2525b' '%C3%A4%20x.y' 'a/b'; do
        once 0 "$S#$odd" sh -c "$(add "$odd")"
        once 0 "$S#$odd" touch no
    done
    [ ! -e no ] && [ "$(wc -l <ran)" = 4 ] || fail "$(cat ran)"
    zk_ls "$R/r/$(zk_tree "$R/r" | sed -n 's|.*/r/\(..\)/a%2Fb$|\1|p')" | grep -qxF 'a%2Fb'
    [ "$(indexes)" = 4 ]
}

@test "each layout has records, with the rights of the lock's nodes" {
    for layout in curator-rw kazoo; do
        once 0 "$S?layout=$layout#$layout" sh -c "$(add x)"
        once 0 "$S?layout=$layout#$layout" touch no
    done
    [ ! -e no ] && ran xx
    L="zk://u:p@127.0.0.1:$ZK_PORT/$NAME-2#job"
    once 0 "$L" true
    run -0 zk_acl -a u:p "/$NAME-2/dlock-once/r/fa/job"
    [[ $output == *" digest u:"* ]] && [ "${#lines[@]}" = 1 ] || fail "$output"
    # Another user cannot record a run there, so there is none.
    zk_create "/$NAME-3" >/dev/null
    once 0 "zk://u:p@127.0.0.1:$ZK_PORT/$NAME-3#job" true
    for lock in "zk://v:q@127.0.0.1:$ZK_PORT/$NAME-3#other" \
        "zk://127.0.0.1:$ZK_PORT/$NAME-3#other"; do
        run -77 run_t 5 "$DLOCK" --ttl 2 --once "$lock" touch no
        [ "${#lines[@]}" = 1 ] || fail "$output"
        line_is 0 "/$NAME-3/other"
    done
    [ ! -e no ]
}

# ------------------------------------------------------- what is in their place ---

@test "an ephemeral node in the place of all records is refused" {
    foreign_hold above "$R"
    says 69 "is ephemeral and cannot have children" --ttl 2 --once "$L" touch no
    [ ! -e no ]
    kill "$STARTED"
    wait_for 5 pid_gone "$STARTED"
    once 0 "$L" sh -c "$(add a)"
    ran a
}

@test "a record changed behind a run is a loss, and the lock is free" {
    hold --ttl 4 --once
    zk_set "$RECORD" mine
    let_go 79
    [ "$(grep -c '^dlock:' hold.log)" = 1 ] &&
        file_has hold.log "the run record has been changed" || fail "$(cat hold.log)"
    [ "$(zk_get "$RECORD")" = mine ]
    wait_for 5 free
    # One that is removed is made again.
    zk_rm "$RECORD"
    hold --ttl 4 --once
    zk_rm "$RECORD"
    zk_rm -r "$R"
    let_go
    state_is succeeded
    [ "$(indexes)" = 1 ]
}

# ------------------------------------------------------------------ lost answers ---

@test "a lost answer to a record's multi makes no second run" {
    once 0 "$L" true # makes the nodes above
    for n in 1 2; do
        for fault in lose swallow after 'error -4' 'error -118' drip; do
            forget
            rm -f ran
            set -- $fault
            through "$1" multi $n ${2:-}
            once 0 "$P" sh -c "$(add a)"
            ran a
            struck || fail "$fault $n: nothing happened"
            state_is succeeded || fail "$fault $n: $(state)"
            free || fail "$fault $n: left behind"
            once 0 "$P" sh -c "$(add b)"
            ran a
            end_proxy
        done
    done
}

@test "a refused multi runs nothing, or is told" {
    once 0 "$L" true
    forget
    through refuse multi 1 -102
    run -77 run_t 5 "$DLOCK" --ttl 2 --once "$P" touch ran
    [ ! -e ran ]
    free
    end_proxy
    through refuse multi 2 -125
    says 79 "cannot record the end of the run" --ttl 2 --once "$P" sh -c "$(add a)"
    ran a
    wait_for 5 free
    state_is running
    end_proxy
    # A bad answer is the connection's fault.
    through forge multi 2 "00000019xid0000000000000001000000000000000200ffffffff"
    once 0 "$P" sh -c "$(add a)"
    struck
    state_is succeeded
}

@test "--forget does without the index node, and tells a refusal" {
    once 0 "$L" true
    zk_rm -r "$R/d"
    forget
    [ "$(zk_tree "$R/r" | grep -c /job)" = 0 ]
    once 0 "$L" true
    through refuse multi 1 -102
    says 77 "cannot remove the run record" --forget --yes "$P"
    struck
    state_is succeeded
    forget
}

# ----------------------------------------------------------------- who is too late ---

@test "a holder whose session has ended writes nothing over the next run's record" {
    local second
    start_log hold.log "$DLOCK" --ttl 8 --once "$L" sh -c 'echo $$ >command; "$HELPERS/await" last'
    wait_for 5 test -s command
    first=$(token)
    state_is running
    kill -STOP "$STARTED"
    : >last
    wait_for 5 pid_gone "$(cat command)"
    zk_kill_session "$(owner_of "$(line "/$NAME/job")")"
    state_is running # nobody else has written
    once 0 "$L" sh -c "$(add b)"
    second=$(token)
    [ "$second" != "$first" ]
    kill -CONT "$STARTED"
    exits 79 5 "$STARTED"
    [ "$(token)" = "$second" ] && state_is succeeded || final "$(zk_get "$RECORD")"
    ran b
}

@test "a node that is deleted before an unanswered release is a loss, and not recorded" {
    once 0 "$L" true
    forget
    through swallow multi 2
    L=$P hold --ttl 30 --once
    zk_rm "$(line "/$NAME/job")"
    let_go 79
    struck
    state_is running || final "$(zk_get "$RECORD")"
}

# ---------------------------------------------------------------------- expired ---

# plant N [SHARDS]: N expired records with their index nodes of a day of the past, in that many
# shards.
plant() {
    timeout 60 /usr/bin/python3 - "$ZK_PORT" "$R" "$1" "${2:-4}" 3>&- <<'END'
import sys
from kazoo.client import KazooClient

def shard(name):
    h = 2166136261
    for c in name.encode():
        h = (h ^ c) * 16777619 & 0xffffffff
    return "%02x" % ((h ^ h >> 8 ^ h >> 16 ^ h >> 24) & 255)

root, n, shards = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
zk = KazooClient("127.0.0.1:" + sys.argv[1])
zk.start()
text = (b"dlock-run1 succeeded 0 5 0123456789abcdef0123456789abcdef 5 6 1 "
        b"dlock1 host=h pid=1 user=u since=5 waited=0 cmd=x note= day=2026-01-02")
made, i = [], 0
while len(made) < n:
    i += 1
    name = "report-%d" % i
    if int(shard(name), 16) >= shards:
        continue
    made.append(name)
for s in {shard(name) for name in made}:
    zk.ensure_path(root + "/r/" + s)
    zk.ensure_path(root + "/d/2026-01-02/" + s)
asked = [zk.create_async("%s/%s/%s/%s" % (root, where, shard(name), name), data)
         for name in made for where, data in (("r", text), ("d/2026-01-02", b""))]
for a in asked:
    a.get(30)
zk.stop()
END
}
old() { zk_tree "$R/d/2026-01-02" 2>/dev/null | grep -c '/.*/report-' || :; }
reports() { zk_tree "$R/r" | grep -c /report- || :; }

@test "expired records go, 20 with each run, however many there are" {
    local n left runs=0
    n=$(amount once_expired)
    plant "$n" $((n / 40 + 1))
    [ "$(old)" = "$n" ] && [ "$(reports)" = "$n" ] || fail "$(old) $(reports)"
    # After a command that is shorter, a run tidies up for 0.2 s at most: little, if the machine is
    # slow.
    once 0 "$L" sleep 1
    left=$(reports)
    [ "$left" -ge $((n - 20)) ] && [ "$left" -lt "$n" ] || fail "$left of $n are left"
    while zk_stat "$R/d/2026-01-02" version >/dev/null 2>&1; do
        runs=$((runs + 1))
        [ $runs -le $((n / 4)) ] || fail "after $runs runs $(old) of $n are left"
        once 0 "$S#job-$runs" true
    done
    [ "$(reports)" = 0 ]
    # Those of the runs are there.
    [ "$(zk_tree "$R/r" | grep -c /job)" = $((runs + 1)) ]
    [ "$(indexes)" = $((runs + 1)) ]
}

@test "only what has expired goes, with its index node" {
    local sets
    plant 1 256
    report=$(zk_tree "$R/r" | grep /report-)
    shard=$(basename "$(dirname "$report")")
    # Not expired, by its node's time.
    zk_set "$report" "$(zk_get "$report" | sed 's/ 5 6 1 / 5 6 86400000 /')"
    once 0 "$S#one" true
    [ "$(reports)" = 1 ] && [ "$(old)" = 1 ] || fail "$(zk_tree "$R")"
    # Of a run of another day: only the index node goes, and with it those above.
    zk_set "$report" "$(zk_get "$report" | sed 's/2026-01-02/2999-01-02/')"
    for sets in {1..5}; do
        once 0 "$S#two-$sets" true
        ! not_there "$R/d/2026-01-02" || break
    done
    [ "$(reports)" = 1 ] || final "a record that counts is gone"
    not_there "$R/d/2026-01-02"
    # Not a record.
    zk_set "$report" other
    zk_create "$R/d/2026-01-03/$shard/$(basename "$report")" >/dev/null
    # No record; no index node; no shard; an empty day.
    zk_create "$R/d/2026-01-04/00/nothing" >/dev/null
    zk_create "$R/d/2026-01-05" >/dev/null
    for sets in {1..12}; do
        once 0 "$S#more-$sets" true
        [ "$(zk_ls "$R/d" | grep -c ^2026-01-)" -gt 0 ] || break
    done
    [ "$(zk_ls "$R/d" | grep -c ^2026-01-)" = 0 ] || fail "$(zk_tree "$R/d")"
    [ "$(zk_get "$report")" = other ]
    # What is no day, or no shard, is left alone.
    zk_create "$R/d/2026-01-06/odd/x" >/dev/null
    zk_create "$R/d/tomorrow" >/dev/null
    once 0 "$S#last" true
    zk_stat "$R/d/2026-01-06/odd/x" version
    zk_stat "$R/d/tomorrow" version
}
