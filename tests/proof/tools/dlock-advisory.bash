. "$proof/tools/dlock.bash"
STORE=postgres
dlock_lock() { echo "postgres://postgres@$ADDR/postgres$DLOCK_PARAMS#$NAME"; }
# The lock is its holder's session.
tool_delete() { pgsql -c 'select pg_terminate_backend(pid) from pg_locks
    where locktype = '\''advisory'\'' and granted and mode = '\''ExclusiveLock'\'; }
