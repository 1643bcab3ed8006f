#!/usr/bin/python3 -S
"""kinds_model.py [FACT...] <HISTORY: may a lock of all kinds have this history?

A pure check; kinds.py makes histories, tests/self/kinds.bats has some that must fail. An event a
line, in the order in which they happened; TIME in ns; OP is the number of a run of dlock:

    TIME start OP KIND N WAIT     KIND x (writer), s (shared) or n (one of N slots; else N is 0)
                                  WAIT: wait, try (-n), or the ms of -w
    TIME enter OP SLOT FENCE      its command runs; SLOT "-": no DLOCK_SLOT, FENCE 0: no DLOCK_FENCE
    TIME refused OP FILE          ... and by the kernel another holder still has FILE (see kinds.c)
    TIME exit OP                  its command is done
    TIME hit OP WHAT              a fault: its keeper or guard is killed or stopped
    TIME end OP CODE              dlock's exit code, negative: a signal

FACT: fence (all holders have one; of a file, from the first writer on), numbers (every slot has
one), linger=S (a lock whose operation was hit is free after S seconds), bound=S (the longest
operation, plus linger if it was hit).

The model: a writer is alone; the rest stand together, at most N slots, all with one N, no number
twice. A holder that was hit, or ends by a loss, may be gone at any time: there the word of the
kernel counts. Fences: a writer's is greater than all before it, others have at least the last
writer's. Exit codes have a reason. Each problem names the operation, and how many were started. A
problem of exclusion or order begins with "FINAL: ": tests/run does not repeat such a test.
"""
import sys

LOST = (79, 71, 69)  # what an operation may end with by no fault of ours; a busy machine has a few
SECOND = 1000000000


class Op:
    def __init__(self, number, at, kind, n, wait):
        self.number, self.start, self.kind, self.n, self.wait = number, at, kind, int(n), wait
        self.enter = self.exit = self.end = self.code = self.hit = None
        self.slot, self.refused, self.blamed = "-", [], False

    def __str__(self):
        what = {"x": "a writer", "s": "shared", "n": f"one of {self.n} slots"}[self.kind]
        return f"operation {self.number} ({what}{', ' + self.hit if self.hit else ''})"

    def gave_up(self):
        """In its short wait the store has not answered: on a busy machine that happens."""
        return self.code == 69 and self.wait.isdigit()

    def certain(self):
        """Its command runs until it is done."""
        return not self.hit and self.code == 0


class Model:
    def __init__(self, fence=False, numbers=False, linger=3.0, bound=60.0):
        self.fenced, self.numbered = fence, numbers
        self.linger, self.bound = int(linger * SECOND), int(bound * SECOND)
        self.ops, self.inside, self.problems = {}, [], []
        self.started = self.last_fence = self.last_writer = 0
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
        for self.line, (at, what, number, *more) in enumerate(events, 1):
            if what == "start":
                self.started += 1
            elif what in ("enter", "refused", "exit", "end"):
                getattr(self, what)(self.ops[number], int(at), *more)
        self.line = None
        for op in self.ops.values():
            self.judge(op)
        lost = sum(op.code in LOST and not op.hit and not op.gave_up() for op in self.ops.values())
        if lost > max(3, len(self.ops) / 50):
            self.problem(f"{lost} were lost or given up although nothing had hit them")
        return self.problems

    def enter(self, op, at, slot, fence):
        if op.enter or (op.end and op.end < at and not op.hit):
            self.final(f"{op} enters twice, or after its end")
        op.enter, op.slot = at, slot
        self.beside(op)
        self.fence(op, int(fence))
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
        if op.kind == "n" and len(slots) >= op.n:
            self.overlap(op, f"enters while {len(slots)} others have slots")
        if op.kind == "n" and any(other.n != op.n for other in slots):
            self.overlap(op, "enters while slots of another number are held")
        if op.kind == "n" and same:
            self.overlap(op, f"has slot {op.slot}, as has {same[0]}")

    def overlap(self, op, text):
        if not op.blamed:
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

    def refused(self, op, at, file):
        what = {"together": "enters while the command of another one still runs",
                "seat": "is one too many",
                "number": f"has the number of another slot, {op.slot}",
                "width": "enters while slots of another number are held"}
        op.refused.append(file)
        self.overlap(op, what[file])

    def exit(self, op, at):
        op.exit = at
        if op in self.inside:
            self.inside.remove(op)

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
        if op.code == 0 and not op.exit:
            self.final(f"{op} ends with 0 without its command")
        elif op.code in (75, 65) and op.enter:
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
        elif op.code not in (0, *LOST) and not op.refused:
            self.final(f"{op} ends with {op.code}")

    def around(self, op):
        """The operations that held the lock, or waited, between the start and the end of op."""
        for other in self.ops.values():
            linger = self.linger if other.hit or other.code not in (0, 65, 75) else 0
            end = other.end + linger if other.end else op.end
            if other is not op and other.start <= op.end and op.start <= end:
                yield other

    def judge_busy(self, op, took):
        if op.wait == "wait":
            return self.final(f"{op} ends with 75, but was to wait")
        if op.wait != "try":
            if took < int(op.wait) * SECOND // 1000:
                self.final(f"{op} gives up after {took / SECOND:.3f} s, "
                           f"and was to wait {op.wait} ms")
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
        if not (any(other.kind == "x" or other.hit for other in around) or waits
                or (op.kind == "x" and around) or (op.kind == "n" and len(slots) >= op.n)):
            self.final(f"{op} is refused, and nothing stands in its way")
        return None


if __name__ == "__main__":
    facts = dict(fact.partition("=")[::2] for fact in sys.argv[1:])
    found = Model(**{key: float(value or 1) for key, value in facts.items()}).read(sys.stdin)
    print(*found[:20], f"{len(found)} problems", sep="\n")
    sys.exit(bool(found))
