# record_folder.bash - a folder on disk for the records of --once, which refuses directories in
# memory: $T may be one.

# disk_folder FOLDER: FOLDER, or, if it is in memory, a new one in /var/tmp for disk_done to remove.
disk_folder() {
    case $(stat -f -c %T "$1") in
    tmpfs | ramfs) mktemp -d /var/tmp/dlock-test.XXXXXX ;;
    *) echo "$1" ;;
    esac
}
disk_done() {
    case ${1:-} in /var/tmp/dlock-test.*) rm -rf "$1" ;; esac
}
