#!/usr/bin/python3 -S
"""yes_keeper.py CMD...: run CMD as root below a keeper of user nobody that grants each lock.

The keeper is CMD's parent, as if CMD ran under sudo; the entry of DLOCK_HELD names the keeper.
"""
import os
import signal
import socket
import struct
import sys
import time

HELD, NEVER, RAW_NEVER = 1, 2**63 - 1, (2**63 - 1) // 2
net, clock = (os.stat("/proc/self/ns/" + ns).st_ino for ns in ("net", "time"))
name = "dlock-%x-%x-%016x" % (net, clock, os.getpid())
ready, go = os.pipe()
child = os.fork()
if child == 0:
    os.read(ready, 1)
    os.environ["DLOCK_HELD"] = os.environ["DLOCK_HELD"].rpartition(":")[0] + ":" + name
    os.execvp(sys.argv[1], sys.argv[1:])
os.setuid(65534)
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.bind("\0" + name)
s.listen(100)
os.write(go, b"x")
server = os.fork()
if server == 0:
    kept = []
    while True:
        c, _ = s.accept()
        kept.append(c)
        now = int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1e9)
        ttl = 30 * 10**9
        # struct nested_reply: type, hold (from, ttl, raw_minus_boot, end_at, fence, mode, slots,
        # slot), left, text.
        c.send(struct.pack("=i4xqqqqQiIi4xq256s", HELD, now, ttl, RAW_NEVER, NEVER, 12345, 0, 0, 0,
                           ttl, b""))
_, status = os.waitpid(child, 0)
os.kill(server, signal.SIGKILL)
os.waitpid(server, 0)
sys.exit(os.waitstatus_to_exitcode(status))
