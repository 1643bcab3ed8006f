#!/usr/bin/env bats
# Tests of `make proof`: its checker sees two commands that run at once. planted.bats has a dlock
# without a guard.

load ../support/common

# lives LINE...: a cell that is over, whose watcher saw these processes.
lives() {
    mkdir -p cell
    echo ok >cell/outcome
    echo '1000000000 fault' >cell/events
    printf '%s\n' "$@" >cell/lives
}
# finds WANT: the checker's value of "overlap" or "reason".
finds() {
    run run_t 5 "$ROOT/tests/proof/check.py" cell
    assert_rc 0 && assert_out "$1"
}

@test "proof: the overlap is that of all processes of both commands" {
    lives '0 begin A wrapper 1' '1000000000 begin A command 2' '1100000000 begin A grandchild 3' \
        '2000000000 end A command 2' '2500000000 begin B command 4' '2600000000 end A wrapper 1' \
        '3000000000 end A grandchild 3' '5000000000 end B command 4'
    finds '"overlap": 0.5,'
    lives '1000000000 begin A command 2' '2000000000 end A command 2' \
        '2000000000 begin B command 4' '5000000000 end B command 4'
    finds '"overlap": 0.0,'
    # A process that was never seen to end lives.
    lives '1000000000 begin A command 2' '2000000000 begin B command 4' \
        '5000000000 end B command 4'
    finds '"overlap": 3.0,'
}

@test "proof: a command on a frozen machine does not run" {
    lives '1000000000 begin A command 2' '3000000000 begin B command 4' \
        '5100000000 end A command 2' '6000000000 end B command 4'
    printf '%s\n' '2000000000 frozen' '5000000000 thawed' >>cell/events
    finds '"overlap": 0.1,'
}

@test "proof: what a process writes after its end is an error" {
    lives '1000000000 begin A command 2' '2000000000 end A command 2' \
        '2500000000 begin B command 4' '5000000000 end B command 4'
    printf '%s\n' '1500000000 2 A' '2600000000 4 B' >cell/witness
    finds '"outcome": "ok"'
    echo '2700000000 2 A' >>cell/witness
    finds 'when it was not alive'
}

@test "proof: a tool that takes no lock is seen" {
    mkdir tools
    cat >tools/dlock-none.bash <<'TOOL'
STORE='' B_LATE=1
tool_about() { echo COMMAND; }
tool_version() { echo none; }
tool_run() { exec ${VIA[@]+"${VIA[@]}"} "${@:2}"; }
tool_waiting() { true; }
TOOL
    run -1 env PROOF_TOOLS="$T/tools" "$ROOT/tests/proof/run" --ttl 1 --seed 1 --fault none \
        --tool dlock-none --out "$T/proof"
    assert_out 'NOT EXPECTED: none, dlock-none: two commands ran at once for 3'
    [ -s proof/none.svg ] && [ -s proof/results.json ] && [ -s proof/table.txt ]
}

# words PAGE: its text in one line.
words() { mandoc -T ascii "$ROOT/man/$1" | sed 's/.\x08//g' | tr -s ' \n' ' '; }

@test "proof: the manual has a row for each fault, and each sentence about dlock's overlaps" {
    local line page part text
    words dlock-proof.7 >proof
    sed -n "s/.*FAULT_TITLE=\(['\"]\)\(.*\)\1 FAULT_ORDER.*/\2/p" \
        "$ROOT"/tests/proof/faults/*.bash >titles
    [ "$(wc -l <titles)" = "$(ls "$ROOT/tests/proof/faults" | wc -l)" ]
    while IFS= read -r line; do grep -qF -- "$line " proof || fail "no row: $line"; done <titles
    # A sentence goes on to the next line that is not indented; [...] stands for what is left out.
    sed -n '/^ /H; /^ /!{x;s/\n */ /g;p;s/.*//;x}; ${x;s/\n */ /g;p}' "$ROOT/tests/proof/expected" |
        grep ': ' >sentences
    [ "$(wc -l <sentences)" -ge 10 ]
    while IFS= read -r line; do
        page=${line%%:*} text=${line#*: }
        page=${page# } page=${page%(7)}.7
        words "$page" >page
        while IFS= read -r part; do
            grep -qF -- "$part" page || fail "$page does not say: $part"
        done < <(sed 's/ *\[\.\.\.\] */\n/g' <<<"$text")
    done <sentences
}
