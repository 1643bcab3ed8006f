. "$proof/tools/dlock.bash"
STORE=mysql
dlock_lock() { echo "mysql://dl:pw@$ADDR/app$DLOCK_PARAMS#$NAME"; }
tool_delete() { mysql -e "DELETE FROM dlock_locks WHERE name = '$NAME'" app; }
