# chroot.bash - a chroot of a Debian release, for tests/release and tests/deb. It stands in the
# folder $dir; $root is the chroot that the functions work in.
#
#     chroot_prepare RELEASE    ends the program with 77 and "not run: WHY" if this machine cannot
#     chroot_folder [FOLDER]    sets $dir: FOLDER, which stays, or a new one that is removed
#     chroot_make RELEASE       a minimal system in $root
#     copy_tree                 the files that git knows, to $place of the chroot
#     chroot_user               the ordinary user $visitor there, who may use sudo
#     inside SECONDS COMMANDS   bash runs them in $place of the chroot
#     login USER SECONDS COMMANDS        the same, by a login of that user
#     apart SECONDS CMD...      CMD in namespaces of its own, on this system
#     must CMD...               its output is in $log, shown if it fails, which ends the program

not_run() {
    echo "not run: $*"
    exit 77
}

chroot_prepare() {
    local var release=$1
    [ "$(id -u)" -eq 0 ] || not_run "only root can make a chroot"
    tests/deps release || not_run "debootstrap cannot be installed"
    command -v debootstrap >/dev/null || not_run "debootstrap is not installed"
    [ -e "/usr/share/debootstrap/scripts/$release" ] ||
        not_run "this debootstrap does not know $release"
    unshare --mount --pid --fork true 2>/dev/null || not_run "no new mount and PID namespaces here"
    # The machine's own mirror of Debian; not that of security updates, which is no whole release.
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' 'Label: Debian' \
        'Component: main' 2>/dev/null | sed -n 1p)
    [ -n "$mirror" ] || not_run \
        "the apt sources of this machine name no mirror of Debian (or: apt-get update)"
    # debootstrap and wget take a proxy from the environment only.
    eval "$(apt-config shell http_proxy Acquire::http::Proxy https_proxy Acquire::https::Proxy)"
    for var in http_proxy https_proxy; do
        [ -z "${!var:-}" ] || export "${var?}"
    done
    timeout 60 wget -q -T 20 -t 2 -O /dev/null "${mirror%/}/dists/$release/Release" ||
        not_run "the mirror has no $release, or does not answer"
}

# ------------------------------------------------------------------ apart ---

child=''
chroot_clean_up() {
    trap '' HUP INT TERM
    # timeout leads a group of its own; with unshare all in its namespaces dies, mounts too.
    [ -z "$child" ] || kill -KILL -- "-$child" 2>/dev/null
    [ -z "$kept" ] && [ -n "$dir" ] || return
    # What has been killed may take a moment to end.
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        rm -rf --one-file-system "$dir" 2>/dev/null && return
        sleep 0.5
    done
    rm -rf --one-file-system "$dir"
}

chroot_folder() {
    dir=${1:-}
    kept=$dir
    trap chroot_clean_up EXIT
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM
    if [ -z "$dir" ]; then
        dir=$(mktemp -d "${TMPDIR:-/tmp}/dlock-chroot.XXXXXX") || exit 73
    else
        mkdir -p "$dir" || exit 73
        dir=$(cd "$dir" && pwd) || exit 73
    fi
    root=$dir/root log=$dir/log
}

# Mounts are seen nowhere else, and nothing of it outlives it. The shell that waits for CMD is
# process 1 there, and reaps what loses its parent.
apart() {
    local limit=$1 rc=0
    shift
    set -m
    timeout -s KILL "$limit" unshare --mount --pid --fork --kill-child=KILL --mount-proc \
        bash -c '"$@"; exit $?' - "$@" </dev/null &
    child=$!
    set +m
    wait "$child" || rc=$?
    child=''
    [ "$rc" -ne 137 ] || echo "ended after $limit s: $*" >&2
    return "$rc"
}

# The chroot is the root of their namespace: in a mere chroot(2) nobody may make further namespaces,
# as some tests do.
# shellcheck disable=SC2016 # the inner shells expand these
inside() {
    apart "$1" bash -c '
        cd "$1" && shift &&
            mount --bind . . && cd "$PWD" && mount -t proc proc proc &&
            mount --rbind /sys sys && mount --rbind /dev dev &&
            pivot_root . mnt && umount -l /mnt && exec env -i "$@"' - "$root" \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \
        TERM=dumb \
        ${http_proxy:+"http_proxy=$http_proxy"} ${https_proxy:+"https_proxy=$https_proxy"} \
        bash -c "cd $place && { $2
        }"
}
visitor=visitor
chroot_user() {
    inside 300 "
        id $visitor 2>/dev/null || useradd -m -s /bin/bash $visitor
        command -v sudo ||
            { apt-get update && apt-get install -y --no-install-recommends sudo; } || exit
        echo '$visitor ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/$visitor"
}
# Its tests count in $DLOCK_TALLY.
login() {
    local vars='' var rc=0
    for var in DLOCK_STRICT DLOCK_QUICK DLOCK_SLOW TEST_JOBS; do
        [ -z "${!var:-}" ] || vars+="export $var=${!var}; "
    done
    [ -z "${DLOCK_TALLY:-}" ] || vars+="export DLOCK_TALLY=/tally; "
    : >"$root/tally" && chmod 666 "$root/tally" &&
        printf '%scd %s && {\n%s\n}\n' "$vars" "$place" "$3" >"$root/commands" || return
    inside "$2" "su - $1 -c 'bash /commands'" || rc=$?
    [ -z "${DLOCK_TALLY:-}" ] || cat "$root/tally" >>"$DLOCK_TALLY"
    return "$rc"
}
# In strict mode every command's exit code counts.
must() {
    "$@" >"$log" 2>&1 && return
    tail -n 40 "$log" >&2
    echo "failed: $*" >&2
    exit 1
}

# The files as they are now; what was built of an earlier copy stays.
copy_tree() {
    mkdir -p "$root$place" || return
    find "$root$place" -mindepth 1 -maxdepth 1 ! -name build -exec rm -rf {} +
    git ls-files -z | while IFS= read -r -d '' f; do
        [ ! -e "$f" ] && [ ! -L "$f" ] || printf '%s\0' "$f"
    done | tar -c --null -T - | tar -x -C "$root$place" --no-same-owner
}

chroot_make() {
    rm -rf --one-file-system "$root"
    must apart 900 debootstrap --variant=minbase "$1" "$root" "$mirror"
    # How this machine reaches its mirror, and nothing that a test does not need.
    {
        apt-config dump | grep -E '^Acquire::(.*Proxy|Check-|Retries)'
        echo 'Acquire::Languages "none";'
    } >"$root/etc/apt/apt.conf.d/90dlock"
    echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/dlock"
    : >"$root/.made"
}
