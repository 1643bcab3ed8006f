#!/usr/bin/python3 -S
"""object_store.py - an object store over HTTP with one condition: If-Match, with an object's ETag.

Prints its port. An object keeps its x-amz-meta-fence. After a HEAD with "?overtake" another client
overwrites the object before the answer is sent.
"""
import hashlib
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer

objects = {}


class Store(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # for curl's Expect: 100-continue

    def answer(self, code, body=b"", fence=None, etag=None):
        self.send_response(code)
        if etag:
            self.send_header("ETag", etag)
            self.send_header("X-Amz-Meta-Fence", fence)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def keep(self, body, fence):
        etag = '"%s"' % hashlib.sha256(body + fence.encode()).hexdigest()
        objects[self.path.split("?")[0]] = body, fence, etag

    def do_GET(self):
        found = objects.get(self.path.split("?")[0])
        if not found:
            self.answer(404)
            return
        if self.path.endswith("?overtake") and self.command == "HEAD":
            self.keep(b"overtaken", found[1])
        self.answer(200, *found)

    do_HEAD = do_GET

    def do_PUT(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        found = objects.get(self.path.split("?")[0])
        wanted = self.headers["If-Match"]
        if wanted is not None and (not found or found[2] != wanted):
            self.answer(412)
            return
        self.keep(body, self.headers["X-Amz-Meta-Fence"])
        self.answer(200)

    def log_message(self, *_):
        pass


server = TCPServer(("127.0.0.1", 0), Store)
print(server.server_address[1], flush=True)
server.serve_forever()
