/* query.h - ask a store about a lock that this process does not hold: --status, --forget. */
#ifndef CLI_QUERY_H
#define CLI_QUERY_H

#include "options.h"
#include "signals.h"

struct found {
    struct dlock_info *all;
    size_t n, cap;
    char why_free[64]; /* "no such file" (a typo in LOCK looks like a free lock), or "" */
    struct dlock_run run;
    bool has_run;
    bool busy; /* --forget: the run is still in progress */
};

/* A handle for a query. NULL after the error was printed; then *code is its exit code. */
dlock *query_open(const struct options *, int *code);
/*
 * Drive a started query to its end: -1 for an answer, else an exit code after the message (none
 * when busy). May die by a signal. The caller calls query_free.
 */
int query_run(const struct options *, const struct sigstate *, dlock *, struct found *f);
/* Obey signals while no lock is held: close lk (or NULL) and die, or stop. True: stopped. */
bool query_signals(const struct sigstate *, dlock *lk);
/* Is the recorded run in progress, with no holder that can be this run? */
bool query_crashed(const struct found *);
/* A holder, or NULL. */
const struct dlock_info *query_holder(const struct found *);
void query_free(struct found *);

#endif
