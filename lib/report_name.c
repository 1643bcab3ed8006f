/* report_name.c - names of the reports, for logs and for other languages. */
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
