#!/usr/bin/python3
"""contender.py PORT KEY SECONDS - another program that wants the same Redis key, and tries all the time.

Prints, one a line: when KEY ends by what the server says now (0: it is not there), then, once SET NX has
succeeded, when that was (0: not within SECONDS). Nanoseconds of CLOCK_BOOTTIME, both read before the
request was sent, so that the true time is not earlier.
"""
import socket
import sys
import time

port, key, seconds = int(sys.argv[1]), sys.argv[2].encode(), float(sys.argv[3])
server = socket.create_connection(("127.0.0.1", port), 5)
server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
answers = server.makefile("rb")


def now():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def ask(*words):
    server.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words))
    return answers.readline()


before = now()
left = int(ask(b"PTTL", key)[1:])
print(before + left * 1000000 if left > 0 else 0, flush=True)
end = before + int(seconds * 1e9)
while now() < end:
    before = now()
    if ask(b"SET", key, b"rival", b"NX", b"PX", b"60000") == b"+OK\r\n":
        print(before, flush=True)
        sys.exit()
    time.sleep(0.001)
print(0)
