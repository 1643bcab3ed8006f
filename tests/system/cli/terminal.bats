#!/usr/bin/env bats
# At a terminal everything is as without dlock: Ctrl-C, Ctrl-Z, fg, pipelines. And as PID 1.

load ../../support/fake

@test "Ctrl-C reaches the command once and ends dlock" {
    for LOCK_ARGS in "$L" "$T/x.lock" "-o $T/o.lock"; do
        at_terminal <<'PY'
j = t.subject()
j.interrupt()
check(len(seen('main', 'sig', 2)), 1, 'INT')
PY
    done
    store_did clean
}

@test "Ctrl-C at the command's end still releases the lock" {
    tell release clean 100
    at_terminal <<'PY'
j = t.start([DLOCK, '--ttl', '20', LOCK] + SUBJECT)
t.until(lambda: seen('main', 'start'))
main = int(read(C + '/events').split()[2])
os.kill(j.pids[0], signal.SIGSTOP)
check(j.status(), 'stopped 19', 'dlock')
t.type(b'\x03')
t.until(lambda: state(main) == '', name='the guard has reaped the command')
t.quiet(0.1)
os.kill(j.pids[0], signal.SIGCONT)
check(j.status(), 'signal 2', 'dlock')
PY
    store_did clean
    [ ! -e "$S/held" ]
}

@test "a command that survives Ctrl-C gets it once each time" {
    for LOCK_ARGS in "$L" "$T/x.lock" "-o $T/o.lock"; do
        at_terminal <<'PY'
j = t.subject('-k', '-u', T + '/end', '-r', '7')
t.until(lambda: settled(j.pids[0]))
for i in 1, 2, 3:
    t.type(b'\x03')
    t.until(lambda: len(seen('main', 'sig', 2)) == i)
t.type(b'\x1c')
t.until(lambda: seen('main', 'sig', 3))
t.quiet(0.1)
check(len(seen('main', 'sig', 2)), 3, 'INT')
check(len(seen('main', 'sig', 3)), 1, 'QUIT')
j.finish('exit 7')
PY
    done
}

@test "Ctrl-\\ : dies by QUIT without a core of ours" {
    at_terminal <<'PY'
j = t.start(['sh', '-c', 'ulimit -c unlimited; exec "$@"', '-', DLOCK, LOCK] + SUBJECT)
t.until(lambda: seen('main', 'start'))
t.type(b'\x1c')
check(j.status(), 'signal 3', 'dlock')
PY
}

@test "the command shares dlock's process group, the guard has its own session" {
    at_terminal <<'PY'
j = t.subject()
main = int(read(C + '/events').split()[2])
check(os.getpgid(main), j.pgid, "the command's group")
guard = guards(j.pids[0])[0]
check(os.getsid(guard), guard, "the guard's session")
check(os.getsid(main), os.getsid(0), "the command's session")
check(os.tcgetpgrp(0), j.pgid, 'the foreground')
t.type(b'\x03')
j.status()
PY
}

@test "Ctrl-Z stops dlock, and fg resumes the renewals" {
    for LOCK_ARGS in "--ttl 2 $L" "$T/x.lock" "-o $T/o.lock"; do
        at_terminal <<'PY'
j = t.subject('-u', T + '/end', '-r', '3')
for i in 1, 2, 3:
    j.suspend()
    stopped = beat()
    t.quiet(0.05)
    check(beat(), stopped, 'the command has not stopped: last sign of life')
    before = len(log('ok'))
    j.foreground()
    t.until(lambda: beat() > stopped, name='the command goes on')
    if LOCK_ARGS[-1] == LOCK:
        t.until(lambda: len(log('ok')) > before + 1, name='renewals')
j.finish('exit 3')
PY
    done
}

