/* query.h - ask a store about locks that this process does not hold: --status, --break ... */
#ifndef CLI_QUERY_H
#define CLI_QUERY_H

#include "json.h"
#include "options.h"
#include "signals.h"

struct found {
    struct dlock_info *all;
    size_t n, cap;
    char why_free[64]; /* "no such file" (a typo in LOCK looks like a free lock), or "" */
    struct dlock_run run;
    bool has_run, crashed; /* crashed: the run did not end, and does not go on */
    bool busy; /* --forget: the run is still in progress; --break: the lock has changed hands */
    struct dlock_info holder; /* --break: the new holder */
    bool has_holder;
    bool marked;       /* --break: the hold is marked, and not over yet */
    const char *dying; /* what a signal that ends this process leaves behind; NULL: nothing */
    /* --list, --check: is called for each DLOCK_REPORT_ENTRY and DLOCK_REPORT_FINDING. */
    void (*each)(void *arg, const struct dlock_report *);
    void *arg;
    struct dlock_error error; /* of a query that failed */
    bool silent;              /* print no error and no notice */
    int64_t until;            /* give up at this time, without a message; 0: never */
};

/* Exit code: the user said no. */
#define QUERY_REFUSED 1

/* A handle for a query. NULL after the error was printed; then *code is its exit code. */
dlock *query_open(const struct options *, int *code);
/*
 * Drive a started query to its end: -1 for an answer, else an exit code after the message (none
 * when busy or silent). May die by a signal. The caller calls query_free.
 */
int query_run(const struct options *, const struct sigstate *, dlock *, struct found *f);
/*
 * Obey signals while no lock is held: print dying (or NULL), close lk (or NULL) and die, or stop.
 * True: stopped.
 */
bool query_signals(const struct sigstate *, dlock *lk, const char *dying);
/* The same during a pause of ns. */
void query_pause(const struct sigstate *, dlock *lk, const char *dying, int64_t ns);
/* A holder, or NULL. */
const struct dlock_info *query_holder(const struct found *);
/* This hold among the holders, or NULL. */
const struct dlock_info *query_same_hold(const struct found *, const struct dlock_info *hold);
void query_free(struct found *);
/*
 * Begin a mode that shows the lock's status, then asks and acts: check that it may ask, and query
 * the status. *code: -1, or the exit code. NULL after the error was printed.
 */
dlock *query_first(const struct options *, const struct sigstate *, const char *mode,
                   struct found *, int *code);
/* status.c: print the answer to a status query. */
void status_print(const struct options *, const dlock *, const struct found *);
/* status.c: the member last_run, if there is a run record; and its state in a word. */
void status_json_run(struct json *, const struct found *);
const char *status_run_word(const struct found *);
/* Ask at the terminal. May die by a signal, and stops as any job does. */
bool query_agreed(const struct sigstate *, const char *question);

#endif
