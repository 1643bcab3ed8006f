#!/usr/bin/python3 -IS
"""zk.py [HOST:]PORT WHAT... - reads and changes a ZooKeeper server's nodes, without a library.

A JVM takes a second for that, kazoo 0.2 s, this 50 ms. Each call is a session of its own (two
writes, so the zxid moves on), and a sync precedes reads, so that no follower gives an old answer.

  ls PATH                 children, one a line, sorted
  tree PATH               all nodes below, full paths, ephemeral ones with their session behind
  get PATH                the data as it is
  stat PATH [KEY]         "KEY VALUE" lines, see STAT_KEYS; ephemeralOwner in hex, as the session
                          lists have it (0x0 for containers, too: they look like persistent nodes)
  gone [-c] PATH SECONDS  waits until there is no such node; -c: or one that never had a child
  acl PATH                "PERMISSIONS SCHEME ID" lines
  create [-c] [-s] [-p PERMISSIONS] PATH [DATA]   persistent; -c a container, -s sequential; with
                          all parents; -p: any client may do that alone (some of rwcda); prints the
                          real path
  fill PATH               a persistent node below for each line "NAME DATA" of standard input
  set PATH DATA           whatever the version; DATA "-": from standard input
  rm [-r] PATH            -r: with all below
  kill SESSION            closes that session (0x...), as another client with its password would
  hold [-t MS] [-s] PATH [DATA]   an ephemeral node (no DATA: it has none), and its parents:
                          prints "held PATH SESSION" and stays until killed; then the server waits
                          for the time-out (-t, 4000). SIGTERM closes cleanly
  cmd WORD                a four-letter word

-a USER:PASSWORD before the other arguments: as that user (digest), who alone may use the new nodes.
Exit code: 0; 1: the server refused, with its error's name on stderr (NONODE...); 2: no server.
"""
import signal
import socket
import struct
import sys
import time

ERRORS = {-4: "CONNECTIONLOSS", -8: "BADARGUMENTS", -101: "NONODE", -102: "NOAUTH",
          -103: "BADVERSION", -108: "NOCHILDRENFOREPHEMERALS", -110: "NODEEXISTS",
          -111: "NOTEMPTY", -112: "SESSIONEXPIRED", -114: "INVALIDACL", -115: "AUTHFAILED",
          -118: "SESSIONMOVED"}
CREATE, DELETE, GET, SET, GET_ACL, SYNC = 1, 2, 4, 5, 6, 9
PING, LS, CONTAINER, AUTH, CLOSE = 11, 12, 19, 100, -11
STAT = struct.Struct(">qqqqiiiqiiq")
STAT_KEYS = ("czxid mzxid ctime mtime version cversion aversion ephemeralOwner dataLength "
             "numChildren pzxid").split()
OPEN_ACL = struct.pack(">ii", 1, 31) + b"\0\0\0\5world\0\0\0\6anyone"


class Refused(Exception):
    pass


def buf(data):
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data


def text(s):
    return buf(s.encode("utf-8", "surrogateescape"))


def take(data, at):
    """A length and as many bytes: these, and where the next thing is."""
    n = struct.unpack_from(">i", data, at)[0]
    return data[at + 4:at + 4 + max(n, 0)], at + 4 + max(n, 0)


def password(session):
    """As generatePasswd of ZooKeeper: java.util.Random(id ^ 0xB3415C00).nextBytes."""
    mask = (1 << 48) - 1
    seed = ((session ^ 0xB3415C00) ^ 0x5DEECE66D) & mask
    out = b""
    while len(out) < 16:
        seed = (seed * 0x5DEECE66D + 0xB) & mask
        out += struct.pack("<I", seed >> 16)
    return out


class Client:
    def __init__(self, where, timeout_ms=4000, session=0):
        host, _, port = where.rpartition(":")
        self.sock = socket.create_connection((host or "127.0.0.1", int(port)), 5)
        # A frozen server takes the connection and says nothing.
        self.sock.settimeout(10)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        secret = password(session) if session else bytes(16)
        hello = struct.pack(">iqiq", 0, 0, timeout_ms, session)
        self.sock.sendall(buf(hello + buf(secret) + b"\0"))
        reply = self.packet()
        _, self.timeout_ms, self.session = struct.unpack_from(">iiq", reply)
        if self.timeout_ms <= 0:
            raise Refused("SESSIONEXPIRED")
        self.session &= (1 << 64) - 1
        self.xid = 0
        self.acls = OPEN_ACL

    def auth(self, who):
        self.ask(AUTH, struct.pack(">i", 0) + text("digest") + text(who))
        self.acls = struct.pack(">ii", 1, 31) + text("auth") + text("")

    def exactly(self, n):
        data = b""
        while len(data) < n:
            more = self.sock.recv(n - len(data))
            if not more:
                raise ConnectionError("the server hung up")
            data += more
        return data

    def packet(self):
        return self.exactly(struct.unpack(">i", self.exactly(4))[0])

    def ask(self, op, body=b""):
        self.xid += 1
        xid = {PING: -2, AUTH: -4}.get(op, self.xid)
        self.sock.sendall(buf(struct.pack(">ii", xid, op) + body))
        while True:
            reply = self.packet()
            number, _, err = struct.unpack_from(">iqi", reply)
            # Others are events.
            if number == xid:
                break
        if err:
            raise Refused(ERRORS.get(err, str(err)))
        return reply[16:]

    def sync(self, path):
        self.ask(SYNC, text(path))

    def ls(self, path):
        data = self.ask(LS, text(path) + b"\0")
        n, at, names = struct.unpack_from(">i", data)[0], 4, []
        for _ in range(n):
            name, at = take(data, at)
            names.append(name.decode("utf-8", "surrogateescape"))
        return sorted(names)

    def get(self, path):
        data, at = take(reply := self.ask(GET, text(path) + b"\0"), 0)
        return data, dict(zip(STAT_KEYS, STAT.unpack_from(reply, at)))

    def acl(self, path):
        data = self.ask(GET_ACL, text(path))
        n, at = struct.unpack_from(">i", data)[0], 4
        for _ in range(n):
            perms = struct.unpack_from(">i", data, at)[0]
            scheme, at = take(data, at + 4)
            who, at = take(data, at)
            yield perms, scheme.decode(), who.decode()

    def create(self, path, data=b"", flags=0):
        """flags: 1 ephemeral, 2 sequential, 4 container."""
        return take(self.ask(CONTAINER if flags == 4 else CREATE, text(path) + buf(data) + self.acls
                             + struct.pack(">i", flags)), 0)[0].decode("utf-8", "surrogateescape")

    def create_all(self, path, data=b"", flags=0):
        try:
            return self.create(path, data, flags)
        except Refused as e:
            if str(e) != "NONODE" or path.count("/") < 2:
                raise
        try:
            self.create_all(path.rpartition("/")[0])
        except Refused as e:
            if str(e) != "NODEEXISTS":
                raise
        return self.create(path, data, flags)

    def tree(self, path):
        for name in self.ls(path):
            below = path.rstrip("/") + "/" + name
            yield below
            yield from self.tree(below)

    def rm(self, path, whole=False):
        for node in sorted(self.tree(path), reverse=True) if whole else []:
            self.ask(DELETE, text(node) + struct.pack(">i", -1))
        self.ask(DELETE, text(path) + struct.pack(">i", -1))

    def close(self):
        self.ask(CLOSE)
        self.sock.close()


