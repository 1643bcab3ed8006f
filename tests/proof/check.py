#!/usr/bin/python3 -IS
"""check.py DIR - what a cell has shown (tests/proof/cell), as JSON.

The overlap is computed from the lives of the processes as the watcher saw them by pidfd. What the
processes wrote themselves is compared with it: a line of A's command behind the first one of B's
says that A lived then; and a line lies within the life of its process.
"""
import json
import os
import sys

COMMAND = ("command", "grandchild")


def lines(folder, name):
    try:
        with open(os.path.join(folder, name), errors="replace") as f:
            return [line.rstrip("\n") for line in f]
    except FileNotFoundError:
        return []


def lives(folder):
    """One dict for each process; "end" is None for one that was never seen to end."""
    found = []
    for line in lines(folder, "lives"):
        at, what, who, role, pid = line.split()
        if what == "begin":
            found.append({"who": who, "role": role, "pid": int(pid), "begin": int(at), "end": None})
        else:
            process = next(p for p in found if p["pid"] == int(pid) and p["end"] is None)
            process["end"] = int(at)
    return found


def halved(processes, events):
    """A's processes do not run while their machine is frozen: each of them lives twice."""
    at = {text: at for at, text in events}
    frozen, thawed = at.get("frozen"), at.get("thawed")
    for p in [p for p in processes if p["who"] == "A" and frozen and thawed]:
        if p["begin"] < frozen and (p["end"] is None or p["end"] > thawed):
            processes.append({**p, "begin": thawed})
            p["end"] = frozen
    return processes


def spans(processes, who, over):
    """The disjoint times in which a process of that command lived, in order."""
    merged = []
    for p in sorted(processes, key=lambda p: p["begin"]):
        if p["who"] != who or p["role"] not in COMMAND:
            continue
        begin, end = p["begin"], over if p["end"] is None else p["end"]
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    return merged


def overlap(a, b):
    return sum(max(0, min(x[1], y[1]) - max(x[0], y[0])) for x in a for y in b)


def disagreements(folder, processes, together):
    """Where the processes' own lines contradict the watcher."""
    said = []
    b_began = a_after_b = False
    for line in lines(folder, "witness"):
        at, pid, who = line.split()
        life = [p for p in processes if p["pid"] == int(pid) and p["role"] in COMMAND]
        if not any(p["begin"] - 5e7 <= int(at) and (p["end"] is None or int(at) <= p["end"])
                   for p in life):
            said.append(f"pid {pid} wrote at {at}, when it was not alive")
        b_began = b_began or who == "B"
        a_after_b = a_after_b or (b_began and who == "A")
    if a_after_b and together == 0:
        said.append("A's command wrote when B's had begun, and no overlap was seen")
    return said


def cell(folder):
    """The cell's result: its times are seconds since A's command began."""
    said = lines(folder, "outcome") or ["error it left no outcome"]
    outcome, _, reason = said[0].partition(" ")
    result = {"outcome": outcome, "reason": reason}
    result.update(line.split(" ", 1) for line in lines(folder, "about"))
    events = [(int(at), text) for at, text in
              (line.split(" ", 1) for line in lines(folder, "events"))]
    if outcome != "ok":
        return {**result, "fault_came": any(text == "fault" for _, text in events)}
    processes = halved(lives(folder), events)
    fault = next(at for at, text in events if text == "fault")
    over = max([at for at, _ in events] + [p["end"] or p["begin"] for p in processes])
    a, b = spans(processes, "A", over), spans(processes, "B", over)
    zero = a[0][0]
    together = overlap(a, b)
    wrong = disagreements(folder, processes, together)
    if wrong:
        return {**result, "outcome": "error", "reason": wrong[0], "fault_came": True}
    seconds = lambda ns: None if ns is None else round((ns - zero) / 1e9, 4)
    result.update(
        overlap=round(together / 1e9, 4),
        b_ran=bool(b),
        fault_at=seconds(fault),
        a_ended=seconds(a[-1][1]),
        b_after=round((b[0][0] - fault) / 1e9, 3) if b else None,
        over=seconds(over),
        events=[[seconds(at), text] for at, text in events],
        processes=[{**p, "begin": seconds(p["begin"]), "end": seconds(p["end"])}
                   for p in processes])
    return result


if __name__ == "__main__":
    print(json.dumps(cell(sys.argv[1]), indent=1))
