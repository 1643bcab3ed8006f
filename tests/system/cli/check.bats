#!/usr/bin/env bats
# check.bats - --check on the scripted store: lines, JSON and exit codes.

load ../../support/fake

finds() { printf '%s\n' "$@" >"$S/findings"; }
checks() { run "-$1" --separate-stderr run_t 5 "$DLOCK" --check "${@:2}" "$L"; }

@test "findings are told in their order, and the worst one decides" {
    finds "ok log-in: as ann"
    checks 0
    [ "${lines[0]}" = "ok       log-in: as ann" ]
    trip='^ok {7}round trip: [0-9.]+ ms least, [0-9.]+ ms median, [0-9.]+ ms most$'
    [[ ${lines[1]} =~ $trip ]] || fail "$output"
    finds "ok log-in: as ann" "warning clock: 9 s behind; set it" "ok version: 7"
    checks 1
    [ "${lines[1]}" = "warning  clock: 9 s behind; set it" ]
    finds "warning clock: late; set it" "failure right: none to write; grant it" "ok version: 7"
    checks 77
    [ "${#lines[@]}" = 3 ] || fail "$output"
    [ "${lines[1]}" = "failure  right: none to write; grant it" ]
    [ -z "$stderr" ]
}

@test "a store that is away is a failure" {
    tell ask away
    checks 69
    [[ $output == "failure  fake://$S: told to be away"* ]] || fail "$output"
    checks 69 --json
    [[ $output == *'"findings":[{"level":"failure","text":"fake://'*'"}],"result":"failure"}' ]] ||
        fail "$output"
    [ -z "$stderr" ]
}

@test "--json has all findings" {
    finds "ok a: b" "warning c: \"d\"; e"
    checks 1 --json
    [[ $output == '{"schema":1,"lock":"'"$NAME"'","store":"fake://'"$S"'","findings":['* ]]
    assert_out '{"level":"ok","text":"a: b"},{"level":"warning","text":"c: \"d\"; e"},' \
        ',{"level":"ok","text":"round trip: '
    [[ $output == *'],"result":"warning"}' ]]
}

@test "findings hide secrets and control characters" {
    finds "warning log-in: for redis://:canary@h failed with ?password=canary; see x://u:canary@x"
    checks 1
    refute_out canary
    assert_out "redis://***@h"
}

@test "a round trip that is long against the ttl is warned of" {
    finds "ok a: b"
    tell ask slow
    checks 1 --ttl 1 --grace 10ms
    trip='^warning  round trip: .* ms most; use a --ttl of [0-9]+s or more$'
    [[ ${lines[1]} =~ $trip ]] || fail "$output"
}