# The guard does not run until dlock has read an old report of a stop.
@test "fg resumes dlock although it hears late of an earlier stop" {
    LOCK_ARGS="--ttl 20 $L" at_terminal <<'PY'
j = t.subject('-u', T + '/end', '-r', '3')
dlock, main = j.pids[0], int(read(C + '/events').split()[2])
guard = guards(dlock)[0]
t.until(lambda: settled(dlock))
j.suspend()
for sig, want in (signal.SIGCONT, 'S'), (signal.SIGTSTP, 'T'):
    os.kill(main, sig)
    t.until(lambda: state(main) in want + 'R')
    t.quiet(0.1)
    t.until(lambda: state(guard) == 'S', name='the guard has sent its report')
os.kill(guard, signal.SIGSTOP)
j.foreground()
t.until(lambda: state(dlock) != 'T', name='dlock runs')
t.quiet(0.2)
check(state(dlock) in 'SR', True, 'dlock has not stopped')
os.kill(guard, signal.SIGCONT)
j.finish('exit 3')
PY
}

@test "Ctrl-Z before the exec of the command does not stop dlock for good" {
    # The search for the command takes a while: 30 000 folders of PATH are missing.
    at_terminal <<'PY'
os.environ['PATH'] = '/n:' * 30000 + os.environ['PATH']
j = t.start([DLOCK, T + '/x.lock', 'true'])
dlock = '/proc/%d/' % j.pids[0]
def child():
    return read(dlock + 'task/%d/children' % j.pids[0]).split()
def takes_stops():
    mask = re.search(r'SigBlk:\t(\w+)', read('/proc/%s/status' % child()[0]) if child() else '')
    return mask and not int(mask.group(1), 16) >> signal.SIGTSTP - 1 & 1
t.until(takes_stops)
check(read('/proc/%s/comm' % child()[0]), 'dlock\n', 'before the exec: name')
t.type(b'\x1a')
check(j.status(), 'exit 0', 'dlock')
PY
}

# no_stop WORD...: WORD... dlock, in a session without a job-control shell, does not stop by Ctrl-Z.
no_stop() {
    PREFIX=$(printf '%s\n' "$@") at_terminal <<'PY'
t = Login(os.environ['PREFIX'].split('\n') + [DLOCK] + LOCK_ARGS + SUBJECT +
          ['-u', T + '/end', '-r', '3'])
t.until(lambda: seen('main', 'start'))
for i in 1, 2:
    t.type(b'\x1a')
    t.until(lambda: t.output.count('^Z') == i, name='^Z is shown once the signal has been sent')
    typed = now()
    t.until(lambda: beat() > typed, name='the command goes on')
if LOCK_ARGS[-1] == LOCK:
    n = len(log('ok'))
    t.until(lambda: len(log('ok')) > n, name='a renewal')
open(T + '/end', 'w')
status = t.job.status()
t.until(lambda: t.closed, name='all output has been read')
print(status, t.output.replace('\r\n', ' '))
PY
}

@test "Ctrl-Z is ignored in a session without a job-control shell" {
    for LOCK_ARGS in "--ttl 1 $L" "$T/x.lock"; do
        run no_stop env # as `ssh -t HOST dlock ...`: dlock leads the session
        [ "$output" = "exit 3 ^Z^Z" ] || fail "$LOCK_ARGS: $output"
        run no_stop bash -c '"$@"; echo after $?' -
        [ "$output" = "exit 0 ^Z^Zafter 3 " ] || fail "$LOCK_ARGS: $output"
    done
}

@test "Ctrl-Z is ignored as PID 1, as in docker run -it" {
    need_pid_namespace
    for LOCK_ARGS in "--ttl 1 $L" "$T/x.lock"; do
        run no_stop unshare --pid --fork --mount-proc --kill-child setsid -c
        [ "$output" = "exit 3 ^Z^Z" ] || fail "$LOCK_ARGS: $output"
    done
}

