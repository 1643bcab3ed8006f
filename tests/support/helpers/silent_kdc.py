#!/usr/bin/python3 -S
"""silent_kdc.py DIR - a Kerberos server that never answers. Prints its port.

DIR gets krb5.conf, which names it, and ccache, a credential cache with a ticket for it: export
KRB5_CONFIG and KRB5CCNAME. Each question adds a byte to DIR/asked.
"""
import select
import socket
import struct
import sys
import time

REALM = b"SILENT.TEST"


def data(b):
    return struct.pack("!I", len(b)) + b


def principal(*names):
    return struct.pack("!II", 1, len(names)) + data(REALM) + b"".join(data(n) for n in names)


def der(tag, *parts):
    body = b"".join(parts)
    return bytes([tag, 0x81, len(body)]) + body


def sealed_ticket():
    """RFC 4120, 5.3: only its server could decrypt it."""
    def number(n):
        return der(2, bytes([n]))

    names = der(0x30, der(27, b"krbtgt"), der(27, REALM))
    server = der(0x30, der(0xA0, number(2)), der(0xA1, names))
    sealed = der(0x30, der(0xA0, number(18)), der(0xA2, der(4, b"t" * 64)))
    return der(0x61, der(0x30, der(0xA0, number(5)), der(0xA1, der(27, REALM)),
                         der(0xA2, server), der(0xA3, sealed)))


def ticket(now):
    """A ticket to get tickets (krbtgt): the format is MIT's, version 4."""
    server = principal(b"krbtgt", REALM)
    key = struct.pack("!H", 18) + data(b"k" * 32)
    times = struct.pack("!IIII", now - 60, now - 60, now + 86400, now + 86400)
    none = struct.pack("!I", 0)
    flags = b"\0" + struct.pack("!I", 0x40E00000)
    return (principal(b"joe") + server + key + times + flags + none + none +
            data(sealed_ticket()) + none)


folder = sys.argv[1]
tcp = socket.create_server(("127.0.0.1", 0))
port = tcp.getsockname()[1]
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(("127.0.0.1", port))
with open(folder + "/krb5.conf", "w", encoding="ascii") as f:
    f.write(f"""[libdefaults]
default_realm = {REALM.decode()}
dns_lookup_kdc = false
dns_canonicalize_hostname = false
rdns = false
[realms]
{REALM.decode()} = {{
    kdc = 127.0.0.1:{port}
}}
[domain_realm]
localhost = {REALM.decode()}
""")
with open(folder + "/ccache", "wb") as f:
    f.write(b"\5\4" + struct.pack("!H", 0) + principal(b"joe") + ticket(int(time.time())))
print(port, flush=True)
clients = []
while True:
    for s in select.select([tcp, udp], [], [])[0]:
        if s is udp:
            udp.recv(65536)
        else:
            clients.append(tcp.accept())
        with open(folder + "/asked", "ab") as f:
            f.write(b".")
