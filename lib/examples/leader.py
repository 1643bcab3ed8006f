"""leader.py - one leader among several processes: libdlock by ctypes, in an asyncio loop.

    python3 leader.py [--OPTION[=VALUE]]... LOCK

Leads for as long as it runs and holds the lock, and waits for the lock while another process leads.
SIGINT (Ctrl-C) and SIGTERM release the lock. The options are those of dlock_options_set(), such as
--ttl=10s and --retry.

Only struct dlock_error is described here: the caller owns it, and it stays as it is. Options are
set by name, and reports are read by calls.
"""
import asyncio
import ctypes
import signal
import sys
from ctypes import POINTER, byref, c_char_p, c_int, c_int64, c_void_p

NEVER = 2**63 - 1
SEC = 10**9
STEP = SEC // 5  # the longest step of the work


class Error(ctypes.Structure):
    """struct dlock_error"""
    _fields_ = [("code", c_int), ("sys", c_int), ("msg", ctypes.c_char * 512),
                ("cause_at", ctypes.c_ushort), ("cause_len", ctypes.c_ushort)]


LIB = ctypes.CDLL("libdlock.so.0")


def declare(name, result, *parameters):
    function = getattr(LIB, "dlock_" + name)
    function.restype = result
    function.argtypes = parameters
    return function


options_new = declare("options_new", c_void_p)
options_set = declare("options_set", c_int, c_void_p, c_char_p, c_char_p, POINTER(Error))
options_free = declare("options_free", None, c_void_p)
open_handle = declare("open", c_int, POINTER(c_void_p), c_char_p, c_void_p, POINTER(Error))
close_handle = declare("close", None, c_void_p)
poll_fd = declare("poll_fd", c_int, c_void_p, POINTER(Error))
dispatch = declare("dispatch", c_void_p, c_void_p)
report_type = declare("report_type", c_int, c_void_p)
report_name = declare("report_name", c_char_p, c_int)
report_error = declare("report_error", POINTER(Error), c_void_p)
report_retry_at = declare("report_retry_at", c_int64, c_void_p)
start_acquire = declare("start_acquire", c_int, c_void_p, POINTER(Error))
start_release = declare("start_release", c_int, c_void_p, c_int64, POINTER(Error))
time_left = declare("time_left", c_int64, c_void_p)
fence_text = declare("fence_text", c_char_p, c_void_p)
now = declare("now", c_int64)


def check(call, *arguments):
    """Call a function that fills a struct dlock_error, its last parameter."""
    err = Error()
    result = call(*arguments, byref(err))
    if result < 0:
        raise RuntimeError(err.msg.decode())
    return result


def open_lock(uri, options):
    handle = c_void_p()
    made = options_new()
    if not made:
        raise MemoryError
    try:
        for name, value in options:
            check(options_set, made, name.encode(), None if value is None else value.encode())
        check(open_handle, byref(handle), uri.encode(), made)
    finally:
        options_free(made)
    return handle


def say(*words):
    print(*words, flush=True)


class Leader:
    def __init__(self, handle):
        self.handle = handle
        self.loop = asyncio.get_running_loop()
        self.over = self.loop.create_future()  # the exit code
        self.work = self.again = None
        self.ending = False

    async def run(self):
        # The descriptor stays the same until the handle is closed.
        descriptor = check(poll_fd, self.handle)
        self.loop.add_reader(descriptor, self.on_ready)
        for sig in (signal.SIGINT, signal.SIGTERM):
            self.loop.add_signal_handler(sig, self.end)
        self.acquire()
        try:
            return await self.over
        finally:
            self.loop.remove_reader(descriptor)

    def acquire(self):
        check(start_acquire, self.handle)

    def release(self):
        if self.work:
            self.work.cancel()
        self.work = None
        check(start_release, self.handle, now() + 5 * SEC)

    def end(self):
        """Where nothing is held, the release reports RELEASED as well."""
        self.ending = True
        if self.again:
            self.again.cancel()
        self.release()

    def on_ready(self):
        # Until there are no more reports: only then is the descriptor up to date.
        while report := dispatch(self.handle):
            name = report_name(report_type(report)).decode()
            # Read before the next call, which ends the report.
            self.on_report(name, report_error(report).contents.msg.decode(errors="replace"),
                           report_retry_at(report))

    def on_report(self, name, message, retry_at):
        if name == "WAITING":
            say("waiting")
        elif name == "ACQUIRED":
            say("leading, fence", fence_text(self.handle).decode())
            self.work = self.loop.create_task(self.lead())
        elif name in ("TERM", "LOST"):  # after TERM the time left is for ending the work
            say("lost:", message)
            self.release()
        elif name == "BUSY":
            say("another process leads")
            self.over.set_result(75)
        elif name == "FAILED" and retry_at == NEVER:
            say("failed:", message)
            self.over.set_result(1)
        elif name == "FAILED":
            say("failed, tried again:", message)
            self.again = self.loop.call_later(max(0, retry_at - now()) / SEC, self.acquire)
        elif name == "RELEASED" and self.ending:
            say("released" if not message else "release unclear: " + message)
            self.over.set_result(0)
        elif name == "RELEASED":
            self.acquire()  # after a loss

    async def lead(self):
        """Stands for the work, in steps. A step begins only if the lock surely outlasts it."""
        while True:
            if time_left(self.handle) > STEP:
                pass  # a step, which hands fence_text() to the system that it writes to
            await asyncio.sleep(STEP / SEC)


async def main(arguments):
    options = []
    while arguments and arguments[0].startswith("--"):
        name, equals, value = arguments.pop(0)[2:].partition("=")
        options.append((name, value if equals else None))
    if len(arguments) != 1:
        raise RuntimeError("usage: leader.py [--OPTION[=VALUE]]... LOCK")
    handle = open_lock(arguments[0], options)
    try:
        return await Leader(handle).run()
    finally:
        close_handle(handle)


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main(sys.argv[1:])))
    except RuntimeError as failure:
        sys.exit(f"leader.py: {failure}")