@test "Ctrl-Z stops a script around dlock, and fg resumes both" {
    for LOCK_ARGS in "--ttl 3 $L" "$T/x.lock"; do
        at_terminal <<'PY'
j = t.start(['bash', '-c', '"$@"; echo after $?', '-', DLOCK] + LOCK_ARGS + SUBJECT +
            ['-u', T + '/end', '-r', '3'])
t.until(lambda: seen('main', 'start'))
for i in 1, 2:
    j.suspend('the script')
    stopped = beat()
    t.quiet(0.05)
    check(beat(), stopped, 'the command has not stopped: last sign of life')
    j.foreground()
    t.until(lambda: beat() > stopped, name='the command goes on')
j.finish('exit 0', 'the script')
t.until(lambda: 'after 3' in t.output)
PY
    done
}

@test "a job suspended for longer than the ttl ends before the deadline" {
    at_terminal <<'PY'
j = t.start([DLOCK, '--ttl', '1.5', LOCK] + SUBJECT + ['-t'])
t.until(lambda: read(C + '/events').count(' start ') == 4)
j.suspend()
children = [int(l.split()[2]) for l in read(C + '/events').splitlines() if ' start ' in l]
t.until(lambda: all(state(p) in ('', 'Z') for p in children), name='the tree is gone')
# Sent at most, confirmed or not; the deadline of a lease of 1.5 s is 1.483 s later.
deadline = max(log('acquire') + log('renew')) + 1483000000
if now() > deadline + 20000000 or beat() > deadline:
    raise SystemExit('too late by %d ms' % ((now() - deadline) / 1e6))
j.foreground()
check(j.status(), 'exit 79', 'dlock')
t.quiet(0.05)
if 'could not be renewed' not in t.output:
    raise SystemExit('nothing was said: %r' % t.output)
PY
}

@test "a command that stops itself does not stop dlock" {
    at_terminal <<'PY'
j = t.start([DLOCK, '--ttl', '1.5', LOCK, 'sh', '-c', 'echo $$ >%s/pid; kill -STOP $$; exit 5' % T])
t.until(lambda: read(T + '/pid').endswith('\n'))
pid = int(read(T + '/pid'))
t.until(lambda: state(pid) == 'T')
n = len(log('ok'))
t.until(lambda: len(log('ok')) > n + 1)
os.kill(pid, signal.SIGCONT)
check(j.status(), 'exit 5', 'dlock')
PY
}

@test "a background job that reads the terminal stops until fg" {
    for LOCK_ARGS in "--ttl 3 $L" "$T/x.lock" "-o $T/o.lock"; do
        at_terminal <<'PY'
os.tcsetpgrp(0, os.getpgrp())
j = t.start([DLOCK] + LOCK_ARGS + ['sh', '-c', 'read line; echo "<$line>"; exit 4'],
            background=True)
check(j.status(), 'stopped 21', 'dlock')
j.foreground()
t.type(b'typed\n')
check(j.status(), 'exit 4', 'dlock')
t.until(lambda: '<typed>' in t.output)
PY
    done
}

@test "a pipeline stops and continues as one job" {
    # Not a loop of `sleep`: a shell waiting for its vfork child to exec cannot stop after it.
    mkfifo "$T/more"
    at_terminal <<'PY'
j = t.start([DLOCK, '--ttl', '3', LOCK, 'sh', '-c', 'echo first; echo second; read x <%s/more' % T],
            ['sh', '-c', 'read a; echo "<$a>"; read key </dev/tty; echo "<$key>"; cat; exit 0'])
t.until(lambda: '<first>' in t.output)
j.suspend()
check(j.status(pid=j.pids[1]), 'stopped 20', 'the reader')
j.foreground()
t.type(b'key\n')
t.until(lambda: '<key>' in t.output)
with open(T + '/more', 'w') as more:
    more.write('go\n')
check(j.status(), 'exit 0', 'dlock')
check(j.status(pid=j.pids[1]), 'exit 0', 'the reader')
t.until(lambda: 'second' in t.output)
PY
}

@test "dlock works in front of a pager" {
    command -v less >/dev/null || skip "no less here"
    at_terminal <<'PY'
os.environ['TERM'] = 'vt100'
os.environ['LESS'] = ''
t = Term()
j = t.start([DLOCK, LOCK, 'sh', '-c', 'seq 1000'], ['less'])
t.until(lambda: '10\r\n' in t.output, name='the first page')
t.type(b'q')
check(j.status(pid=j.pids[1]), 'exit 0', 'less')
check(j.status() in ('exit 0', 'exit 141'), True, 'dlock')
PY
}

