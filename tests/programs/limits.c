/*
 * limits.c - the ends of all ranges: DLOCK_NEVER wherever a time is asked for, what is out of
 * range, and NULL.
 *
 *     limits URI     URI: a lock that is free
 */
#include "lib.h"

#include <sys/stat.h>

static const char *uri;

static int open_with(struct dlock_options *o, dlock **lk)
{
    *lk = NULL;
    return dlock_open(lk, uri, o, &err);
}

static struct dlock_options defaults(void)
{
    struct dlock_options o;
    dlock_options_init(&o, sizeof o);
    return o;
}

/* Each of them is all right, and the lock can be used. */
static void without_end(void)
{
    for (int i = 0; i < 5; i++) {
        struct dlock_options o = defaults();
        dlock *lk;
        int64_t *const times[] = {&o.ttl_ns, &o.wait_ns, &o.connect_timeout_ns, &o.once_ns,
                                  &o.min_hold_ns};
        *times[i] = DLOCK_NEVER;
        int rc = open_with(&o, &lk);
        if (i == 3 && rc == DLOCK_EUSAGE)
            continue; /* a store without records */
        if (i == 0 && rc == DLOCK_EUSAGE && strstr(err.msg, "24 days"))
            continue; /* PostgreSQL and ZooKeeper count milliseconds in 31 bits */
        if (i == 0 && rc == DLOCK_EUSAGE && strstr(err.msg, "a year at most"))
            continue; /* a DATETIME of MySQL has an end */
        if (rc < 0)
            FAIL("%d: %s", i, err.msg);
        rc = dlock_acquire(lk, &err);
        if (rc < 0)
            FAIL("%d: %s", i, err.msg);
        CODE(dlock_keep(lk, 0, &err), 0);
        CODE(dlock_keep(lk, INT64_MIN, &err), 0);
        MUST(dlock_time_left(lk) > 0);
        CODE(dlock_note_result(lk, true, 256, &err), DLOCK_EUSAGE);
        CODE(dlock_note_result(lk, true, -2, &err), DLOCK_EUSAGE);
        dlock_end_min_hold(lk);
        CODE(dlock_release(lk, DLOCK_NEVER, &err), 0);
        for (int k = 0; k < 2; k++) {
            CODE(dlock_start_acquire(lk, &err), 0);
            CODE(dlock_start_release(lk, DLOCK_NEVER - k, &err), 0);
            until_report(lk, DLOCK_REPORT_RELEASED, 5 * DLOCK_SEC);
        }
        dlock_close(lk);
    }
}

static void refused(struct dlock_options o, const char *why)
{
    dlock *lk;
    CODE(open_with(&o, &lk), DLOCK_EUSAGE);
    if (!strstr(err.msg, why) || strstr(err.msg, "--"))
        FAIL("'%s' is not in: %s", why, err.msg);
    MUST(lk == NULL);
}

/* A grace longer than the ttl. It means nothing where there is no lease. */
static void long_grace(void)
{
    struct dlock_options o = defaults();
    dlock *lk;
    o.grace_ns = DLOCK_NEVER;
    if (open_with(&o, &lk) < 0) {
        refused(o, "grace");
        return;
    }
    MUST(dlock_is_local(lk));
    dlock_close(lk);
}

#define REFUSED(member, value, why)                                                                \
    do {                                                                                           \
        struct dlock_options o_ = defaults();                                                      \
        o_.member = (value);                                                                       \
        refused(o_, why);                                                                          \
    } while (0)

static void out_of_range(void)
{
    REFUSED(mode, (enum dlock_mode)77, "mode");
    REFUSED(holder, (enum dlock_holder)77, "holder");
    REFUSED(mode, DLOCK_MODE_SLOTS, "slots"); /* their number is 0 */
    REFUSED(ttl_ns, INT64_MIN, "ttl");
    REFUSED(ttl_ns, DLOCK_SEC - 1, "ttl");
    REFUSED(grace_ns, INT64_MIN, "grace");
    REFUSED(grace_ns, -2, "grace");
    REFUSED(wait_ns, -1, "wait_ns must not be negative");
    REFUSED(connect_timeout_ns, 0, "connect_timeout_ns must be");
    REFUSED(slots, 3, "needs the mode DLOCK_MODE_SLOTS");
    REFUSED(once_ns, -1, "record");
    REFUSED(min_hold_ns, -1, "hold");
    REFUSED(size, 0, "dlock_options_init");
    for (int slots = 0; slots < 2; slots++) {
        struct dlock_options o = defaults();
        o.once_ns = DLOCK_SEC;
        o.mode = slots ? DLOCK_MODE_SLOTS : DLOCK_MODE_SHARED;
        o.slots = (unsigned)slots;
        refused(o, "are for exclusive locks");
    }
}

/* A caller that was compiled with a longer structure. */
static void newer_caller(void)
{
    struct {
        struct dlock_options o;
        int64_t more;
    } longer;
    dlock *lk = NULL;
    dlock_options_init(&longer.o, sizeof longer);
    IS(longer.more, 0);
    CODE(dlock_open(&lk, uri, &longer.o, &err), 0);
    dlock_close(lk);
    longer.more = 1;
    CODE(dlock_open(&lk, uri, &longer.o, &err), DLOCK_EUSAGE);
}

