/*
 * attempt.h - an attempt of libpq to connect, which never blocks the caller.
 *
 * libpq's calls that connect do not wait for the database server, but for the user database, a
 * directory server (a service file can refer to a directory), the name server or a Kerberos server
 * (27 s if the server is silent), all without a time-out. So a thread connects where libpq may ask
 * such a server. Elsewhere the caller connects, without a thread.
 */
#ifndef DLOCK_PG_ATTEMPT_H
#define DLOCK_PG_ATTEMPT_H

#include <libpq-fe.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>

struct pg_attempt;

/*
 * keys and values: for PQconnectStartParams(). thread: connect in a thread from the start, because
 * the parameters alone can make libpq block. Otherwise the attempt goes on in a thread when the
 * server chooses TLS or an authentication that may block. 0, or a negative errno with *out
 * untouched.
 */
int pg_attempt_start(struct pg_attempt **out, const char *const *keys, const char *const *values,
                     bool thread);
/*
 * "sslkey=ENGINE:KEY": OpenSSL would load a library, by any path, into what may be root's program.
 */
static inline bool pg_loads_code(const char *sslkey)
{
    return strchr(sslkey, ':');
}
/* An option of PQconninfo() or PQconndefaults() by name; NULL: not there, or all is NULL. */
const PQconninfoOption *pg_option(const PQconninfoOption *all, const char *keyword);
/* The sslkey that libpq uses, from wherever. 1: it loads code; 0; or -ENOMEM. */
int pg_conn_loads_code(PGconn *);
#define PG_LOADS_CODE                                                                              \
    "sslkey has a ':', by which OpenSSL would load a library: name a file without one"

/* What to poll for. Both fields change from call to call. */
struct pollfd pg_attempt_pollfd(const struct pg_attempt *);
/*
 * Go on as far as possible without waiting. 1: the attempt has ended and is freed; *out is the
 * caller's, connected or with an error (NULL: out of memory). 0: not ended. Negative errno: no
 * thread to go on in.
 */
int pg_attempt_work(struct pg_attempt *, PGconn **out);
/* Give up; NULL: nothing to do. Blocks for 20 ms at most; a thread ends when libpq returns. */
void pg_attempt_drop(struct pg_attempt *);
/*
 * In a child of the process that started the attempt, where no thread of the attempt runs: frees
 * the attempt and closes the descriptors. libpq's memory leaks if a thread was using it.
 */
void pg_attempt_close_in_child(struct pg_attempt *);

/*
 * For a connection that another process has, too; NULL: nothing to do. PQfinish(3) says goodbye to
 * the server, which ends the session and frees a lock: the goodbye goes to /dev/null. (libpq's
 * documentation, "Database Connection Control Functions".)
 */
void pg_finish_silently(PGconn *);

#endif
