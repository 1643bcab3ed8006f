/*
 * inner.h - the inner dlocks of a holder: a socket, and a connection for each dlock under the lock.
 * The holder neither releases the lock nor exits while inner_count() is not 0.
 *
 * The same socket answers queries whether the lock is held (--held), as long as inner_turn() is
 * called.
 */
#ifndef CLI_INNER_H
#define CLI_INNER_H

#include "nested.h"

struct inner;

/* A held lock, and its key (nested.h). */
struct inner_lock {
    const dlock *lk;
    const char *key;
};
/*
 * Make the socket before the grant, for no lock yet: there is time while the store works. NULL with
 * an errno: not possible.
 */
struct inner *inner_listen(void);
/*
 * Listen for inner dlocks of these locks, at most DLOCK_SET_MAX; the keys stay the caller's. The
 * first argument: of inner_listen(), or NULL: make the socket now. NULL with an errno: not
 * possible; inner dlocks then ask the store, and find an ancestor as the holder. All functions take
 * NULL, too.
 */
struct inner *inner_open(struct inner *, const struct inner_lock *, int n);
/* The name of the socket for DLOCK_HELD. */
const char *inner_socket(const struct inner *);
/* Two descriptors, -1: none. inner_fd() is readable when there is something to do. */
int inner_fd(const struct inner *);
int inner_listen_fd(const struct inner *);
/* When inner_turn() must run, by dlock_now(), if nothing is readable. */
int64_t inner_wake(const struct inner *);
/* Handle all due events. */
void inner_turn(struct inner *);
int inner_count(const struct inner *);
/* Before inner_count() decides: pending requests already count. */
void inner_settle(struct inner *);
/* From this time on, by dlock_now(), --max-run ends what runs under the locks: for queries. */
void inner_run_until(struct inner *, int64_t at);
/* Tell the inner dlocks of a renewal. */
void inner_extended(struct inner *);
/* The lock will be lost: no inner dlock is accepted. Inner dlocks end their commands in time. */
void inner_ending(struct inner *);
/* The lock is lost: inner dlocks end their commands at once. */
void inner_lost(struct inner *, const char *why);
/*
 * Ask each inner dlock to end, by SIGTERM. descendants: also those that descend from this process,
 * unless the command's tree gets the signal.
 */
void inner_ask_to_end(const struct inner *, bool descendants);
/* End each inner dlock at once. why: as of inner_lost(). */
void inner_kill(struct inner *, const char *why);
/* Before the release: stop listening. */
void inner_stop(struct inner *);
void inner_close(struct inner *);

#endif
