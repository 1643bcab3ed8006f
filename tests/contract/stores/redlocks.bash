# Three independent Redis servers for the contract suite, with TLS only: the twin of redlock.bash.
# bats file_tags=contract,slow
load "$SUPPORT/redis"
load "$SUPPORT/redlock"
load "$SUPPORT/tls"
load "$SUPPORT/redlocks"
STORE_LEASE=1 STORE_FIFO='' STORE_FENCE=1 STORE_TELLS='fence left'
STORE_SHARED=1 STORE_TURNS=1 STORE_TWIN=1 STORE_ONCE=1 STORE_STAYS=1
store_up() { tls_certs && rls_start 3; }
store_down() { rl_stop_file; }
store_lock() { rls_uri "$1"; }
store_clean() { nothing_left; }
