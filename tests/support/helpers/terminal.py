"""terminal.py - a terminal with job control, as a shell has it, for tests/system/cli/terminal.bats.

The process that makes a Term becomes the leader of a new session on a new pseudo-terminal. It
starts jobs as a shell does (a process group each, in the foreground), types keys, and sees the
results.
"""
import fcntl, os, pty, re, select, signal, struct, sys, termios, time

DLOCK, HELPERS, T = os.environ['DLOCK'], os.environ['HELPERS'], os.environ['T']
S, C, LOCK = os.environ['S'], os.environ['C'], os.environ['L']
LOCK_ARGS = os.environ['LOCK_ARGS'].split()
SUBJECT = [HELPERS + '/subject', C]
SLOW = float(os.environ.get('SLOW', 0)) / 1000


def read(path):
    try:
        with open(path) as f:
            return f.read()
    # ProcessLookupError: a file of /proc whose process ended between the opening and the reading.
    except (FileNotFoundError, ProcessLookupError):
        return ''


def tell(name, text):
    with open(S + '/.' + name, 'w') as f:
        f.write(text)
    os.rename(S + '/.' + name, S + '/' + name)


def seen(who, what, arg=''):
    """Times (ns) at which a process of the subject saw that."""
    rows = [line.split() for line in read(C + '/events').splitlines()]
    return [int(r[3]) for r in rows if r[:2] == [who, what] and str(arg) in ('', r[2])]


def log(word):
    return [int(r.split()[1]) for r in read(S + '/log').splitlines() if r.split()[0] == word]


def beat():
    import array
    a = array.array('q')
    with open(C + '/beat', 'rb') as f:
        a.frombytes(f.read())
    return max(a)


def now():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def state(pid):
    text = read('/proc/%d/stat' % pid)
    return text.rsplit(')', 1)[1].split()[0] if text else ''


def pipes(pid):
    """Those that the process has open; it had none at its start."""
    try:
        return [fd for fd in os.listdir('/proc/%d/fd' % pid)
                if os.readlink('/proc/%d/fd/%s' % (pid, fd)).startswith('pipe:')]
    except PermissionError:
        return []  # for root alone to know
    except OSError:
        return ['gone']


def named(pid, name):
    kids = read('/proc/%d/task/%d/children' % (pid, pid)).split()
    return [int(k) for k in kids if read('/proc/%s/comm' % k) == name + '\n']


def guards(dlock):
    return [p for w in named(dlock, 'lock-witness') for p in named(w, 'lock-guard')]


def settled(dlock):
    """dlock knows that its command runs: no process waits for the exec any more, and all sleep. (An
    earlier key is for a command that has not begun.) The guard first: it tells the keeper."""
    return all(not pipes(p) and state(p) == 'S' for p in guards(dlock) + [dlock])


class Job:
    def __init__(self, term, pids, pgid):
        self.term, self.pids, self.pgid, self.ends = term, pids, pgid, {}

    def status(self, secs=20, pid=None):
        """The next change of the first process (or pid): 'exit N', 'signal N' or 'stopped N'."""
        pid = pid or self.pids[0]
        if pid in self.ends:
            return self.ends[pid]
        got = self.term.until(lambda: os.waitpid(pid, os.WNOHANG | os.WUNTRACED), secs,
                              lambda r: r[0] == pid, 'the end of %d' % pid)[1]
        if os.WIFSTOPPED(got):
            return 'stopped %d' % os.WSTOPSIG(got)
        how = ('signal %d' % os.WTERMSIG(got) if os.WIFSIGNALED(got) else
               'exit %d' % os.WEXITSTATUS(got))
        self.ends[pid] = how
        return how

    def suspend(self, name='dlock'):
        """Ctrl-Z stops it."""
        self.term.type(b'\x1a')
        check(self.status(), 'stopped 20', name)

    def interrupt(self, name='dlock'):
        """Ctrl-C ends it."""
        self.term.type(b'\x03')
        check(self.status(), 'signal 2', name)

    def finish(self, how, name='dlock'):
        """A subject with -u T/end ends, and so does the job."""
        open(T + '/end', 'w')
        check(self.status(), how, name)

    def foreground(self):
        os.tcsetpgrp(0, self.pgid)
        os.killpg(self.pgid, signal.SIGCONT)


