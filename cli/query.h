/* query.h - a question to a store about a lock that is not ours: --status, --forget. */
#ifndef CLI_QUERY_H
#define CLI_QUERY_H

#include "options.h"
#include "signals.h"

struct found {
    struct dlock_info *all;
    size_t n, cap;
    char why_free[64]; /* "no such file": a typo in LOCK looks like a free lock; else "" */
    struct dlock_run run;
    bool has_run;
    bool busy; /* of --forget: that run goes on */
};

/* A handle for a query. NULL after the error was printed; then *code is its exit code. */
dlock *query_open(const struct options *, int *code);
/*
 * Drive a query that was started to its end: -1 when it is answered, else an exit code after the message (busy: without
 * one). May die by a signal. The caller frees f.
 */
int query_run(const struct options *, const struct sigstate *, dlock *, struct found *f);
/*
 * What signals say to a process that holds nothing: one that ends us does so at once, after lk (may be NULL) is closed.
 * True: we were stopped, and run again.
 */
bool query_signals(const struct sigstate *, dlock *lk);
/* The record says that a run goes on, and no holder can be that run. */
bool query_crashed(const struct found *);
/* Is there a holder? */
bool query_held(const struct found *);
void query_free(struct found *);

#endif
