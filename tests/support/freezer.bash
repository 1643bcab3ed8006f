# freezer.bash - some processes stand still as on a machine that is suspended: the kernel's freezer.
# Load after common.bash.
#
#     freezer_open        a control group for them; 1 if none can be made here. ${FREEZER[@]} is the
#                         prefix of a command that is in it, with all that it starts
#     freezer_freeze      none of them runs from now on;  freezer_thaw
#     freezer_close       when they have ended
#
# FREEZER_KIND: v1 or v2. Version 1 is closer to a suspend: KILL does not reach a frozen process.

freezer_open() {
    local dir type options
    while read -r type dir options; do
        case $type,$options, in
        cgroup,*,freezer,*) FREEZER_KIND=v1 ;;
        cgroup2,*) FREEZER_KIND=v2 ;;
        *) continue ;;
        esac
        FREEZER_DIR=$dir/dlock.$$.$RANDOM
        mkdir "$FREEZER_DIR" 2>/dev/null || continue
        FREEZER=(sh -c 'echo $$ >"$0" && exec "$@"' "$FREEZER_DIR/cgroup.procs")
        return
    done < <(awk '{ print $3, $2, $4 }' /proc/self/mounts | sort)
    return 1
}
freezer_set() { # FILE VALUE STATE-FILE PATTERN
    echo "$2" >"$FREEZER_DIR/$1" && wait_for 5 grep -qx "$4" "$FREEZER_DIR/$3"
}
freezer_freeze() {
    case $FREEZER_KIND in
    v1) freezer_set freezer.state FROZEN freezer.state FROZEN ;;
    v2) freezer_set cgroup.freeze 1 cgroup.events 'frozen 1' ;;
    esac
}
freezer_thaw() {
    case $FREEZER_KIND in
    v1) freezer_set freezer.state THAWED freezer.state THAWED ;;
    v2) freezer_set cgroup.freeze 0 cgroup.events 'frozen 0' ;;
    esac
}
freezer_close() { rmdir "$FREEZER_DIR"; }
