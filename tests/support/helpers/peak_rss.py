#!/usr/bin/python3
"""peak_rss.py FILE CMD... - runs CMD, whose exit code is its own, and writes into FILE how much memory it, or one of its
descendants, had at most at a time (MiB)."""
import resource
import subprocess
import sys

code = subprocess.call(sys.argv[2:])
with open(sys.argv[1], "w") as f:
    print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024, file=f)
sys.exit(code if code >= 0 else 128 - code)
