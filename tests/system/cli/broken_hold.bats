#!/usr/bin/env bats
# broken_hold.bats - what the keeper does when its store says that another process has broken the
# hold: the command's tree ends as for a loss, whatever --on-lost says, and the lock is free only
# then.

# bats file_tags=long
load ../../support/fake

said_broken() {
    local line="the lock '$NAME' was broken by root@db1, note \"stuck\"; ending the command"
    [ "$(cat "$T/out")" = "dlock: fake://$S: $line" ] || fail "$(cat "$T/out")"
}

# told_of_mark [SECS]: $MARKED: when the store told of the mark for the first time (ns).
told_of_mark() {
    wait_for "${1:-5}" store_did broken
    MARKED=$(at broken)
}

@test "a broken hold ends by TERM now and KILL after the grace, renewed until the release" {
    starts 4 --ttl 3 --grace 900ms "$L" $SUBJECT -t -k
    tell renew broken
    told_of_mark
    ends_with 79
    said_broken
    for who in main child session daemon; do
        just_after "$MARKED" "$(seen $who sig 15)" 250 "TERM for $who"
        [ "$(count_seen $who sig 15)" = 1 ]
    done
    just_after $((MARKED + 700 * NS)) "$(last_beat)" 450 "last sign of life"
    [ "$(last_beat)" -lt "$(at release)" ]
    [ -n "$(at broken 2)" ]
    store_did clean
    settle 1
}

@test "a command that obeys TERM costs no grace, nor the rest of --min-hold" {
    starts 1 --ttl 9 --min-hold 1h "$L" $SUBJECT
    tell renew broken
    told_of_mark 12
    ends_with 79
    assert_between "$MARKED" "$(at release)" $((MARKED + 1000 * NS)) release
    [ ! -e "$S/held" ]
}

@test "--on-lost warn and kill: a broken hold ends the command with 79 as well" {
    starts 4 --ttl 3 --grace 500ms --on-lost warn "$L" $SUBJECT -t -k
    tell renew broken
    told_of_mark
    ends_with 79
    said_broken
    just_after "$MARKED" "$(seen main sig 15)" 250 TERM
    just_after $((MARKED + 300 * NS)) "$(last_beat)" 450 "last sign of life"
    [ "$(last_beat)" -lt "$(at release)" ]
    rm -f "$S"/*
    starts 4 --ttl 3 --on-lost kill "$L" $SUBJECT -t -k
    tell renew broken
    told_of_mark
    ends_with 79
    said_broken
    [ "$(count_seen main sig 15)" = 0 ]
    just_after "$MARKED" "$(at release)" 500 release
}

@test "a set is lost whole when one of its locks is broken" {
    local other=$T/other
    mkdir "$other"
    starts 1 --ttl 3 --also "fake://$other#z-$NAME" "$L" $SUBJECT
    echo broken >"$other/renew"
    ends_with 79
    file_has "$T/out" "the lock 'z-$NAME' was broken by root@db1"
    store_did clean
    grep -q '^clean' "$other/log"
}

@test "an inner dlock ends with the outer one that is broken" {
    starts 1 --ttl 3 "$L" "$DLOCK" "$L" $SUBJECT
    tell renew broken
    told_of_mark
    ends_with 79
    [ "$(count_seen main sig 15)" = 1 ]
    [ "$(last_beat)" -lt "$(at release)" ]
}
