#!/usr/bin/python3 -S
"""pgproxy.py PORT FAULT ARG... - stands before a PostgreSQL server on PORT. Prints its own port.

proxy.py counts bytes; here a fault comes at a text, in what one side sends at once. With FILE, only
if FILE exists, which is then removed.

FAULT  cut TEXT          a client that says TEXT is cut off; the server never hears it
       mute TEXT [FILE]  from TEXT on the server hears nothing more from that client; nothing ends
       lose TEXT FILE    TEXT is passed on, but no answer of the server; the client's connection is
                         reset
       drop TEXT FILE    the same, but the reset comes at once, whatever the server does
       flood TEXT FILE   TEXT is passed on, but the client then hears one row that has no end, until
                         it hangs up
       gather TEXT MORE  after a client's TEXT the server's words are kept until they contain MORE,
                         and then passed on in one piece
"""
import os
import socket
import struct
import sys
import threading

port, fault, text = int(sys.argv[1]), sys.argv[2], sys.argv[3].encode()
more = sys.argv[4] if len(sys.argv) > 4 else ""


def end(s, reset=False):
    try:
        if reset:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            s.close()
        else:
            s.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


class Pair:
    def __init__(self, client, server):
        self.client, self.server = client, server
        self.met = False  # the client has said TEXT
        for side in (self.questions, self.answers):
            threading.Thread(target=side, daemon=True).start()

    def questions(self):
        try:
            said = b""
            while data := self.client.recv(65536):
                # libpq sends a long message in pieces: TEXT may begin in one, and end in the next.
                said = said[1 - len(text):] + data
                always = fault in ("cut", "gather") or not more
                if text in said and (always or os.path.exists(more)):
                    self.met = True
                    if fault == "mute" and more:
                        os.unlink(more)
                if self.met and fault == "cut":
                    break
                if not (self.met and fault == "mute"):
                    self.server.sendall(data)
                if self.met and fault in ("lose", "drop"):
                    self.rest()
                if self.met and fault == "drop":
                    os.unlink(more)
                    end(self.server)
                    end(self.client, reset=True)
                    return
                if self.met and fault == "lose":
                    return  # close() resets nothing while another thread reads
        except OSError:
            pass
        end(self.server)
        end(self.client)

    def rest(self):
        """The client's message may come in more than one piece."""
        self.client.settimeout(0.2)
        try:
            while data := self.client.recv(65536):
                self.server.sendall(data)
        except TimeoutError:
            pass

    def answers(self):
        kept = b""
        try:
            while data := self.server.recv(65536):
                if self.met and fault == "drop":
                    continue  # the server may be faster than rest()
                if self.met and fault == "lose":
                    os.unlink(more)
                    end(self.client, reset=True)
                    break
                if self.met and fault == "flood":
                    os.unlink(more)
                    self.client.sendall(b"D" + struct.pack(">ihi", 0x3FFFFFFF, 1, 0x3FFFFFF0))
                    while True:
                        self.client.sendall(b"x" * 65536)
                kept += data
                if self.met and fault == "gather":
                    if more.encode() not in kept:
                        continue
                    self.met = False  # before the client has the answer, and may say TEXT again
                self.client.sendall(kept)
                kept = b""
        except OSError:
            pass
        end(self.client)
        end(self.server)


listener = socket.create_server(("127.0.0.1", 0), backlog=64)
print(listener.getsockname()[1], flush=True)
while True:
    c = listener.accept()[0]
    s = socket.create_connection(("127.0.0.1", port))
    for x in (c, s):
        x.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    Pair(c, s)
