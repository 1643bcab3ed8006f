# The file store for the contract suite: the embedded default's form, dir#name.
STORE_LEASE='' STORE_FIFO='' STORE_FENCE=1 STORE_TELLS=fence STORE_TURNS=50
store_up() { :; }
store_down() { :; }
store_lock() { mkdir -p "$T/locks" && echo "file://$T/locks#$1"; }
# Nothing but the lock file and the fence may stay, and nobody may hold it.
store_clean() { flock -n "$T/locks/$1.lock" true; }
