#!/usr/bin/python3 -S
"""redlock_nemesis.py DLOCK NAME WITNESS DIR SECONDS WANT [SEED]

40 processes take the lock NAME on five redis-servers in turn (ttl 2 s, or CHAOS_TTL), most for no
time, some for up to 3 x ttl. Nine of ten say that this is the largest ttl (restart-grace): the rest
wait for silent nodes. Meanwhile nodes are killed and come back without their data, or are stopped
and go on, at random, never more than two out of service at once; a node that came back is out of
service until it may vote again. It lasts SECONDS, and up to five thirds of that until there were
WANT acquisitions. The verdict on the history in DIR is check_history.py's; ours: exit codes are 0,
seldom 79 (lost) or 69 (no majority: a busy machine), never others (FINAL: tests/run does not repeat
such a test); no process is stuck; only fences that expire are left on the nodes; there were enough
faults and acquisitions to prove anything.

CHAOS_NODES: so many nodes; with one it is redis://, without faults.
"""
import os
import random
import signal
import socket
import subprocess
import sys
import time

dlock, name, witness, directory = sys.argv[1:5]
seconds, want = float(sys.argv[5]), int(sys.argv[6])
seed = int(sys.argv[7]) if len(sys.argv) > 7 else random.SystemRandom().randrange(1 << 30)
rng = random.Random(seed)
print(f"seed {seed}", flush=True)
TTL = float(os.environ.get("CHAOS_TTL", 2))
N = int(os.environ.get("CHAOS_NODES", 5))
WORKERS = 40
OUT = (N - 1) // 2
# The ttl, a second for the whole seconds of an uptime, and a quarter that waiters may add.
GRACE = 1.25 * TTL + 1.2
faults = {}
codes = {}
bad = []


def note(what):
    """DIR/faults: what was done and what ended, to be read beside DIR/history when a run fails."""
    log.write(f"{time.clock_gettime_ns(time.CLOCK_BOOTTIME)} {what}\n")


