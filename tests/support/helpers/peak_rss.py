#!/usr/bin/python3 -S
"""peak_rss.py FILE CMD... - runs CMD; FILE gets the peak memory of any process in it (MiB)."""
import resource
import subprocess
import sys

code = subprocess.call(sys.argv[2:])
with open(sys.argv[1], "w") as f:
    print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024, file=f)
sys.exit(code if code >= 0 else 128 - code)
