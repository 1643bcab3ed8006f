# check.bash - --check of locks in Redis and Redlock. Load after common.bash.

SECRET=c4n4ry

# check RC ARG...: --check ends so, and tells no secret.
check() {
    run "-$1" --separate-stderr run_t 15 "$DLOCK" --check "${@:2}"
    refute_out "$SECRET"
    [[ $stderr != *"$SECRET"* ]] || fail "$stderr"
}
quiet() {
    [ -z "$(grep -v '^ok ' <<<"$output")" ] || fail "complains: $output"
    [ -z "$stderr" ] || fail "$stderr"
}
