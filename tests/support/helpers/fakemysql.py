#!/usr/bin/python3 -S
"""fakemysql.py RECORD HOW [PLUGIN [CERT KEY]]: greets as MySQL 8; prints its port.

Its own plugin is caching_sha2_password; with a certificate it offers TLS. HOW, after the greeting
and the client's answer:
    full       asks for the whole log-in; sends a public key of its own where one is asked for
    fast       accepts the scramble
    switch     changes to PLUGIN, and goes on as "full" for caching_sha2_password
    infile     accepts, and asks for a file of the client in answer to each statement
    rows       accepts, and answers each statement with rows without end
    odd        accepts, and answers each statement with a column that it does not have
or instead of them:
    garbage    greets with bytes of no sense, for ever
    babble     sends bytes of no sense after the client's answer
    half       hangs up within the greeting
    silence    says nothing; "mute": nothing after the greeting

RECORD.wire gets the bytes that arrive, RECORD.inside those within TLS, and RECORD "open" for each
connection, and for each packet a line with "plain" or "TLS", and the packet's text.
"""
import ssl
import struct
import sys
import time

sys.dont_write_bytecode = True
from servers import listen

RECORD, HOW = sys.argv[1:3]
PLUGIN = sys.argv[3].encode() if len(sys.argv) > 3 else b""
CERT = sys.argv[4:6]
TLS = 0x800
KEY = b"""-----BEGIN PUBLIC KEY-----
MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEA3hRjGw47W97OX/Kondqq
q9TD+BamrcZxSHO4gw6ERhruOeAn7MDRN1Ll2o8GMm1hTBpBgDlA/HSObB2C81r3
Bd3oo9o8Pn8GxUcHbF25+EqjxtnJuZPjDMWinEs2W6gXp/XVaBK6/tmhBUJwVS88
S4RLQqIR7gVjdM0HOi+Js8K0LOcuk/BZ8UHXdpC6VtEp5RoQFmf/8oNiEol35/Fb
NkAgy+LYZAlfbQu1kojvjYh2m/yvALGenEd+Wy3hbXqTspXgD0Fkr35OO/d+7OVS
6I4YYGYa0VZ/pshDiqCsFL5/QEEuqCUzrdKy13UGDbOz0jHT5R2+CAFSKL7UtE/i
cQIDAQAB
-----END PUBLIC KEY-----
"""


def note(suffix, data):
    with open(RECORD + suffix, "ab") as file:
        file.write(data)


class Client:
    """A connection, in plain text, and after starttls() in TLS; what arrives is recorded."""

    def __init__(self, sock):
        self.sock, self.tls, self.buffer, self.number = sock, None, b"", 0

    def arrives(self):
        data = self.sock.recv(65536)
        note(".wire", data)
        if not data:
            raise OSError("the client has hung up")
        return data

    def leaves(self):
        self.sock.sendall(self.out.read())

    def until(self, step):
        while True:
            try:
                result = step()
                self.leaves()
                return result
            except ssl.SSLWantReadError:
                self.leaves()
                self.into.write(self.arrives())

    def starttls(self):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*CERT)
        self.into, self.out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.into.write(self.buffer)  # may have come with the request for TLS
        self.buffer = b""
        tls = context.wrap_bio(self.into, self.out, server_side=True)
        self.until(tls.do_handshake)
        self.tls = tls

    def more(self):
        if not self.tls:
            return self.arrives()
        try:
            data = self.until(lambda: self.tls.read(65536))
        except ssl.SSLError as error:
            raise OSError(error) from error
        note(".inside", data)
        if not data:
            raise OSError("the client has hung up")
        return data

    def packet(self):
        while len(self.buffer) < 4 or len(self.buffer) < 4 + self.length():
            self.buffer += self.more()
        end = 4 + self.length()
        body, self.number = self.buffer[4:end], self.buffer[3] + 1
        self.buffer = self.buffer[end:]
        note("", (b"TLS " if self.tls else b"plain ") + repr(body).encode() + b"\n")
        return body

    def length(self):
        return int.from_bytes(self.buffer[:3], "little")

    def say(self, *bodies):
        for body in bodies:
            data = struct.pack("<I", len(body))[:3] + bytes([self.number & 255]) + body
            self.number += 1
            self.raw(data)

    def raw(self, data):
        if self.tls:
            self.tls.write(data)
            self.leaves()
        else:
            self.sock.sendall(data)


OK = b"\0\0\0\2\0\0\0"
EOF = b"\xfe\0\0\2\0"


def text(word):
    return bytes([len(word)]) + word


def column(name):
    return (text(b"def") + text(b"") * 3 + text(name) * 2
            + struct.pack("<BHIBHBH", 12, 63, 60000, 253, 0, 0, 0))


def greeting():
    flags = 0x81fff7ff | (TLS if CERT else 0)
    return (b"\x0a8.0.36\0" + struct.pack("<I", 7) + b"abcdefgh\0"
            + struct.pack("<HBHH", flags & 0xffff, 45, 2, flags >> 16) + bytes([21]) + bytes(10)
            + b"ijklmnopqrst\0caching_sha2_password\0")


def whole_log_in(client):
    client.say(b"\x01\x04")
    if client.packet() == b"\x02":
        client.say(b"\x01" + KEY)
        client.packet()
        note("", b"GIVEN: the password, for our key\n")


def log_in(client):
    if len(client.packet()) == 32 and CERT:
        client.starttls()
        client.packet()
    if HOW == "babble":
        client.raw(b"\xff\x01\x00" * 30)
    elif HOW == "mute":
        client.packet()
    elif HOW == "switch":
        client.say(b"\xfe" + PLUGIN + b"\0" + b"A" * 20 + b"\0")
        client.packet()
        if PLUGIN == b"caching_sha2_password":
            whole_log_in(client)
    elif HOW == "full":
        whole_log_in(client)
    else:
        client.say(b"\x01\x03")
    client.say(OK)


def answer(client):
    """The log-in's own statement, SET, is answered well."""
    if client.packet()[:4] == b"\x03SET":
        client.say(OK)
    elif HOW == "infile":
        client.say(b"\xfb/etc/passwd")
        if data := client.packet():
            note("", b"GIVEN: a file of %d bytes\n" % len(data))
        client.packet()
        client.say(OK)
    elif HOW == "rows":
        client.say(b"\1", column(b"x"), EOF)
        row = b"\xfc" + struct.pack("<H", 60000) + b"x" * 60000
        while True:
            client.say(row)
    elif HOW == "odd":
        client.say(b"\1", column(b"x"), EOF, text(b"1"), EOF)
    else:
        client.say(OK)


def serve(sock):
    client = Client(sock)
    note("", b"open\n")
    if HOW == "silence":
        client.packet()
    if HOW == "half":
        sock.sendall(b"\x4a\0\0\0" + greeting()[:30])
        return
    while HOW == "garbage":
        sock.sendall(b"\xc3\x28\x00\x7f" * 500)
        time.sleep(0.01)
    client.say(greeting())
    log_in(client)
    while True:
        answer(client)


for suffix in "", ".wire", ".inside":
    note(suffix, b"")
listen(serve)
