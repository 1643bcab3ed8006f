# keeper_killed.bash - a keeper that is killed at its system calls, each time with a lock of its
# own. The file defines lock_of MODE [NAME]: a lock's URI; that function and its helpers are
# exported.
#
#     kill_at_points MODE...      the keeper's tree is gone at once, and the lock within the ttl and
#                                 a second

# The command: what it leaves in a session of its own, without an ear for TERM, it ends itself, and
# itself, too, if its keeper lives. Else they are for somebody else to end.
INSIDE='exec 9>"$1/witness"
    flock -n 9 || echo overlap >>"$1/violations"
    read -r _ _ _ keeper _ <"/proc/$PPID/stat"
    setsid sh -c "trap \"\" TERM; exec sleep 30" &
    sleep 0.3
    kill -0 "$keeper" 2>/dev/null || exec sleep 30
    kill -KILL $!'

# The points of a run: "MODE NAME K", the K-th call of that name, from the guard's fork on; of each
# name the first two, which is the way to the lock, and the last three, which is the hold and its
# end.
points() {
    mkdir "$T/run.$1"
    strace -o "$T/trace" "$DLOCK" --ttl 1 "$(lock_of $1)" sh -c "$INSIDE" - "$T/run.$1"
    awk -v mode="$1" 'match($0, /^[a-z_0-9]+\(/) {
             name = substr($0, 1, RLENGTH - 1); n[name]++
             if (name ~ /^(clone|clone3|fork|vfork)$/) forked = 1
             if (forked && name !~ /^exit/ && !(name in first)) first[name] = n[name]
         }
         END {
             for (name in first) for (k = first[name]; k <= n[name]; k++)
                 if (k < first[name] + 2 || k > n[name] - 3) print mode, name, k
         }' "$T/trace"
}

# one_point MODE NAME K: with a lock of its own, and what must be true then. Complaints go to
# $T/bad.
one_point() {
    local point=$1:$2:$3 rc=0 i dir lock
    dir=$T/point.$point
    lock=$(lock_of "$1" "$2.$3")
    mkdir "$dir"
    # In braces: bash tells about everybody who is killed.
    {
        timeout -k 2 15 strace -o /dev/null -e trace="$2" -e inject="$2:signal=SIGKILL:when=$3" \
            "$DLOCK" --ttl 1 "$lock" sh -c "$INSIDE" - "$dir" >"$dir/out" 2>&1 </dev/null 3>&- ||
            rc=$?
    } 2>/dev/null
    echo "$rc" >"$dir/rc"
    # A killed keeper's guard does not wait for the end of the lease (25 ms a turn, and more).
    for ((i = 0; i < 20; i++)); do
        [ -e "$dir/witness" ] || break
        flock -sn "$dir/witness" true && break
        sleep 0.025
    done
    [ $i -lt 20 ] || echo "$point: the tree lives on" >>"$T/bad"
    # Whoever comes next gets it within the ttl and a second, and nobody is inside any more.
    timeout -k 2 15 "$DLOCK" -w 2.2 "$lock" flock -sn "$dir/witness" true >"$dir/next" 2>&1 3>&- ||
        echo "$point: exit code of the next one: $?, and it says: $(cat "$dir/next")" >>"$T/bad"
    [ ! -e "$dir/violations" ] || echo "$point: overlap" >>"$T/bad"
    case $rc in
    0 | 137) [ ! -s "$dir/out" ] || echo "$point: $(cat "$dir/out")" >>"$T/bad" ;;
    *) echo "$point: exit code $rc: $(cat "$dir/out")" >>"$T/bad" ;;
    esac
}

kill_at_points() {
    local mode n killed
    strace -o /dev/null true 2>/dev/null || skip "strace does not work here"
    for mode; do points $mode; done >all
    [ "$(wc -l <all)" -ge $((40 * $#)) ]
    sample call_points <all >points
    n=$(wc -l <points)
    export T NAME INSIDE
    export -f one_point lock_of
    timeout 150 xargs -P 8 -L 1 bash -c 'one_point "$1" "$2" "$3"' - <points
    killed=$(cat point.*/rc | grep -c 137)
    echo "# $killed killed at $n points" >&3
    [ "$killed" -ge $((n / 2)) ]
    settle 2
    [ ! -e bad ] || fail "$(cat bad)"
}
