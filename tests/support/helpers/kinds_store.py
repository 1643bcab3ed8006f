#!/usr/bin/python3 -IS
"""kinds_store.py OPTION... DIR COMMAND...: a stand-in for dlock with bugs that kinds.py must find.

Locks are flocks on files in DIR that the command inherits, as with a file lock of dlock. $BUG:

    beside   a writer enters beside shared holders and slots
    many     one slot too many
    gone     a shared holder's command lacks the lock: it runs on when its keeper is gone
    stale    slots are counted before the wait for the row, and the answer is used behind it
    half     a set does not take its second lock
    again    --once runs a command that has succeeded
    short    --min-hold has no effect
    late     a waiter looks every 3 s, first after 3 s
"""
import fcntl
import os
import sys
import time

BUG = os.environ.get("BUG", "")
EX, SH, NB = fcntl.LOCK_EX, fcntl.LOCK_SH, fcntl.LOCK_NB
kind, slots, end, also, once, keep = "x", 0, None, None, False, 0
words = iter(sys.argv[1:])
for word in words:
    if word in ("-x", "-s"):
        kind = word[1]
    elif word == "--slots":
        kind, slots = "n", int(next(words))
    elif word == "-n":
        end = 0
    elif word == "-w":
        end = time.monotonic() + int(next(words)[:-2]) / 1000
    elif word == "--also":
        also = next(words)
    elif word == "--once":
        once = True
    elif word == "--min-hold":
        keep = int(next(words)[:-2]) / 1000
    elif word == "--forget":
        kind = "f"
    elif word in ("--ttl", "--grace", "--skip-exit-code"):
        next(words)
    elif word[0] != "-":
        break
os.makedirs(word, exist_ok=True)
os.chdir(word)
command = list(words)


def take(name, how):
    """A descriptor that has the lock NAME; None: another process has it."""
    fd = os.open(name, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(fd, how)
        return fd
    except BlockingIOError:
        os.close(fd)
        return None


def used(number, width):
    """Slot NUMBER of WIDTH is held; its file says so for as long as a process has it."""
    fd = take(f"slot.{width}.{number}", EX | NB)
    if fd is not None:
        os.close(fd)
    return fd is None


def free_slot():
    return next((i for i in range(slots + (BUG == "many")) if not used(i, slots)), None)


def attempt():
    """All the descriptors of a holder; None: not yet."""
    first = attempt_first()
    if first is None or not also or BUG == "half":
        return first
    if (second := take(also, EX | NB)) is None:
        for fd in first:
            os.close(fd)
        return None
    return [*first, second]


def attempt_first():
    room = free_slot() if BUG == "stale" and kind == "n" else None
    row = take("row", EX)  # one at a time from here
    try:
        if BUG == "stale":
            time.sleep(0.003)  # a server's work
        beside = BUG == "beside" and kind == "x"
        lock = take("writers" if beside else "lock", (EX if kind == "x" else SH) | NB)
        if lock is None or kind != "n":
            return [lock] if lock is not None else None
        if any(used(i, n) for n in range(1, 9) if n != slots for i in range(n + 1)):
            sys.exit(65)
        if BUG != "stale":
            room = free_slot()
        slot = take(f"slot.{slots}.{room}", EX | NB) if room is not None else None
        if slot is None and room is not None:  # a stale answer: its file is no more the only one
            slot = take(f"slot.{slots}.{room}.too", SH)
        if slot is None:
            os.close(lock)
            return None
        if BUG not in ("many", "stale"):
            os.environ["DLOCK_SLOT"] = str(room)
        return [lock, slot]
    finally:
        os.close(row)


def fence(file, writer):
    """The last one, which a writer makes greater; readers and slots come while none does."""
    fd = os.open(file, os.O_RDWR | os.O_CREAT)
    last = int(os.read(fd, 20) or 1)
    if writer:
        last += 1
        os.pwrite(fd, str(last).encode(), 0)
    os.close(fd)
    return str(last)


def guard():
    with open("/proc/self/comm", "w") as name:
        name.write("guard")
    if (pid := os.fork()) == 0:
        for fd in held:
            os.set_inheritable(fd, not (BUG == "gone" and kind == "s"))
        os.execv(command[0], command)
    for fd in held:
        os.close(fd)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os._exit(code if code >= 0 else 128 - code)


if kind == "f":
    if os.path.exists("done"):
        os.unlink("done")
    sys.exit(0)
os.environ.pop("DLOCK_SLOT", None)
PAUSE = 3 if BUG == "late" and end is None else 0.002
time.sleep(PAUSE)
while (held := attempt()) is None:
    if end is not None and time.monotonic() >= end:
        sys.exit(75)
    time.sleep(PAUSE)
granted = time.monotonic()
if once and os.path.exists("done") and BUG != "again":
    sys.exit(3)
os.environ["DLOCK_FENCE"] = fence("fence", kind == "x")
if also:
    os.environ["DLOCK_FENCE_2"] = fence("fence2", True)
if os.fork() == 0:
    guard()
code = os.waitstatus_to_exitcode(os.wait()[1])
if once and code == 0:
    os.close(os.open("done", os.O_WRONLY | os.O_CREAT))
if keep and BUG != "short":
    time.sleep(max(0, granted + keep - time.monotonic()))
sys.exit(code if code >= 0 else 71)
