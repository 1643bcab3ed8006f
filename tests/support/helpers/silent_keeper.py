#!/usr/bin/python3
"""silent_keeper.py HOW FILE: listen on an abstract socket, whose name goes to FILE, in the place of a dlock's keeper.
HOW: silent (accepts, and never answers), full (never accepts, its queue is full), nonsense (answers with garbage)."""
import os
import signal
import socket
import sys

how, file = sys.argv[1:]
name = "dlock-%x-%x-%016x" % (os.stat("/proc/self/ns/net").st_ino, os.stat("/proc/self/ns/time").st_ino, os.getpid())
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
