. "$proof/tools/dlock.bash"
STORE=redis
dlock_lock() { echo "redis://$ADDR$DLOCK_PARAMS#$NAME"; }
tool_delete() { rcli del "$NAME"; }
