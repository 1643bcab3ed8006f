#!/usr/bin/env bats
# make hands its own environment on to each recipe, and so to each test.

# bats file_tags=plain
load ../support/common

# A variable that the Makefile sets under such a name would replace the caller's in each recipe.
@test "a recipe has the variables of the caller as they were" {
    local -a caller=(CFLAGS='-O1 -DX="a b"' CI=1 DISPLAY=:7 EDITOR=ed HOME="$T" HOST=h
        HOSTNAME=h.example LANG=C LD_LIBRARY_PATH="$T" LDFLAGS=-s LINES=24 LOGNAME=somebody
        MAIL="$T/mail" MANPATH="$T/man" NAME=n PAGER=cat PATH="$PATH" SHELL=/bin/dash SHLVL=3
        TERM=dumb TMPDIR="$T" TZ=Asia/Tokyo USER='some body' USERNAME=somebody)
    # --eval adds a target to the Makefile of the tree.
    (cd "$ROOT" && env -i "${caller[@]}" "${MAKE:-make}" -s BUILD="$T/build" \
        --eval='show: ; @env -0' show) >all
    tr '\0' '\n' <all | grep -vE '^(BUILD|MAKE[A-Z_]*|MFLAGS|PWD)=' | sort >got
    printf '%s\n' "${caller[@]}" | sort >want
    diff want got || fail "another environment"
}
