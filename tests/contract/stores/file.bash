# The file store for the contract suite: the embedded default's form, dir#name.
load "$SUPPORT/disk"
STORE_LEASE='' STORE_FIFO='' STORE_FENCE=1 STORE_TELLS=fence STORE_SHARED=1 STORE_SLOTS=1 STORE_NUMBERS=1 STORE_ONCE=1
store_up() {
    DISK=$(disk_folder "$BATS_FILE_TMPDIR")
    export DISK
}
store_down() { disk_done "${DISK:-}"; }
store_lock() { mkdir -p "$DISK/locks" && echo "file://$DISK/locks#$1"; }
# Nothing but the lock file and the fence may stay, and it must be free.
store_clean() { flock -n "$DISK/locks/$1.lock" true; }
