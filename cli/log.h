/*
 * log.h - lines to the system's log (--syslog). No call blocks: a line for which the log has no
 * room, or no reader, is dropped. Not by syslog(3), which waits for room without limit.
 */
#ifndef CLI_LOG_H
#define CLI_LOG_H

/* The value for the name of a facility, such as "cron"; -1: unknown. */
int log_facility(const char *name);
/* priority: LOG_INFO and the like. wait_ms: for room. The text is cleaned, and secrets hidden. */
void log_put(int facility, int priority, int wait_ms, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

#endif
