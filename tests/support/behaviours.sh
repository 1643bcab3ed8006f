#!/bin/sh
# behaviours.sh DLOCK - what a file lock must do on any platform, in TAP, with no more than a POSIX
# shell and flock(1), so that it runs anywhere. DLOCK may be a command with arguments. Works in the
# current folder.
dlock=$1
n=0
# is NAME WANTED GOT
is() {
    n=$((n + 1))
    if [ "$2" = "$3" ]; then
        echo "ok $n $1"
    else
        echo "# wanted '$2', got '$3'"; echo "not ok $n $1"
    fi
}
# code CMD...: its exit code, and what it printed
code() { out=$("$@" 2>&1); echo "$?${out:+ $out}"; }
# until CMD...: waits for at most 20 s.
until_() {
    i=0
    until "$@"; do
        i=$((i + 1))
        [ $i -lt 200 ] || return 1
        sleep 0.1
    done
}

rm -f f pipe later big started ended fifo
is "gives the command's exit code" 7 "$(code $dlock f sh -c 'exit 7')"
is "excludes flock(1)" 9 "$(code $dlock f sh -c 'flock -n f true || exit 9')"
flock f sh -c ': >started; until [ -e ended ]; do sleep 0.1; done' &
until_ test -e started
is "is excluded by flock(1)" 75 "$(code $dlock -q -n f true)"
is "ends its wait" 75 "$(code $dlock -q -w 0.3 f true)"
is "shares with nobody who excludes" 75 "$(code $dlock -q -n -s f true)"
case $($dlock --status f 2>&1) in
*held*) is "shows that it is held" 1 1 ;;
*) is "shows that it is held" 1 0 ;;
esac
$dlock f sh -c ': >fifo' &
waiter=$!
: >ended
wait $waiter
is "waits for the lock" 0 $?
is "has run what waited" 0 "$(code test -e fifo)"
wait

rm -f started
$dlock f sh -c 'trap "exit 3" TERM; : >started; while :; do sleep 0.1; done' &
holder=$!
until_ test -e started
kill -TERM $holder
wait $holder
is "passes a signal on" 3 $?
is "gives the lock back" 0 "$(code $dlock -n f true)"
is "closes the lock's descriptor" 0 "$(code $dlock -o f sh -c 'exit 0')"
is "names what cannot be run" 127 "$($dlock f ./missing 2>/dev/null; echo $?)"

# truncate(1) and touch -d differ, dd and touch -t do not.
dd if=/dev/null of=big bs=1 seek=3221225472 2>/dev/null
is "locks a file beyond 2 GiB" 0 "$(code $dlock big true)"
touch -t 204001010000 later
is "locks a file from after 2038" 0 "$(code $dlock later true)"

mkdir -p named
first=$($dlock "file://$PWD/named#a/b" sh -c 'echo "$DLOCK_FENCE"')
second=$($dlock "file://$PWD/named#a/b" sh -c 'echo "$DLOCK_FENCE"')
[ "${#first}" -gt 10 ] && [ "$second" -gt "$first" ]
is "gives growing fences to a named lock" 0 $?
echo "1..$n"
