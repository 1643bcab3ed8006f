#!/usr/bin/python3 -S
"""proxy.py PORT FAULT - stands before a Redis server on PORT. Prints its own port.

FAULT  pass           everything is passed on
       drip           replies arrive one byte at a time, each in a packet of its own
       cut N          the first connection is closed after N bytes of replies; later ones are not
       always-cut N   every connection is
       flip N         byte N of the replies on the first connection is wrong
       late SECONDS   replies are passed on after so long
       lose TEXT [N]  the answer to the N-th (1) request with TEXT is lost, and its connection cut
"""
import itertools
import socket
import sys
import time

sys.dont_write_bytecode = True
from servers import drip, stand_before

port, fault = int(sys.argv[1]), sys.argv[2]
n = float(sys.argv[3]) if len(sys.argv) > 3 and fault != "lose" else 0
text = sys.argv[3].encode() if fault == "lose" else None
lost = []  # the number of the connection
left = int(sys.argv[4]) if len(sys.argv) > 4 else 1


def questions(client, server, number):
    global left
    asked = b""
    while data := client.recv(65536):
        asked += data
        if text and text in asked:
            asked = b""
            left -= 1
            if left == 0:
                lost.append(number)
        server.sendall(data)
    server.shutdown(socket.SHUT_WR)
    return True


def replies(client, server, number):
    done = 0
    while data := server.recv(65536):
        if fault == "late":
            time.sleep(n)
        if lost == [number]:
            break
        if fault == "always-cut" or (fault == "cut" and number == 0):
            client.sendall(data[: int(n) - done])
            if done + len(data) >= n:
                break
        elif fault == "flip" and number == 0 and done <= n < done + len(data):
            at = int(n) - done
            client.sendall(data[:at] + bytes([data[at] ^ 3]) + data[at + 1:])
        elif fault == "drip":
            drip(client, data)
        else:
            client.sendall(data)
        done += len(data)


stand_before(port, questions, replies, itertools.count().__next__)
