#!/usr/bin/python3 -S
"""burst.py N GO CMD...: run CMD N times at once; when all but one have ended, make the file GO.

Prints the exit codes, sorted. For a lock with a single holder, whose command waits for GO.
"""
import os
import sys

n, go, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
ready, gun = os.pipe()
for _ in range(n):
    if os.fork() == 0:
        os.close(gun)
        os.read(ready, 1)
        os.execvp(command[0], command)
os.close(ready)
os.close(gun)
codes = [os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(n - 1)]
open(go, "w").close()
codes.append(os.waitstatus_to_exitcode(os.wait()[1]))
print(*sorted(codes))
