/* file.h - for the files of the backend "file" only. */
#ifndef DLOCK_BACKENDS_FILE_H
#define DLOCK_BACKENDS_FILE_H

#include "backend.h"
#include "findings.h"
#include "proc_locks.h"

#include <limits.h>
#include <sys/stat.h>

/* The lock's file, or its directory and the names in it. */
struct file_place {
    const char *path; /* the file, or the directory of a named lock */
    bool named;
    bool fcntl;              /* fcntl(2) instead of flock(2); never of a named lock */
    char *where;             /* the path of the lock's file, for messages */
    char lock[NAME_MAX + 1]; /* named: the two files in the directory */
    char fence[NAME_MAX + 1];
    int dir;   /* named: the directory, O_PATH, -1 until file_open() */
    bool made; /* file_open() made the lock's file, which was missing */
};

#define FILE_BOOT_SIZE 37 /* a boot's id, and a NUL */
struct file_record {
    uint64_t fence;            /* 0: there is none */
    uint64_t limit;            /* no fence above is in use; 0: unknown */
    char boot[FILE_BOOT_SIZE]; /* which set the limit; "": unknown */
    char token[DLOCK_TOKEN_LEN + 1];
    struct dlock_info info;
    size_t size; /* of the file */
    bool linked; /* the file has several names */
};

/* open.c: opening the right file only. All return 0 or a negative DLOCK_E*. init does no I/O. */
int file_place_init(struct file_place *, const struct dlock_uri *, struct dlock_error *);
/* Name the lock's files by file, "a%2Fb" of "a%2Fb.lock". */
int file_place_name(struct file_place *, const char *file, struct dlock_error *);
void file_place_done(struct file_place *);
/* Open the directory of a named lock; nothing for a bare path. */
int file_place_open(struct file_place *, struct dlock_error *);
/*
 * Encode '/' and '%', so that name becomes the name of a file. False: the result is empty, or
 * longer than FILE_NAME_LIMIT bytes.
 */
#define FILE_NAME_LIMIT 250 /* ".lock" fills up the directory entry */
bool file_encode_name(char out[FILE_NAME_LIMIT + 1], const char *name);
/* The name of a lock's file, without ".lock", as the lock's name. False: not as dlock writes it. */
bool file_decode_name(char out[FILE_NAME_LIMIT + 1], const char *file, size_t len);
#define FILE_SUFFIX ".lock"
enum file_how {
    FILE_FOR_LOCK,       /* made if missing */
    FILE_FOR_NFS_LOCK,   /* the same, writable as well */
    FILE_FOR_WRITE_LOCK, /* the same, writable only */
    FILE_FOR_SLOTS,      /* the same, readable and writable, a regular file only */
    FILE_TO_PROBE,       /* not made: *fd is -1 if the file, or its directory, is missing */
    FILE_TO_NAME         /* the same; the descriptor is for fstat only and needs no right to read */
};
/*
 * sys EWOULDBLOCK: another process has a lease on the file (fcntl(2), F_SETLEASE), as Samba has for
 * its clients. Our open has the kernel ask for the lease, so try again: no
 * event announces success, at the latest after /proc/sys/fs/lease-break-time (45 s).
 */
#define FILE_LEASED "another process has a lease on the file (F_SETLEASE)"
int file_open(struct file_place *, enum file_how, int *fd, struct dlock_error *);
/*
 * NULL, or what is wrong with a file in this directory, if its mode has one of modes: another user
 * could have added the file. Only our files, root's and those of the directory's owner count. In a
 * sticky directory (S_ISVTX) no other user can replace these. In one that is only S_IWOTH any user
 * can, so there the check is for the contents: a run record of another user's making.
 */
const char *file_untrusted(int dir, const struct stat *, mode_t modes);
/* 1: the path still names fd; 0: the file was unlinked or replaced; or an error. */
int file_is_current(const struct file_place *, int fd, struct dlock_error *);
/* The network file system of fd, or NULL. */
struct file_network {
    unsigned long magic;
    const char *name;
    bool warn; /* its locks may exclude no other machine */
};
const struct file_network *file_network(int fd);

/*
 * record.c: the fencing token and the holder record beside a named lock. 0 or a negative DLOCK_E*.
 * read: a missing file is a record of fence 0. write: only while holding the lock; *fence: the new
 * token.
 */
int file_record_read(const struct file_place *, struct file_record *, struct dlock_error *);
int file_record_write(const struct file_place *, int lock_fd, const struct dlock_identity *,
                      const char *token, uint64_t *fence, struct dlock_error *);

/*
 * record.c: replace a small file by rename. Only the holder of our lock makes the temporary file,
 * which is named by the inode of the lock's file, and by a random number where another user has
 * taken that name. sync: the file and the directory are on disk
 * then. 0 or an errno; nothing is left behind on failure.
 */
#define FILE_TMP_BEGIN ".dlock-"
#define FILE_TMP_END ".tmp"
int file_replace(int dir, const char *name, int lock_fd, const char *text, size_t len, bool sync);
/* A rename, or a new name, survives a crash only if the directory is written too. 0 or an errno. */
int file_sync_dir(int dir);
/* Read up to size bytes; fewer at the end of the file. Their number, or -errno. */
ssize_t file_read_all(int fd, char *buf, size_t size);

/* status.c: holders and waiters. */
struct file_holders {
    struct dlock_info *info; /* n of them, holders first; malloc'ed */
    int n;
    bool no_file; /* the lock's file, or its directory, does not exist */
};
/*
 * Find a holder, preferably of a slot, and the place of pid among the waiters (0: not
 * found). False: no holder is known.
 */
bool file_first_holder(const struct file_place *, int fd, long pid, struct dlock_info *,
                       int *place);
/* The holder of a lease on the lock's file. False: none is known. */
bool file_lease_holder(struct file_place *, struct dlock_info *);
/*
 * Find all holders and waiters; the caller frees info, also after an error. May try the lock for a
 * moment; with all, /proc/locks as read before, neither. 0 or a negative DLOCK_E*.
 */
int file_status(struct file_place *, const struct proc_locks_all *all, struct file_holders *,
                struct dlock_error *);

/* check.c: what a run would meet. Takes no lock, and makes nothing. */
void file_check(struct file_place *, const struct dlock_spec *, struct findings *);

/* list.c: the named locks in a folder, and who has them. */
struct file_list {
    struct file_place place; /* of the lock that is looked at */
    struct proc_locks_all all;
    char **files;
    int n, next;
    bool no_dir;
    bool hidden; /* of a holder only the pid is known */
    struct file_holders found;
    struct dlock_entry entry;
    char name[NAME_MAX + 1];
};
/*
 * *notice: code 0, or which locks cannot be seen. 0 or a negative DLOCK_E*; the caller calls
 * file_list_done(), also after an error.
 */
int file_list_start(struct file_list *, const struct file_place *, struct dlock_error *notice,
                    struct dlock_error *);
/* The next lock: 1 and list.entry, which is valid until the next call; 0: no more; or an error. */
int file_list_next(struct file_list *, struct dlock_error *);
void file_list_done(struct file_list *);

#endif
