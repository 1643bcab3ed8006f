#!/usr/bin/env bats
# public_directory.bats - named locks in a directory where any user can add files, and has added
# some.

bats_require_minimum_version 1.5.0
load ../../support/common

setup() {
    D=
    dlock_setup
    need_root
    D=$(mktemp -d /var/tmp/dlock-sticky.XXXXXX)
    chmod 1777 "$D"
    L=file://$D#a
}
teardown() {
    [ -z "$D" ] || rm -rf "$D"
    dlock_teardown
}
stranger() { setpriv --reuid=54321 --regid=54321 --clear-groups "$@"; }
refused() { # refused TEXT...: no run; the stranger's file stays
    run -65 run_t 5 "$DLOCK" -n "$L" touch ran
    assert_out "other user's file" "$D/a" "$@"
    [ ! -e ran ]
}

@test "refuses a lock file that a stranger has made" {
    stranger sh -c 'umask 0; >"$0"' "$D/a.lock"
    refused "in the place of the lock file"
    run -65 run_t 5 "$DLOCK" -n --slots 2 "$L" touch ran
    [ "$(stat -c %u "$D/a.lock")" = 54321 ]
    # The directory's owner may, and so may root.
    chown 54321 "$D"
    run -0 run_t 5 "$DLOCK" -n "$L" true
}

@test "refuses a fencing token that a stranger has made" {
    stranger sh -c 'umask 0; echo dlock-fence1 9000000000000000000 \
        0123456789abcdef0123456789abcdef >"$0"' "$D/a.fence"
    refused "in the place of the fencing token"
    run -65 run_t 5 "$DLOCK" -ns "$L" touch ran
    chown 0 "$D/a.fence"
    run -0 run_t 5 "$DLOCK" -n "$L" true
}

@test "refuses a run record that a stranger has made, without the sticky bit too" {
    local mode now
    now=$(date +%s%3N)
    for mode in 1777 0777; do
        chmod $mode "$D"
        stranger sh -c 'umask 0; echo "$1" >"$0"' "$D/a.once" "dlock-run1 succeeded 0 1 \
0123456789abcdef0123456789abcdef $now $now 86400000 dlock1 host=h pid=1"
        run -65 run_t 5 "$DLOCK" -n --once "$L" touch ran
        assert_out "other user's file a.once is in the place of the run record"
        [ ! -e ran ]
        rm "$D/a.once"
        run -0 run_t 5 "$DLOCK" -n --once "$L" true
        rm "$D/a.once"
    done
    # Those who share a group share its records.
    chmod 0775 "$D"
    run -0 run_t 5 "$DLOCK" -n --once "$L" true
    chown 54321 "$D/a.once"
    run -0 run_t 5 "$DLOCK" -n --once "$L" touch ran
    [ ! -e ran ]
}

@test "a stranger's temporary file does not stop a run" {
    local tmp
    run -0 run_t 5 "$DLOCK" -n "$L" true
    tmp=$D/.dlock-$(stat -c %i "$D/a.lock").tmp
    # Root may remove any file: as another user than the directory's owner and the stranger.
    rm "$D"/a.*
    install -m 755 "$DLOCK" "$D/dl"
    user() { run_t 5 setpriv --reuid=54322 --regid=54322 --clear-groups "$@"; }
    run -0 user "$D/dl" -n "$L" true
    tmp=$D/.dlock-$(stat -c %i "$D/a.lock").tmp
    stranger touch "$tmp"
    run -0 user "$D/dl" -n --once "$L" true
    run -0 user "$D/dl" -n --once "$L" touch ran
    [ ! -e ran ]
    [ "$(stat -c %u "$tmp")" = 54321 ]
    [ "$(ls -A "$D")" = "$(printf '%s\n' "${tmp##*/}" a.fence a.lock a.once dl)" ]
    # A directory of that name does not either, nor for root.
    rm "$tmp"
    mkdir "$tmp"
    run -0 user "$D/dl" -n "$L" true
}
