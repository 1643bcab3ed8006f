# The file store for the contract suite: the embedded default's form, dir#name.
load "$SUPPORT/record_folder"
STORE_LEASE='' STORE_FIFO='' STORE_FENCE=1 STORE_TELLS=fence STORE_SHARED=1 STORE_SLOTS=1 \
    STORE_NUMBERS=1 STORE_ONCE=1
store_up() {
    DISK=$(disk_folder "$BATS_FILE_TMPDIR")
    export DISK
}
store_down() { disk_done "${DISK:-}"; }
store_lock() { mkdir -p "$DISK/locks" && echo "file://$DISK/locks#$1"; }
# Nothing but the lock file and the fence may stay, and it must be free.
store_clean() { flock -n "$DISK/locks/$1.lock" true; }

store_record() { ls -ld "$DISK/locks/$NAME.once"; }
store_ends() {
    ended_at "$1" <"$DISK/locks/$NAME.once" >changed
    { cat changed; echo; } >"$DISK/locks/$NAME.once"
}
store_spoil() {
    local f=$DISK/locks/$NAME.once what=file
    # It has a record of a run, which the other kinds are made of.
    [ -e good ] || cp "$f" good
    rm -rf "$f"
    chmod 755 "$DISK/locks"
    case $1 in
    0) ln -s "$T/good" "$f" && what="symbolic link" ;;
    1) mkdir "$f" && what=directory ;;
    2) mkfifo "$f" && what=FIFO ;;
    3) cp good "$DISK/locks/linked" && ln "$DISK/locks/linked" "$f" && what="hard link" ;;
    4) : >"$f" ;;
    5) head -c 1048576 /dev/zero | tr '\0' x >"$f" ;;
    6) { tr -d '\n' <good; head -c 1048576 /dev/zero | tr '\0' x; echo; } >"$f" ;;
    7) printf 'dlock-run1 \033[2J\a\n' >"$f" ;;
    8) tr -d '\n' <good >"$f" ;; # cut off: without the end of its line
    9) sed 's/run1/run2/' good >"$f" ;;
    10) # where any user can add a file, that of another user is none
        [ "$EUID" = 0 ] || return 1
        chmod 1777 "$DISK/locks"
        cp good "$f" && chown 54321 "$f" && what="other user's file" ;;
    11) # a container may have no right to it
        mknod "$f" c 1 3 2>/dev/null || return 1
        what=device ;;
    *) return 1 ;;
    esac
    WHAT="the $what $NAME.once"
}
