#!/usr/bin/python3 -S
"""signal_table.py terminal|none|container ROUNDS ARG...: counts the signals that reach a command.

A line for each way of sending: the counts of TERM, INT and HUP in ROUNDS rounds, as "1", or "1,2"
if they differ. The ways: to dlock's pid; to its process group; to each process in turn, as systemd
does with a cgroup, in three orders; through timeout(1), which signals dlock and then its group. In
a container dlock is PID 1, and the sender is outside. The environment is that of terminal.py; the
command of `dlock ARG...` is subject.c.
"""
import shutil
import subprocess

from terminal import *

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
MARK = 34  # reaches dlock behind all standard signals, and the command behind all passed on
CONTAINER = ['unshare', '--pid', '--fork', '--mount-proc', '--kill-child']


def wait(what, name):
    end = time.monotonic() + 20
    while not what():
        if time.monotonic() > end:
            raise SystemExit('not within 20 s: ' + name)
        time.sleep(0.001)


def count(sig):
    return len(seen('main', 'sig', int(sig)))


def before_others(pid):
    """If allowed: a sender preempted between two signals sends two, not one. Not inherited."""
    try:
        os.sched_setscheduler(pid, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except OSError:
        pass


def at_once(send, pids, sig):
    """Only the sending goes before others: the waits would keep the processor from all others."""
    before_others(0)
    for pid in pids:
        send(pid, sig)
    os.sched_setscheduler(0, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))


class Run:
    def __init__(self, term, before, args):
        shutil.rmtree(C)
        os.mkdir(C)
        argv = before + [DLOCK] + args + SUBJECT + ['-k']
        self.first = (term.start(argv).pids[0] if term else
                      subprocess.Popen(argv, start_new_session=True).pid)
        # Its pid in the file may be that of another namespace.
        wait(lambda: seen('main', 'start'), 'the start of the command')
        self.keeper = self.first
        while read('/proc/%d/comm' % self.keeper) != 'dlock\n':
            self.keeper = self.child(self.keeper)
        if before[:1] == ['timeout']:
            before_others(self.first)
        self.guard, self.command = None, self.child(self.keeper)
        if read('/proc/%d/comm' % self.command) != 'subject\n':
            self.guard = self.child(self.command)  # below the witness
            self.command = self.child(self.guard)

    @staticmethod
    def child(pid):
        return int(read('/proc/%d/task/%d/children' % (pid, pid)).split()[0])

    def count(self, send, sig):
        """How often the command has got sig once all that was sent has arrived, or never will."""
        before, marks = count(sig), count(MARK)
        send(sig)
        os.kill(self.keeper, MARK)
        wait(lambda: count(MARK) > marks, 'the mark')
        return count(sig) - before

    def to_each(self, *pids):
        return lambda sig: at_once(os.kill, [pid for pid in pids if pid], sig)

    def to_group(self, sig):
        at_once(os.killpg, [os.getpgid(self.keeper)], sig)

    def by_timeout(self, sig):
        """timeout(1) passes on a signal as at the end of its time; its last signal is CONT."""
        conts = count(signal.SIGCONT)
        os.kill(self.first, sig)
        wait(lambda: count(signal.SIGCONT) > conts, 'timeout')

    def end(self):
        os.kill(self.command, signal.SIGKILL)
        os.waitpid(self.first, 0)


def main():
    where, rounds, args = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    term = Term() if where == 'terminal' else None
    table = {}

    def measure(run, way, send):
        for sig in SIGNALS:
            table.setdefault(way, {}).setdefault(sig, set()).add(run.count(send, sig))

    run = Run(term, CONTAINER if where == 'container' else [], args)
    k, g, c = run.keeper, run.guard, run.command
    for _ in range(rounds):
        measure(run, 'pid', run.to_each(k))
        if where != 'container':  # the group has the container's parent in it
            measure(run, 'group', run.to_group)
        measure(run, 'cgroup', run.to_each(k, g, c))
        measure(run, 'cgroup, guard first', run.to_each(g, c, k))
        measure(run, 'cgroup, command first', run.to_each(c, k, g))
    run.end()
    for _ in range(rounds if where != 'container' else 0):
        run = Run(term, ['timeout', '60'], args)
        measure(run, 'timeout', run.by_timeout)
        run.end()
    for way, counts in table.items():
        print(way + ':', *(','.join(map(str, sorted(counts[s]))) for s in SIGNALS))


main()
