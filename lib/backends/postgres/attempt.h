/*
 * attempt.h - one attempt of libpq to connect, in a thread of its own.
 *
 * The calls of libpq that connect do not block on the server, but on others: on the user database, on a directory
 * server (a service file can refer to one), on a Kerberos server (27 s if it is silent), on the name server that
 * Kerberos asks. None of them has a time-out that we could set.
 */
#ifndef DLOCK_PG_ATTEMPT_H
#define DLOCK_PG_ATTEMPT_H

#include <libpq-fe.h>
#include <stdbool.h>

struct pg_attempt;

/* keys and values: for PQconnectStartParams(), copied. 0 or a negative errno; *out is untouched then. */
int pg_attempt_start(struct pg_attempt **out, const char *const *keys, const char *const *values);
/* It becomes readable when the attempt has ended. */
int pg_attempt_fd(const struct pg_attempt *);
/* True: the attempt has ended and is freed; *out: the caller's, connected or with an error; NULL: out of memory. */
bool pg_attempt_take(struct pg_attempt *, PGconn **out);
/* Give it up; NULL: nothing to do. Blocks for 20 ms at most; the thread ends when libpq returns. */
void pg_attempt_drop(struct pg_attempt *);
/*
 * In a child of the process that started it, where there is no such thread: frees it, and closes what is known. Until
 * the attempt has ended, what libpq has allocated is lost.
 */
void pg_attempt_close_in_child(struct pg_attempt *);

/*
 * In a child of the process that made the connection; NULL: nothing to do. PQfinish(3) says goodbye to the server, which
 * ends the session, and frees a lock: it says it to /dev/null. (libpq's documentation, "Database Connection Control
 * Functions".)
 */
void pg_finish_in_child(PGconn *);

#endif
