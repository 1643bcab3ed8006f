#!/usr/bin/python3 -S
"""tlsrecord.py RECORD ANSWER [CERT KEY [oldest|for-ever]] - a server that records what it gets.

Prints its port. With CERT and KEY it speaks TLS and appends to RECORD what arrives after the
handshake, else all that arrives; each time it answers ANSWER (Python escapes).
  oldest    it speaks TLS 1.1 at most
  for-ever  ANSWER comes again and again, without an end
"""
import socket
import ssl
import sys
import threading
import warnings

record, answer = sys.argv[1], sys.argv[2].encode().decode("unicode_escape").encode("latin-1")
how = sys.argv[5] if len(sys.argv) > 5 else ""
context = None
if len(sys.argv) > 3:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[3], sys.argv[4])
    if how == "oldest":
        warnings.simplefilter("ignore")
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1


def serve(client):
    try:
        if context:
            client = context.wrap_socket(client, server_side=True)
        while data := client.recv(65536):
            with open(record, "ab") as f:
                f.write(data)
            client.sendall(answer)
            while how == "for-ever":
                client.sendall(answer * (1 + 65536 // len(answer)))
    except OSError:
        pass
    finally:
        client.close()


open(record, "ab").close()
listener = socket.create_server(("127.0.0.1", 0), backlog=64)
print(listener.getsockname()[1], flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
