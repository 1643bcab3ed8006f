# One PostgreSQL server.
store_missing() { [ -x "$PG_BIN/initdb" ] || echo 'no PostgreSQL server is installed'; }
store_version() { "$PG_BIN/postgres" --version | sed 's/postgres (PostgreSQL)/PostgreSQL/'; }
store_up() { pg_start && ADDR=127.0.0.1:$PG_PORT; }
store_pids() { echo "$PG_PID" $(children "$PG_PID"); }
store_restart() {
    case $1 in
    keep) pg_restart default fast ;;
    lose)
        pg_end QUIT default
        rm -rf "$PG_DIR" && cp -a "$PG_TEMPLATE" "$PG_DIR" && pg_launch default &&
            PG_PID=${PG_PIDS[default]}
        ;;
    esac
}
