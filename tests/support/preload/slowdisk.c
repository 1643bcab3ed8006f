/* slowdisk.c - a write to the file $SLOWDISK takes $SLOWDISK_MS, as when a disk is busy or a file server is away. */
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

ssize_t write(int fd, const void *buf, size_t n)
{
    const char *path = getenv("SLOWDISK"), *ms = getenv("SLOWDISK_MS");
    struct stat a, b;
    if (path && ms && fstat(fd, &a) == 0 && stat(path, &b) == 0 && a.st_ino == b.st_ino &&
        a.st_dev == b.st_dev) {
        struct timespec t = {.tv_sec = atoi(ms) / 1000, .tv_nsec = atoi(ms) % 1000 * 1000000L};
        nanosleep(&t, NULL);
    }
    return (ssize_t)syscall(SYS_write, fd, buf, n);
}
