#!/usr/bin/python3 -S
"""kinds.py DLOCK LOCK WITNESS DIR OPERATIONS [FACT...]: random operations, checked against a model.

FACT says what the store has: shared, slots (=N: so many), numbers (of slots), fence, lease (else
the kernel frees a lock as soon as its processes are gone); or ttl=S (1.5), ticks=S (a crash is
noticed so much later), workers=N (12), bound=S (the longest operation, 60), every=N (one of N
operations is hit, 50), seed=N, other=PROGRAM (a dlock of another release, for every second
operation).

The workers take the operations of a list that the seed determines: writers, shared holders and
slots of one number, sometimes of another; they wait, or try, or wait for a while. Some are hit
while they hold or wait: their keeper or guard is killed, or stopped for up to two ttl. At the end
the lock must be free. The history is in DIR/history, and kinds_model.py says whether a lock may
have it. After two holders at the same time no more operations are started.
"""
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
from kinds_model import Model

dlock, lock, witness = sys.argv[1:4]
directory, operations = os.path.abspath(sys.argv[4]), int(sys.argv[5])
facts = dict(fact.partition("=")[::2] for fact in sys.argv[6:])
TTL = float(facts.get("ttl") or 1.5)
BOUND = float(facts.get("bound", 60))
# The command of a killed keeper runs on where the kernel keeps the lock.
LINGER = (TTL if "lease" in facts else 2 * TTL) + 1 + float(facts.get("ticks", 0))
EVERY = int(facts.get("every", 50))
seed = int(facts.get("seed") or random.SystemRandom().randrange(1 << 30))
rng = random.Random(seed)


def write(what, *more):
    line = " ".join(map(str, (time.clock_gettime_ns(time.CLOCK_BOOTTIME), what, *more))) + "\n"
    os.write(history, line.encode())


class Operation:
    """What is done is decided here, in the order of the list; when, by those that run."""

    def __init__(self, number, kinds):
        self.number = number
        self.kind = rng.choice(kinds)
        # Another number gets the lock only while none is in use, and is gone at once.
        other = rng.random() < 0.07
        self.n = 0 if self.kind != "n" else SLOTS + 1 if other else SLOTS
        self.wait = rng.choice(["wait"] * 14 + ["try"] * 4 + [50, 500])
        # A writer stops all others, and slots must be in use to be short.
        holds = [0, 0, 0, 2, 5, 10] if self.kind == "x" else [0, 5, 10, 20, 40, 80]
        self.hold = 0 if other else rng.choice(holds)
        if rng.random() < 0.005:
            self.hold = int(1200 * TTL)
        self.fault = None

    def plan(self, fault):
        """A fault, its delay from the entry or from the start, and the length of a stop."""
        self.fault, self.kind = fault
        self.since_entry = rng.random() < 0.7
        self.delay = rng.choice([0.0, 0.02, 0.2])
        self.stop = rng.uniform(0.3, 2.0) * TTL
        # Beyond the end of the lease, if that is what ends the hold.
        self.wait = "wait"
        self.hold = int((1500 if "keeper" in self.fault and "lease" in facts else 500) * TTL)
        self.n = SLOTS if self.kind == "n" else 0

    def command(self):
        mode = {"x": ["-x"], "s": ["-s"], "n": ["--slots", str(self.n)]}[self.kind]
        wait = ["-w", f"{self.wait}ms"]
        wait = {"wait": [], "try": ["-n"]}.get(self.wait, wait)
        # Else nothing guards the command of a file lock.
        guard = ["-o"] if self.fault and "guard" in self.fault and "lease" not in facts else []
        program = facts.get("other") if self.number % 2 else None
        return [program or dlock, "-q", "--ttl", str(TTL), "--grace", "0.1", *mode, *wait, *guard,
                lock, witness, directory, str(self.number), self.kind, str(self.n), str(self.hold)]

    # ------------------------------------------------------------- run ---

    def begin(self):
        self.was_hit = False
        self.out = tempfile.TemporaryFile(dir=directory)
        self.entered = self.resume = None
        write("start", self.number, self.kind, self.n, self.wait)
        self.process = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL,
                                        stdout=self.out, stderr=self.out)
        self.started = time.monotonic()

    def turn(self, now):
        """True: it is over."""
        if self.process.poll() is not None:
            write("end", self.number, self.process.returncode)
            self.cont()
            return True
        since = self.entered if self.fault and self.since_entry else self.started
        if self.fault and since and now >= since + self.delay:
            self.hit(now)
        if self.resume and now >= self.resume:
            self.cont()
        if now > self.started + BOUND + 4 * LINGER:
            self.process.kill()
            self.process.wait()
            return True
        return False

    def hit(self, now):
        what, whom = self.fault.split()
        try:
            victim = os.pidfd_open(self.process.pid if whom == "keeper" else self.guard())
        except (OSError, TypeError):
            return  # there is no guard yet
        write("hit", self.number, self.fault)
        try:
            signal.pidfd_send_signal(victim, signal.SIGKILL if what == "kill" else signal.SIGSTOP)
        except ProcessLookupError:  # the guard has ended since, and the keeper has waited for it
            self.fault = None
            return
        hits[self.fault] = hits.get(self.fault, 0) + 1
        self.fault, self.victim, self.was_hit = None, victim, True
        if what == "stop":
            self.resume = now + self.stop

    def cont(self):
        if self.resume:
            self.resume = None
            try:
                signal.pidfd_send_signal(self.victim, signal.SIGCONT)
            except ProcessLookupError:
                pass

    def guard(self):
        pid = self.process.pid
        with open(f"/proc/{pid}/task/{pid}/children") as children:
            for child in children.read().split():
                with open(f"/proc/{child}/comm") as comm:
                    if "guard" in comm.read():
                        return int(child)
        return None

    def said(self):
        self.out.seek(0)
        return self.out.read().decode(errors="replace").strip()


