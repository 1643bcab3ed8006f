#!/usr/bin/env bats
# monitor.bats - the recipe for Prometheus, its script, and the page as a whole.

# bats file_tags=plain
load ../../support/recipes

TEXTFILE=$ROOT/packaging/prometheus/dlock-textfile

# metrics: dlock.prom as Prometheus reads it, one sample a line: its name, its labels and its value
# in Python's notation. A line that the format does not know is an error.
metrics() {
    /usr/bin/python3 - dlock.prom <<'PY'
import re, sys
kinds = {}
for line in open(sys.argv[1], newline="\n").read().split("\n")[:-1]:
    kind = re.fullmatch(r"# TYPE (\w+) (counter|gauge)", line)
    sample = re.fullmatch(r'(\w+)\{((?:\w+="(?:[^"\\\n]|\\[\\n"])*",?)+)\} ([0-9.e+-]+)', line)
    if kind:
        assert kind[1] not in kinds, line
        kinds[kind[1]] = kind[2]
    elif sample:
        assert sample[1] in kinds, line
        unescaped = {r"\\": "\\", r"\n": "\n", r"\"": '"'}
        labels = {k: re.sub(r"\\.", lambda m: unescaped[m[0]], v)
                  for k, v in re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', sample[2])}
        print(sample[1], *labels.items(), float(sample[3]))
    else:
        assert re.fullmatch(r"# HELP \w+ .*", line), line
PY
}
# has METRIC VALUE LABEL=VALUE...
has() {
    local words=$1
    for label in "${@:3}"; do words+=" ('${label%%=*}', '${label#*=}')"; done
    run -0 metrics
    [[ $'\n'$output$'\n' == *$'\n'"$words $2"$'\n'* ]] || fail "no $words $2: $output"
}

@test "the metrics of cron's jobs tell outcomes, times and the last success" {
    local job last
    recipe monitor
    sed -i "s,=/var/log/,=$T/,; s,=/var/lib/prometheus/node-exporter/,=$T/,
        s,/usr/share/dlock/,${TEXTFILE%/*}/,; 1a DLOCK_STORE=$STORE" monitor
    program hourly "[ -e '$T/works' ]"
    job() { run_t 10 "$ROOT/tests/support/helpers/cron.py" monitor "$1"; }
    run -1 job hourly
    run -0 job METRICS
    [ -z "$output" ] || fail "$output"
    local of=("lock=hourly" "store=redis://127.0.0.1:$REDIS_PORT/0")
    has dlock_runs_total 1.0 "${of[@]}" outcome=exited
    has dlock_last_exit_code 1.0 "${of[@]}"
    run ! grep -q '^dlock_last_success' dlock.prom
    : >works
    run -0 job hourly
    hold_it
    run -75 job hourly
    run -0 job METRICS
    has dlock_runs_total 2.0 "${of[@]}" outcome=exited
    has dlock_runs_total 1.0 "${of[@]}" outcome=busy
    has dlock_last_exit_code 75.0 "${of[@]}"
    last=$(sed -n 's/^dlock_last_success_timestamp_seconds{.*} //p' dlock.prom)
    assert_between $(($(date +%s) - 20)) "$last" "$(date +%s)" "the last success"
    [ "$(stat -c %a dlock.prom)" = 644 ]
    [ "$(echo dlock.prom*)" = dlock.prom ]
}
hold_it() {
    start "$DLOCK" "$STORE#hourly" "$HELPERS/await" "$T/go"
    wait_for 5 eval '! "$DLOCK" --status "$STORE#hourly"'
}

# ends OUTCOME CODE TIME WAIT HOLD LOCK...: the last line of a run, for each lock.
ends() {
    /usr/bin/python3 - "$@" <<'PY'
import json, sys
outcome, code, time, wait, hold, *locks = sys.argv[1:]
for lock in locks:
    end = {"v": 1, "event": "end", "time": "2026-11-27T0%s.123Z" % time, "pid": 7, "lock": lock,
           "store": "redis://db1:6379/0", "outcome": outcome, "exit_code": int(code),
           "wait_ms": int(wait)}
    if hold:
        end["hold_ms"] = int(hold)
    print(json.dumps(end, ensure_ascii=len(locks) > 1))
PY
}

@test "the script keeps lock names with quotes, newlines and backslashes apart" {
    local odd=('a "b"' $'a\nb' 'a\nb' 'a\' 'a\"' '{}' $'tab\there' 'ü€😀' '' ' ' '%s $(date)')
    ends exited 0 1:00:00 1500 250 "${odd[@]}" >events
    run -0 "$TEXTFILE" dlock.prom events
    run -0 metrics
    /usr/bin/python3 - "$output" "${odd[@]}" <<'PY'
import sys
text, *odd = sys.argv[1:]
want = sorted("dlock_wait_seconds_total %s ('store', 'redis://db1:6379/0') 1.5" %
              (("lock", lock),) for lock in odd)
got = sorted(line for line in text.split("\n") if line.startswith("dlock_wait"))
assert got == want, (got, want)
PY
}

@test "the script adds up files in any order, and skips what is no end of a run" {
    ends exited 0 3:00:00 100 1000 job >new
    ends lost 79 4:00:00 100 500 job >>new
    ends exited 0 1:00:00 300 '' job >old
    ends busy 75 2:00:00 0 '' job >>old
    printf '%s\n' '{"v":1,"event":"granted","lock":"job","wait_ms":9}' '{"v":1,"ev' '' 7 null '[]' \
        '{"v":2,"event":"end","lock":"job","outcome":"exited"}' >>old
    printf '{"v":1,"event":"end"' >>old
    local of=(lock=job store=redis://db1:6379/0)
    for files in 'new old' 'old new'; do
        # shellcheck disable=SC2086
        run -0 "$TEXTFILE" dlock.prom $files
        [ -z "$output" ] || fail "$output"
        has dlock_runs_total 2.0 "${of[@]}" outcome=exited
        has dlock_runs_total 1.0 "${of[@]}" outcome=lost
        has dlock_wait_seconds_total 0.5 "${of[@]}"
        has dlock_hold_seconds_total 1.5 "${of[@]}"
        has dlock_last_exit_code 79.0 "${of[@]}"
        has dlock_last_success_timestamp_seconds \
            "$(date -d '2026-11-27 03:00:00 UTC' +%s).0" "${of[@]}"
    done
}

@test "the script leaves the old metrics where it cannot make new ones" {
    echo old >dlock.prom
    run -66 "$TEXTFILE" dlock.prom no-such-file
    [ "$output" = "dlock-textfile: cannot read the events in no-such-file" ]
    run -64 "$TEXTFILE" dlock.prom
    mkdir folder
    run "$TEXTFILE" dlock.prom folder
    [ "$status" -ne 0 ]
    [ "$(cat dlock.prom*)" = old ]
    # An empty log is no error.
    : >empty
    run -0 "$TEXTFILE" dlock.prom empty
    run ! grep -v '^#' dlock.prom
}

@test "the date at the end of a name makes no series of its own" {
    ends exited 0 1:00:00 100 '' report-2026-11-27 report-2026-11-28 report_20261129 \
        report-2026-11-27-eu 2026-11-27 job-20269927 n20261127 build-12345678 >events
    run -0 "$TEXTFILE" dlock.prom events
    has dlock_runs_total 3.0 lock=report store=redis://db1:6379/0 outcome=exited
    for name in report-2026-11-27-eu 2026-11-27 job-20269927 n20261127 build-12345678; do
        has dlock_runs_total 1.0 "lock=$name" store=redis://db1:6379/0 outcome=exited
    done
}

@test "the page's alert for a lost lock sees the first loss" {
    local alert count
    alert=$(sed -n 's/^\.Li increase(\(.*\)\[1h\]) > 0 \.$/\1/p' "$ROOT/man/dlock-recipes.7")
    [ "$alert" = 'dlock_runs_total{outcome=\(dqlost\(dq}' ] || fail "$alert"
    ends exited 0 1:00:00 100 '' job >events
    for count in 0.0 1.0; do
        run -0 "$TEXTFILE" dlock.prom events
        has dlock_runs_total "$count" lock=job store=redis://db1:6379/0 outcome=lost
        ends lost 79 2:00:00 100 '' job >>events
    done
}

@test "each recipe is run by a test, and has no escape that is unknown here" {
    local names name pages=("$ROOT"/man/dlock-{recipes,migrating}.7)
    names=$(sed -n 's/^\.\\" recipe \([^ ]*\) .*/\1/p' "${pages[@]}")
    [ "$(wc -l <<<"$names")" = "$(cat "${pages[@]}" | grep -B 1 '^\.Bd -literal' |
        grep -c '^\.\\" recipe')" ]
    # Those of Go and Rust: migrating.bats.
    [ "$(cat "${pages[@]}" | grep -c '^\.Bd -literal')" = $(($(wc -l <<<"$names") + 2)) ]
    for name in $names; do
        grep -rqE "recipe \"?$name( |\"|;|$)|[ (]./$name[ )]" "$ROOT/tests/system/recipes" ||
            fail "no test runs $name"
    done
    run sed -n '/^\.Bd/,/^\.Ed/{s/\\e//g; s/^\\&//; /\\/p}' "${pages[@]}"
    [ -z "$output" ] || fail "$output"
}
