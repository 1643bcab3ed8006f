#!/usr/bin/python3 -S
"""churn.py DIR [COMMAND...]: locks and unlocks hundreds of files in DIR at random, for ever, on the
processor whose locks stand first in /proc/locks. With COMMAND: runs it on the processor whose locks
stand last, instead.
"""
import fcntl
import os
import random
import sys

if len(sys.argv) > 2:
    os.sched_setaffinity(0, [max(os.sched_getaffinity(0))])
    os.execv(sys.argv[2], sys.argv[2:])
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
files = [open(f"{sys.argv[1]}/{i}", "w") for i in range(300)]
open("churning", "w").close()
while True:
    fcntl.flock(random.choice(files), random.choice([fcntl.LOCK_EX, fcntl.LOCK_UN]))
