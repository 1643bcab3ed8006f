/*
 * once.h - the run record of --once, for a named lock. Only a holder of the lock writes the record,
 * or decides by it; runs of other locks remove an expired record (once_sweep.c).
 */
#ifndef DLOCK_BACKENDS_FILE_ONCE_H
#define DLOCK_BACKENDS_FILE_ONCE_H

#include "file.h"
#include "run_record.h"

/*
 * Where the record is: beside the lock. For "@name" of the embedded default, whose directory a
 * reboot empties, in one of ONCE_SHARDS directories of the state directory:
 * STATE/LOCK-DIRECTORY/SHARD/NAME.once.
 */
#define ONCE_SHARDS 256
struct once_place {
    const struct file_place *lock;
    int dir;    /* O_PATH; beside the lock: the lock's; -1: there is none, so there is no record */
    int shards; /* the directory of all shards; -1: the record is beside the lock */
    char *path; /* of shards, for messages; NULL: the record is beside the lock */
    char name[NAME_MAX + 1]; /* of the record's file */
    char shard[4];
};
#define ONCE_NOWHERE ((struct once_place){.dir = -1, .shards = -1})
#define ONCE_SUFFIX ".once"

/*
 * For a named lock. make: the record will be written; refused where a reboot empties the place
 * (DLOCK_EUSAGE). Without make nothing is made, and a missing place is no error. 0 or a negative
 * DLOCK_E*; call once_done() after both. The place was ONCE_NOWHERE, or is left now.
 */
int once_open(struct once_place *, struct file_place *lock, bool make, struct dlock_error *);
void once_done(struct once_place *);
/* Does a reboot empty this directory? */
bool once_forgets(int dir);
/* Would once_open() with make refuse the place? Makes nothing. 0 or a negative DLOCK_E*. */
int once_check(struct file_place *lock, struct dlock_error *);

/* 1: *run is filled; 0: no record; or an error (DLOCK_EDATA: foreign data in its place). */
int once_read(const struct once_place *, const struct dlock_spec *, struct dlock_run *,
              struct dlock_error *);
/* Replace the record, synced. who: see run_record_who(). 0 or a negative DLOCK_E*. */
int once_write(const struct once_place *, int lock_fd, const struct dlock_run *, const char *who,
               struct dlock_error *);
/* Remove the record, if there is one. 0 or a negative DLOCK_E*. */
int once_remove(const struct once_place *, struct dlock_error *);

/*
 * once_sweep.c. A holder that uses its record claims the record, by a byte lock on the lock's file
 * for as long as the hold. EWOULDBLOCK: the sweeper of another lock has claimed it, usually for a
 * moment. Else 0.
 */
int once_claim(int lock_fd);
/*
 * Remove some expired run records of other locks: at a cost independent of how many there
 * are. Only while holding the lock. Errors are ignored: a later run tries again.
 */
void once_sweep(const struct once_place *, const struct dlock_spec *, int lock_fd);

#endif
