/*
 * conn.h - one connection to MySQL or MariaDB, in a thread of its own, since libmariadb blocks. The
 * thread runs the statements of a message one after the other; the caller never waits.
 */
#ifndef DLOCK_MYSQL_CONN_H
#define DLOCK_MYSQL_CONN_H

#include "backends/table/store.h"
#include "login.h"

#define MY_REQUESTS 6

struct my_session;

struct my_conn {
    struct sql_conn base;
    const struct dlock_env *env;
    const char *where;
    struct my_session *session; /* CONN_CONNECTING, CONN_UP */
    bool held;                  /* the lock is held: a refused secret is an outage */
    bool answered;              /* the thread has handed the answer over */
    int tag;                    /* of the message that the thread runs */
    int64_t sent;
    struct {
        struct sql_message list[MY_REQUESTS];
        int n;
    } queue;
    char version[64]; /* of the server */
};

/*
 * Start to connect, at most until then. spec and settings stay the caller's until the close; the
 * thread has copies. held: see struct my_conn.
 */
void my_conn_open(struct my_conn *, const struct dlock_spec *, struct my_settings *, int64_t until,
                  bool held);

/* Of struct sql_driver. A message is no transaction: each statement commits, an error ends it. */
void my_conn_send(struct sql_conn *, struct sql_message *);
int my_conn_fd(const struct sql_conn *);
int my_conn_interest(const struct sql_conn *, struct pollfd *, int64_t *wake_at);
void my_conn_work(struct sql_conn *);
int my_conn_next(struct sql_conn *, struct sql_reply *);
int my_conn_error(const struct sql_conn *, const struct sql_reply *, struct dlock_error *);
void my_conn_close(struct sql_conn *);
void my_conn_close_in_child(struct sql_conn *);

#endif
