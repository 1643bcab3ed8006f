#!/usr/bin/python3 -S
"""events.py FILE|- [CODE] - read the lines of --events with a JSON parser and check their schema.

Every line must be whole: one object in UTF-8, at most 4096 bytes, with only the event's keys, each
of its type. Then CODE, in Python, checks them: `starts` are the objects of "start", which come
first, `events` the others, `names` their events, `end` the last object if its event is "end" (else
None), and by["granted"] lists the objects of that event. `events.py --keys` prints all events, keys
and words, one a line, for a look into the manual.
"""
import json
import re
import sys

FENCE = re.compile(r"[1-9][0-9]*")
TIME = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d\d\dZ")
MODES = ["shared", "slots"]
HOLDER = {"kind": ["foreign"], "mode": MODES, "slots": int, "slot": int, "host": str, "pid": int,
          "user": str, "command": str, "note": str, "since_ms": int, "waited_ms": int,
          "fence": FENCE}
HEAD = {"v": [1], "event": str, "time": TIME, "pid": int, "lock?": str, "store?": str,
        "set?": str}
EVENTS = {
    "start": {"kind": str, "path?": str, "address?": str, "database?": str,
              "parameters?": str},
    "waiting": {"wait_ms": int, "place?": int, "holder?": HOLDER},
    "granted": {"wait_ms": int, "mode?": MODES, "slots?": int, "slot?": int, "fence?": FENCE,
                "lease_left_ms?": int},
    "trouble": {"for_ms": int, "term_in_ms?": int, "reason?": str},
    "recovered": {"after_ms": int},
    "lost": {"reason?": str, "cause?": ["broken"]},
    "term": {"kill_in_ms": int},
    "kill": {},
    "released": {"hold_ms": int,
                 "how": ["confirmed", "closed", "not-ours", "unconfirmed", "nothing"]},
    "end": {"outcome": ["exited", "busy", "timeout", "cancelled", "lost", "unavailable", "not-run",
                        "error"],
            "wait_ms": int, "hold_ms?": int, "fence?": FENCE, "renewals": int,
            "exit_status?": int, "signal?": int, "exit_code": int, "reason?": str,
            "dropped": int},
}


def fits(value, kind):
    if isinstance(kind, dict):
        return isinstance(value, dict) and all(
            k in kind and fits(v, kind[k]) for k, v in value.items())
    if isinstance(kind, list):
        return value in kind
    if isinstance(kind, re.Pattern):
        return isinstance(value, str) and kind.fullmatch(value) is not None
    if kind is int:
        return type(value) is int and value >= 0
    return isinstance(value, kind)


def unique(pairs):
    assert len({k for k, _ in pairs}) == len(pairs), pairs
    return dict(pairs)


def check(line):
    assert len(line) <= 4096, len(line)
    event = json.loads(line.decode("utf-8"), object_pairs_hook=unique)
    kinds = {**HEAD, **EVENTS[event["event"]]}
    for key, kind in kinds.items():
        assert key.endswith("?") or key in event, (key, event)
    for key, value in event.items():
        kind = kinds.get(key, kinds.get(key + "?"))
        assert kind is not None and fits(value, kind), (key, event)
    assert not any(ord(c) < 32 or c == "\x7f" for c in json.dumps(event, ensure_ascii=False)), event
    return event


if sys.argv[1] == "--keys":
    for fields in [HEAD, HOLDER, *EVENTS.values()]:
        for field, kind in fields.items():
            words = kind if isinstance(kind, list) and kind != [1] else []
            print(field.rstrip("?"), *words, sep="\n")
    print(*EVENTS, sep="\n")
    sys.exit()

with (sys.stdin.buffer if sys.argv[1] == "-" else open(sys.argv[1], "rb")) as f:
    lines = f.read().split(b"\n")
assert lines.pop() == b"", "the last line has no end"
events = [check(line) for line in lines]
by = {name: [e for e in events if e["event"] == name] for name in EVENTS}
starts = by["start"]
for i, event in enumerate(events):
    before = {e["event"] for e in events[:i] if e["pid"] == event["pid"]}
    assert event["event"] != "start" or before <= {"start"}, events
events = [e for e in events if e["event"] != "start"]
names = [e["event"] for e in events]
end = events[-1] if names and names[-1] == "end" else None
if len(sys.argv) > 2:
    try:
        exec(sys.argv[2])
    except BaseException:
        print(*(line.decode() for line in lines), sep="\n", file=sys.stderr)
        raise
