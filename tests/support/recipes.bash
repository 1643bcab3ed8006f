# recipes.bash - the recipes of dlock-recipes(7) and dlock-migrating(7), taken out of the pages and
# run as they stand there.
#
#     load ../../support/recipes       one Redis server for the file, the recipes' store
#     recipe NAME                      writes the recipe into the file NAME
#     program NAME [COMMANDS]          a program of the user, $T/bin/NAME or, with a slash, ./NAME:
#                                      it adds its name and arguments to the file ran, then runs
#                                      COMMANDS; ran N: N programs have begun
#     at_a_time                        COMMANDS that fail when they run twice at a time under a lock
#     yaml FILE EXPRESSION             Python's, of the document d; a list is one word a line
#
# Only the names of hosts, the ports and the paths of a server are replaced. $T/bin, which has dlock
# too, stands for /usr/local/bin, $T/etc for /etc/dlock.

source "${BASH_SOURCE[0]%/*}/redis.bash"

setup_file() { redis_start; }
teardown_file() { redis_stop; }
setup() {
    dlock_setup
    mkdir -p bin etc
    ln -s "$DLOCK" bin/dlock
    PATH=$T/bin:$PATH
    STORE=redis://127.0.0.1:$REDIS_PORT
    rcli flushall >/dev/null
    : >ran
}

# recipe_text NAME: the recipe as a reader of the page sees it.
recipe_text() {
    sed -n "/^\.\\\\\" recipe $1 /,/^\.Ed/{/^\./d; s/^\\\\&//; s/\\\\e/\\\\/g; p}" \
        "$ROOT"/man/dlock-{recipes,migrating}.7
}
recipe() {
    recipe_text "$1" |
        sed "s,\([@/]\)\(db1\|redis\)\([?#]\|\$\),\1127.0.0.1:$REDIS_PORT\3,
            s,/etc/dlock/,$T/etc/,; s,/usr/local/bin,$T/bin," >"$1"
    [ -s "$1" ] || fail "no page has a recipe $1"
}

program() {
    local file=bin/$1
    [[ $1 != */* ]] || file=$1
    mkdir -p "${file%/*}"
    printf '%s\n' '#!/bin/bash' "echo '${1##*/}' \"\$@\" >>'$T/ran'" "${2:-}" >"$file"
    chmod 755 "$file"
}
ran() { [ "$(wc -l <"$T/ran")" -eq "$1" ]; }

yaml() {
    /usr/bin/python3 -c 'import sys, yaml
d = yaml.safe_load(open(sys.argv[1]))
v = eval(sys.argv[2])
print(*(v if isinstance(v, list) else [v]), sep="\n")' "$@"
}

at_a_time() { echo "one='$T/one-'\$DLOCK_NAME; mkdir \$one || exit 9; sleep 0.1; rmdir \$one"; }
