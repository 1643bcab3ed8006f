#!/usr/bin/python3 -S
"""hostile_server.py HOW - listens in the place of a Redis server. Prints its port.

HOW, on each connection, once a request has come:
  say TEXT          TEXT (Python escapes), once for each request that came in one piece
  say-and-go TEXT   the same, then it hangs up
  for-ever TEXT     TEXT again and again, without an end
  greet TEXT        TEXT at once, before any request
  nothing           takes everything and says nothing
  go                hangs up
  reset             hangs up by a TCP reset
{PORT} in TEXT is its own port.
"""
import socket
import struct
import sys
import threading

how = sys.argv[1]
text = sys.argv[2].encode().decode("unicode_escape").encode("latin-1") if len(sys.argv) > 2 else b""


def serve(client):
    try:
        if how == "greet":
            client.sendall(text)
        while client.recv(65536):
            if how in ("say", "say-and-go"):
                client.sendall(text)
            while how == "for-ever":
                client.sendall(text * (1 + 65536 // len(text)))
            if how in ("say-and-go", "go"):
                return
            if how == "reset":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return
    except OSError:
        pass
    finally:
        client.close()


listener = socket.create_server(("127.0.0.1", 0), backlog=64)
port = listener.getsockname()[1]
text = text.replace(b"{PORT}", b"%d" % port)
print(port, flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
