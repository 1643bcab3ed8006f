#!/usr/bin/python3 -S
"""nemesis.py DLOCK LOCK WITNESS DIR SERVER_PID SECONDS WORKERS [SEED]

WORKERS processes take LOCK in turn (ttl 2 s, or CHAOS_TTL; holds of up to 3 x ttl; the command is
`witness` with a grandchild), while faults hit the *current holder*: one or two of its keeper, its
guard and its witness process are killed, or one is stopped for 0.7 to 3 x ttl, or the server is
stopped. Prints the seed, and how many faults hit a holder. The verdict is check_history.py's, and
ours on exit codes: 0, 79 (lost), 71 (guard or witness killed), 69 (a waiter, when the server was
away for longer than the ttl), or our SIGKILL; any other code fails (FINAL: tests/run does not
repeat such a test), and so does a worker that gets stuck.
"""
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

dlock, lock, witness, directory = sys.argv[1:5]
server, seconds, WORKERS = int(sys.argv[5]), float(sys.argv[6]), int(sys.argv[7])
seed = int(sys.argv[8]) if len(sys.argv) > 8 else random.SystemRandom().randrange(1 << 30)
rng = random.Random(seed)
print(f"seed {seed}", flush=True)
TTL = float(os.environ.get("CHAOS_TTL", 2))
ENOUGH = min(30, int(2 * seconds / 3))
deadline = time.monotonic() + seconds
hits = {}
codes = {}
bad = []


def note(what):
    """DIR/faults: what was done and what ended, to be read beside DIR/history when a run fails."""
    with open(os.path.join(directory, "faults"), "a") as log:
        log.write(f"{time.clock_gettime_ns(time.CLOCK_BOOTTIME)} {what}\n")


def start():
    hold = rng.choice([0, 5, 20, 100, 400, 1000, int(1000 * TTL), int(3000 * TTL)])
    args = [dlock, "--ttl", str(TTL), "--grace", "0.2", lock, witness, directory, str(hold), "tree"]
    # A file, not a pipe: a tree that outlives its keeper must not hold us up.
    out = tempfile.TemporaryFile("w+", dir=directory)
    p = subprocess.Popen(args, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=out)
    p.out = out
    return p


def ended(p):
    code = p.returncode
    codes[code] = codes.get(code, 0) + 1
    note(f"end keeper {p.pid} code {code}")
    p.out.seek(0)
    text = p.out.read()
    p.out.close()
    if code not in (0, 79, 71, 69, -signal.SIGKILL):
        bad.append(f"FINAL: exit {code}: {text.strip()}")


def child(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as f:
        return int(f.read().split()[0])


def holder():
    """The pids of keeper, witness and guard, as the store and /proc know them."""
    try:
        out = subprocess.run([dlock, "--connect-timeout", "0.5", "--status", "--json", lock],
                             capture_output=True, text=True, timeout=5).stdout
        pid = json.loads(out)["holders"][0]["pid"]
        witness = child(pid)
        return pid, witness, child(witness)
    except (ValueError, IndexError, KeyError, OSError):
        return None


def send(pid, sig):
    try:
        os.kill(pid, sig)
        return True
    except ProcessLookupError:
        return False


def fault():
    target = holder()
    if not target:
        return
    pids = dict(zip(("keeper", "witness", "guard"), target), server=server)
    # dlock does not promise to survive the loss of all three.
    if pids["keeper"] in hit:
        return
    kind = rng.choice(["kill keeper", "stop keeper", "kill guard", "stop guard", "kill witness",
                       "stop witness", "kill keeper guard", "kill keeper witness",
                       "kill guard witness", "stop server"])
    what, *victims = kind.split()
    victims = [pids[name] for name in victims]
    if not all([send(pid, signal.SIGKILL if what == "kill" else signal.SIGSTOP)
                for pid in victims]):
        return
    hit.add(pids["keeper"])
    hits[kind] = hits.get(kind, 0) + 1
    note(f"{kind}: {pids}")
    if what == "stop":
        resume.append((time.monotonic() + rng.uniform(0.7, 3.0) * TTL, victims[0]))


resume = []
hit = set()
workers = [start() for _ in range(WORKERS)]
next_fault = time.monotonic() + 0.5

# On a busy machine faults come more slowly: a run that hit too few holders would prove nothing.
while time.monotonic() < deadline or (
        sum(hits.values()) < ENOUGH and time.monotonic() < deadline + 2 * seconds):
    for i, p in enumerate(workers):
        if p.poll() is not None:
            ended(p)
            workers[i] = start()
    for at, pid in [r for r in resume if r[0] <= time.monotonic()]:
        send(pid, signal.SIGCONT)
        note(f"resume {pid}")
        resume.remove((at, pid))
    # A stopped server names no holder.
    if time.monotonic() >= next_fault and server not in [pid for _, pid in resume]:
        fault()
        next_fault = time.monotonic() + rng.uniform(0.05, 0.4)
    time.sleep(0.01)
for _, pid in resume:
    send(pid, signal.SIGCONT)
for p in workers:
    try:
        p.wait(timeout=max(60, 3 * TTL * WORKERS))
    except subprocess.TimeoutExpired:
        bad.append(f"worker {p.pid} is stuck")
        ps = subprocess.run(["ps", "-eo", "pid,ppid,stat,wchan:24,etimes,args"],
                            capture_output=True, text=True)
        print("".join(line + "\n" for line in ps.stdout.splitlines()
                      if "dlock" in line or "redis-server" in line))
        p.kill()
        p.wait()
    ended(p)
total = sum(hits.values())
print(f"{total} faults on holders: {hits}; exit codes: {codes}")
for line in sorted(set(bad))[:20]:
    print(line)
if total < ENOUGH:
    print("too few faults: this run proves nothing")
sys.exit(1 if bad or total < ENOUGH else 0)