class Term:
    def __init__(self):
        if os.fork():
            # The parent only hands on how it ended; a terminal's hang-up must not reach the test.
            _, st = os.wait()
            sys.stdout.flush()
            os._exit(os.WEXITSTATUS(st) if os.WIFEXITED(st) else 99)
        os.setsid()
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        self.real_out = os.dup(1)
        sys.stdout = sys.stderr = os.fdopen(self.real_out, 'w', buffering=1)
        for fd in (0, 1, 2):
            os.dup2(slave, fd)
        # A shell that takes the terminal back would be stopped by TTOU.
        for sig in (signal.SIGTTOU, signal.SIGTTIN, signal.SIGTSTP, signal.SIGHUP):
            signal.signal(sig, signal.SIG_IGN)
        self.output = ''

    def start(self, *argvs, background=False, stdin=None):
        """A job: one process, or a pipeline of several."""
        pgid, pids, upstream = 0, [], stdin
        for i, argv in enumerate(argvs):
            last = i == len(argvs) - 1
            r, w = (None, None) if last else os.pipe()
            pid = os.fork()
            if pid == 0:
                os.setpgid(0, pgid)
                if not background:
                    os.tcsetpgrp(0, os.getpgrp())
                for sig in range(1, 65):
                    try:
                        signal.signal(sig, signal.SIG_DFL)
                    except (OSError, ValueError):
                        pass
                if upstream is not None:
                    os.dup2(upstream, 0)
                if w is not None:
                    os.dup2(w, 1)
                os.closerange(3, 64)
                os.execvp(argv[0], argv)
            pgid = pgid or pid
            try:
                os.setpgid(pid, pgid)
            except OSError:
                pass
            pids.append(pid)
            if upstream is not None:
                os.close(upstream)
            if w is not None:
                os.close(w)
            upstream = r
        if not background:
            os.tcsetpgrp(0, pgid)
        return Job(self, pids, pgid)

    def subject(self, *options, background=False):
        """A job: dlock with LOCK_ARGS and the subject, which runs."""
        job = self.start([DLOCK] + LOCK_ARGS + SUBJECT + list(options), background=background)
        self.until(lambda: seen('main', 'start'))
        return job

    def read(self):
        return os.read(self.master, 65536).decode(errors='replace')

    def type(self, keys):
        os.write(self.master, keys)

    def until(self, what, secs=20, good=bool, name=None):
        end = time.monotonic() + secs
        while True:
            if select.select([self.master], [], [], 0.005)[0]:
                self.output += self.read()
            got = what()
            if good(got):
                return got
            if time.monotonic() > end:
                raise SystemExit('not within %d s: %s; the terminal shows: %r' %
                                 (secs, name or getattr(what, '__name__', what), self.output))

    def screen(self):
        """The lines that are left of what was printed, when lines were erased and written over."""
        lines, at = [''], 0
        for part in re.findall(r'\r\n|\r|\n|\x1b\[K|[^\r\n\x1b]+', self.output):
            if '\n' in part:
                lines.append('')
                at = 0
            elif part == '\r':
                at = 0
            elif part == '\x1b[K':
                lines[-1] = lines[-1][:at]
            else:
                lines[-1] = lines[-1][:at] + part + lines[-1][at + len(part):]
                at += len(part)
        return lines

    def quiet(self, secs):
        """Let time pass, and take in what is printed."""
        end = time.monotonic() + secs
        self.until(lambda: time.monotonic() >= end, secs + 5)


class Login(Term):
    """A terminal without job control: argv leads its session, as `ssh -t HOST argv` starts it."""
    def __init__(self, argv):
        self.output, self.closed = '', False
        pid, self.master = pty.fork()
        if pid == 0:
            os.execvp(argv[0], argv)
        self.job = Job(self, [pid], pid)

    def read(self):
        try:
            return super().read()
        except OSError:  # no process has the other end open any more
            self.closed = True
            time.sleep(0.005)
            return ''


def check(got, want, what=''):
    if got != want:
        raise SystemExit('%s: %r, not %r' % (what, got, want))
