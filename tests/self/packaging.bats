#!/usr/bin/env bats
# The version, the tarball, and what the Debian packages say about the tree; tests/deb builds them.

# bats file_tags=plain
load ../support/common

# A variable of the Makefile, of which make VARIABLE=... may set others.
makefile() { # NAME [VARIABLE=VALUE...]
    local name=$1
    shift
    env -u MAKEFLAGS -u BUILD_ID "${MAKE:-make}" -s --no-print-directory \
        --eval="show: ; @printf '%s\n' \$($name)" "$@" show
}
version() { sed -n 's/^#define DLOCK_VERSION "\(.*\)"/\1/p' "$ROOT/lib/dlock.h"; }

@test "the version stands in dlock.h, and NEWS.md begins with it" {
    local major minor patch
    IFS=. read -r major minor patch < <(version)
    [[ $major$minor$patch =~ ^[0-9]+$ ]] || fail "DLOCK_VERSION is $(version)"
    grep -q "^#define DLOCK_VERSION_NUMBER $(printf '0x%02d%02d%02d' "$major" "$minor" "$patch") " \
        "$ROOT/lib/dlock.h" || fail "DLOCK_VERSION_NUMBER is another one"
    run sed -n '/^## /{s/^## \([0-9.]*\).*/\1/p;q}' "$ROOT/NEWS.md"
    assert_out "$(version)"
    run grep -rnF "$(version)" "$ROOT/Makefile" "$ROOT/packaging" "$ROOT/cli" "$ROOT/tmpfiles" \
        --include='*' --exclude=libdlock0.symbols
    [ -z "$output" ] || fail "the version again: $output"
}

# clone NAME: of the last commit.
clone() { git clone -q --no-hardlinks "$ROOT" "$1"; }
need_git() { git -C "$ROOT" rev-parse HEAD >/dev/null 2>&1 || skip "git does not answer here"; }

@test "the build id is the version alone at a clean tag" {
    need_git
    export GIT_AUTHOR_NAME=x GIT_AUTHOR_EMAIL=x GIT_COMMITTER_NAME=x GIT_COMMITTER_EMAIL=x
    clone a
    cp "$ROOT"/Makefile a
    cp "$ROOT"/tests/tests.mk a/tests
    cd a
    git commit -q --allow-empty -am x
    [[ $(makefile BUILD_ID) == "$(version)+"* ]] || fail "without a tag: $(makefile BUILD_ID)"
    git tag "v$(version)"
    [ "$(makefile BUILD_ID)" = "$(version)" ] || fail "at the tag: $(makefile BUILD_ID)"
    echo >>NEWS.md
    [[ $(makefile BUILD_ID) == "$(version)+"*-dirty ]] || fail "changed: $(makefile BUILD_ID)"
    git commit -q -am y
    [[ $(makefile BUILD_ID) == "$(version)+"* ]] || fail "after the tag: $(makefile BUILD_ID)"
    mv .git ../gone
    [ "$(makefile BUILD_ID)" = "$(version)" ] || fail "without git: $(makefile BUILD_ID)"
    [ "$(makefile BUILD_ID BUILD_ID=1-2~deb12u1)" = 1-2~deb12u1 ] || fail "not a package's version"
}

@test "make dist has the same bytes in two clones" {
    need_git
    local dir
    clone a
    clone b
    (cd b && find . -path ./.git -prune -o -type f -exec touch -d 2020-01-01 {} + &&
        git config tar.umask 0077)
    umask 077
    for dir in a b; do
        cp "$ROOT/Makefile" "$dir"
        (cd "$dir" && makefile VERSION BUILD=build dist)
    done
    (cd a/build && sha256sum -c --quiet dlock-*.tar.xz.sha256) || fail "another checksum"
    cmp a/build/dlock-"$(version)".tar.xz b/build/dlock-"$(version)".tar.xz || fail "other bytes"
    tar -tf a/build/dlock-"$(version)".tar.xz "dlock-$(version)/lib/dlock.h" ||
        fail "another folder"
}

# Debian's packages list files by patterns, as dh_install reads them.
patterns() { grep -H . "$ROOT"/packaging/debian/*.install | sed 's|.*/\(.*\)\.install:|\1 |'; }
# What `make install` makes for the packages. (uninstall removes the same; tests/install holds it.)
installed() {
    local places
    places=$(sed -n 's/$(DEB_HOST_MULTIARCH)/x86_64-linux-gnu/; s/^PLACES +\?= //p' \
        "$ROOT/packaging/debian/rules")
    # shellcheck disable=SC2086 # words
    cd "$ROOT" && makefile INSTALLED $places
}

@test "each installed file is in one package, and each pattern has a file" {
    local f package pattern owners used=''
    (installed) >files
    [ "$(wc -l <files)" -ge 13 ] || fail "make install has too few files: $(cat files)"
    while read -r f; do
        owners=''
        while read -r package pattern; do
            # shellcheck disable=SC2053 # a pattern
            [[ $f == /$pattern ]] || continue
            owners+=" $package"
            used+="$package $pattern"$'\n'
        done < <(patterns)
        [ "$(wc -w <<<"$owners")" -eq 1 ] || fail "$f is in these packages: ${owners:-none}"
    done <files
    run comm -23 <(patterns | sort -u) <(sort -u <<<"$used")
    [ -z "$output" ] || fail "no file for: $output"
}

@test "each package of packaging/debian is known, and installs where dlock looks" {
    run comm -3 <(sed -n 's/^Package: //p' "$ROOT/packaging/debian/control" | sort) \
        <(patterns | cut -d ' ' -f 1 | sort -u)
    [ -z "$output" ] || fail "control and *.install differ: $output"
    # The packages that dlock's messages name.
    run comm -13 <(sed -n 's/^Package: //p' "$ROOT/packaging/debian/control" | sort) \
        <(grep -rohE '"dlock-[a-z]+"' "$ROOT/lib/registry.c" "$ROOT/lib/tls" | tr -d '"' | sort -u)
    [ -z "$output" ] || fail "no such package: $output"
    grep -q "^deb)" "$ROOT/tests/deps" || fail "tests/deps has no deb"
}

@test "the symbols file lists all functions of the library" {
    run diff <(sed -n 's/^\t\(dlock_[a-z_]*\);$/\1/p' "$ROOT/lib/libdlock.map") \
        <(sed -n 's/^ \(dlock_[a-z_]*\)@LIBDLOCK_0 .*/\1/p' \
            "$ROOT/packaging/debian/libdlock0.symbols")
    [ -z "$output" ] || fail "libdlock.map and libdlock0.symbols differ: $output"
}
