#!/usr/bin/python3 -S
"""kinds_model.py [FACT...] <HISTORY: may a lock of all kinds have this history?

A pure check; kinds.py makes histories, tests/self/kinds.bats has some that must fail. An event a
line, in the order in which they happened; TIME in ns; OP is the number of a run of dlock:

    TIME start OP KIND N WAIT [MORE...]
                                  KIND x (writer), s (shared), n (one of N slots; else N is 0), or
                                  f (--forget, which holds nothing). WAIT: wait, try (-n), or the ms
                                  of -w. MORE: also (a second lock, too), once, keep=MS (--min-hold)
    TIME enter OP SLOT FENCE [FENCE2]
                                  its command runs; SLOT "-": no DLOCK_SLOT, FENCE 0: no
                                  DLOCK_FENCE; FENCE2: that of the second lock
    TIME refused OP FILE [PID]    ... and by the kernel another holder still has FILE (see kinds.c)
    TIME exit OP                  its command is done
    TIME hit OP WHAT              a fault, which says what was done to what
    TIME cont OP                  what was stopped goes on
    TIME end OP CODE              dlock's exit code, negative: a signal
    TIME fault - WHAT             the store is stopped or restarted; "back": it serves again

FACT: fence (all holders have one; of a file, from the first writer on), numbers (every slot has
one), linger=S (a lock whose operation was hit is free after S seconds), bound=S (the longest
operation, plus linger if it was hit), handoff=S (a free lock has the next holder after S seconds;
behind a fault, linger and 3 s more; 0: not judged).

The model: a writer is alone; the rest stand together, at most N slots, all with one N, no number
twice. A holder that was hit, or ends by a loss, may be gone at any time: there the word of the
kernel counts. Fences: a writer's is greater than all before it, others have at least the last
writer's. Second locks exclude each other. A success of --once is followed by no other one before a
--forget. Exit codes have a reason. Each problem names the operation, and how many were started. A
problem of exclusion or order begins with "FINAL: ": tests/run does not repeat such a test.
"""
import sys

SKIPPED = 3  # --skip-exit-code
# What else the end of an operation that was hit may be.
HIT = {"term keeper": (143, -15), "kill command": (137,), "break keeper": (143, -15)}
LOST = (79, 71, 69)  # what an operation may end with by no fault of ours; a busy machine has a few
SECOND = 1000000000
START = SECOND  # from a grant, where --min-hold begins, to the command, on a busy machine


class Op:
    def __init__(self, number, at, kind, n, wait, *more):
        self.number, self.start, self.kind, self.n, self.wait = number, at, kind, int(n), wait
        self.enter = self.exit = self.end = self.code = self.hit = None
        self.slot, self.refused, self.blamed = "-", [], False
        more = dict(word.partition("=")[::2] for word in more)
        self.once, self.also, self.keep = "once" in more, "also" in more, int(more.get("keep", 0))
        self.keep *= SECOND // 1000
        self.shaken = False  # by a fault of the store

    def __str__(self):
        what = {"x": "a writer", "s": "shared", "n": f"one of {self.n} slots",
                "f": "which forgets"}[self.kind]
        what += ", with a second lock" * self.also + ", once" * self.once
        return f"operation {self.number} ({what}{', ' + self.hit if self.hit else ''})"

    def gave_up(self):
        """In its short wait the store has not answered: on a busy machine that happens."""
        return self.code == 69 and self.wait.isdigit()

    def certain(self):
        """Its command runs until it is done."""
        return not self.hit and self.code == 0


class Idle:
    """How long the lock is free while an operation waits. A hand-off is no poll."""

    def __init__(self, handoff, linger):
        self.linger, self.limit = linger, (handoff, handoff + linger + 3 * SECOND)
        self.longest = [0, 0]  # at quiet times; behind a fault
        self.since, self.disturbed = 0, -10 * linger
        self.away, self.holders, self.stopped, self.sets = False, set(), set(), set()

    def event(self, op, at, what):
        """What is wrong, if something is."""
        late = self.enter(op, at) if what == "enter" else None
        if what in ("fault", "back"):
            self.away, self.since = what == "fault", at
        elif what == "hit":
            if "stop" in op.hit:
                self.stopped.add(op)
            # It may hold on, or be gone at once.
            self.leave(op, at)
        elif what == "cont":
            self.stopped.discard(op)
        elif what in ("exit", "end"):
            self.leave(op, at)
        elif what == "start" and op.also:
            self.sets.add(op)
        # A waiter that gave up without an answer may still stand in the line.
        if what in ("fault", "back", "hit", "cont") or (what == "end" and op.code in LOST):
            self.disturbed = at
        return late

    def leave(self, op, at):
        self.holders.discard(op)
        self.sets.discard(op)
        if op.enter:
            self.since = max(self.since, at, op.enter + op.keep)

    def enter(self, op, at):
        free, since = not self.holders, max(self.since, op.start)
        self.holders.add(op)
        self.sets.discard(op)
        # A set may have the lock while it waits for its second one.
        if not free or self.sets or op.hit or op.wait == "try" or not self.limit[0]:
            return None
        behind = bool(self.stopped or self.away or self.disturbed >= since - self.linger)
        self.longest[behind] = max(self.longest[behind], at - since)
        if at - since <= self.limit[behind]:
            return None
        return (f"{op} enters {(at - since) / SECOND:.1f} s after the lock was free"
                + " and a fault" * behind)


