#!/usr/bin/python3 -IS
"""watch.py DIR - sees from outside how long the processes live that report themselves (lives.c).

Listens at the socket DIR/watch. A process sends "WHO ROLE PID" (PID 0: itself, as the kernel says),
and is answered when the watcher has a pidfd of it. DIR/lives gets a line for each begin and end:
"TIME begin|end WHO ROLE PID", TIME in ns of CLOCK_BOOTTIME. A process that is stopped or frozen
lives; a zombie has ended. SIGTERM ends the watcher.

A begin is written before its process may go on. An end that the kernel has reported is written
before a begin of the same wake-up: if the file says that two were alive together, they were.
"""
import os
import select
import signal
import socket
import struct
import sys
import time

os.chdir(sys.argv[1])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
listener.bind("watch")
listener.listen(64)
out = open("lives", "a", buffering=1)
poll = select.poll()
poll.register(listener, select.POLLIN)
living = {}  # pidfd: what its lines say


def note(what, text):
    print(time.clock_gettime_ns(time.CLOCK_BOOTTIME), what, text, file=out)


def ended(ready):
    for fd in ready:
        if fd in living:
            note("end", living.pop(fd))
            poll.unregister(fd)
            os.close(fd)


def admit():
    client = listener.accept()[0]
    with client:
        who, role, pid = client.recv(100).decode().split()
        if pid == "0":
            pid = struct.unpack("3i", client.getsockopt(
                socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        text = f"{who} {role} {pid}"
        try:
            fd = os.pidfd_open(int(pid))
        except ProcessLookupError:  # a wrapper that ended before it could be reported
            note("begin", text)
            note("end", text)
            fd = -1
        if fd >= 0:
            poll.register(fd, select.POLLIN)
            # Whose end was not yet seen, now that this process is known to live.
            ended([f for f, _ in poll.poll(0)])
            living[fd] = text
            note("begin", text)
        client.send(b".")


print("ready", flush=True)
while True:
    fds = [fd for fd, _ in poll.poll()]
    ended(fds)
    if listener.fileno() in fds:
        admit()
