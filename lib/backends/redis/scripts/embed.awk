# embed.awk - Lua scripts as C strings, without comments and needless spaces. Only awk: a build needs no more than a
# compiler, make and hiredis.
#
#   awk -f embed.awk DIR/try.lua ...            static const char lua_try[] = "..."; ...
#   awk -v plain=1 -f embed.awk DIR/try.lua     the same text as Lua, for luac
#
# The line "-- include FILE" stands for that file, named from DIR; after "-- instead of FILE: OTHER", OTHER is included
# where a script says FILE. Each line of Lua is one line of the result. Strings
# are 'single-quoted' and hold no backslash: all else is refused, because this is no parser.

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
            put(dir (line in instead ? instead[line] : line))
            continue
        }
        if (sub(/^-- instead of +/, "", line)) {
            split(line, pair, /: */)
            instead[pair[1]] = pair[2]
            continue
        }
        line = strip(line)
        if (line != "")
            print plain ? line : "    \"" line "\\n\""
    }
    if (got < 0)
        fail("cannot read " name)
    close(name)
    delete open[name]
}

BEGIN {
    TIGHT = "=~<>(){}[],+-*/"
    if (!plain)
        print "/* The Lua scripts of lib/backends/redis/scripts, made by embed.awk. */"
    for (i = 1; i < ARGC; i++) {
        name = dir = ARGV[i]
        sub(/[^\/]*$/, "", dir)
        gsub(/.*\/|\.lua$/, "", name)
        if (!plain)
            print "static const char lua_" name "[] ="
        split("", instead)
        put(ARGV[i])
        if (!plain)
            print "    \"\";"
    }
}
