#!/usr/bin/python3 -S
"""silent_keeper.py HOW FILE: an abstract socket in the place of a keeper's; its name goes to FILE.

HOW: silent (accepts, never answers), full (never accepts, its queue is full), nonsense (answers
with garbage).
"""
import os
import signal
import socket
import sys

how, file = sys.argv[1:]
net, clock = (os.stat("/proc/self/ns/" + ns).st_ino for ns in ("net", "time"))
name = "dlock-%x-%x-%016x" % (net, clock, os.getpid())
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.bind("\0" + name)
s.listen(0 if how == "full" else 100)
kept = []
with open(file, "w") as f:
    print(name, file=f)
if how == "full":
    signal.pause()
while True:
    c, _ = s.accept()
    kept.append(c)
    if how == "nonsense":
        c.send(b"held")
        c.close()
