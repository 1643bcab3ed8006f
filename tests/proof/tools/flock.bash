# flock(1) of util-linux, on the same machine.
STORE=''
tool_about() { echo 'flock FILE COMMAND'; }
tool_version() { flock --version; }
tool_run() { exec ${VIA[@]+"${VIA[@]}"} flock "$D/lock" "${@:2}"; }
# In /proc/locks a line of a waiter has "->" behind its number.
tool_waiting() {
    grep -qE -- "-> FLOCK .* $(wrapper_pid "$1") .*:$(stat -c %i "$D/lock") " /proc/locks
}
wrapper_pid() { local -n wrapper=${1}_PID; echo "$wrapper"; }
tool_delete() { rm "$D/lock"; }
