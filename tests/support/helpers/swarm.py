#!/usr/bin/python3
"""swarm.py N SECONDS CMD...: run CMD N times at once, each with its number (from 1) in $I; all must succeed.

A shell cannot wait for many jobs while thousands of processes come and go: it forgets a job's exit code when
the number of that process comes round again. Here all are zombies until they are asked, so no number is reused.
What a command prints is shown when it fails or is not done in time. An exit code that is neither the command's 0 nor
dlock's for a busy machine (69, 71, 75, 79) is FINAL: tests/run does not try such a test again.
"""
import os
import subprocess
import sys
import tempfile
import time

n, end, command = int(sys.argv[1]), time.monotonic() + float(sys.argv[2]), sys.argv[3:]
jobs = []
for i in range(1, n + 1):
    log = tempfile.TemporaryFile()
    jobs.append((subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, "I": str(i)}), log))
failed = False
for i, (job, log) in enumerate(jobs, 1):
    try:
        what = f"exit code {job.wait(max(0, end - time.monotonic()))}"
    except subprocess.TimeoutExpired:
        what = "still runs"
    if job.returncode != 0:
        failed = True
        log.seek(0)
        final = "" if job.returncode in (None, 69, 71, 75, 79) else "FINAL: "
        print(f"{final}{i}: {what}", log.read().decode(errors="replace").strip(), sep=": ")
sys.exit(failed)