@test "a new window size reaches the command once" {
    at_terminal <<'PY'
j = t.subject('-u', T + '/end')
fcntl.ioctl(t.master, termios.TIOCSWINSZ, struct.pack('HHHH', 50, 100, 0, 0))
t.until(lambda: seen('main', 'sig', 28))
t.quiet(0.1)
check(len(seen('main', 'sig', 28)), 1, 'WINCH')
j.finish('exit 0')
PY
}

@test "a hang-up reaches the command and releases the lock" {
    # The leader of the session is the command's grandparent, as with ssh.
    at_terminal <<'PY' || :
j = t.subject()
os._exit(0)
PY
    wait_for 5 has_seen main sig 1
    wait_for 5 store_did clean
    [ "$(last_beat)" -lt "$(at release)" ]
}

@test "a terminal that hangs up during the wait (nohup): the command starts as without one" {
    flock "$T/x.lock" sh -c "touch '$T/held'; until [ -e '$T/free' ]; do sleep 0.02; done" 3>&- &
    wait_for 5 test -e "$T/held"
    LOCK_ARGS=$T/x.lock at_terminal <<'PY' || :
j = t.start(['sh', '-c', 'trap "" HUP; exec "$@"', 'sh', DLOCK] + LOCK_ARGS + SUBJECT +
            ['-u', T + '/end'])
exe = '/proc/%d/exe' % j.pids[0]
t.until(lambda: os.path.exists(exe) and os.readlink(exe) == os.path.realpath(DLOCK))
t.until(lambda: state(j.pids[0]) == 'S')
t.quiet(0.3)
os._exit(0)
PY
    touch "$T/free"
    wait_for 5 running
    local main
    main=$(pid_of main)
    [ "$(ps -o pgid= "$main")" = "$(ps -o pgid= $(ps -o ppid= "$main"))" ]
    touch "$T/end"
}

@test "the wait is one line that is redrawn every second, and gone when the command runs" {
    tell acquire wait
    TERM=xterm at_terminal <<'PY'
began = time.monotonic()
j = t.start([DLOCK, '-w', '20', LOCK, 'echo', 'output'])
t.until(lambda: 'waiting' in t.output)
took = time.monotonic() - began
if not 0.95 < took < 1.6 + SLOW:
    raise SystemExit('after %.2f s' % took)
line = t.screen()[0]
start = "dlock: waiting for '%s': 1s of 20s, next in line; held by fake" % LOCK.split('#')[1]
check(line.startswith(start), True, line)
t.until(lambda: ': 3s of 20s' in t.output)
check(len(t.screen()), 1, 'lines')
tell('acquire', 'grant')
check(j.status(), 'exit 0', 'dlock')
t.quiet(0.05)
got, command, rest = t.screen()
check(re.sub('after [3-9][.0-9]*s', 'after 3s', got),
      "dlock: got '%s' after 3s" % LOCK.split('#')[1], 'the end of the wait')
check((command, rest), ('output', ''), 'what follows')
PY
}

@test "the wait's line fits into the terminal, whatever its width, and Ctrl-C ends the wait" {
    tell acquire wait
    TERM=xterm at_terminal <<'PY'
for columns in 30, 200, 0:
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack('HHHH', 24, columns, 0, 0))
    t.output = ''
    j = t.start([DLOCK, LOCK, 'true'])
    t.until(lambda: 'waiting' in t.output)
    line = t.screen()[0]
    check(len(line), {30: 27, 0: 77}.get(columns, len(line)), 'length with %d columns' % columns)
    whole = line.endswith('(fakecommand)')
    check(whole, columns == 200, 'whole with %d columns: %s' % (columns, line))
    t.type(b'\x03')
    check(j.status(), 'signal 2', 'dlock')
    t.quiet(0.05)
    # The shell's prompt begins a line, and nothing is left in front of it.
    check(t.screen(), [''], 'after Ctrl-C')
