#!/usr/bin/python3 -S
"""kinds.py DLOCK LOCK WITNESS DIR OPERATIONS [FACT...]: random operations, checked against a model.

FACT says what the store has: shared, slots (=N: so many), numbers (of slots), fence, lease (else
the kernel frees a lock as soon as its processes are gone); or ttl=S (1.5), ticks=S (a crash is
noticed so much later), workers=N (12), bound=S (the longest operation, 60), every=N (one of N
operations is hit, 50), seed=N, other=PROGRAM (a dlock of another release, for every second
operation).

storm=S: a fault each S seconds, and OPERATIONS is how many commands must have run. Further facts
say what an operation may do and what a fault may be: also=LOCK (a second lock), once, keep[=N]
(--min-hold, N (1) of 14), more=P (how many do any of that, 0.07), break (--break), cut (the
connection is), store=DIR (the store stops or starts again: a line "stop N SECONDS" or "restart N"
in the fifo DIR/ask, N any number, has another process do so, write that into the history, and say
in DIR/told when it is over). The last line is about the storm, in JSON: times in seconds.

The workers take the operations of a list that the seed determines: writers, shared holders and
slots of one number, sometimes of another; they wait, or try, or wait for a while. Some are hit
while they hold or wait: their keeper or guard is killed, or stopped for up to two ttl. At the end
the lock must be free. The history is in DIR/history, and kinds_model.py says whether a lock may
have it. After two holders at the same time no more operations are started.
"""
import itertools
import json
import os
import random
import signal
import socket
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
STORM, MORE = float(facts.get("storm", 0)), float(facts.get("more", 0.07))
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

        self.also, self.once, self.keep, self.alone = False, False, 0, False
        if STORM:
            self.choose()

    def choose(self):
        """A few operations want more of dlock than the lock."""
        want = rng.choice(["also"] * 4 + ["once"] * 6 + ["forget"] * 2 + ["long"] +
                          ["keep"] * int(facts.get("keep") or 1))
        if rng.random() > MORE:
            return
        if want == "also" and "also" in facts:
            self.also = True
        elif want in ("once", "forget") and "once" in facts:
            self.once, self.kind = want == "once", "x" if want == "once" else "f"
        elif want == "keep" and "keep" in facts:
            self.kind, self.keep = "x", int(750 * TTL)
        elif want == "long":
            self.hold = int(rng.choice([1000, 2000, 3000]) * TTL)
        self.n = self.n if self.kind == "n" else 0

    def plan(self, fault, rng=rng):
        """A fault, its delay from the entry or from the start, and the length of a stop."""
        self.fault, self.kind = fault
        self.since_entry = rng.random() < 0.7
        self.delay = rng.choice([0.0, 0.02, 0.2])
        self.stop = rng.uniform(0.3, 2.0) * TTL
        # Beyond the end of the lease, if that is what ends the hold.
        self.wait = "wait"
        self.hold = int((1500 if "keeper" in self.fault and "lease" in facts else 500) * TTL)
        self.n = SLOTS if self.kind == "n" else 0
        if STORM:
            what, whom = self.fault.split()
            self.since_entry = whom != "waiter"
            self.stop = rng.uniform(0.3, 1.5 if whom == "store" else 3) * TTL
            if self.fault == "stop keeper" or whom == "store":
                self.hold = int(rng.uniform(500, 3000) * TTL)
            elif what == "cut":
                self.hold = int(700 * TTL)
            self.also, self.once, self.keep = False, False, 0
            # What a command that ends by itself leaves behind goes on.
            self.alone = self.fault == "kill command"

    def command(self):
        program = (facts.get("other") if self.number % 2 else None) or dlock
        if self.kind == "f":
            return [program, "-q", "--forget", "--yes", lock]
        mode = {"x": ["-x"], "s": ["-s"], "n": ["--slots", str(self.n)]}[self.kind]
        wait = ["-w", f"{self.wait}ms"]
        wait = {"wait": [], "try": ["-n"]}.get(self.wait, wait)
        # Else nothing guards the command of a file lock.
        guard = ["-o"] if self.fault and "guard" in self.fault and "lease" not in facts else []
        more = ["--also", facts.get("also")] * self.also
        more += ["--once", "--skip-exit-code", "3"] * self.once
        more += ["--min-hold", f"{self.keep}ms"] * bool(self.keep)
        return [program, "-q", "--ttl", str(TTL), "--grace", "0.1", *mode, *wait, *guard, *more,
                lock, witness, directory, str(self.number), self.kind, str(self.n), str(self.hold),
                *["alone"] * self.alone, *["also"] * self.also]

    # ------------------------------------------------------------- run ---

    def begin(self):
        self.was_hit, self.victims = False, []
        self.out = tempfile.TemporaryFile(dir=directory)
        self.entered = self.left = self.resume = None
        write("start", self.number, self.kind, self.n, self.wait, *["also"] * self.also,
              *["once"] * self.once, *[f"keep={self.keep}"] * bool(self.keep))
        self.process = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL,
                                        stdout=self.out, stderr=self.out)
        self.started = time.monotonic()

    def turn(self, now):
        """True: it is over."""
        if self.process.poll() is not None:
            write("end", self.number, self.process.returncode)
            self.cont()
            self.read_out()
            return True
        since = self.entered if self.fault and self.since_entry else self.started
        if self.fault and since and now >= since + self.delay:
            self.hit(now)
        if self.resume and now >= self.resume:
            self.cont()
        if now > self.started + BOUND + 4 * LINGER:
            self.process.kill()
            self.process.wait()
            self.read_out()
            return True
        return False

    def hit(self, now):
        what, whom = self.fault.split()
        if whom == "store":
            if storm.strike(what, self.stop):
                self.count()
            return
        keeper = self.process.pid
        find = {"guard": self.guard, "witness": self.witness, "command": self.runs}
        try:
            pids = [find.get(name, lambda: keeper)() for name in whom.split("+")]
            if None in pids:
                return  # there is no guard yet
            for pid in pids:
                self.victims.append(os.pidfd_open(pid))
        except OSError:
            self.let_go()
            return
        write("hit", self.number, self.fault.replace("waiter", "keeper"))
        self.was_hit = True
        try:
            if what == "break":
                storm.end_hold(keeper)
            elif what == "cut":
                cut(keeper)
            else:
                for victim in self.victims:
                    signal.pidfd_send_signal(victim, getattr(signal, "SIG" + what.upper()))
        except ProcessLookupError:  # the guard has ended since, and the keeper has waited for it
            self.fault = None
            return
        self.count()
        if what == "stop":
            self.resume = now + self.stop

    def count(self):
        hits[self.fault] = hits.get(self.fault, 0) + 1
        storm.on_holders += bool(self.entered and not self.left)
        self.fault = None

    def cont(self):
        if self.resume:
            self.resume = None
            write("cont", self.number)
            try:
                signal.pidfd_send_signal(self.victims[0], signal.SIGCONT)
            except ProcessLookupError:
                pass

    def guard(self):
        witness = self.witness()
        return witness and child(witness, "lock-guard")

    def witness(self):
        return child(self.process.pid, "lock-witness")

    def runs(self):
        """Its command, below the guard if there is one."""
        return child(self.guard() or self.process.pid, os.path.basename(witness))

    def let_go(self):
        while self.victims:
            os.close(self.victims.pop())

    def read_out(self):
        """There may be thousands of operations: none keeps a file open."""
        self.let_go()
        self.out.seek(0)
        self.said = self.out.read().decode(errors="replace").strip()
        self.out.close()


