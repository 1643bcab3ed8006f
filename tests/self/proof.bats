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
    while IFS= read -r line; do
        grep -qF -- "$line " proof || fail "no row: $line"
        grep -q -- "^$line	" "$ROOT/man/figures/overlap.tsv" || fail "not in the picture: $line"
    done <titles
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

# misfits SVG: texts that leave the picture, at 0.6 of their size for a character.
misfits() {
    /usr/bin/python3 - "$1" <<'PY'
import sys
import xml.etree.ElementTree as tree
svg = tree.parse(sys.argv[1]).getroot()
width, height = (float(v) for v in svg.get('viewBox').split()[2:])
for t in svg.iter('{http://www.w3.org/2000/svg}text'):
    kind, x, y = t.get('class').split(), float(t.get('x')), float(t.get('y'))
    size = 15 if 'title' in kind else 12 if 'small' in kind else 13
    long = 0.6 * size * len(t.text)
    if 'rotate' in (t.get('transform') or ''):
        y, fits = y - long * 0.71, x + long * 0.71 <= width
        if 'middle' in kind:  # upright
            y, fits = float(t.get('y')) - long / 2, x - size >= 0
    else:
        begin = x - long if 'end' in kind else x - long / 2 if 'middle' in kind else x
        fits = begin >= 0 and begin + long <= width
    if not fits or y < 0 or y > height:
        print('does not fit: ' + t.text)
PY
}
@test "the pictures are those of the numbers, and their texts fit" {
    local f
    cp -r "$ROOT/man/figures" old
    mkdir new
    cp old/*.t* new
    run -0 "$ROOT/tests/figures.py" new
    for f in cost handoff overlap; do
        cmp "old/$f.svg" "new/$f.svg"
        run -0 misfits "new/$f.svg"
        [ -z "$output" ] || fail "$f: $output"
        grep -q 'prefers-color-scheme: dark' "new/$f.svg"
    done
    # A bar for each ratio that was measured, and a cell for each word of the table.
    [ "$(grep -c '>[0-9.]* x, [0-9]* us<' new/cost.svg)" = \
        "$(grep -c ' median .*[0-9] x [a-z]*$' new/bench.txt)" ]
    sed -i 's/^2 3.00/2 8.88/; s/FILE true /FILE with a name that is too long for the picture /' \
        new/handoff.tsv new/bench.txt
    run -0 "$ROOT/tests/figures.py" new
    ! cmp -s old/handoff.svg new/handoff.svg || fail "not drawn from its numbers"
    run -0 misfits new/cost.svg
    assert_out "does not fit: dlock FILE with"
}
