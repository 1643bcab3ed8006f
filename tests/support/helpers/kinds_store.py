#!/usr/bin/python3 -IS
"""kinds_store.py dlock's options DIR COMMAND...: a stand-in for dlock, to plant bugs that kinds.py must find.

Locks are flocks on files in DIR that the command inherits, as a file lock of dlock. BUG in the environment is one of:

    beside   a writer enters beside shared holders and slots
    many     one slot too many
    gone     the command of a shared holder does not have the lock, so that it runs on when its keeper's is gone
    stale    slots are counted before the wait for the row, and the answer is used behind it
"""
import fcntl
import os
import sys
import time

BUG = os.environ.get("BUG", "")
EX, SH, NB = fcntl.LOCK_EX, fcntl.LOCK_SH, fcntl.LOCK_NB
kind, slots, end = "x", 0, None
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
    elif word in ("--ttl", "--grace"):
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


def fence():
    """The last one, which a writer makes greater; readers and slots come while none does."""
    fd = os.open("fence", os.O_RDWR | os.O_CREAT)
    last = int(os.read(fd, 20) or 1)
    if kind == "x":
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
    os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


os.environ.pop("DLOCK_SLOT", None)
while (held := attempt()) is None:
    if end is not None and time.monotonic() >= end:
        sys.exit(75)
    time.sleep(0.002)
os.environ["DLOCK_FENCE"] = fence()
if os.fork() == 0:
    guard()
code = os.waitstatus_to_exitcode(os.wait()[1])
sys.exit(code if code >= 0 else 71)
