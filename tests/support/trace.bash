# trace.bash - the same stack traces of failed tests as bats makes, at an eighth of the price.
#
# The DEBUG trap of bats composes the stack trace anew before every command of a test: most of the
# work of bash in a run of the suite. Here the trap only copies its place, and the trace is composed
# when a test has failed. The names below are internal to bats 1.8 (Debian 12) and 1.11 (Debian 13);
# any other version keeps its own trap, and is merely slower.

case ${BATS_VERSION:-}/${BATS_TRACE_LEVEL:-0} in 1.8.*/0 | 1.11.*/0) ;; *) return 0 ;; esac
declare -F bats_debug_trap bats_error_trap bats_get_failure_stack_trace >/dev/null || return 0

# Place and functions of the last command, and of the one before: a frame a line, this trap first.
TRACE_SELF=${BASH_SOURCE[0]}
TRACE_AT='' TRACE_IN='' TRACE_FILES='' TRACE_AT0='' TRACE_IN0='' TRACE_FILES0=''

bats_debug_trap() {
    [[ $1 != "$BATS_ROOT"/lib* && $1 != "$TRACE_SELF" ]] || return 0
    [[ -z ${BATS_INTERRUPTED+x}${BATS_TIMED_OUT+x} ]] || return 0
    local IFS=$'\n'
    TRACE_AT0=$TRACE_AT TRACE_IN0=$TRACE_IN TRACE_FILES0=$TRACE_FILES
    TRACE_AT="${BASH_LINENO[*]}" TRACE_IN="${FUNCNAME[*]}" TRACE_FILES="${BASH_SOURCE[*]}"
}

# bats 1.11 has one without a process itself.
[[ $BATS_VERSION != 1.8.* ]] ||
    get_mills_since_epoch() {
        local now=$EPOCHREALTIME
        now=${now/[.,]/}
        echo $((10#$now / 1000))
    }

# bash may have run the DEBUG trap once more for the command that failed, with a wrong line.
bats_error_trap() {
    bats_check_status_from_trap
    local IFS=$'\n'
    if [[ ${BASH_LINENO[*]} == "$TRACE_AT" && ${BASH_SOURCE[*]} == "$TRACE_FILES" &&
        -z $BATS_DEBUG_LAST_STACK_TRACE_IS_VALID ]]; then
        TRACE_AT=$TRACE_AT0 TRACE_IN=$TRACE_IN0 TRACE_FILES=$TRACE_FILES0
    fi
    BATS_DEBUG_LAST_STACK_TRACE_IS_VALID=1
}

# bats_get_failure_stack_trace VARIABLE: an array of "LINE FUNCTION FILE", innermost first.
bats_get_failure_stack_trace() {
    local -n trace_out=$1
    local -a at in files
    local i
    [[ -n ${BATS_DEBUG_LAST_STACK_TRACE_IS_VALID:-} ]] ||
        TRACE_AT=$TRACE_AT0 TRACE_IN=$TRACE_IN0 TRACE_FILES=$TRACE_FILES0
    mapfile -t at <<<"$TRACE_AT"
    mapfile -t in <<<"$TRACE_IN"
    mapfile -t files <<<"$TRACE_FILES"
    trace_out=()
    for ((i = 1; i < ${#in[@]}; i++)); do
        trace_out+=("${at[i - 1]} ${in[i]} ${files[i]:-$BATS_TEST_SOURCE}")
        case ${in[i]} in
        "${BATS_TEST_NAME-}" | setup | setup_file | setup_suite) break ;;
        teardown | teardown_file | teardown_suite) break ;;
        esac
        [[ ${in[i]} != source || ${files[i + 1]:-} != *bats-exec-file ]] || break
    done
}
