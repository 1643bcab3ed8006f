#!/usr/bin/env bats
# check.bats - --check of a file lock: each finding, and that nothing is made.

load ../../support/common
load ../../support/filelock

setup() { folder_setup; }
teardown() { filelock_teardown; }

# checks CODE LINE ARG...: a line of the output begins with LINE.
checks() {
    run "-$1" run_t 5 "$DLOCK" --check "${@:3}"
    begins "$2"
}
begins() {
    local line
    for line in "${lines[@]}"; do [[ $line != "$1"* ]] || return 0; done
    fail "no line '$1...': $output"
}
in_tmpfs() { # OPTIONS CMD...: CMD in a namespace of its own, with a tmpfs at locks
    run_t 10 unshare -m --propagation private sh -c \
        'mount -t tmpfs -o "$0" none "$1" && shift && exec "$@"' "$1" "$T/locks" "${@:2}"
}

# bats test_tags=plain
@test "a good folder is found good, and stays as it was" {
    "$DLOCK" "$DIR#used" true
    before=$(stat -c '%n %i %Y %Z' locks locks/*)
    for name in used new; do
        run -0 run_t 5 strace -f -o trace "$DLOCK" --check "$DIR#$name"
        refute_out warning failure
        begins "ok       folder: $T/locks of "
        begins "ok       file: $T/locks/$name.lock"
        begins "ok       records: $T/locks/$name.fence"
        run grep -E 'flock\(|F_(OFD_)?SETLK|O_CREAT|mkdir|unlink|rename' trace
        [ -z "${COVERAGE:-}" ] || output='' # its runtime opens a file of counters
        [ -z "$output" ] || fail "$output"
    done
    [ "$before" = "$(stat -c '%n %i %Y %Z' locks locks/*)" ]
    checks 0 "ok       file: x does not exist yet; a run makes it" x
    [ ! -e x ]
}

@test "--json has the findings, their worst, and a schema" {
    run -0 --separate-stderr run_t 5 "$DLOCK" --check --json "$DIR#n"
    /usr/bin/python3 -c '
import json, sys
it = json.loads(sys.argv[1])
assert it["schema"] == 1 and it["lock"] == "n" and it["result"] == "ok", it
assert all(f["level"] == "ok" and f["text"] for f in it["findings"]), it' "$output"
    run -73 --separate-stderr run_t 5 "$DLOCK" --check --json "file://$T/none#n"
    [[ $output == *'"level":"failure"'*'"result":"failure"}' ]] || fail "$output"
    [ -z "$stderr" ]
}

@test "finds a folder that is missing" {
    checks 73 "failure  folder: cannot open the lock directory $T/none: it is missing; make it" \
        "file://$T/none#n"
    checks 73 "failure  file: the folder of $T/none/x does not exist; make it" "$T/none/x"
    [ ! -e none ]
}

@test "finds a folder where other users can add or replace files" {
    chmod 777 locks
    checks 1 "warning  folder: any user can replace the files in $T/locks (mode 777)" "$DIR#n"
    chmod 1777 locks
    checks 1 "warning  folder: any user can add files to $T/locks (mode 1777)" "$DIR#n"
}

@test "finds a file of the wrong kind, of another user, or without the right" {
    need_root
    open_folder
    install -m 755 "$DLOCK" "$OPEN/dlock"
    nobody=(setpriv --reuid=nobody --regid=nogroup --clear-groups "$OPEN/dlock")
    ln -s x locks/n.lock
    checks 73 "failure  file: cannot open the lock file $T/locks/n.lock: it is a symbolic link" \
        "$DIR#n"
    mkdir -m 1777 "$OPEN/open"
    : >"$OPEN/open/n.lock"
    chown nobody "$OPEN/open/n.lock"
    checks 65 "failure  file: the other user's file $OPEN/open/n.lock" "file://$OPEN/open#n"
    mkdir -m 755 "$OPEN/d"
    run -77 run_t 5 "${nobody[@]}" --check "file://$OPEN/d#n"
    begins "failure  file: $OPEN/d/n.lock does not exist, and cannot be made: Permission denied; "
    begins "failure  records: the fencing token in $OPEN/d/n.fence cannot be written"
    : >"$OPEN/d/x"
    chmod 444 "$OPEN/d/x"
    run -0 run_t 5 "${nobody[@]}" --check "$OPEN/d/x"
    run -77 run_t 5 "${nobody[@]}" --check --slots 2 "$OPEN/d/x"
    begins "failure  file: $OPEN/d/x cannot be opened for this lock: Permission denied; "
    run -77 run_t 5 "${nobody[@]}" --check --fcntl "$OPEN/d/x"
}

@test "finds a fencing token that is damaged" {
    "$DLOCK" "$DIR#n" true
    echo broken >locks/n.fence
    checks 65 "failure  records: $T/locks/n.fence is not a fencing token" "$DIR#n"
}

@test "finds a disk that is full, and one that forgets records" {
    need_mounts
    run -73 in_tmpfs size=16k sh -c 'dd if=/dev/zero of=locks/fill bs=4k count=99 2>/dev/null
        exec "$DLOCK" --check "$0"' "$DIR#n"
    begins "failure  room: the disk of $T/locks is full; free some"
    run -1 in_tmpfs size=512k "$DLOCK" --check "$DIR#n"
    begins "warning  room: "
    begins "ok       file system: of this machine; a reboot empties the folder"
    run -64 in_tmpfs size=9m "$DLOCK" --check --once "$DIR#n"
    begins "failure  records: $T/locks: a reboot empties this directory"
    run -77 in_tmpfs ro "$DLOCK" --check "$DIR#n" || assert_rc 73
    assert_out "failure  file: " "Read-only file system"
}

# as_nfs OPTIONS CMD...: every file is on NFS, mounted with these options.
as_nfs() {
    local id
    exec 8<locks
    id=$(sed -n 's/^mnt_id:[[:blank:]]*//p' /proc/self/fdinfo/8)
    exec 8<&-
    echo "$id 1 0:1 / / rw - nfs4 h:/x rw,vers=3,$1" >mountinfo
    NFS_MOUNTINFO=$T/mountinfo preloaded nfs "${@:2}"
}

@test "finds a mount of NFS whose locks are local" {
    for how in nolock local_lock=flock local_lock=all; do
        run -1 as_nfs "$how,addr=::1" "$DLOCK" --check "$DIR#n"
        begins "warning  file system: NFS, mounted with $how: the lock excludes no other machine; "
    done
    for how in local_lock=none local_lock=posix; do
        run -0 as_nfs "$how" "$DLOCK" --check "$DIR#n"
        begins "ok       file system: NFS: the lock excludes other machines"
    done
    run -1 as_nfs local_lock=posix "$DLOCK" --check --fcntl "$T/locks/x"
    run -64 as_nfs local_lock=none "$DLOCK" --check --slots 3 "$DIR#n"
    begins "failure  file system: NFS, where slots do not work"
}

@test "finds that /proc names no holders" {
    need_mounts
    open_folder
    install -m 755 "$DLOCK" "$OPEN/dlock"
    run -1 run_t 5 unshare -m --propagation private sh -c \
        'mount -t proc -o hidepid=2 none /proc &&
            exec setpriv --reuid=nobody --regid=nogroup --clear-groups "$@"' - \
        "$OPEN/dlock" --check "$OPEN/dlock"
    begins "warning  holders: /proc hides the processes of other users (hidepid)"
    run -1 run_t 5 unshare -m --propagation private \
        sh -c 'mount -t tmpfs none /proc && exec "$@"' - "$DLOCK" --check "$OPEN/dlock"
    begins "warning  holders: /proc/locks cannot be read"
}

@test "the folder of @NAME is checked as a run does, but not made" {
    need_mounts
    in_run() { run "-$1" run_t 5 unshare -m --propagation private sh -c \
        'mount -t tmpfs none /run && '"$2"' && exec "$DLOCK" --check @n'; }
    in_run 0 true
    begins "ok       folder: /run/dlock-0 does not exist yet; a run makes it"
    run -0 run_t 5 unshare -m --propagation private sh -c \
        'mount -t tmpfs none /run && "$DLOCK" --check @n && ls /run'
    refute_out $'\ndlock-0'
    in_run 0 'mkdir -m 700 /run/dlock-0'
    begins "ok       folder: /run/dlock-0, for this user only"
    in_run 77 'mkdir -m 755 /run/dlock-0'
    begins "failure  folder: /run/dlock-0 is open to other users; chmod 700 it"
    in_run 77 'mkdir -m 700 /run/dlock-0 && chown nobody /run/dlock-0'
    begins "failure  folder: /run/dlock-0 belongs to uid 65534, not to us"
}