PY
    store_did release 3 # their places in the queue
}

@test "Ctrl-Z stops a wait and takes its line away, fg brings it back, bg leaves the user's alone" {
    tell acquire wait
    TERM=xterm at_terminal <<'PY'
j = t.start([DLOCK, LOCK, 'sh', '-c', 'exit 6'])
t.until(lambda: ': 1s' in t.output)
j.suspend()
t.quiet(0.05)
check(t.screen(), [''], 'while it is stopped')
j.foreground()
t.until(lambda: 'waiting' in t.screen()[0])
j.suspend()
t.quiet(0.05)
check(t.screen(), [''], 'while it is stopped')
os.tcsetpgrp(0, os.getpgrp())
t.output = ''
os.killpg(j.pgid, signal.SIGCONT)
t.until(lambda: t.output.count('\n') == 1)
t.quiet(1.2)
check(t.output.count('waiting'), 1, 'lines in the background')
check('\x1b' in t.output, False, 'redrawn')
tell('acquire', 'grant')
check(j.status(), 'exit 6', 'dlock')
PY
}

@test "lines instead of a redrawn one: in the background, and at a dumb terminal" {
    tell acquire wait
    TERM=dumb at_terminal <<'PY'
for term in 'dumb', '', 'xterm':
    os.environ['TERM'] = term
    os.tcsetpgrp(0, os.getpgrp())
    t.output = ''
    j = t.start([DLOCK, LOCK, 'true'], background=term == 'xterm')
    t.until(lambda: 'fakehost, pid 4711 (fakecommand)\r\n' in t.output)
    t.quiet(0.3)
    check((t.output.count('\n'), '\x1b' in t.output), (1, False), 'lines with %r' % term)
    if term == 'xterm':  # as fg does with a job that runs: no signal
        os.tcsetpgrp(0, j.pgid)
        t.until(lambda: '\x1b[K' in t.output, 4)
    os.kill(j.pids[0], signal.SIGTERM)
    check(j.status(), 'signal 15', 'dlock')
    t.quiet(0.05)
    check(t.output.count('\n'), 1, 'lines at the end with %r' % term)
tell('acquire', 'wait')
t.output = ''
j = t.start([DLOCK, '-q', '-w', '1.3', LOCK, 'true'])
check(j.status(), 'exit 75', 'dlock')
t.quiet(0.05)
check(t.output, '', 'with -q')
PY
}

@test "a terminal that Ctrl-S has stopped does not hold up the wait" {
    tell acquire wait
    TERM=xterm at_terminal <<'PY'
j = t.start([DLOCK, LOCK, 'touch', T + '/ran'])
t.until(lambda: ': 1s' in t.output)
t.type(b'\x13')
t.quiet(1.3)
check(': 2s' in t.output, False, 'written to a stopped terminal')
tell('acquire', 'grant')
t.until(lambda: os.path.exists(T + '/ran'))
t.type(b'\x11')
check(j.status(), 'exit 0', 'dlock')
t.until(lambda: 'got ' in t.output)
PY
}

# A command in raw mode, as a full-screen program.
raw_mode() {
    PROGRAM=$(cat) at_terminal <<'PY'
modes = termios.tcgetattr(0)
RAW = ['sh', '-c', 'stty raw -echo </dev/tty; touch %s/raw; "$HELPERS/await" %s/never' % (T, T)]
def raw(*options, pipe=[]):
    if os.path.exists(T + '/raw'):
        os.remove(T + '/raw')
    t.output = ''
    j = t.start([DLOCK, '--ttl', '1', '--grace', '0'] + list(options) + [LOCK] + RAW, *pipe)
    t.until(lambda: os.path.exists(T + '/raw'), name='raw')
    check(termios.tcgetattr(0) != modes, True, 'raw mode')
    return j
def lose(j):
    tell('renew', 'lost')
    check(j.status(), 'exit 79', 'dlock')
    tell('renew', 'ok')
def guard_of(j):
    return guards(j.pids[0])[0]
def said(yes):
    t.quiet(0.05)
    check("run 'reset'" in t.output, yes, 'the hint, in %r' % t.output)
exec(os.environ['PROGRAM'])
PY
}

