. "$proof/tools/dlock.bash"
STORE=redlock
dlock_lock() { echo "redlock://$ADDR$DLOCK_PARAMS#$NAME"; }
tool_delete() { on_all del "$NAME"; }
