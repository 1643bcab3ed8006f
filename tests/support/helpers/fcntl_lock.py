"""fcntl_lock.py posix|ofd r|w FILE [CMD...] - take a lock of fcntl(2) on FILE without waiting and run CMD; exit 1: it is held."""
import fcntl, os, struct, subprocess, sys

F_OFD_SETLK = 37
kind, mode, path = sys.argv[1:4]
fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
lock = struct.pack('hhqqi4x', fcntl.F_RDLCK if mode == 'r' else fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
try:
    fcntl.fcntl(fd, fcntl.F_SETLK if kind == 'posix' else F_OFD_SETLK, lock)
except BlockingIOError:
    sys.exit(1)
if sys.argv[4:]:
    sys.exit(subprocess.call(sys.argv[4:]))
