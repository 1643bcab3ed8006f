# The Lua scripts of a lock in Redis: how they are embedded, and how `make lint` checks them.

# bats file_tags=plain
load ../support/common

setup() {
    dlock_setup
    cp -r "$ROOT/lib/backends/redis/scripts" "$T/scripts"
    cd "$T/scripts" || return
}

# embed FILE: as Lua.
embed() { run awk -v plain=1 -f embed.awk "./$1"; }

@test "embed.awk: comments and needless spaces go, strings and lines stay" {
    printf '%s\n' '-- head' 'local a, b = 1 + 2,  f(x) -- it'"'"'s' '' \
        "  if a == 'x -- y  ,' then return { b } end" >part.lua
    printf '%s\n' '-- include part.lua' "return 'a' .. b" >some.lua
    embed some.lua
    assert_rc 0
    [ "$output" = "local a,b=1+2,f(x)
if a=='x -- y  ,'then return{b}end
return'a'..b" ] || fail "$output"
    run awk -f embed.awk ./some.lua
    [ "${lines[1]}" = 'static const struct lua lua_some = {' ]
    [ "${lines[2]}" = '    "local a,b=1+2,f(x)\n"' ] || fail "$output"
}

@test "embed.awk: refuses what it would spoil, with file and line" {
    for line in 'x = "a"' 'x = [[a]]' 'x = 1 --[[ a ]]' "x = 'a" "x = 'a\\n'" 'x = 1 - -1' \
        '-- include nowhere.lua' \
        '-- include bad.lua'; do
        printf '%s\n' 'local x' "$line" >bad.lua
        embed bad.lua
        [ "$status" -ne 0 ] || fail "accepted: $line: $output"
        assert_out "./bad.lua:2: "
    done
}

@test "tests/lint-lua: finds a syntax error, and a misspelt name" {
    command -v luac5.1 >/dev/null || skip "needs luac5.1"
    run -0 "$ROOT/tests/lint-lua" ./*.lua ./parts/*.lua
    sed -i 's/^grant = /grnt = /' vote.lua
    run -1 "$ROOT/tests/lint-lua" ./vote.lua
    assert_out "grnt"
    echo 'if' >parts/near.lua
    run -1 "$ROOT/tests/lint-lua" ./parts/near.lua
}
