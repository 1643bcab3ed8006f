# Each process that is killed makes room for another one.
. "$proof/faults/killed.bash"
FAULT_TITLE='wrapper killed; a fork bomb' FAULT_ORDER=31 FAULT_QUICK='' FAULT_WEIGHT=4
fault_missing() { [ $EUID = 0 ] || echo 'needs root'; }
# The bomb has the descriptor of a file lock, and the order in which it closes the two is its own.
fault_applies() { [ "$TOOL" != dlock-file ]; }
fault_prepare() { WITNESS_A=(bomb) && chmod 711 "$D"; }
# flock(1) stands for the bomb: it ends as soon as no process of the bomb has the file open.
fault_inject() {
    (exec 3>&- 8<bomb && exec flock 8) &
    "$HELPERS/lives" "$D" A grandchild $! && kill -KILL "$A_PID"
}