def child(pid, name):
    with open(f"/proc/{pid}/task/{pid}/children") as children:
        for one in children.read().split():
            with open(f"/proc/{one}/comm") as comm:
                if name in comm.read():
                    return int(one)
    return None


def cut(pid):
    """Has the kernel reset each TCP connection of that process; ss may take seconds for that."""
    own = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
    with open(f"/proc/{pid}/net/tcp") as table:
        for _, local, _, state, *rest in list(map(str.split, table))[1:]:
            if state == "01" and f"socket:[{rest[5]}]" in own:
                storm.run("ss", "-K", "-Htn", f"sport = :{int(local.split(':')[1], 16)}")


class Storm:
    """A fault each so many seconds, on an operation that begins then."""

    def __init__(self):
        self.rng = random.Random(seed + 1)
        self.deck, self.on_holders, self.others, self.due = [], 0, [], time.monotonic()
        self.away = False  # the store is
        often = {"kill keeper": 2, "stop keeper": 2, "kill guard": 2, "stop guard": 1,
                 "kill witness": 1, "stop witness": 1,
                 "term keeper": 3, "kill command": 3, "kill waiter": 3, "stop waiter": 2,
                 "break keeper": 2 * ("break" in facts), "cut keeper": 3 * ("cut" in facts),
                 "stop store": 5 * ("store" in facts), "restart store": 3 * ("store" in facts)}
        # dlock does not promise to survive the loss of all three.
        if "lease" in facts:
            often |= {"kill keeper+guard": 1, "kill keeper+witness": 1, "kill guard+witness": 1}
        self.faults = [fault for fault, n in often.items() for _ in range(n)]
        if "store" in facts:
            self.ask = os.open(facts["store"] + "/ask", os.O_WRONLY)
            self.told = os.open(facts["store"] + "/told", os.O_RDONLY)
            os.set_blocking(self.told, False)

    def reaches(self, op, now, running):
        """It begins now. While some still wait for their faults, others come first."""
        if now < self.due or sum(bool(other.fault) for other in running) > 3:
            return
        self.due = max(self.due + STORM, now)
        if not self.deck:
            self.deck = self.rng.sample(self.faults, len(self.faults))
        op.plan((self.deck.pop(), self.rng.choice(KINDS)), self.rng)

    def end_hold(self, pid):
        self.run(dlock, "-q", "--break", "--yes", "--holder", f"{socket.gethostname()}:{pid}", lock)

    def run(self, *command):
        self.others.append(subprocess.Popen(command, stdin=subprocess.DEVNULL,
                                            stdout=subprocess.DEVNULL))

    def strike(self, what, length):
        """One fault of the store at a time: else it has to wait."""
        if not self.away:
            self.away = True
            os.write(self.ask, f"{what} {self.rng.randrange(100)} {length:.3f}\n".encode())
            return True
        return False

    def turn(self):
        try:
            self.away = self.away and not os.read(self.told, 1000)
        except BlockingIOError:
            pass

    def judge(self, total, periods):
        for other in self.others:
            if other.wait(60) not in (0, *(69, 75) * ("--break" in other.args)):
                yield f"{' '.join(other.args)} ends with {other.returncode}"
        # The first and the last ones take their time.
        if total < 0.6 * periods - 2 or self.on_holders < 0.35 * periods - 3:
            yield f"{total} faults, {self.on_holders} on holders: this run proves nothing"


