#!/usr/bin/python3 -S
"""message_table.py - the messages of dlock for each event of the table on stdin.

Runs dlock in a scripted store (support/fake/fake.c), at a terminal, in CI and so on, and compares
the printed lines with the table: kinds of lines, in order.
"""
import fcntl, os, pty, re, select, signal, struct, sys, termios, time

DLOCK, HELPERS, S, NAME = (os.environ[name] for name in ('DLOCK', 'HELPERS', 'S', 'NAME'))
WAIT = '3.5'  # on a busy machine, too, enough for the line of a wait, which comes after a second

HOLDER = r'held by fakehost, pid 4711 \(fakecommand\)'
LOCK = r"\S+: (the lock )?'NAME'"
# Every line is one of these.
KINDS = {
    'is': r"fake://\S+: the lock is 'NAME'",
    'busy': LOCK + ' is busy: ' + HOLDER,
    'waits': r"waiting for 'NAME': [1-9][0-9]*s( of 3\.5s)?, next in line; " + HOLDER,
    'got': r"got 'NAME' after ([0-9.]+s|[0-9.]+ ms)",
    'gave-up': LOCK + r' is still (busy after 3\.5s: ' + HOLDER + ')',
    'setup': 'fake: notice of setup',
    'exclusion': 'fake: notice of exclusion',
    'detail': 'fake: notice of detail',
    'trouble': LOCK + ' has not been renewed for [0-9.]+ m?s: no answer; '
               'the command will be ended in [0-9.]+ m?s unless the store answers',
    'over': LOCK + ' is renewed again after [0-9.]+ m?s',
    'lost': LOCK + ' is lost: lost unasked; ending the command',
    'not-ours': LOCK + ' was not ours any more when it was released',
    'unclear': r"\S+: the release of 'NAME' is not confirmed: no answer; "
               'the lock ends with its ttl at the latest',
    'connects': r"waiting for 'NAME': [1-9]s of 3\.5s; no answer yet from fake://.*",
    'silence': r"fake:\S+: no answer within 3\.5 s \(lock 'NAME'\)",
    'error': r"fake:\S+: told to fail \(lock 'NAME'\)",
    'no-command': "cannot run '/no/such/command': No such file or directory",
}

# The store's orders; options; command (STORE is the store's folder); what happens then; exit code.
EVENTS = {
    'uncontended': ({}, [], ['true'], None, 0),
    '-n, held': ({'acquire': 'busy'}, ['-n'], ['true'], None, 75),
    'waits, granted': ({'acquire': 'wait'}, [], ['true'], 'grant', 0),
    'wait runs out': ({'acquire': 'wait'}, ['-w', WAIT], ['true'], None, 75),
    'store set up badly': ({'notice': 'setup'}, [], ['true'], None, 0),
    'may not exclude': ({'notice': 'exclusion'}, [], ['true'], None, 0),
    'detail': ({'notice': 'detail'}, [], ['true'], None, 0),
    'renewed late': ({'renew': 'unclear'}, ['--ttl', '6'], [HELPERS + '/await', 'STORE/go'],
                     'renew', 0),
    'lost': ({}, [], ['sleep', '20'], 'lose', 79),
    'not ours at release': ({'release': 'notours'}, [], ['true'], None, 79),
    'release not confirmed': ({'release': 'unclear'}, [], ['true'], None, 0),
    'store silent': ({'acquire': 'hang'}, ['-w', WAIT], ['true'], None, 69),
    'store unreachable': ({'acquire': 'fail'}, [], ['true'], None, 69),
    'no such command': ({}, [], ['/no/such/command'], None, 127),
    'a signal ends the wait': ({'acquire': 'wait'}, [], ['true'], 'kill', -signal.SIGTERM),
}

# How dlock is run: $CI, options, at a terminal; and the table's column for it.
MODES = [
    (None, [], True, 'terminal'), ('', ['-q'], True, '-q'), ('0', ['-v'], True, '-v'),
    ('true', [], False, 'CI'), ('1', [], False, 'CI'), ('yes', ['-v', '-q'], False, '-q'),
    (None, [], False, 'neither'), ('', [], False, 'neither'), ('0', [], False, 'neither'),
    ('false', [], False, 'neither'),
    (None, ['-v'], False, '-v'), (None, ['-q'], False, '-q'), (None, ['-q', '-v'], False, '-q'),
]


