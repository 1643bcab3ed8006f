#!/usr/bin/python3 -S
"""myproxy.py PORT FAULT WORDS FILE [CODE]: stands before a server of MySQL's protocol at PORT.

Prints its port. Of each statement that has WORDS, while FILE is there:
    error   it is not run, and the answer is the error CODE (1317: interrupted)
    late    it is run, and its answer is the error CODE
    cut     it is run, its answer is lost, and the connection with it
    count   nothing happens to it
Each time FILE gets a byte shorter, and goes with its last one.
"""
import os
import struct
import sys

sys.dont_write_bytecode = True
from servers import end, stand_before

PORT, FAULT, WORDS, FILE = int(sys.argv[1]), sys.argv[2], sys.argv[3].encode(), sys.argv[4]
CODE = int(sys.argv[5]) if len(sys.argv) > 5 else 1317


def due():
    try:
        left = os.path.getsize(FILE) - 1
        if left > 0:
            os.truncate(FILE, left)
        else:
            os.unlink(FILE)
        return True
    except FileNotFoundError:
        return False


def read(sock, size):
    data = b""
    while len(data) < size:
        if not (more := sock.recv(size - len(data))):
            raise OSError("the end")
        data += more
    return data


def packet(sock):
    head = read(sock, 4)
    return head + read(sock, int.from_bytes(head[:3], "little"))


def failure():
    body = b"\xff" + struct.pack("<H", CODE) + b"#HY000made by a test"
    return struct.pack("<I", len(body))[:3] + b"\1" + body


class State:
    what = None


def questions(client, server, state):
    while True:
        data = packet(client)
        hit = data[3:5] == b"\0\3" and WORDS in data and due()
        if hit and FAULT == "error":
            client.sendall(failure())
            continue
        if hit and FAULT != "count":
            state.what = FAULT
        server.sendall(data)


def answers(client, server, state):
    while data := server.recv(65536):
        if state.what == "cut":
            end(client, server)
            return
        if state.what == "late":
            state.what, data = None, failure()
        client.sendall(data)


stand_before(PORT, questions, answers, State)
