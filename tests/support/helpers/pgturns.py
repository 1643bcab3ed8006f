#!/usr/bin/python3 -S
"""pgturns.py PORT FILE MS - stands before a PostgreSQL server or pooler on PORT. Prints its port.

FILE gets a byte for each request of a client: the number of its unanswered ones ("1": no other).
Each answer is MS milliseconds late.
"""
import socket
import struct
import sys
import threading
import time

sys.dont_write_bytecode = True
from servers import end, listen

SSL_REQUEST, GSS_REQUEST = 80877103, 80877104
port, log, late = int(sys.argv[1]), open(sys.argv[2], "ab", buffering=0), int(sys.argv[3]) / 1000


class Pair:
    def __init__(self, client):
        self.client = client
        self.server = socket.create_connection(("127.0.0.1", port))
        for s in (self.client, self.server):
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.open = 0
        self.lock = threading.Lock()

    def run(self):
        # Until the session begins, both sides speak in turns.
        while True:
            head = self.take(self.client, 8)
            size, code = struct.unpack("!II", head)
            self.server.sendall(head + self.take(self.client, size - 8))
            if code not in (SSL_REQUEST, GSS_REQUEST):
                break
            self.client.sendall(self.take(self.server, 1))
        back = (self.server, self.client, b"Z", -1)
        threading.Thread(target=self.pump, args=back, daemon=True).start()
        self.pump(self.client, self.server, b"S", 1)

    @staticmethod
    def take(s, n):
        data = b""
        while len(data) < n:
            more = s.recv(n - len(data))
            if not more:
                raise ConnectionError
            data += more
        return data

    def pump(self, source, sink, kind, by):
        first = by < 0  # the answer to the start of the session
        try:
            while True:
                head = self.take(source, 5)
                data = head + self.take(source, struct.unpack("!I", head[1:])[0] - 4)
                if by < 0 and head[:1] == kind:
                    time.sleep(late)
                if head[:1] == kind and not first:
                    with self.lock:
                        self.open += by
                        if by > 0:
                            log.write(b"%d" % min(self.open, 9))
                first = first and head[:1] != kind
                sink.sendall(data)
        except OSError:
            pass
        end(source, sink)


listen(lambda client: Pair(client).run())
