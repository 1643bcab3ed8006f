#!/usr/bin/python3 -S
"""fakesentinel.py FILE [ADDRESS] - a sentinel that gives the answers in FILE. Prints its port.

FILE has an answer a line, "HOST PORT", "nil" or "-ERR text", each given once, the last repeated.
"""
import sys
import threading

sys.dont_write_bytecode = True
from servers import listen

lock = threading.Lock()


def next_answer():
    with lock, open(sys.argv[1], "r+") as f:
        lines = f.read().splitlines()
        if len(lines) > 1:
            f.seek(0)
            f.write("\n".join(lines[1:]) + "\n")
            f.truncate()
    if lines[0] == "nil":
        return b"*-1\r\n"
    if lines[0].startswith("-"):
        return lines[0].encode() + b"\r\n"
    return b"*2\r\n" + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in lines[0].encode().split())


def serve(client):
    while data := client.recv(65536):
        if b"get-master-addr" in data:
            client.sendall(next_answer())
        elif b"SUBSCRIBE" in data:
            client.sendall(b"*3\r\n$9\r\nsubscribe\r\n$14\r\n+switch-master\r\n:1\r\n")


listen(serve, *sys.argv[2:])
