. "$proof/tools/dlock.bash"
STORE=postgres
dlock_lock() { echo "postgres://postgres@$ADDR/postgres?mode=lease$DLOCK_PARAMS#$NAME"; }
tool_delete() { pgsql -c "delete from public.dlock_locks where name = '$NAME'"; }
