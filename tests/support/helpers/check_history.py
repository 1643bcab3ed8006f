#!/usr/bin/python3 -S
"""check_history.py DIR EXPECTED [killed] [fence]: is the history of `witness` that of a lock?

In the order of the lines: fences strictly increase ("fence": all holders have one), at most one
holder is inside, the unlocked counter equals the number of completed holds, and these were EXPECTED
("killed": at least one, since holders were ended by force; a dead holder has no exit line, and its
end is left to the kernel's witness).

A line about broken exclusion begins with "FINAL: ": tests/run does not repeat such a test.
"""
import sys
from pathlib import Path

directory, expected = Path(sys.argv[1]), int(sys.argv[2])
killed, fenced = "killed" in sys.argv[3:], "fence" in sys.argv[3:]
problems, few = [], []
if (directory / "violations").exists():
    refused = (directory / "violations").read_text().splitlines()
    problems.append(f"two inside at once, {len(refused)} times, first: {refused[0]}; "
                    f"last: {refused[-1]}")

inside, last_fence, last_exit, exits = None, 0, 0, 0
for line in (directory / "history").read_text().splitlines():
    what, pid, fence, at = line.split()
    pid, fence, at = int(pid), int(fence), int(at)
    if what == "enter":
        if inside is not None and not killed:
            problems.append(f"{pid} enters while {inside} is inside")
        if fenced and not fence:
            problems.append(f"{pid} has no fence")
        if fence and fence <= last_fence:
            problems.append(f"{pid} has fence {fence} after {last_fence}")
        if at < last_exit:
            problems.append(f"{pid} enters before the exit of the one before it")
        inside, last_fence = pid, fence or last_fence
    else:
        if inside != pid:
            problems.append(f"{pid} leaves but {inside} is inside")
        inside, last_exit, exits = None, at, exits + 1

counter = int((directory / "counter").read_text())
# One that is killed between its write and its exit line has counted.
if counter < exits or (counter > exits and not killed):
    problems.append(f"the counter is {counter} after {exits} completed holds: a lost update")
if exits != expected if not killed else exits < 1:
    few.append(f"{exits} completed holds, expected {expected}")
for p in problems[:20]:
    print(f"FINAL: {p}")
for p in few:
    print(p)
print(f"{exits} completed holds, {len(problems + few)} problems")
sys.exit(1 if problems or few else 0)
