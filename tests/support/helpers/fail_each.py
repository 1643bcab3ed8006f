#!/usr/bin/python3 -S
"""fail_each.py HELPERS DLOCK DIR NAME AT_ONCE STORE=LOCK...: every failure once. Cases on stdin:

    STORE call ROLE:CALL:K:ERRNO    that system call fails (see fail_call.c)
    STORE memory N[+]               the N-th allocation fails (and all later ones; see nomemory.c)

Each case has a lock of its own, LOCK with a name behind it. A dlock, which the failure hits, holds
it for a renewal and more; as soon as its command runs, another dlock waits for the lock, and
nothing hits that one. What must be true then: see Case.judge(). Complaints go to DIR/bad, one a
line; stdout has how many cases of each store ended how. The store "guarded" is a file with -o.
"""
import collections
import errno
import os
import subprocess
import sys
import time
from pathlib import Path

TTL = 3.0           # a renewal comes each 0.8 s, on ZooKeeper each 0.5 s
HOLD_MS = 900
BUSY = 1.5          # s that a process may wait for the processor
OURS = {69, 71, 73, 76, 77, 79}
DIED = {134, 139}   # libzookeeper ends the process where it gets no memory
COMMAND = 7         # the command's own exit code
LATE = " has not been renewed for "
# What the libraries of libpq say when they are loaded, and the counters of `make coverage`.
FOREIGN = ("Error in GnuTLS initialization: ", "LLVM Profile Error: ")

helpers, dlock, top, name, at_once = sys.argv[1:6]
locks = dict(arg.split("=", 1) for arg in sys.argv[6:])


class Case:
    def __init__(self, number, line):
        self.store, self.kind, self.what = line.split()
        self.title = line
        if self.kind == "call":
            *where, error = self.what.split(":")
            self.title = f"{self.store} call {':'.join(where)} {errno.errorcode[int(error)]}"
        self.dir = Path(top, f"case.{number}").absolute()
        self.dir.mkdir()
        options = ["-o"] if self.store == "guarded" else []
        lock = f"{locks[self.store]}{name}.{number}"
        env, case = dict(os.environ), self.what
        if self.kind == "memory":
            case = "-"
            env.update(LD_PRELOAD=f"{helpers}/nomemory.so", NOMEMORY=self.what,
                       NOMEMORY_IN=Path(dlock).name, NOMEMORY_LOG=str(self.dir / "failed"))
        self.waiter, self.wait = None, [dlock, *options, "-w", str(2 * TTL + BUSY), lock,
                                        f"{helpers}/witness", self.dir, "0"]
        self.run = self.start("out", [f"{helpers}/fail_call", self.dir / "report", case, dlock,
                                      *options, "--ttl", str(TTL), lock, f"{helpers}/witness",
                                      self.dir, str(HOLD_MS), "tree", str(COMMAND)], env)

    def start(self, out, argv, env=None):
        with open(self.dir / out, "wb") as file:
            return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                                    cwd=self.dir, env=env)

    def is_over(self):
        over = self.run.poll() is not None
        if self.waiter is None and (over or (self.dir / "history").exists()):
            self.waiter = self.start("next", self.wait)
        return over and self.waiter.poll() is not None

    def read(self, file):
        path = self.dir / file
        return path.read_text(errors="replace").splitlines() if path.exists() else []

    def judge(self):
        """What is wrong, as texts; sets how it ended, and whether the failure has hit."""
        self.rc, end, bad = None, 0, []
        self.struck = (self.dir / "failed").exists()
        for line in self.read("report"):
            word, *rest = line.split()
            if word == "exit":
                self.rc, end = int(rest[0]), int(rest[1]) / 1e9
            elif word == "struck":
                self.struck = True
            else:
                bad.append(line)  # a hang, or a process that is left
        if (self.dir / "violations").exists():
            bad.append("FINAL: two commands at once")
        if self.waiter.returncode != 0:
            bad.append(f"the next one ended with {self.waiter.returncode}: {self.read('next')}")
        if self.rc is None or bad:
            return [*bad, str(self.read("out"))]
        *first, after, _ = [line.split() for line in self.read("history")]
        if first and 0 < int(after[2]) <= int(first[0][2]):
            bad.append(f"FINAL: fence {after[2]} after {first[0][2]}")
        if len(first) == 2:
            end = int(first[1][3]) / 1e9
        return bad + self.judge_end(len(first), int(after[3]) / 1e9 - end)

    def judge_end(self, lines_of_first, took):
        """lines_of_first: how far the command came, 2: to its end; took: s from its end, or from
        dlock's, until the next command began."""
        out = [line for line in self.read("out") if not line.startswith(FOREIGN)]
        ended, bad = lines_of_first == 2, []
        told = len([line for line in out if LATE not in line])
        if self.rc in DIED and self.kind == "memory" and self.store == "zookeeper":
            told, out = 1, []
        elif self.rc == COMMAND:
            if not ended:
                bad.append("the command's exit code, without its end")
        elif self.rc not in OURS and (self.rc not in (126, 127) or lines_of_first > 0):
            bad.append("not a documented exit code")
        elif ended and self.rc != 79:
            bad.append("the command's exit code is lost")
        if told != 1 and (self.rc != COMMAND or told > 1):
            bad.append(f"{told} lines tell of it")
        if [line for line in out if not line.startswith("dlock: ")]:
            bad.append("a line that is not ours")
        # Free at once, or with its ttl. libpq tells nobody of a send that fails: it waits for the
        # end of the connection, which comes in earnest, but not here.
        hidden = self.store in ("postgres", "table") and ":sendto:" in self.what
        silent = self.rc == COMMAND and not out and not hidden
        if took > TTL + 1 + BUSY or (took > BUSY and silent):
            bad.append("the lock was kept")
        return [f"{what}: exit code {self.rc}, free after {took:.2f} s, {out}" for what in bad]


def main():
    lines = collections.deque(enumerate(sys.stdin.read().splitlines(), 1))
    counts = collections.defaultdict(collections.Counter)
    running, begun = [], time.monotonic()
    with open(Path(top, "bad"), "w", encoding="utf-8") as complaints:
        while lines or running:
            while lines and len(running) < int(at_once):
                running.append(Case(*lines.popleft()))
            for case in [case for case in running if case.is_over()]:
                running.remove(case)
                for what in case.judge():
                    print(f"{case.title}: {what}", file=complaints, flush=True)
                ends = counts[case.store, case.kind]
                ends["cases"] += 1
                ends["not reached"] += not case.struck
                ends[f"exit code {case.rc}"] += 1
            time.sleep(0.01)
    for (store, kind), ends in sorted(counts.items()):
        print(f"{store} {kind}:", ", ".join(f"{n} {what}" for what, n in ends.items() if n))
    print(f"{time.monotonic() - begun:.0f} s")


main()
