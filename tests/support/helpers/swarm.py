#!/usr/bin/python3 -S
"""swarm.py N SECONDS CMD...: run CMD N times at once, each with its number (from 1) in $I.

All must succeed. A shell cannot wait for many jobs while thousands of processes come and go: it
forgets a job's exit code when the job's number is used again. Here all stay zombies until the end,
so no number is reused. The output of a command that fails, or is not done in time, is shown. An
exit code but 0 and dlock's on a busy machine (69, 71, 75, 79) is FINAL: tests/run does not repeat
such a test.
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
    env = {**os.environ, "I": str(i)}
    jobs.append((subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                  env=env), log))
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
