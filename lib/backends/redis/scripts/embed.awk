# embed.awk - Lua scripts as C strings with their SHA-1, without comments and needless spaces. Only awk and
# sha1sum: a build needs no more than a compiler, make and hiredis.
#
#   awk -f embed.awk DIR/try.lua ...            static const struct lua lua_try = {"...", "SHA-1"}; ...
#   awk -v plain=1 -f embed.awk DIR/try.lua     the same text as Lua, for luac
#
# The line "-- include FILE" stands for that file, named from DIR. Each line of Lua is one line of the
# result. Strings are 'single-quoted' and hold no backslash: all else is refused, because this is no parser.

function fail(text) {
    print file ":" at ": " text | "cat >&2"
    close("cat >&2")
    exit 1
}

# Code between two strings.
function squeeze(code,    i, c) {
    if (code ~ /["'\\]|\[\[|\[=/)
        fail("only strings in single quotes, on one line, without a backslash")
    if (code ~ /- -/)
        fail("'- -' would become a comment")
    gsub(/[ \t]+/, " ", code)
    gsub(/ \.\. /, "..", code)
    for (i = 1; i <= length(TIGHT); i++) {
        c = substr(TIGHT, i, 1)
        gsub(" ?[" c "] ?", c, code)
    }
    gsub(/^ | $/, "", code)
    return code
}

function strip(line,    out, token) {
    out = ""
    while (match(line, /'[^'"\\]*'|--/)) {
        token = substr(line, RSTART, RLENGTH)
        out = out squeeze(substr(line, 1, RSTART - 1))
        line = substr(line, RSTART + RLENGTH)
        if (token == "--") {
            if (line ~ /^\[/)
                fail("only comments of one line")
            line = ""
            break
        }
        out = out token
    }
    return out squeeze(line)
}

function put(name,    line, n, got) {
    if (name in open)
        fail(name " includes itself")
    open[name]
    n = 0
    while ((got = (getline line < name)) > 0) {
        file = name
        at = ++n
        if (sub(/^ *-- include +/, "", line)) {
            put(dir line)
            continue
        }
        line = strip(line)
        if (line == "")
            continue
        text = text line "\n"
        print plain ? line : "    \"" line "\\n\""
    }
    if (got < 0)
        fail("cannot read " name)
    close(name)
    delete open[name]
}

# The SHA-1 of text goes to our output, behind what is there.
function print_sha1() {
    system("") # flushes
    printf "%s", text | SHA1
    if (close(SHA1) != 0)
        fail("sha1sum does not work")
}

BEGIN {
    SHA1 = "set -e; sum=$(sha1sum); printf '    , \"%.40s\"};\\n' \"$sum\""
    TIGHT = "=~<>(){}[],+-*/"
    if (!plain)
        print "/* The Lua scripts of lib/backends/redis/scripts, made by embed.awk. */"
    for (i = 1; i < ARGC; i++) {
        name = dir = ARGV[i]
        sub(/[^\/]*$/, "", dir)
        gsub(/.*\/|\.lua$/, "", name)
        if (!plain)
            print "static const struct lua lua_" name " = {"
        text = ""
        put(ARGV[i])
        if (!plain)
            print_sha1()
    }
}
