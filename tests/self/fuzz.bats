#!/usr/bin/env bats
# The fuzz targets (tests/fuzz) with their seeds: what they have found before stays mended. `make
# fuzz` and `make soak` look for more.

load ../support/common

# The targets read the file's locks, and say where they stopped.
@test "each fuzz target has seeds, and none of them fails" {
    local source target n
    for source in "$ROOT"/tests/fuzz/*.c; do
        target=$(basename "$source" .c)
        [ "$target" != replay ] || continue
        n=$(grep -c '^== ' "${source%.c}.seeds")
        TMPDIR=$T run timeout 20 "$BUILD/fuzzers/$target" "$BUILD/seeds/$target"
        [ "$status" -eq 0 ] && [ "${lines[-1]}" = "$n" ] && [ "$n" -gt 0 ] ||
            fail "$target: $status, $output"
    done
}