class Node:
    def __init__(self, number):
        self.number = number
        while True:
            # Below the ports that the kernel hands out to clients.
            self.port = random.SystemRandom().randrange(10000, 32000)
            if self.start():
                break
        self.due = None  # when and what is done next to a node that is out of service

    def start(self):
        self.process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "redis-server", "--port", str(self.port),
             "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", directory],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        own = f"process_id:{self.process.pid}\r\n"
        while self.process.poll() is None:
            if self.ask("PING") == "+PONG" and self.ask("INFO", "server", own):
                return True
            time.sleep(0.005)
        return False

    def ask(self, *words):
        """The first line of the answer; with a third word: whether that is in it."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as s:
                s.sendall(" ".join(words[:2]).encode() + b"\r\n")
                text = s.recv(65536).decode(errors="replace")
                return words[2] in text if len(words) > 2 else text.split("\r\n")[0]
        except OSError:
            return None

    def fault(self, now):
        kind = rng.choice(["kill", "kill", "stop", "stop", "stop"])
        faults[kind] = faults.get(kind, 0) + 1
        note(f"{kind} node {self.number}")
        if kind == "kill":
            self.process.kill()
            self.process.wait()
            self.due = (now + rng.uniform(0, 1), "start")
        else:
            self.process.send_signal(signal.SIGSTOP)
            stop = rng.choice([0.05, 0.3, 1.0, 3.0]) * rng.uniform(0.5, 1) * TTL
            self.due = (now + stop, "resume")

    def work(self, now):
        if not self.due or now < self.due[0]:
            return
        what, self.due = self.due[1], None
        if what == "start":
            if not self.start():
                bad.append(f"node {self.number} does not start")
            self.due = (time.monotonic() + GRACE, "back")
        elif what == "resume":
            self.process.send_signal(signal.SIGCONT)
        note(f"{what} node {self.number}")

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def left(self):
        keys = subprocess.run(["redis-cli", "-p", str(self.port), "--scan"],
                              capture_output=True, text=True, timeout=10)
        for key in keys.stdout.split():
            if not key.endswith(":dlock:fence") or self.ask("PTTL", key) == ":-1":
                yield f"node {self.number} has {key}"


class Worker:
    """One of the processes that want the lock, again and again."""

    def __init__(self, number):
        self.err = open(os.path.join(directory, f"err.{number}"), "w+")
        self.start()

    def start(self):
        hold = rng.choice([0] * 60 + [1] * 20 + [5] * 10 + [20] * 5 + [100, 300])
        global next_long
        if time.monotonic() > next_long:
            hold = int(1000 * TTL * rng.choice([1, 3]))
            next_long += 12
        self.err.seek(0)
        self.err.truncate()
        store = uri if N == 1 or rng.random() < 0.1 else f"{uri}?restart-grace={TTL}"
        command = [dlock, "--ttl", str(TTL), "--grace", "0.1", f"{store}#{name}",
                   witness, directory, str(hold)] + ["tree"] * (hold > 20)
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=self.err)
        self.again = None

    def ended(self):
        code = self.process.returncode
        codes[code] = codes.get(code, 0) + 1
        if code == 0:
            return
        self.err.seek(0)
        text = f"exit {code}: {self.err.read().strip()}"
        note(f"end keeper {self.process.pid} {text}")
        if code not in (79, 69):
            bad.append(f"FINAL: {text}")

    def work(self, now, more):
        if self.again is None and self.process.poll() is not None:
            self.ended()
            self.again = now + rng.uniform(0, 0.3)
        if more and self.again is not None and now >= self.again:
            self.start()

    def finish(self, until):
        try:
            self.process.wait(timeout=max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            bad.append(f"keeper {self.process.pid} is stuck")
            self.process.kill()
            self.process.wait()
        if self.again is None:
            self.ended()


log = open(os.path.join(directory, "faults"), "w", buffering=1)
nodes = []
try:
    nodes = [Node(i + 1) for i in range(N)]
    uri = "redlock" if N > 1 else "redis"
    uri += "://" + ",".join(f"127.0.0.1:{n.port}" for n in nodes)
    begin = time.monotonic()
    next_long, next_fault = begin + 3, begin + GRACE
    workers = [Worker(i) for i in range(WORKERS)]
    while True:
        now = time.monotonic()
        done = codes.get(0, 0) + codes.get(79, 0)
        more = now < begin + seconds or (done < want and now < begin + seconds * 3)
        for w in workers:
            w.work(now, more)
        for n in nodes:
            n.work(now)
        if not more:
            break
        well = [n for n in nodes if not n.due]
        if now >= next_fault:
            if N - len(well) < OUT:
                rng.choice(well).fault(now)
            next_fault = now + rng.uniform(0.05, 0.5)
        time.sleep(0.01)
    took = time.monotonic() - begin
    for n in nodes:
        if n.due and n.due[1] == "resume":
            n.due = (0, "resume")
            n.work(1)
    for w in workers:
        w.finish(begin + took + 60)
    # A release that no majority could confirm is over with the ttl.
    until = time.monotonic() + TTL
    while (left := [k for n in nodes if n.process.poll() is None for k in n.left()]) and (
            time.monotonic() < until):
        time.sleep(0.05)
    bad += left
finally:
    for n in nodes:
        n.end()

entered = sum(line.startswith("enter") for line in open(os.path.join(directory, "history")))
total, lost = sum(faults.values()), codes.get(79, 0) + codes.get(69, 0)
print(f"{entered} acquisitions in {took:.1f} s, {total} faults: {faults}; exit codes: {codes}")
for line in sorted(set(bad))[:20]:
    print(line)
if entered < want or (OUT and total < seconds / 3):
    print("too little happened: this run proves nothing")
    bad.append("little")
if lost > max(3, entered / 50):
    print(f"{lost} were lost or given up, although a majority was always there")
    bad.append("lost")
sys.exit(1 if bad else 0)
