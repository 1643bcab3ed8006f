#!/usr/bin/env bats
# default_store.bats - the store of "@name" in a file, and in the environment of a user whom sudo
# made root.

load ../../support/common

# name_of: the directory in which "@name" is, by the message of -v.
name_of() {
    run -0 run_t 5 "$@" -v "@$NAME" true
    [[ $output == *"the lock is the file "*"/$NAME.lock"* ]]
    NAME_OF=${output#*the lock is the file }
    NAME_OF=${NAME_OF%%/"$NAME".lock*}
}

@test "without variables the store is in /etc/dlock/store" {
    need_mounts
    mkdir dir
    # etc COMMAND...: with an /etc of our own
    cat >etc <<'EOT'
#!/bin/sh
[ -n "$INSIDE" ] || INSIDE=1 exec unshare -m --propagation private "$0" "$@"
mount -t tmpfs none /etc && mkdir /etc/dlock && cp store /etc/dlock/store &&
    chmod "$MODE" /etc/dlock/store && exec "$@"
EOT
    chmod +x etc
    echo "$T/dir" >store
    unset DLOCK_STORE_FILE
    MODE=644 name_of ./etc "$DLOCK"
    [ "$NAME_OF" = "$T/dir" ]
    [ "$(MODE=644 run_t 5 ./etc "$DLOCK" --print-names)" = "@$NAME" ]
    # Also for sudo, and whatever its parameters name: the file is root's.
    SUDO_UID=1000 MODE=644 name_of ./etc "$DLOCK"
    [ "$NAME_OF" = "$T/dir" ]
    MODE=666 run -77 run_t 5 ./etc "$DLOCK" "@$NAME" touch ran
    assert_out "/etc/dlock/store" "go-w"
    DLOCK_STORE_FILE= MODE=666 run -0 run_t 5 ./etc "$DLOCK" --print-names
    [ ! -e ran ]
}

@test "root takes no parameter that names a file from a user's environment" {
    need_root
    export SUDO_UID=1000
    DLOCK_STORE="postgres://127.0.0.1:1/x?sslkey=$T/x:y" \
        run -77 run_t 5 "$DLOCK" "@$NAME" touch ran
    assert_out "DLOCK_STORE" "sslkey" "/etc/dlock/store"
    # The script's own URI may have them.
    run -69 run_t 5 "$DLOCK" "postgres://127.0.0.1:1/x?sslcert=$T/x#$NAME" touch ran
    mkdir dir
    DLOCK_STORE=$T/dir name_of "$DLOCK"
    [ ! -e ran ]
}