class Run:
    """dlock in one mode."""

    def __init__(self, n, event, mode, cell):
        told, options, command, self.then, self.code = EVENTS[event]
        ci, more, terminal, self.column = mode
        self.text, self.closed, self.cell = b'', False, cell
        self.store = '%s/%s-%d' % (S, event.replace(' ', '-').replace(',', ''), n)
        os.mkdir(self.store)
        for name, text in told.items():
            self.tell(name, text)
        argv = [DLOCK] + more + options + ['fake://%s#%s' % (self.store, NAME)] + [
            word.replace('STORE', self.store) for word in command]
        env = {k: v for k, v in os.environ.items() if k != 'CI'}
        if ci is not None:
            env['CI'] = ci
        if terminal:
            self.pid, self.out = pty.fork()
            if self.pid == 0:
                os.execve(argv[0], argv, env)
            # So wide that nothing is cut. The first line of a wait comes after a second.
            fcntl.ioctl(self.out, termios.TIOCSWINSZ, struct.pack('HHHH', 24, 500, 0, 0))
            return
        self.out, end = os.pipe()
        self.pid = os.posix_spawn(argv[0], argv, env, file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, '/dev/null', os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, end, 1), (os.POSIX_SPAWN_DUP2, end, 2)])
        os.close(end)

    def tell(self, name, text):
        with open(self.store + '/.' + name, 'w') as f:
            f.write(text)
        os.rename(self.store + '/.' + name, self.store + '/' + name)

    def go_on(self):
        if self.then == 'grant':
            self.tell('acquire', 'grant')
        elif self.then == 'renew':
            self.tell('renew', 'ok')
        elif self.then == 'lose':
            self.tell('lost', '')
        elif self.then == 'kill':
            os.kill(self.pid, signal.SIGTERM)

    def read(self):
        """Take in what has been printed; True at the end."""
        while not self.closed and select.select([self.out], [], [], 0)[0]:
            try:
                piece = os.read(self.out, 65536)
            except OSError:  # a terminal without a process
                piece = b''
            self.closed = not piece
            self.text += piece
        return self.closed

    def held(self):
        return os.path.exists(self.store + '/held')

    def said(self):
        """It waits, or is in trouble, and has said so if it does."""
        self.read()
        return os.path.exists(self.store + '/log') and (
            b'waiting for' in self.text or 'waits' not in self.cell) and (
            b'not been renewed' in self.text or 'trouble' not in self.cell)

    def recovered(self):
        """It has said that the trouble is over, if it does."""
        self.read()
        return b'renewed again' in self.text or 'over' not in self.cell

    def end(self):
        """The kinds of the lines, and the exit code. A redrawn line counts once."""
        wait_until(self.read)
        os.close(self.out)
        _, status = os.waitpid(self.pid, 0)
        kinds = []
        for line in re.split(r'\r?\n|\r|\x1b\[K', self.text.decode()):
            kind = [k for k, form in KINDS.items()
                    if re.fullmatch('dlock: ' + form.replace('NAME', re.escape(NAME)), line)]
            kind = kind[0] if kind else repr(line)
            if line and (kind not in ('waits', 'connects') or kind not in kinds):
                kinds.append(kind)
        return ' '.join(kinds), os.waitstatus_to_exitcode(status)


def wait_until(what, secs=30):
    end = time.monotonic() + secs
    while not what():
        if time.monotonic() > end:
            raise SystemExit('not within %d s' % secs)
        time.sleep(0.01)


rows = [[cell.strip() for cell in line.split('|')] for line in sys.stdin]
head, bad = rows[0], 0
if sorted(r[0] for r in rows[1:]) != sorted(EVENTS):
    raise SystemExit('the table has other events')


def start(some):
    return [(row, n, Run(n, row[0], mode, row[head.index(mode[3])]))
            for row in rows[1:] if some(EVENTS[row[0]][3]) for n, mode in enumerate(MODES)]


def go_on_after(said, some):
    wait_until(lambda: all(said(r) for r in some))
    for r in some:
        r.go_on()


# First alone, since their leases end soon. Silent modes began before the last mode that prints.
late = start(lambda then: then == 'renew')
go_on_after(Run.said, [r for _, _, r in late])
wait_until(lambda: all(r.recovered() for _, _, r in late))
for _, _, r in late:
    r.tell('go', '')
# All others at a time, as some take seconds.
runs = start(lambda then: then != 'renew')
go_on_after(Run.held, [r for _, _, r in runs if r.then == 'lose'])
go_on_after(Run.said, [r for _, _, r in runs if r.then in ('grant', 'kill')])
runs += late
for row, n, r in runs:
    got, want = r.end(), (row[head.index(r.column)], r.code)
    if got != want:
        bad += 1
        print('%s, CI=%s %s%s: %r, not %r' % (row[0], MODES[n][0], ' '.join(MODES[n][1]),
                                             ' at a terminal' if MODES[n][2] else '', got, want))
sys.exit(bad > 0)
