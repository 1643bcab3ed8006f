/* nfs.c - every file is on NFS, by what fstatfs(2) says. */
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
