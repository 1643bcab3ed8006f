# A time service slews the clock of A's machine: it loses a tenth (preload/slew.c). That tells only
# while nothing is renewed, so its packets are lost, too.
. "$proof/faults/clock-client-forward.bash"
. "$proof/faults/blackhole-both.bash"
FAULT_TITLE='packets lost; slewed clock' FAULT_ORDER=73
fault_missing() { far_missing && clock_missing "$TOOL"; }
fault_prepare() {
    far_up || outcome error 'no second machine'
    VIA_A=("${FAR[@]}" env LD_PRELOAD="$HELPERS/slew.so" SLEW="$(now_ms)000000")
}
