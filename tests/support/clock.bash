# clock.bash - processes whose clock jumps (preload/wallclock.c) or is slewed (preload/slew.c). Load
# after common.bash.
#
#     with_clock CMD...    `jump` sets the wall clock of CMD, which may be a function; with
#                          WALLCLOCK_SUSPEND=1 also the clock that counts while the machine sleeps
#     jump SECONDS         from now on these clocks are ahead by SECONDS
#     with_slew CMD...     from now on CLOCK_BOOTTIME of CMD, which may be a function, and its waits
#                          lose a tenth; its children's too, without `env -u LD_PRELOAD`
#     true_time NS         what the time NS of that clock is for all other processes
#
# CLOCK_FILE: the file of the jump, $T/offset; a different one for a different user.

jump() {
    /usr/bin/python3 -c 'import struct, sys
with open(sys.argv[2], "r+b") as f:
    f.write(struct.pack("<q", int(sys.argv[1]) * 10**9))' "$1" "${CLOCK_FILE:-$T/offset}"
}
with_clock() {
    head -c 8 /dev/zero >"${CLOCK_FILE:-$T/offset}"
    WALLCLOCK=${CLOCK_FILE:-$T/offset} preload wallclock "$@"
}
with_slew() {
    SLEW_SINCE=$(($(now_ms) * 1000000))
    SLEW=$SLEW_SINCE preload slew "$@"
}
true_time() { echo $((SLEW_SINCE + ($1 - SLEW_SINCE) * 10 / 9)); }
