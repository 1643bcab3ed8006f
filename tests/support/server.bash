# server.bash - what the database servers of tests share: the account, folders, data to start from.
# KIND: "pg" or "my", a part of the names.
#
#     ${server_as[@]} CMD...           run a server or a tool of one, as another user than root
#     server_folder KIND               a new one that the server's user owns and can reach
#     server_template KIND MAKE        make $BATS_RUN_TMPDIR/KIND-template, if it is not there:
#                                      MAKE FOLDER fills it

# Database servers refuse to be root's. With --pdeathsig none outlives the shell that started it,
# even if that is killed. No leak marker: it belongs to the file or test that ends it by pid. TMPDIR
# may be the caller's alone.
server_as=(env -u DLOCK_TEST_ID -u TMPDIR setpriv)
[ "$(id -u)" -ne 0 ] || server_as+=(--reuid=nobody --regid=nogroup --clear-groups)

# Not among bats's folders: these are private to root, and their names may be too long for a socket
# (107 bytes). In memory if there is enough: a server is hundreds of files, and an ext4 without a
# journal takes a second for them where as many were just removed.
server_folder() {
    local dir top=/tmp room
    room=$(df -k --output=avail /dev/shm 2>/dev/null | tail -n 1)
    [ "${room:-0}" -lt 1000000 ] || [ ! -w /dev/shm ] || top=/dev/shm
    dir=$(mktemp -d "$top/dlock-$1.XXXXXX") || return
    echo "$$ $(server_born $$)" >"$dir/owner"
    if [ "$(id -u)" -eq 0 ]; then chown nobody:nogroup "$dir" || return; fi
    echo "$dir"
}

# server_born PID: what tells the process from a later one of the same number.
server_born() {
    local stat
    { read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 0
    set -- ${stat##*) }
    echo "${20} $(readlink /proc/self/ns/pid)"
}

# Remove folders of tests that never came to their teardown (bats does not run it after every
# time-out).
server_sweep() {
    local dir pid born
    for dir in /dev/shm/dlock-"$1".* /tmp/dlock-"$1".*; do
        { [ -f "$dir/owner" ] && read -r pid born <"$dir/owner"; } 2>/dev/null || continue
        # Of another container one cannot tell.
        [ "${born#* }" = "$(readlink /proc/self/ns/pid)" ] &&
            [ "$(server_born "$pid")" != "$born" ] || continue
        rm -rf "$dir"
    done
}

# Making the data takes as long as ten copies of it: once for all files of a run.
server_template() {
    local template=${BATS_RUN_TMPDIR:?}/$1-template dir rc=0
    [ ! -e "$template" ] || return 0
    {
        flock -w 90 9 || return
        [ ! -e "$template" ] || return 0
        server_sweep "$1"
        dir=$(server_folder "$1") || return
        ("$2" "$dir/data") >"$dir/log" 2>&1 3>&- 9>&- || rc=$?
        if [ $rc -ne 0 ]; then cat "$dir/log" >&2; else
            # Complete or absent, for those that look without the lock.
            rm -rf "$template.new"
            cp -a "$dir/data" "$template.new" && mv "$template.new" "$template" || rc=$?
        fi
        rm -rf "$dir"
        return $rc
    } 9>"$template.lock"
}
