# stack_trace.bash - the same stack traces of failed tests as bats makes, without a price for those
# that pass.
#
# bats notes its place before every command of a test, by the DEBUG trap: most of the work of bash
# in a run of the suite. It does so for versions of bash whose ERR trap has a wrong line. That of
# bash 5.2 has the right one, so the trace is composed when a command has failed, and when the time
# of a test is over. A test that calls exit, or whose teardown fails, has no trace. The names below
# are internal to bats 1.8 (Debian 12) and 1.11 (Debian 13); any other version keeps its own traps,
# and is merely slower.

case ${BATS_VERSION:-}/${BATS_TRACE_LEVEL:-0} in 1.8.*/0 | 1.11.*/0) ;; *) return 0 ;; esac
[ $((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1])) -ge 502 ] || return 0
declare -F bats_debug_trap bats_error_trap bats_get_failure_stack_trace >/dev/null || return 0

# A frame a line: "LINE FUNCTION FILE", innermost first.
TRACE=()

bats_debug_trap() { trap - DEBUG; }

# bats 1.11 has one without a process itself.
[[ $BATS_VERSION != 1.8.* ]] ||
    get_mills_since_epoch() {
        local now=$EPOCHREALTIME
        now=${now/[.,]/}
        echo $((10#$now / 1000))
    }

# trace_here: where the function that called the caller of this one was.
trace_here() {
    local i
    TRACE=()
    for ((i = 2; i < ${#FUNCNAME[@]}; i++)); do
        [[ ${#TRACE[@]} -gt 0 || ${BASH_SOURCE[i]} != "$BATS_ROOT"/lib* ]] || continue
        TRACE+=("${BASH_LINENO[i - 1]} ${FUNCNAME[i]} ${BASH_SOURCE[i]:-$BATS_TEST_SOURCE}")
        case ${FUNCNAME[i]} in
        "${BATS_TEST_NAME-}" | setup | setup_file | setup_suite) break ;;
        teardown | teardown_file | teardown_suite) break ;;
        esac
        [[ ${FUNCNAME[i]} != source || ${BASH_SOURCE[i + 1]:-} != *bats-exec-file ]] || break
    done
}
bats_error_trap() {
    bats_check_status_from_trap
    trace_here
    BATS_DEBUG_LAST_STACK_TRACE_IS_VALID=1
}
bats_timeout_trap() {
    BATS_TIMED_OUT=1
    trap - ERR
    echo "out of time in: $BASH_COMMAND" >&2
    trace_here
    TRACE=("${TRACE[@]:1}") # bash does not know the line of this command
    exit 1
}
# bats_get_failure_stack_trace VARIABLE: an array of such frames.
bats_get_failure_stack_trace() {
    local -n trace_out=$1
    trace_out=(${TRACE[@]+"${TRACE[@]}"})
}
