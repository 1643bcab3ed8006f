# clock.bash - processes whose clock jumps (tests/support/preload/wallclock.c) or is slewed (slew.c). Load after common.bash.
#
#     with_clock CMD...    the wall clock of CMD, a function too, is what `jump` says; with WALLCLOCK_SUSPEND=1 in
#                          its environment also the clock that counts while the machine sleeps
#     jump SECONDS         from now on these clocks are so far ahead
#     with_slew CMD...     from now on CLOCK_BOOTTIME of CMD, a function too, and its waits lose a tenth; its children too,
#                          without `env -u LD_PRELOAD`
#     true_time NS         what the time NS of that clock is for all others
#
# CLOCK_FILE: what they read, $T/offset; another one where another user runs them.

jump() {
    /usr/bin/python3 -c 'import struct, sys
with open(sys.argv[2], "r+b") as f: f.write(struct.pack("<q", int(sys.argv[1]) * 10**9))' "$1" "${CLOCK_FILE:-$T/offset}"
}
with_clock() {
    head -c 8 /dev/zero >"${CLOCK_FILE:-$T/offset}"
    # A sanitizer's runtime wants to be the first library; being the second one is fine here.
    LD_PRELOAD=$HELPERS/wallclock.so WALLCLOCK=${CLOCK_FILE:-$T/offset} \
        ASAN_OPTIONS=${ASAN_OPTIONS:-}:verify_asan_link_order=0 "$@"
}
with_slew() {
    SLEW_SINCE=$(($(now_ms) * 1000000))
    LD_PRELOAD=$HELPERS/slew.so SLEW=$SLEW_SINCE \
        ASAN_OPTIONS=${ASAN_OPTIONS:-}:verify_asan_link_order=0 "$@"
}
true_time() { echo $((SLEW_SINCE + ($1 - SLEW_SINCE) * 10 / 9)); }
