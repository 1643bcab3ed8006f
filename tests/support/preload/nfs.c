/*
 * nfs.c - every file is on NFS, by what fstatfs(2) says; /proc/self/mountinfo is the file
 * $NFS_MOUNTINFO, if that is set.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

int fstatfs(int fd, struct statfs *fs)
{
    int rc = (int)syscall(SYS_fstatfs, fd, fs);
    if (rc == 0)
        fs->f_type = 0x6969;
    return rc;
}

FILE *fopen(const char *path, const char *mode)
{
    FILE *(*next)(const char *, const char *);
    const char *other = getenv("NFS_MOUNTINFO");
    *(void **)&next = dlsym(RTLD_NEXT, "fopen");
    return next(other && strcmp(path, "/proc/self/mountinfo") == 0 ? other : path, mode);
}
