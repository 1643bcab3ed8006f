#!/usr/bin/python3
"""redis_lock.py HOST:PORT[,...] NAME TTL WAITS COMMAND... - COMMAND under redis-py's Lock.

A thread renews the lease; if the lock is not ours any more, it ends the command. WAITS: this file
is made just before the wait for the lock. Several hosts are the sentinels of the service svc.
"""
import subprocess
import sys
import threading

import redis
import redis.sentinel

address, name, ttl, waits, *command = sys.argv[1:]
hosts = [a.rsplit(":", 1) for a in address.split(",")]
if len(hosts) == 1:
    client = redis.Redis(hosts[0][0], int(hosts[0][1]))
else:
    client = redis.sentinel.Sentinel(hosts).master_for("svc")
lock = client.lock(name, timeout=float(ttl), thread_local=False)
open(waits, "w").close()
lock.acquire()
process = subprocess.Popen(command)
over = threading.Event()


def renew():
    while not over.wait(float(ttl) / 3):
        try:
            lock.reacquire()
        except redis.exceptions.LockError as e:
            print("lost:", e, file=sys.stderr)
            process.terminate()
            return
        except redis.exceptions.RedisError as e:
            print("try again:", e, file=sys.stderr)


threading.Thread(target=renew, daemon=True).start()
code = process.wait()
over.set()
lock.release()
sys.exit(code)
