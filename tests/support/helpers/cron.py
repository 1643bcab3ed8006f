#!/usr/bin/python3 -S
"""cron.py CRONTAB COMMAND - runs as cron(8) does the crontab's job whose command has COMMAND in it.

The job gets cron's environment and the variables of the crontab, and /bin/sh the command up to the
first "%"; the text behind that, with newlines for "%", is its standard input. "\\%" is a "%". What
the job prints would be a mail: it is printed here.
"""
import os
import re
import subprocess
import sys

env = {"PATH": "/usr/bin:/bin", "SHELL": "/bin/sh", "LOGNAME": "cron", "HOME": os.getcwd()}
# The frame of the tests: no store of this machine, and whose process it is.
env.update((k, v) for k, v in os.environ.items() if k in ("DLOCK_STORE_FILE", "DLOCK_TEST_ID"))
command = None
with open(sys.argv[1]) as crontab:
    for line in crontab:
        variable = re.fullmatch(r"\s*(\w+)\s*=\s*(.*?)\s*", line)
        job = re.fullmatch(r"(?:[\d*,/-]+\s+){5}(.*)\n", line)
        if variable:
            env[variable[1]] = variable[2]
        elif job and sys.argv[2] in job[1]:
            assert command is None, "two jobs with " + sys.argv[2]
            command = job[1]
        assert variable or job or re.fullmatch(r"#.*\n|\n", line), line
parts = [part.replace(r"\%", "%") for part in re.split(r"(?<!\\)%", command)]
sys.exit(subprocess.run([env["SHELL"], "-c", parts[0]], env=env,
                        input="\n".join(parts[1:]).encode()).returncode & 255)