def decks(kinds):
    """Two faults of a keeper, then one of a guard, of all kinds in turn."""
    keeper, guard = [], []
    while True:
        for deck, whom in ((keeper, "keeper"), (keeper, "keeper"), (guard, "guard")):
            if not deck:
                deck += [(f"{what} {whom}", kind) for what in ("kill", "stop") for kind in kinds]
                rng.shuffle(deck)
            yield deck.pop()


def spells():
    """In spells of 25: one has all kinds alike, in the others one of them is frequent."""
    while True:
        if len(todo) % 25 == 0:
            often = rng.choice([[], *([kind] * 7 for kind in KINDS)])
        todo.append(Operation(len(todo) + 1, KINDS + often))
        yield todo[-1]


def plan():
    """So many, and one of EVERY has a fault."""
    faults = decks(KINDS)
    planned = list(itertools.islice(spells(), operations))
    for first in range(0, operations, EVERY):
        rng.choice(planned[first:first + EVERY]).plan(next(faults))
    return planned


class History:
    """What the commands write, as it comes."""

    def __init__(self):
        self.file, self.part, self.refused = open(f"{directory}/history"), "", False
        self.grants = 0

    def look(self, now):
        *lines, self.part = (self.part + self.file.read()).split("\n")
        for _, what, number, *_ in map(str.split, lines):
            if what == "enter":
                todo[int(number) - 1].entered = now
                self.grants += 1
            elif what == "exit":
                todo[int(number) - 1].left = True
            self.refused |= what == "refused"


