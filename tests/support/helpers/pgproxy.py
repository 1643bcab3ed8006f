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
       warn FUNCTION     the client hears a warning of that function of the server at the end of
                         each answer, with the severity in another language
       rename OLD NEW    the server's column OLD has the name NEW, of the same length
       gather TEXT MORE  after a client's TEXT the server's words are kept until they contain MORE,
                         and then passed on in one piece
"""
import os
import struct
import sys
from types import SimpleNamespace

sys.dont_write_bytecode = True
from servers import end, reset, stand_before

port, fault, text = int(sys.argv[1]), sys.argv[2], sys.argv[3].encode()
more = sys.argv[4] if len(sys.argv) > 4 else ""


def questions(client, server, pair):
    said = b""
    while data := client.recv(65536):
        # libpq sends a long message in pieces: TEXT may begin in one, and end in the next.
        said = said[1 - len(text):] + data
        always = fault in ("cut", "gather") or not more
        if text in said and (always or os.path.exists(more)):
            pair.met = True
            if fault == "mute" and more:
                os.unlink(more)
        if pair.met and fault == "cut":
            break
        if not (pair.met and fault == "mute"):
            server.sendall(data)
        if pair.met and fault in ("lose", "drop"):
            rest(client, server)
        if pair.met and fault == "drop":
            os.unlink(more)
            end(server)
            reset(client)
            break
        if pair.met and fault == "lose":
            return True  # close() resets nothing while another thread reads
    return False


def rest(client, server):
    """The client's message may come in more than one piece."""
    client.settimeout(0.2)
    try:
        while data := client.recv(65536):
            server.sendall(data)
    except TimeoutError:
        pass


def warned(data):
    """(with the warning before each ReadyForQuery, the begin of a message that is not complete)"""
    fields = {"S": "WARNUNG", "V": "WARNING", "C": "01000", "M": "Text", "R": sys.argv[3]}
    body = b"".join(k.encode() + v.encode() + b"\0" for k, v in fields.items()) + b"\0"
    out = b""
    while len(data) >= 5 and len(data) > (n := struct.unpack(">i", data[1:5])[0]):
        if data[:1] == b"Z":
            out += b"N" + struct.pack(">i", 4 + len(body)) + body
        out += data[:n + 1]
        data = data[n + 1:]
    return out, data


def answers(client, server, pair):
    kept = b""
    while data := server.recv(65536):
        if pair.met and fault == "drop":
            continue  # the server may be faster than rest()
        if pair.met and fault == "lose":
            os.unlink(more)
            reset(client)
            break
        if pair.met and fault == "flood":
            os.unlink(more)
            client.sendall(b"D" + struct.pack(">ihi", 0x3FFFFFFF, 1, 0x3FFFFFF0))
            while True:
                client.sendall(b"x" * 65536)
        kept += data
        if fault == "rename":
            kept = kept.replace(text + b"\0", more.encode() + b"\0")
        if fault == "warn":
            said, kept = warned(kept)
            client.sendall(said)
            continue
        if pair.met and fault == "gather":
            if more.encode() not in kept:
                continue
            pair.met = False  # before the client has the answer, and may say TEXT again
        client.sendall(kept)
        kept = b""


# met: the client has said TEXT.
stand_before(port, questions, answers, lambda: SimpleNamespace(met=False))
