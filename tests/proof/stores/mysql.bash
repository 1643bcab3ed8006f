# One MariaDB server.
store_missing() { [ -x "$MY_SERVER" ] || echo 'no MariaDB server is installed'; }
store_version() { "$MY_SERVER" --version | sed -n 's/.*Ver \([^ ]*\).*/MariaDB \1/p'; }
store_up() { my_start && ADDR=127.0.0.1:$MY_PORT; }
store_pids() { echo "${MY_PIDS[default]}"; }
store_restart() {
    case $1 in
    keep) my_restart default stop ;;
    lose) my_stop && my_forget default && MY_PID=${MY_PIDS[default]} ;;
    esac
}
