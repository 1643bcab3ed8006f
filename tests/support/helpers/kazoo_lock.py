#!/usr/bin/python3
"""kazoo_lock.py HOSTS PATH KIND GO [OPTION...] - takes a lock as kazoo does, for interplay with it.

KIND is lock, read, write or semaphore. Prints "held NODE" when it has it (its contender's name), keeps it until
the file GO exists, prints "released".
  --try            does not wait: prints "refused" and ends with 75
  --extra=PATTERN  one of extra_lock_patterns: others with that in their node's name count, too
  --leases N       of the semaphore (1)
  --timeout S      of the session (4)
  --id TEXT        the node's data (kazoo)
"""
import argparse
import os
import sys
import time

from kazoo.client import KazooClient
from kazoo.recipe.lock import Lock, ReadLock, WriteLock

p = argparse.ArgumentParser()
for name in ("hosts", "path", "kind", "go"):
    p.add_argument(name)
p.add_argument("--try", dest="once", action="store_true")
p.add_argument("--extra", action="append", default=[])
p.add_argument("--leases", type=int, default=1)
p.add_argument("--timeout", type=float, default=4)
p.add_argument("--id", default="kazoo")
a = p.parse_args()

zk = KazooClient(a.hosts, timeout=a.timeout)
zk.start(10)
if a.kind == "semaphore":
    lock = zk.Semaphore(a.path, a.id, a.leases)
else:
    lock = {"lock": Lock, "read": ReadLock, "write": WriteLock}[a.kind](zk, a.path, a.id, a.extra)
if not lock.acquire(blocking=not a.once):
    print("refused", flush=True)
    zk.stop()
    sys.exit(75)
print("held", getattr(lock, "node", None) or "", flush=True)
while not os.path.exists(a.go):
    time.sleep(0.02)
lock.release()
print("released", flush=True)
zk.stop()