def work():
    running, following = [], spells() if STORM else iter(plan())
    while True:
        now = time.monotonic()
        seen.look(now)
        storm.turn()
        running = [op for op in running if not op.turn(now)]
        while len(running) < int(facts.get("workers", 12)) and not seen.refused:
            op = next(following, None) if not STORM or seen.grants < operations else None
            if op is None:
                break
            if STORM:
                storm.reaches(op, now, running)
            op.begin()
            running.append(op)
        if not running and not storm.away:
            return
        time.sleep(0.002)


def find_free():
    """Nothing is left: the model knows for how long the lock may still be held."""
    until = time.monotonic() + LINGER + 10
    while time.monotonic() < until:
        op = Operation(len(todo) + 1, ["x"])
        op.wait, op.hold, op.kind, op.keep, op.also, op.once = "try", 0, "x", 0, False, False
        todo.append(op)
        op.begin()
        while not op.turn(time.monotonic()):
            time.sleep(0.002)
        if op.process.returncode == 0:  # not 69: a store under load may not answer in time
            return []
        time.sleep(0.1)
    return ["the lock is still held at the end"]


history = os.open(f"{directory}/history", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
SLOTS = int(facts.get("slots") or rng.choice("123"))
KINDS = ["x"] + ["s"] * ("shared" in facts) + ["n"] * ("slots" in facts)
hits, todo, began = {}, [], time.monotonic()
print(f"seed {seed}: {operations} {'grants' if STORM else 'operations'}, {SLOTS} slots", flush=True)
seen, storm = History(), Storm()
work()
problems = [] if seen.refused else find_free()
with open(f"{directory}/history") as f:
    lines = f.readlines()
model = Model(fence="fence" in facts, numbers="numbers" in facts, linger=LINGER, bound=BOUND,
              handoff=(4 if os.environ.get('DLOCK_SLOW') else 2) if STORM else 0)
problems = model.read(lines) + problems
codes = {}
said = []
USUAL = (0, 3, 65, 75, 97, 69, 71, 79) if STORM else (0, 65, 75, 97)
for op in todo:
    if hasattr(op, "process"):
        codes[op.process.returncode] = codes.get(op.process.returncode, 0) + 1
        if op.process.returncode not in USUAL and not op.was_hit:
            said.append(f"operation {op.number} ends with {op.process.returncode}: {op.said}")
print(*said[:20], sep="\n", end="\n" * bool(said))
total, took = sum(hits.values()), time.monotonic() - began
if STORM and not seen.refused:
    problems += storm.judge(total, took / STORM)
elif total < operations // EVERY / 2 and not seen.refused:
    problems.append("too few faults hit: this run proves nothing")
print(f"{sum(codes.values())} operations in {took:.1f} s; exit codes {codes}; faults {hits}")
print(*problems[:20], f"{len(problems)} problems", sep="\n")
if model.first:
    print(f"the history around line {model.first}, where the first one is:",
          *map(str.rstrip, lines[max(0, model.first - 30):model.first + 30]), sep="\n")
if STORM:
    quiet, behind = (ns / 1e9 for ns in model.idle.longest)
    print(json.dumps({"grants": seen.grants, "faults": hits, "holders": storm.on_holders,
                      "wait": model.longest / 1e9, "free": quiet, "behind": behind,
                      "overlaps": model.overlaps}))
sys.exit(bool(problems))