class Model:
    def __init__(self, fence=False, numbers=False, linger=3.0, bound=60.0, handoff=0):
        self.fenced, self.numbered = fence, numbers
        self.linger, self.bound = int(linger * SECOND), int(bound * SECOND)
        self.ops, self.inside, self.problems = {}, [], []
        self.started = self.last_fence = self.last_writer = self.last_second = 0
        self.kept, self.overlaps, self.longest = None, 0, 0
        self.idle = Idle(int(handoff * SECOND), self.linger)
        self.line, self.first = 0, None  # of the history; that of the first problem

    def final(self, text):
        self.first = self.first or self.line
        self.problems.append(f"FINAL: {text} (after {self.started} operations)")

    def problem(self, text):
        self.problems.append(text)

    # ----------------------------------------------------------- events ---

    def read(self, lines):
        events = [line.split() for line in lines]
        # What an operation ends with says how to read what comes before.
        for at, what, number, *more in events:
            if what == "start":
                self.ops[number] = Op(number, int(at), *more)
            elif what == "hit":
                self.ops[number].hit = " ".join(more)
            elif what == "end":
                self.ops[number].end, self.ops[number].code = int(at), int(more[0])
        self.shake(events)
        for self.line, (at, what, number, *more) in enumerate(events, 1):
            if what == "start":
                self.started += 1
            elif what in ("enter", "refused", "exit", "end"):
                getattr(self, what)(self.ops[number], int(at), *more)
            if late := self.idle.event(self.ops.get(number), int(at), what):
                self.problem(late)
        self.line = None
        for op in self.ops.values():
            self.judge(op)
        self.judge_once()
        lost = sum(op.code in LOST and not (op.hit or op.shaken or op.gave_up())
                   for op in self.ops.values())
        if lost > max(3, len(self.ops) / 50):
            self.problem(f"{lost} were lost or given up although nothing had hit them")
        return self.problems

    def shake(self, events):
        """A fault of the store reaches all operations until what it has left is over."""
        for at, what, *_ in events:
            if what == "fault":
                begun = int(at)
            elif what == "back":
                for op in self.ops.values():
                    op.shaken |= (op.start <= int(at) + self.linger
                                  and (op.end is None or op.end >= begun))

    def enter(self, op, at, slot, fence, second=0):
        if op.enter or (op.end and op.end < at and not op.hit):
            self.final(f"{op} enters twice, or after its end")
        op.enter, op.slot = at, slot
        self.longest = max(self.longest, at - op.start)
        self.beside(op)
        self.fence(op, int(fence))
        if op.also and int(second) <= self.last_second:
            self.final(f"{op} has fence {second} of the second lock, "
                       f"which is not above {self.last_second}")
        self.last_second = max(self.last_second, int(second))
        numbered = slot != "-"
        if numbered != (op.kind == "n" and self.numbered) or (
                numbered and not 0 <= int(slot) < op.n):
            self.final(f"{op} has the slot number {slot}")
        if op.certain():
            self.inside.append(op)

    def beside(self, op):
        slots = [other for other in self.inside if other.kind == "n"]
        same = [other for other in slots if other.slot == op.slot != "-"]
        for other in self.inside:
            if "x" in (op.kind, other.kind):
                self.overlap(op, f"enters while {other} is inside")
            elif op.also and other.also:
                self.overlap(op, f"has the second lock, as has {other}")
        if self.kept and op.enter < self.kept.enter + self.kept.keep - START:
            self.overlap(op, f"enters before the least time of {self.kept} is over")
        if op.kind == "n" and len(slots) >= op.n:
            self.overlap(op, f"enters while {len(slots)} others have slots")
        if op.kind == "n" and any(other.n != op.n for other in slots):
            self.overlap(op, "enters while slots of another number are held")
        if op.kind == "n" and same:
            self.overlap(op, f"has slot {op.slot}, as has {same[0]}")

    def overlap(self, op, text):
        if not op.blamed:
            self.overlaps += 1
            self.final(f"{op} {text}")
        op.blamed = True

    def fence(self, op, fence):
        if self.fenced and not fence and (op.kind == "x" or self.last_writer):
            self.final(f"{op} has no fence")
        if not fence:
            return
        if op.kind == "x" and fence <= self.last_fence:
            self.final(f"{op} has fence {fence}, which is not above {self.last_fence}")
        elif fence < self.last_writer:
            self.final(f"{op} has fence {fence}, which is below the last writer's, "
                       f"{self.last_writer}")
        self.last_fence = max(self.last_fence, fence)
        if op.kind == "x":
            self.last_writer = fence

    def refused(self, op, at, file, *pid):
        what = {"together": "enters while the command of another one still runs",
                "seat": "is one too many",
                "number": f"has the number of another slot, {op.slot}",
                "width": "enters while slots of another number are held",
                "second": "enters while the second lock's last command still runs"}
        op.refused.append(file)
        self.overlap(op, " ".join([what[file], *(f"(process {who})" for who in pid)]))

    def exit(self, op, at):
        op.exit = at
        if op in self.inside:
            self.inside.remove(op)
            self.kept = op if op.keep else self.kept

    def end(self, op, at, code):
        # The lock is released after the command's end, and later ones may have entered since.
        if op in self.inside:
            self.inside.remove(op)
            self.final(f"{op} ends with 0 before its command")

    # ------------------------------------------------------ exit codes ---

    def judge(self, op):
        if op.end is None:
            return self.problem(f"{op} did not end")
        took = op.end - op.start
        if took > self.bound + (self.linger if op.hit else 0):
            self.problem(f"{op} took {took / SECOND:.1f} s")
        if op.kind == "f":
            if op.code not in (0, 75, 69):
                self.final(f"{op} ends with {op.code}")
        elif op.code == 0 and not op.exit:
            self.final(f"{op} ends with 0 without its command")
        elif op.code in (75, 65) + (SKIPPED,) * op.once and op.enter:
            self.final(f"{op} ends with {op.code} although its command ran")
        elif op.code == 75:
            self.judge_busy(op, took)
        elif op.code == 65:
            if op.kind != "n" or not any(
                    other.kind == "n" and other.n != op.n for other in self.around(op)):
                self.final(f"{op} ends with 65 although no other number was in use")
        elif op.code == -9:
            if not op.hit or "keeper" not in op.hit:
                self.final(f"{op} was killed, but not by the test")
        elif op.code not in (0, *LOST, *HIT.get(op.hit, ()), *(SKIPPED,) * op.once) \
                and not op.refused:
            self.final(f"{op} ends with {op.code}")

    def judge_once(self):
        forgets = [op for op in self.ops.values() if op.kind == "f"]
        runs = [op for op in self.ops.values() if op.once and op.enter]
        last = None
        for op in sorted(runs, key=lambda op: op.enter):
            if last and not any(f.start <= op.enter and (f.end or op.enter) >= last.exit
                                for f in forgets):
                self.final(f"{op} runs again after the success of {last}")
            last = op if op.certain() else last
        for op in self.ops.values():
            if op.once and op.code == SKIPPED and not any(
                    run.enter <= op.end and not any(
                        f.code == 0 and f.start > (run.end or f.start) and f.end < op.start
                        for f in forgets) for run in runs):
                self.final(f"{op} is skipped, and none has succeeded before it")

    def around(self, op):
        """The operations that held the lock, or waited, between the start and the end of op."""
        for other in self.ops.values():
            if other.start > op.end:
                break  # they are in the order of their starts
            clean = not other.hit and other.code in (0, 65, 75, SKIPPED)
            end = other.end + (0 if clean else self.linger) if other.end else op.end
            if other.keep and other.enter:
                end = max(end, other.enter + other.keep)
            if other is not op and other.kind != "f" and op.start <= end:
                yield other

    def judge_busy(self, op, took):
        if op.wait == "wait":
            return self.final(f"{op} ends with 75, but was to wait")
        if op.wait != "try":
            if took < int(op.wait) * SECOND // 1000:
                self.final(f"{op} gives up after {took / SECOND:.3f} s, "
                           f"and was to wait {op.wait} ms")
            return None
        if op.shaken:
            return None
        around = list(self.around(op))
        if op.kind == "n" and not any(other.kind == "x" for other in around) and any(
                other.kind == "n" and other.n != op.n and other.certain() and other.enter and
                other.enter < op.start and other.exit > op.end for other in around):
            return self.problem(f"{op} ends with 75 and not 65 "
                                "while slots of another number are held")
        # Waiters are not passed, either.
        slots = [other for other in around if other.kind == "n"]
        waits = [other for other in around
                 if (other.enter or other.end or op.end) > op.start and other.wait != "try"]
        if not (any(other.kind == "x" or other.hit or op.also and other.also
                    for other in around) or waits
                or (op.kind == "x" and around) or (op.kind == "n" and len(slots) >= op.n)):
            self.final(f"{op} is refused, and nothing stands in its way")
        return None


if __name__ == "__main__":
    facts = dict(fact.partition("=")[::2] for fact in sys.argv[1:])
    found = Model(**{key: float(value or 1) for key, value in facts.items()}).read(sys.stdin)
    print(*found[:20], f"{len(found)} problems", sep="\n")
    sys.exit(bool(found))
