#!/usr/bin/python3 -S
"""zkproxy.py PORT FAULT WHAT [N [CODE]] - stands before a ZooKeeper server on PORT.

Prints its own port (at $LISTEN, 127.0.0.1 without it); prints "done" when the fault has happened.
proxy.py counts bytes; here the N-th (1) packet of a kind is meant, over all connections, N = 0:
each. WHAT is connect, create (of all kinds), delete, get, set, ls, ping, sync, close, any, or event
(a watch that fires; it has no question).

FAULT  pass      nothing happens
       count     nothing happens either: with N = 0, as many lines "done" as there were such packets
       lose      the question is passed on, its answer is not, and the connection ends
       swallow   the question is not passed on, and the connection ends: it looks the same
       refuse    the question is not passed on, and CODE answered
       after     the connection ends right behind the answer
       stall     the answer, and all later words of the server on this connection, are kept back
       late      the same, until the client has sent a delete
       drop      the answer alone is left out (an event that never came)
       error     CODE (e.g. -4, -110) is answered; what was asked for is done all the same
       flip      a byte of the answer, the last, or CODE, counted from its length's first, is wrong
       forge     CODE, bytes in hex, is the answer; "xid" in it is the question's number
       drip      the answer comes one byte at a time
"""
import os
import socket
import struct
import sys
import threading
import time

sys.dont_write_bytecode = True
from servers import drip, stand_before

port, fault = int(sys.argv[1]), sys.argv[2]
what = sys.argv[3] if len(sys.argv) > 3 else "any"
n = int(sys.argv[4]) if len(sys.argv) > 4 else 1
code = sys.argv[5] if len(sys.argv) > 5 else "-1" if fault == "flip" else "-4"
OPS = {1: "create", 15: "create", 19: "create", 21: "create", 2: "delete", 20: "delete",
       3: "exists", 4: "get", 5: "set", 8: "ls", 12: "ls", 9: "sync", 11: "ping", 14: "multi",
       100: "auth", 101: "watches", -11: "close"}
count = 0
mutex = threading.Lock()


def due(kind):
    """Is this packet the one?"""
    global count
    if fault == "pass" or what not in (kind, "any"):
        return False
    with mutex:
        count += 1
        if n not in (0, count):
            return False
    print("done", flush=True)
    return True


def packets(sock):
    f = sock.makefile("rb")
    while len(head := f.read(4)) == 4:
        size = struct.unpack(">i", head)[0]
        # A four-letter word is not a packet.
        if not 0 <= size <= 0x1000000:
            yield None, head
            while data := f.read1(65536):
                yield None, data
            return
        body = f.read(size)
        if len(body) < size:
            return
        yield body, head + body


class Kinds(dict):
    """The kinds of the questions without an answer, by their numbers."""
    def __init__(self):
        self.deleted = threading.Event()  # the client has sent a delete


def questions(client, server, kinds):
    first = True
    for body, data in packets(client):
        kind = "connect"
        if body is not None and not first:
            xid, op = struct.unpack_from(">ii", body)
            kind = OPS.get(op, str(op))
            kinds.setdefault(xid, []).append(kind)
        first = False
        if fault == "swallow" and due(kind):
            break
        if fault == "refuse" and due(kind):
            kinds[xid].pop()
            # Answers come in the order of their questions.
            while any(list(kinds.values())):
                time.sleep(0.001)
            time.sleep(0.01)
            client.sendall(struct.pack(">iiqi", 16, xid, 0, int(code)))
            continue
        server.sendall(data)
        if kind == "delete":
            kinds.deleted.set()
    else:
        server.shutdown(socket.SHUT_WR)
        return True
    return False


def replies(client, server, kinds):
    first = True
    quiet = False
    for body, data in packets(server):
        if quiet:
            continue
        kind, xid = "connect", 0
        if body is not None and not first:
            xid = struct.unpack_from(">i", body)[0]
            kind = "event" if xid == -1 else (kinds.get(xid) or ["?"]).pop(0)
        hit = fault not in ("swallow", "refuse") and body is not None and due(kind)
        first = False
        if hit and fault == "lose":
            break
        if hit and fault in ("drop", "stall"):
            quiet = fault == "stall"
            continue
        if hit and fault == "late":
            kinds.deleted.wait()
        if hit and fault == "error":
            data = struct.pack(">i", 16) + body[:12] + struct.pack(">i", int(code))
        if hit and fault == "flip":
            data = bytearray(data)
            data[int(code) % len(data)] ^= 3
        if hit and fault == "forge":
            data = bytes.fromhex(code.replace("xid", body[:4].hex()))
        if hit and fault == "drip":
            drip(client, data)
            continue
        client.sendall(data)
        if hit and fault == "after":
            break


stand_before(port, questions, replies, Kinds, os.environ.get("LISTEN", "127.0.0.1"))