def decks(kinds):
    """Two faults of a keeper, then one of a guard, of all kinds in turn."""
    keeper, guard = [], []
    while True:
        for deck, whom in ((keeper, "keeper"), (keeper, "keeper"), (guard, "guard")):
            if not deck:
                deck += [(f"{what} {whom}", kind) for what in ("kill", "stop") for kind in kinds]
                rng.shuffle(deck)
            yield deck.pop()


def plan():
    """In spells of 25: one has all kinds alike, in the others one of them is frequent."""
    kinds = ["x"] + ["s"] * ("shared" in facts) + ["n"] * ("slots" in facts)
    todo, faults = [], decks(kinds)
    for i in range(operations):
        if i % 25 == 0:
            often = rng.choice([[], *([kind] * 7 for kind in kinds)])
        todo.append(Operation(i + 1, kinds + often))
    for first in range(0, operations, EVERY):
        rng.choice(todo[first:first + EVERY]).plan(next(faults))
    return todo


class History:
    """What the commands write, as it comes."""

    def __init__(self):
        self.file, self.part, self.refused = open(f"{directory}/history"), "", False

    def look(self, now):
        *lines, self.part = (self.part + self.file.read()).split("\n")
        for _, what, number, *_ in map(str.split, lines):
            if what == "enter":
                todo[int(number) - 1].entered = now
            self.refused |= what == "refused"


def work():
    running, following = [], iter(todo)
    while True:
        now = time.monotonic()
        seen.look(now)
        running = [op for op in running if not op.turn(now)]
        while len(running) < int(facts.get("workers", 12)) and not seen.refused:
            op = next(following, None)
            if op is None:
                break
            op.begin()
            running.append(op)
        if not running:
            return
        time.sleep(0.002)


def find_free():
    """Nothing is left: the model knows for how long the lock may still be held."""
    until = time.monotonic() + LINGER + 10
    while time.monotonic() < until:
        op = Operation(len(todo) + 1, ["x"])
        op.wait, op.hold = "try", 0
        todo.append(op)
        op.begin()
        while not op.turn(time.monotonic()):
            time.sleep(0.002)
        if op.process.returncode != 75:
            return []
        time.sleep(0.1)
    return ["the lock is still held at the end"]


history = os.open(f"{directory}/history", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
SLOTS = int(facts.get("slots") or rng.choice("123"))
hits, todo, began = {}, plan(), time.monotonic()
print(f"seed {seed}: {operations} operations, {SLOTS} slots", flush=True)
seen = History()
work()
problems = [] if seen.refused else find_free()
with open(f"{directory}/history") as f:
    lines = f.readlines()
model = Model(fence="fence" in facts, numbers="numbers" in facts, linger=LINGER, bound=BOUND)
problems = model.read(lines) + problems
codes = {}
said = []
for op in todo:
    if hasattr(op, "process"):
        codes[op.process.returncode] = codes.get(op.process.returncode, 0) + 1
        if op.process.returncode not in (0, 65, 75, 97) and not op.was_hit:
            said.append(f"operation {op.number} ends with {op.process.returncode}: {op.said()}")
print(*said[:20], sep="\n", end="\n" * bool(said))
if sum(hits.values()) < operations // EVERY / 2 and not seen.refused:
    problems.append("too few faults hit: this run proves nothing")
print(f"{sum(codes.values())} operations in {time.monotonic() - began:.1f} s; "
      f"exit codes {codes}; faults {hits}")
print(*problems[:20], f"{len(problems)} problems", sep="\n")
if model.first:
    print(f"the history around line {model.first}, where the first one is:",
          *map(str.rstrip, lines[max(0, model.first - 30):model.first + 30]), sep="\n")
sys.exit(bool(problems))