@test "a terminal that a command left in raw mode is restored where dlock ended the command" {
    raw_mode <<'PY'
j = raw('--max-run', '2s')
check(j.status(), 'exit 124', 'dlock')
check(termios.tcgetattr(0), modes, 'after --max-run')
said(True)
j = raw('--max-run', '2s', '-q')
check(j.status(), 'exit 124', 'dlock')
check(termios.tcgetattr(0), modes, 'after --max-run, with -q')
said(False)
j = raw()
lose(j)
check(termios.tcgetattr(0), modes, 'after a loss')
said(True)
for who in 'guard', 'keeper':
    j = raw()
    os.kill(guard_of(j) if who == 'guard' else j.pids[0], signal.SIGKILL)
    check(j.status(), 'exit 71' if who == 'guard' else 'signal 9', 'dlock')
    t.until(lambda: termios.tcgetattr(0) == modes, name='restored without its ' + who)
PY
}

@test "a terminal's modes stay where they may be another program's" {
    raw_mode <<'PY'
def others():
    os.tcsetpgrp(0, os.getpgrp())
    changed = termios.tcgetattr(0)
    changed[3] ^= termios.ECHOE
    termios.tcsetattr(0, termios.TCSANOW, changed)
    return changed
j = raw()
changed = others()
lose(j)
check(termios.tcgetattr(0), changed, 'in the background')
said(False)
j = raw()
guard = guard_of(j)
changed = others()
os.kill(j.pids[0], signal.SIGKILL)
check(j.status(), 'signal 9', 'dlock')
t.until(lambda: state(guard) == '', name='the guard has ended')
check(termios.tcgetattr(0), changed, 'in the background, without its keeper')
j = raw(pipe=[['cat']])
changed = termios.tcgetattr(0)
lose(j)
check(termios.tcgetattr(0), changed, 'in front of a pipe')
said(False)
PY
}

@test "Ctrl-C does not reach a background job" {
    at_terminal <<'PY'
os.tcsetpgrp(0, os.getpgrp())
j = t.subject('-u', T + '/end', '-r', '2', background=True)
f = t.start(['sleep', '20'])
t.until(lambda: read('/proc/%d/comm' % f.pids[0]) == 'sleep\n')
t.type(b'\x03')
check(f.status(), 'signal 2', 'sleep')
check(seen('main', 'sig'), [], 'signals')
j.finish('exit 2')
PY
}

# --- PID 1 -------------------------------------------------------------------

# pid_one ARG...: dlock as PID 1 of a namespace, in $K (its parent) and $I (its pid outside).
pid_one() {
    need_pid_namespace
    start_log "$T/out" "$HELPERS/launch" -d -s unshare --pid --fork --mount-proc --kill-child \
        "$DLOCK" "$@"
    K=$STARTED
    wait_for 5 file_nonempty "$S/log"
    I=$(children "$K")
}

@test "as PID 1 it reaps and passes on the exit code" {
    pid_one --ttl 2 "$L" sh -c "(setsid sleep 0.1 &) ; $SUBJECT -m 1200; exit 5"
    zombies() { ps -o stat= --ppid "$I" | grep -c Z; }
    wait_for 5 store_did ok
    [ "$(zombies)" = 0 ]
    ends_with 5
    store_did clean
}

@test "as PID 1 it forwards TERM, ends its tree and releases" {
    pid_one --grace 200ms "$L" $SUBJECT -t -n
    wait_for 5 running 4
    kill -TERM "$I"
    ends_with 143
    [ "$(last_beat)" -lt "$(at release)" ]
    has_seen daemon sig 15
}

@test "as PID 1 it ends by a signal while it waits" {
    tell acquire wait
    pid_one "$L" true
    wait_for 5 store_did acquire
    kill -TERM "$I"
    ends_with 143
    store_did release
}
