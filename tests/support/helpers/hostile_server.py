#!/usr/bin/python3 -S
"""hostile_server.py HOW [TEXT [RECORD [CERT KEY [oldest]]]] - listens in the place of a server.

Prints its port. HOW, on each connection, once a request has come:
  say TEXT          TEXT (Python escapes), once for each request that came in one piece
  say-and-go TEXT   the same, then it hangs up
  for-ever TEXT     TEXT again and again, without an end
  greet TEXT        TEXT at once, before any request
  nothing           takes everything and says nothing
  go                hangs up
  reset             hangs up by a TCP reset
{PORT} in TEXT is its own port. The file RECORD gets all that arrives; with CERT and KEY that is
what comes after a TLS handshake, with "oldest" of TLS 1.1 at most.
"""
import sys

sys.dont_write_bytecode = True
from servers import listen, reset

how = sys.argv[1]
text = sys.argv[2].encode().decode("unicode_escape").encode("latin-1") if len(sys.argv) > 2 else b""
record = sys.argv[3] if len(sys.argv) > 3 else "/dev/null"
context = None
if len(sys.argv) > 4:
    import ssl
    import warnings
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*sys.argv[4:6])
    if sys.argv[6:] == ["oldest"]:
        warnings.simplefilter("ignore")
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1


def serve(client):
    say = text.replace(b"{PORT}", b"%d" % client.getsockname()[1])
    if context:
        client = context.wrap_socket(client, server_side=True)
    if how == "greet":
        client.sendall(say)
    while data := client.recv(65536):
        with open(record, "ab") as f:
            f.write(data)
        if how in ("say", "say-and-go"):
            client.sendall(say)
        while how == "for-ever":
            client.sendall(say * (1 + 65536 // len(say)))
        if how in ("say-and-go", "go"):
            return
        if how == "reset":
            reset(client)
            return


open(record, "ab").close()
listen(serve)
