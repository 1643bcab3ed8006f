"""servers.py - what the helpers share that stand in the place of a server, or before one."""
import socket
import struct
import threading
import time


def listen(serve, host="127.0.0.1"):
    """Prints the port. serve(client) runs in a thread for each client, which is then closed."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, 0), family=family, backlog=64)
    print(listener.getsockname()[1], flush=True)

    def run(client):
        try:
            serve(client)
        except OSError:
            pass
        finally:
            client.close()

    while True:
        client = listener.accept()[0]
        threading.Thread(target=run, args=(client,), daemon=True).start()


def stand_before(port, questions, answers, state, host="127.0.0.1"):
    """Both run in a thread for each client, with client, server and what state() has made."""
    def serve(client):
        server = socket.create_connection(("127.0.0.1", port), 5)
        server.settimeout(None)
        for s in (client, server):
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pair = (client, server, state())
        other = threading.Thread(target=side, args=(answers, *pair), daemon=True)
        other.start()
        side(questions, *pair)
        other.join()

    def side(run, *pair):
        """When one side has ended, the other one does; True: that side only has no more to say."""
        try:
            if run(*pair):
                return
        except OSError:
            pass
        end(*pair[:2])

    listen(serve, host)


def end(*socks):
    for s in socks:
        try:
            s.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def reset(sock):
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def drip(sock, data):
    """One byte at a time, each in a packet of its own."""
    for i in range(len(data)):
        sock.sendall(data[i:i + 1])
        time.sleep(0.0003)  # under load this takes longer: a renewal has 387 ms
