/*
 * block_device.c - stat(2) and fstat(2) say that the file $BLOCK, a path as it is opened, is a
 * block device. Opening it for writing ends the process with 97.
 */
/* For both names of a function: without and with 64 bits. */
#undef _FILE_OFFSET_BITS
#undef _TIME_BITS
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int block_fd = -1;

static int is_block(const char *path)
{
    const char *block = getenv("BLOCK");
    return block && strcmp(path, block) == 0;
}

static int stat_as(int rc, struct stat *st, int block)
{
    if (rc == 0 && block)
        st->st_mode = (st->st_mode & ~(mode_t)S_IFMT) | S_IFBLK;
    return rc;
}

int fstatat(int dir, const char *restrict path, struct stat *restrict st, int flags)
{
    return stat_as((int)syscall(SYS_newfstatat, dir, path, st, flags), st, is_block(path));
}

int fstat(int fd, struct stat *st)
{
    return stat_as((int)syscall(SYS_fstat, fd, st), st, fd == block_fd);
}

static int open_as(int dir, const char *path, int flags, mode_t mode)
{
    int fd = (int)syscall(SYS_openat, dir, path, flags, mode);
    if (is_block(path) && (flags & O_ACCMODE) != O_RDONLY)
        _exit(97);
    if (fd == block_fd || is_block(path))
        block_fd = is_block(path) ? fd : -1;
    return fd;
}

#define MODE(flags)                                                                                \
    __extension__({                                                                                \
        mode_t mode = 0;                                                                           \
        va_list ap;                                                                                \
        va_start(ap, flags);                                                                       \
        if (flags & (O_CREAT | __O_TMPFILE))                                                       \
            mode = va_arg(ap, mode_t);                                                             \
        va_end(ap);                                                                                \
        mode;                                                                                      \
    })

int openat(int dir, const char *path, int flags, ...)
{
    return open_as(dir, path, flags, MODE(flags));
}

/* The names of programs that are built with _FILE_OFFSET_BITS=64. */
int fstatat64(int, const char *restrict, struct stat64 *restrict, int)
    __attribute__((alias("fstatat")));
int fstat64(int, struct stat64 *) __attribute__((alias("fstat")));
int openat64(int dir, const char *path, int flags, ...)
{
    return open_as(dir, path, flags, MODE(flags));
}