static void nothing_given(void)
{
    dlock *set, *lk = NULL;
    CODE(dlock_open(&lk, NULL, NULL, &err), DLOCK_EUSAGE);
    CODE(dlock_open(NULL, uri, NULL, &err), DLOCK_EUSAGE);
    CODE(dlock_open(&lk, "@name", NULL, &err), DLOCK_EUSAGE);
    MUST(strstr(err.msg, "dlock_default_uri()"));
    CODE(dlock_open(&lk, uri, NULL, NULL), 0);
    CODE(dlock_start_forget(lk, NULL, &err), DLOCK_EUSAGE);
    CODE(dlock_start_forget(lk, "", &err), DLOCK_EUSAGE);
    CODE(dlock_keep(lk, 0, NULL), DLOCK_EUSAGE);
    CODE(dlock_open_set(&set, &lk, 0, 0, &err), DLOCK_EUSAGE);
    CODE(dlock_open_set(&set, &lk, DLOCK_SET_MAX + 1, 0, &err), DLOCK_EUSAGE);
    dlock_close(lk);
    dlock_close(NULL);
}

/* Of a set, only the set is driven. */
static void taken_over(void)
{
    dlock *lk = NULL, *set = NULL, *again;
    CODE(dlock_open(&lk, uri, NULL, &err), 0);
    CODE(dlock_open_set(&set, &lk, 1, DLOCK_NEVER, &err), 0);
    CODE(dlock_open_set(&again, &lk, 1, DLOCK_NEVER, &err), DLOCK_EUSAGE);
    CODE(dlock_open_set(&again, &set, 1, DLOCK_NEVER, &err), DLOCK_EUSAGE);
    CODE(dlock_acquire(lk, &err), DLOCK_EUSAGE);
    CODE(dlock_release(lk, 0, &err), DLOCK_EUSAGE);
    CODE(dlock_keep(set, 0, &err), DLOCK_EUSAGE);
    CODE(dlock_acquire(set, &err), 0);
    IS(dlock_state(set), DLOCK_STATE_HELD);
    CODE(dlock_start_acquire(set, &err), DLOCK_EUSAGE);
    CODE(dlock_keep(lk, 0, &err), DLOCK_EUSAGE);
    MUST(dlock_process(lk, NULL, 0) == NULL);
    dlock_close(lk);
    CODE(dlock_keep(set, 0, &err), 0);
    MUST(dlock_time_left(set) > 0 && dlock_at(set, 0) == lk && !dlock_at(set, 1));
    CODE(dlock_release(set, DLOCK_NEVER, &err), 0);
    CODE(dlock_release(set, DLOCK_NEVER, &err), 0);
    IS(dlock_state(set), DLOCK_STATE_IDLE);
    dlock_close(set);
}

static int times_in(const char *text, const char *part)
{
    int n = 0;
    for (; (text = strstr(text, part)); text += strlen(part))
        n++;
    return n;
}

/* A message has the store and the lock once each; a bare file is both. */
static void named_once(void)
{
    dlock *lk = open_lock(uri, 10 * DLOCK_SEC, 10 * DLOCK_SEC);
    dlock *other = open_lock(uri, 10 * DLOCK_SEC, 0);
    char quoted[512];
    CODE(dlock_acquire(lk, &err), 0);
    CODE(dlock_acquire(other, &err), DLOCK_EBUSY);
    snprintf(quoted, sizeof quoted, "'%s'", dlock_name(other));
    if (times_in(err.msg, dlock_where(other)) != 1 || times_in(err.msg, quoted) != 1)
        FAIL("not once: %s", err.msg);
    CODE(dlock_release(lk, 10 * DLOCK_SEC, &err), 0);
    dlock_close(other);
    dlock_close(lk);
}

/* Of a file: the end of a run cannot be written, and the lock is free all the same. */
static void not_recorded(void)
{
    struct dlock_options o = defaults();
    char record[512];
    dlock *lk;
    o.once_ns = DLOCK_SEC;
    if (open_with(&o, &lk) < 0)
        return; /* a store without records */
    if (!dlock_is_local(lk)) {
        dlock_close(lk);
        return;
    }
    CODE(dlock_acquire(lk, &err), 0);
    snprintf(record, sizeof record, "%s/%s.once", dlock_where(lk), dlock_name(lk));
    MUST(unlink(record) == 0 && mkdir(record, 0700) == 0);
    CODE(dlock_release(lk, DLOCK_SEC, &err), DLOCK_EDATA);
    if (!strstr(err.msg, "is not recorded: ") || strstr(err.msg, "ttl"))
        FAIL("%s", err.msg);
    IS(dlock_state(lk), DLOCK_STATE_IDLE);
    MUST(rmdir(record) == 0);
    CODE(dlock_acquire(lk, &err), 0);
    CODE(dlock_release(lk, DLOCK_SEC, &err), 0);
    dlock_close(lk);
}

int main(int argc, char **argv)
{
    MUST(argc == 2);
    uri = argv[1];
    IS(dlock_version_number(), DLOCK_VERSION_NUMBER);
    MUST(strcmp(dlock_version(), DLOCK_VERSION) == 0);
    without_end();
    out_of_range();
    long_grace();
    newer_caller();
    nothing_given();
    taken_over();
    named_once();
    not_recorded();
    return 0;
}
