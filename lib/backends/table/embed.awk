# embed.awk - SQL statements as C strings, without comments. Only awk: a build needs no more than a
# compiler and make.
#
#   awk -f embed.awk [-v prefix=my] FILE.sql ...
#                                    extern const char sql_FILE_NAME[]; with SQL_TEXTS, the strings
#
# "-- statement NAME" begins a statement, "-- fragment NAME" a part of some; the line "-- include
# NAME" stands for that fragment, "-- next" for the ";" and the end of the line between two parts of
# a sequence. Each other comment is a line of its own. The lines of a statement are joined by a
# space, unless --schema prints it (the name ends in "schema").

BEGIN { prefix = prefix ? prefix : "sql" }

function fail(text) {
    print FILENAME ":" FNR ": " text | "cat >&2"
    close("cat >&2")
    failed = 1
    exit 1
}

FNR == 1 {
    file = FILENAME
    gsub(/.*\/|\.sql$/, "", file)
    name = ""
}
/^-- (statement|fragment) [a-z_0-9]+$/ {
    name = $2 == "statement" ? file "_" $3 : $3
    if (name in text)
        fail($3 " is there already")
    text[name] = ""
    if ($2 == "statement")
        order[n++] = name
    next
}
/^ *-- include [a-z_0-9]+$/ {
    if (!($3 in text))
        fail("no fragment " $3 " above")
    text[name] = text[name] text[$3]
    next
}
/^-- next$/ {
    sub(/( |\\n)"\n$/, ";\\n\"\n", text[name])
    next
}
/^ *--/ || /^ *$/ { next }
name == "" { fail("no statement yet") }
{
    code = $0
    gsub(/'[^']*'/, "", code)
    if (code ~ /--|\\|\t/)
        fail("a comment behind SQL, a backslash or a tab")
    printed = name ~ /schema$/
    gsub(printed ? " +$" : "^ +| +$", "")
    gsub(/"/, "\\\"")
    text[name] = text[name] "    \"" $0 (printed ? "\\n" : " ") "\"\n"
}
END {
    if (failed)
        exit 1
    print "/* The statements of FILE.sql, made by lib/backends/table/embed.awk. */"
    for (i = 0; i < n; i++) {
        sub(/( |\\n)"\n$/, "\"", text[order[i]])
        print "extern const char " prefix "_" order[i] "[];"
    }
    print "#ifdef SQL_TEXTS"
    for (i = 0; i < n; i++)
        print "const char " prefix "_" order[i] "[] =\n" text[order[i]] ";"
    print "#endif"
}
