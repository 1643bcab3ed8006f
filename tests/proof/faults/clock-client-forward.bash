# The wall clock of A's processes jumps by an hour (preload/wallclock.c).
. "$proof/../support/clock.bash"
FAULT_TITLE="clock of A's machine 1 h forward" FAULT_ORDER=90
JUMP=3600
fault_missing() { clock_missing "$TOOL"; }
# A program in Go asks the kernel by itself, not by libc.
clock_missing() { case $1 in etcd*) echo "$1 cannot be given a clock of its own" ;; esac; }
fault_prepare() {
    with_clock true
    VIA_A=(env LD_PRELOAD="$HELPERS/wallclock.so" WALLCLOCK="$D/offset")
}
fault_inject() { jump $JUMP; }
