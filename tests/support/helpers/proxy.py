#!/usr/bin/python3 -S
"""proxy.py PORT FAULT - stands before a Redis server on PORT. Prints its own port.

FAULT  pass           everything is passed on
       drip           replies arrive one byte at a time, each in a packet of its own
       cut N          the first connection is closed after N bytes of replies; later ones are not
       always-cut N   every connection is
       flip N         byte N of the replies on the first connection is wrong
       late SECONDS   replies are passed on after so long
       lose TEXT [N]  the answer to the N-th (1) request with TEXT is lost, and its connection cut
"""
import socket
import sys
import threading
import time

port, fault = int(sys.argv[1]), sys.argv[2]
n = float(sys.argv[3]) if len(sys.argv) > 3 and fault != "lose" else 0
text = sys.argv[3].encode() if fault == "lose" else None
lost = []  # the number of the connection
left = int(sys.argv[4]) if len(sys.argv) > 4 else 1
count = 0


def questions(client, server, number):
    global left
    asked = b""
    try:
        while data := client.recv(65536):
            asked += data
            if text and text in asked:
                asked = b""
                left -= 1
                if left == 0:
                    lost.append(number)
            server.sendall(data)
        server.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def replies(client, server, number):
    done = 0
    try:
        while data := server.recv(65536):
            if fault == "late":
                time.sleep(n)
            if lost == [number]:
                break
            if fault == "always-cut" or (fault == "cut" and number == 0):
                client.sendall(data[: int(n) - done])
                if done + len(data) >= n:
                    break
            elif fault == "flip" and number == 0 and done <= n < done + len(data):
                at = int(n) - done
                client.sendall(data[:at] + bytes([data[at] ^ 3]) + data[at + 1:])
            elif fault == "drip":
                for i in range(len(data)):
                    client.sendall(data[i:i + 1])
                    time.sleep(0.001)
            else:
                client.sendall(data)
            done += len(data)
    except OSError:
        pass
    for s in (client, server):
        try:
            s.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


listener = socket.create_server(("127.0.0.1", 0), backlog=64)
print(listener.getsockname()[1], flush=True)
while True:
    c = listener.accept()[0]
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    s = socket.create_connection(("127.0.0.1", port))
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    threading.Thread(target=questions, args=(c, s, count), daemon=True).start()
    threading.Thread(target=replies, args=(c, s, count), daemon=True).start()
    count += 1
