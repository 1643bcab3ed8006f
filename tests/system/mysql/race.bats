#!/usr/bin/env bats
# race.bats - clients of all kinds that contend for one lock in MySQL at once, as the server's
# settings may be. With faults: tests/soak/grants mysql.

# bats file_tags=long
load ../../support/common
load ../../support/mysql

setup_file() {
    export BATS_NO_PARALLELIZE_WITHIN_FILE=true
    # Its replicas get statements, which may not be unsafe there.
    my_start --log-bin=bin --server-id=1 --binlog-format=STATEMENT
}
teardown_file() { my_stop_all; }
setup() {
    dlock_setup
    L="mysql://dl:pw@127.0.0.1:$MY_PORT/app#$NAME"
    run -0 run_t 5 "$DLOCK" -s "$L" true # the tables are there
}
teardown() {
    mysql -e "SET GLOBAL tx_isolation = DEFAULT, GLOBAL sql_mode = DEFAULT,
        GLOBAL binlog_format = STATEMENT"
    dlock_teardown
}

# storm TURNS HOLD_MS [OPTION...]: ten clients contend for $L, each so many times, by turns as a
# writer, a reader and one of two slots; where L is an array, each client by one of its URIs. The
# kernel says whether two exclude each other.
storm() {
    local i rc=0 pids=()
    mkdir -p h
    : >h/history
    for i in 0 1 2 3 4 5 6 7 8 9; do
        start_log "storm.$i" bash -c '
            kinds=(-s "--slots 2" "--slots 2" -x -s "--slots 2" -s "--slots 2")
            words=(s n n x s n s n)
            for ((t = $0; t < $0 + $1; t++)); do
                [ ! -e refused ] || exit 0
                k=${kinds[t % 8]} rc=0
                "$DLOCK" -q --ttl 20 $k "${@:3}" "$HELPERS/kinds" h $0.$t ${words[t % 8]} 2 $2 \
                    alone || rc=$?
                case $rc in 0 | 75) echo $rc ;; *) echo "$k: $rc"; : >refused; exit 1 ;; esac
            done' "$i" "$1" "$2" "${@:3}" "${L[i % ${#L[@]}]}"
        pids+=("$STARTED")
    done
    for i in "${pids[@]}"; do wait_exit 60 "$i" || rc=$?; done
    [ $rc = 0 ] || { grep : storm.*; tail -n 20 h/history; } >&2
    ! grep -w refused h/history || final "two at once"
    [ $rc = 0 ] || fail "$rc"
    granted=$(grep -c enter h/history)
}

@test "clients of all kinds that do not wait exclude each other" {
    storm 20 4 -n
    [ "$granted" -ge 40 ] && grep -q 75 storm.* || fail "no contention: $granted of 200"
}

@test "a client that tidies up takes no row of another one's release away" {
    always storm 10 2 -n
    [ "$granted" -ge 20 ]
}

@test "isolation, sql_mode and a binary log of statements do not matter to those who wait" {
    local level format
    while read -r level format; do
        mysql -e "SET GLOBAL tx_isolation = '$level', GLOBAL binlog_format = $format,
            GLOBAL sql_mode = 'ANSI_QUOTES,TRADITIONAL'"
        rm -rf h
        storm 6 1
        # All had it in turn, and no try was refused.
        [ "$granted" = 60 ] || fail "$level: $granted: $(cat storm.*)"
        ! grep -v '^0$' storm.* || fail "$level"
    done <<<'SERIALIZABLE STATEMENT
        REPEATABLE-READ STATEMENT
        READ-COMMITTED ROW'
}

@test "the nodes of a Galera exclude each other, and those who wait get their turn" {
    local n
    my_galera_start
    L=()
    for n in 1 2 3; do L+=("mysql://dl:pw@127.0.0.1:${MY_PORTS[n$n]}/app#$NAME"); done
    run -0 run_t 5 "$DLOCK" -s "$L" true
    storm 20 4 -n
    [ "$granted" -ge 40 ]
    rm -rf h
    storm 6 1
    [ "$granted" = 60 ] || fail "$granted: $(cat storm.*)"
    says 1 "Galera: the clock of each node decides" --check "${L[1]}"
}
