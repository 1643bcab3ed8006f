/*
 * once.h - the run record of --once, for a named lock. Only while holding the lock it is read for a decision, and
 * written; others remove it when it has expired (once_sweep.c).
 */
#ifndef DLOCK_BACKENDS_FILE_ONCE_H
#define DLOCK_BACKENDS_FILE_ONCE_H

#include "file.h"
#include "run_record.h"

/*
 * Where it is: beside the lock. For "@name" of the embedded default, whose directory a reboot empties, in one of
 * ONCE_SHARDS directories of the state directory: STATE/LOCK-DIRECTORY/SHARD/NAME.once.
 */
#define ONCE_SHARDS 256
struct once_place {
    const struct file_place *lock;
    int dir;    /* O_PATH; the lock's own if it is beside it; -1: none, and so is the record */
    int shards; /* the directory that has all shards; -1: the record is beside the lock */
    char *path; /* of shards, for messages; NULL: beside the lock */
    char name[NAME_MAX + 1]; /* of the record */
    char shard[4];
};
#define ONCE_NOWHERE ((struct once_place){.dir = -1, .shards = -1})
#define ONCE_SUFFIX ".once"

/*
 * For a named lock. make: it is going to be written; refused where a reboot would take it away (DLOCK_EUSAGE). Without
 * make nothing is made, and no such place is no error. 0 or a negative DLOCK_E*; once_done() is for both.
 */
int once_open(struct once_place *, struct file_place *lock, bool make, struct dlock_error *);
void once_done(struct once_place *);

/* 1: *run is filled; 0: there is no record; or an error (DLOCK_EDATA: something else is in its place). */
int once_read(const struct once_place *, const struct dlock_spec *, struct dlock_run *,
              struct dlock_error *);
/* Replace it, synced. who: see run_record_who(). 0 or a negative DLOCK_E*. */
int once_write(const struct once_place *, int lock_fd, const struct dlock_run *, const char *who,
               struct dlock_error *);
/* 0 (also if there is none) or a negative DLOCK_E*. */
int once_remove(const struct once_place *, struct dlock_error *);
/* The wall clock, Unix ms: the store's clock for a file. At least 1. */
int64_t once_now(void);

/*
 * once_sweep.c. A holder that uses its record claims it, with a byte lock on the lock's file that lasts as long as the
 * hold. Which sweeper has claimed the record of another lock is done with it in a moment: EWOULDBLOCK. Else 0.
 */
int once_claim(int lock_fd);
/*
 * Remove some records of other locks, if they have expired: at a cost that does not depend on how many there are. Only
 * while holding the lock. Errors do not matter: the next one tries again.
 */
void once_sweep(const struct once_place *, const struct dlock_spec *, int lock_fd);

#endif
