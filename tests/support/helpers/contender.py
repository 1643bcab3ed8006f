#!/usr/bin/python3 -S
"""contender.py PORT KEY SECONDS - a rival that tries to set the same Redis key all the time.

Prints, one a line: when KEY ends by the server's word (0: no KEY), then when the SET NX that
succeeded was sent, and when its answer was there (0 twice: not within SECONDS). Nanoseconds of
CLOCK_BOOTTIME. The first time is read before its request is sent, so KEY ends no earlier.
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
    text = b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)
    server.sendall(b"*%d\r\n" % len(words) + text)
    return answers.readline()


before = now()
left = int(ask(b"PTTL", key)[1:])
print(before + left * 1000000 if left > 0 else 0, flush=True)
end = before + int(seconds * 1e9)
while now() < end:
    before = now()
    if ask(b"SET", key, b"rival", b"NX", b"PX", b"60000") == b"+OK\r\n":
        print(f"{before}\n{now()}", flush=True)
        sys.exit()
    time.sleep(0.001)
print("0\n0")
