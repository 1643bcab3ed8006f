. "$proof/tools/dlock.bash"
STORE='' DLOCK_OPTS=()
dlock_lock() { echo "$D/lock"; }
tool_about() { echo 'dlock FILE COMMAND'; }
tool_delete() { rm "$D/lock"; }
unset -f tool_guard # the command has the lock's descriptor
