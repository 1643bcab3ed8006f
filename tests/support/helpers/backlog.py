#!/usr/bin/python3 -S
"""backlog.py NAME CMD...: run CMD while the queue of the abstract socket NAME is full."""
import socket
import subprocess
import sys

held = []
while True:
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.setblocking(False)
    try:
        s.connect("\0" + sys.argv[1])
    except BlockingIOError:
        break
    held.append(s)
print(len(held), "wait", file=sys.stderr)
sys.exit(subprocess.call(sys.argv[2:]))
