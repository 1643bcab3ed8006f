/* reports.c - reports for logs, and for other languages, which need not know the structure. */
#include "util.h"

const char *dlock_report_name(enum dlock_report_type type)
{
    static const char *const names[] = {
#define NAME(name) [DLOCK_REPORT_##name] = #name
        NAME(NONE),     NAME(WAITING), NAME(ACQUIRED),  NAME(BUSY), NAME(SKIPPED),
        NAME(EXTENDED), NAME(TROUBLE), NAME(RECOVERED), NAME(TERM), NAME(LOST),
        NAME(RELEASED), NAME(INFO),    NAME(RUN),       NAME(DONE), NAME(NOTICE),
        NAME(FAILED),   NAME(ENTRY),   NAME(FINDING),
#undef NAME
    };
    return (unsigned)type < DLOCK_LEN(names) && names[type] ? names[type] : "?";
}

enum dlock_report_type dlock_report_type(const struct dlock_report *r)
{
    return r->type;
}

const struct dlock_error *dlock_report_error(const struct dlock_report *r)
{
    return &r->error;
}

int64_t dlock_report_retry_at(const struct dlock_report *r)
{
    return r->retry_at;
}
