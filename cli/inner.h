/*
 * inner.h - the inner dlocks of a holder: the socket that they connect to, and their connections, each of which is one
 * that runs under the lock. The holder neither releases the lock nor exits while inner_count() is not 0.
 *
 * The same socket answers those who only ask whether the lock is held (--held), as long as inner_turn() is called.
 */
#ifndef CLI_INNER_H
#define CLI_INNER_H

#include "nested.h"

struct inner;

/* A lock that is held, and its key (nested.h). */
struct inner_lock {
    const dlock *lk;
    const char *key;
};
/*
 * Listen for inner dlocks of these locks, at most DLOCK_SET_MAX; the keys stay the caller's. NULL with an errno: not
 * possible; then they make attempts of their own, and find that the lock is an ancestor's. All functions but this take
 * NULL, too.
 */
struct inner *inner_open(const struct inner_lock *, int n);
/* The name of the socket for DLOCK_HELD. */
const char *inner_socket(const struct inner *);
/* Two descriptors, -1: none. The first one is readable when there is something to do. */
int inner_fd(const struct inner *);
int inner_listen_fd(const struct inner *);
/* When inner_turn() must run, by dlock_now(), if nothing is readable. */
int64_t inner_wake(const struct inner *);
/* Handle all that is due. True: one has ended. */
bool inner_turn(struct inner *);
int inner_count(const struct inner *);
/* Before inner_count() decides: those that have asked already count. */
void inner_settle(struct inner *);
/* From that time on, by dlock_now(), what runs under the locks is being ended (--max-run): queries tell it. */
void inner_run_until(struct inner *, int64_t at);
/* The lease was renewed: tell them. */
void inner_extended(struct inner *);
/* The lock will be lost: no new one is accepted. The others know the times, and end what they run by themselves. */
void inner_ending(struct inner *);
/* The lock is lost: they end what they run at once. */
void inner_lost(struct inner *, const char *why);
/* Ask each to end, by SIGTERM. */
void inner_ask_to_end(const struct inner *);
/* The same for those that are no descendants of this process: the others get it with the command's tree. */
void inner_ask_others_to_end(const struct inner *);
/* End each at once. why: as of inner_lost(). */
void inner_kill(struct inner *, const char *why);
/* Before the release: no other one can come. */
void inner_stop(struct inner *);
void inner_close(struct inner *);

#endif