def owner(stat):
    return stat["ephemeralOwner"] & ((1 << 64) - 1)


def words(where, word):
    host, _, port = where.rpartition(":")
    with socket.create_connection((host or "127.0.0.1", int(port)), 2) as s:
        s.settimeout(1)
        s.sendall(word.encode())
        while data := s.recv(65536):
            sys.stdout.buffer.write(data)


def hold(zk, path, data, sequential):
    def stop(*_):
        raise SystemExit

    signal.signal(signal.SIGTERM, stop)
    print("held", zk.create_all(path, data, 1 + 2 * sequential), hex(zk.session), flush=True)
    try:
        while True:
            signal.sigtimedwait([], zk.timeout_ms / 3000)
            zk.ask(PING)
    finally:
        zk.close()


def gone(zk, path, seconds, or_new):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            stat = zk.get(path)[1]
        except Refused:
            return
        if or_new and stat["numChildren"] == stat["cversion"] == 0:
            return
        time.sleep(0.03)
        zk.sync(path)
    raise Refused("still there: " + path)


def main(where, what, *args):
    args = list(args)
    options = {}
    while args and args[0] in ("-a", "-c", "-p", "-s", "-r", "-t"):
        word = args.pop(0)
        options[word] = args.pop(0) if word in ("-a", "-p", "-t") else True
    if what == "cmd":
        return words(where, args[0])
    if what == "kill":
        return Client(where, session=int(args[0], 16)).close()
    path = args[0]
    data = args[1].encode("utf-8", "surrogateescape") if len(args) > 1 else b""
    if what == "set" and data == b"-":
        data = sys.stdin.buffer.read()
    zk = Client(where, int(options.get("-t", 4000)))
    if "-a" in options:
        zk.auth(options["-a"])
    if "-p" in options:
        may = sum(1 << "rwcda".index(c) for c in options["-p"])
        zk.acls = struct.pack(">ii", 1, may) + OPEN_ACL[8:]
    if what == "hold":
        return hold(zk, path, data if len(args) > 1 else None, "-s" in options)
    try:
        if what in ("ls", "tree", "get", "stat", "acl", "gone"):
            zk.sync(path)
        if what == "ls":
            print(*zk.ls(path), sep="\n", end="\n" if zk.ls(path) else "")
        elif what == "tree":
            for node in zk.tree(path):
                session = owner(zk.get(node)[1])
                print(node, *[hex(session)] if session else [])
        elif what == "get":
            sys.stdout.buffer.write(zk.get(path)[0])
        elif what == "stat":
            stat = zk.get(path)[1]
            stat["ephemeralOwner"] = hex(owner(stat))
            for key in args[1:] or STAT_KEYS:
                print(*([stat[key]] if args[1:] else [key, stat[key]]))
        elif what == "gone":
            gone(zk, path, float(args[1]), "-c" in options)
        elif what == "acl":
            for perms, scheme, who in zk.acl(path):
                print("".join(c for i, c in enumerate("rwcda") if perms >> i & 1), scheme, who)
        elif what == "create":
            print(zk.create_all(path, data, 4 if "-c" in options else 2 if "-s" in options else 0))
        elif what == "fill":
            for line in sys.stdin:
                name, _, value = line.rstrip("\n").partition(" ")
                zk.create(path + "/" + name, value.encode())
        elif what == "set":
            zk.ask(SET, text(path) + buf(data) + struct.pack(">i", -1))
        elif what == "rm":
            zk.rm(path, "-r" in options)
        else:
            sys.exit("zk.py: what is " + what + "?")
    finally:
        zk.close()


try:
    main(*sys.argv[1:])
except Refused as e:
    print("zk.py:", e, file=sys.stderr)
    sys.exit(1)
except OSError as e:
    print("zk.py: no server:", e, file=sys.stderr)
    sys.exit(2)
