#!/usr/bin/python3 -S
"""fakepg.py HOW [VERSION [NAME=VALUE]]: a server that begins like PostgreSQL; prints its port.

It answers each statement with
    row        one row that has no end
    rows       rows without end
    notices    notices without end
    odd        a row that the statement does not have

NAME=VALUE is one more setting that it reports.
"""
import struct
import sys

sys.dont_write_bytecode = True
from servers import listen

HOW, VERSION = sys.argv[1], (sys.argv[2:] or ["15.1"])[0].encode()
MORE = [s.encode().split(b"=", 1) for s in sys.argv[3:]]


def message(kind, body):
    return kind + struct.pack(">i", len(body) + 4) + body


def setting(name, value):
    return message(b"S", name + b"\0" + value + b"\0")


HELLO = (
    message(b"R", struct.pack(">i", 0))
    + setting(b"server_version", VERSION)
    + setting(b"client_encoding", b"UTF8")
    + setting(b"in_hot_standby", b"off")
    + setting(b"default_transaction_read_only", b"off")
    + b"".join(setting(*s) for s in MORE)
    # As by a trigger at the log-in: nothing for a user of dlock.
    + message(b"N", b"SWARNING\0VWARNING\0C01000\0Mwelcome\0\0")
    + message(b"K", struct.pack(">ii", 1, 1))
    + message(b"Z", b"I")
)
COLUMNS = message(b"T", b"\0\1x\0" + b"\0" * 18)
NOTICE = message(b"N", b"SNOTICE\0VNOTICE\0C00000\0M" + b"x" * 60000 + b"\0\0")
ROW = message(b"D", b"\0\1" + struct.pack(">i", 60000) + b"x" * 60000)
ODD = (COLUMNS + message(b"D", b"\0\1" + struct.pack(">i", 1) + b"x")
       + message(b"C", b"SELECT 1\0") + message(b"Z", b"I"))
PARSED = message(b"1", b"") + message(b"2", b"")


def serve(c):
    c.recv(9999)
    c.sendall(HELLO)
    while question := c.recv(9999):
        if HOW == "odd":
            c.sendall((PARSED if question[:1] == b"P" else b"") + ODD)
            continue
        more = {"row": b"x" * 65536, "rows": ROW, "notices": NOTICE}[HOW]
        c.sendall(b"" if HOW == "notices" else COLUMNS)
        if HOW == "row":
            c.sendall(b"D" + struct.pack(">ihi", 0x3FFFFFFF, 1, 0x3FFFFFF0))
        while True:
            c.sendall(more)


listen(serve)
