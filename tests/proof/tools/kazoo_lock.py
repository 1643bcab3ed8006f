#!/usr/bin/python3
"""kazoo_lock.py HOST:PORT PATH TIMEOUT COMMAND... - COMMAND under kazoo's Lock.

As kazoo's documentation recommends, a listener watches for SUSPENDED and LOST, in which "a client
should not assume that locks are valid": it ends the command.
"""
import logging
import subprocess
import sys

from kazoo.client import KazooClient, KazooState

logging.basicConfig()
hosts, path, timeout, *command = sys.argv[1:]
zk = KazooClient(hosts, timeout=float(timeout))
process = None


def listen(state):
    print(state, file=sys.stderr, flush=True)
    if state in (KazooState.SUSPENDED, KazooState.LOST) and process:
        process.terminate()


zk.add_listener(listen)
zk.start(20)
with zk.Lock(path, "proof"):
    process = subprocess.Popen(command)
    code = process.wait()
zk.stop()
sys.exit(code)
