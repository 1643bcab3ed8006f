# amounts.bash - how often, how many, how long: numbers of the soak tests. common.bash loads it.
#
#     amount NAME    the number of that name: the first column in `make soak` (DLOCK_SOAK=1), the
#                    second one in `make check`, the third one under a sanitizer or with DLOCK_SLOW
#     sample NAME    those lines of stdin that are tested: all of them where the number is 1, else
#                    every second, third, ... line. The offset is the day's number, so as many days
#                    of CI test all lines, and a test that is tried again tests the same ones.
#                    SAMPLE=N: that offset instead; sample_number NAME prints it.

AMOUNTS='
swarm_turns             100    6    5   of each of 20 processes that contend for one lock
swarm_long             6000 6000 5000   ms that one of them holds it; the ttl is 2 s, or 4 s
swarm_longer           3000    0    0   ms that another one does
kinds_operations       5000  200  100   on one lock, checked against a model
soak_grants           10000  400  200   on four locks of a store, under a fault each second
redlock_chaos_seconds   120   10    6   of faults on five servers under 40 processes
redlock_chaos_grants   4000   30   10   at least
every_failure             1   41   41   one of so many system calls and allocations fails
call_points               1    3    3   one of so many system calls kills the keeper
clock_rounds              3    1    1   jumps of the clock of a PostgreSQL server
once_names           10000  300   60   of locks with --once, one run each
once_crowd              50   25   12   processes that start one command with --once
once_days               30   10    3   on which three hosts with other clocks start one job
min_hold_late           50  500  500   ms after --min-hold by which a waiter has started
once_dated            10000  300  100   run records of files that have expired
also_turns               50    3    1   of each of 20 processes that take the same three locks
first_uses               30    2    1   of lease tables, each by eight clients at once
pooled_runs             150   15    5   through PgBouncer, with as many that tidy up the table
pooled_turns             25   10    5   grants to each of 8 processes that do not wait
zk_waiters               50   12   12   for one lock
reconnects              300   90   90   of a waiter; the holder is cut off as often
once_expired          10000  200  100   run records in ZooKeeper, which have expired
breaks                  200    4    2   of holds of 8 contending processes
silent_runs             100   40   10   that must print nothing, and as many refusals
hostile_points            1    2   12   one of so many bad answers of a ZooKeeper server
'

# The column of this run.
amount_column=2
[ -z "${SAN:-}${DLOCK_SLOW:-}" ] || amount_column=3
[ -z "${DLOCK_SOAK:-}" ] || amount_column=1
amount() {
    local re=$'\n'"$1 "' +([0-9]+) +([0-9]+) +([0-9]+) '
    [[ $AMOUNTS =~ $re ]] || fail "amounts.bash has no '$1'" || return
    echo "${BASH_REMATCH[amount_column]}"
}

sample_number() {
    local every
    every=$(amount "$1") || return
    echo $((${SAMPLE:-$(date +%s) / 86400} % every))
}
sample() {
    local every day
    every=$(amount "$1") && day=$(sample_number "$1") || return
    awk -v every="$every" -v day="$day" '(NR + day) % every == 0'
}

# A soak takes minutes where a check takes seconds.
[ -z "${DLOCK_SOAK:-}" ] || export BATS_TEST_TIMEOUT=1800
