/*
 * findings.h - what a check of the store has found (ASK_CHECK). The backend adds each finding, ends
 * the list, and hands the findings out by its process(), one EV_FINDING at a time.
 */
#ifndef DLOCK_FINDINGS_H
#define DLOCK_FINDINGS_H

#include "util.h"

#define FINDINGS_MAX 512 /* a server's answer can have many lines; further findings are dropped */
/* Clocks that differ by more should be looked at. */
#define FINDING_CLOCKS_APART (1000 * DLOCK_MSEC)

/* Zeroed: empty. */
struct findings {
    struct finding {
        enum dlock_finding level;
        struct dlock_error error;
    } * all; /* malloc'ed */
    size_t n, size, taken;
    const char *server; /* put in front of each text, with a space; NULL: none. Not owned */
    bool ended;         /* all findings are there */
    bool no_memory;     /* a finding was lost */
};

/* code: of a failure, as a run would end. The text is "SUBJECT: WHAT", see ASK_CHECK. */
void findings_add(struct findings *, enum dlock_finding, int code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
#define finding_ok(f, ...) findings_add(f, DLOCK_FINDING_OK, DLOCK_OK, __VA_ARGS__)
#define finding_warn(f, ...) findings_add(f, DLOCK_FINDING_WARNING, DLOCK_OK, __VA_ARGS__)
#define finding_fail(f, code, ...) findings_add(f, DLOCK_FINDING_FAILURE, code, __VA_ARGS__)
/* When the server's certificate ends (Unix s): a warning in the last two weeks. */
void findings_add_certificate(struct findings *, int64_t ends);
/*
 * Once the list has ended: the next event, EV_FINDING, and behind the last finding EV_DONE (or
 * EV_FAILED), which empties the list. False: the list has not ended.
 */
bool findings_take(struct findings *, struct dlock_event *);
/* Empty the list. */
void findings_drop(struct findings *);

#endif
