# The one thread there is: names are looked up in a helper (lib/resolve.c). Run under
# ThreadSanitizer too.
# bats file_tags=thread
load ../../support/redis

@test "looks up the host's name, and TERM ends a wait at once" {
    redis_start
    mkfifo "$T/held"
    start "$DLOCK" "redis://localhost:$REDIS_PORT#$NAME" sh -c 'echo >"$0"; exec sleep 60' "$T/held"
    read -r _ <"$T/held"
    start_log "$T/log" "$DLOCK" -v "redis://localhost:$REDIS_PORT#$NAME" true
    local waiter=$STARTED
    wait_for 10 file_has "$T/log" waiting
    kill -TERM "$waiter"
    exits 143 10 "$waiter"
}
