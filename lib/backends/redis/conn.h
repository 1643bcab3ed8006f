/*
 * conn.h - one connection to a Redis server: address list, AUTH, RESP, deadlines.
 *
 * Commands are queued by redis_conn_send under a tag; their answers come back from
 * redis_conn_next with the same tag, in order. What is queued before the connection
 * stands goes out in one write, behind AUTH. hiredis parses and formats; the
 * socket is ours, because hiredis' own is not CLOEXEC, writes without
 * MSG_NOSIGNAL, and its non-blocking connect tries one address only.
 */
#ifndef DLOCK_RCONN_H
#define DLOCK_RCONN_H

#include "tls/tls.h"
#include "util.h"

#include <hiredis/hiredis.h>

#define REDIS_CONN_TAGS 16   /* unanswered commands at most */
#define REDIS_CONN_PUSH (-1) /* tag of a pub/sub message */
#define REDIS_CONN_AUTH (-2) /* tags of our own AUTH and ROLE; never handed out */
#define REDIS_CONN_ROLE (-3)
#define REDIS_CONN_MAX_REPLY (1024 * 1024)
#define REDIS_CONN_PEERS 8 /* addresses tried at most */

enum redis_conn_state {
    RC_CLOSED,  /* no socket */
    RC_WAITING, /* the server's address is still being looked for (redis_conn_open_later) */
    RC_CONNECTING,
    RC_HANDSHAKE, /* of TLS; nothing that was queued leaves before its end */
    RC_UP,
    RC_FAILED /* no socket any more; error says why */
};

struct redis_conn_tag {
    int tag;
    int64_t sent; /* clock before the write that carried the command; 0: not written yet */
};

struct redis_conn_auth {
    const char *user, *password; /* not owned; password NULL: no AUTH */
};

/* What hiredis passes to createArray. */
#if HIREDIS_MAJOR >= 1
typedef size_t redis_conn_elements;
#else
typedef int redis_conn_elements;
#endif

struct redis_conn {
    enum redis_conn_state state;
    int fd;
    const struct dlock_env *env;
    struct dlock_peer peers[REDIS_CONN_PEERS]; /* a copy: the core may replace its list meanwhile */
    int npeers;
    int good;                     /* index of the address that worked last */
    int tried;                    /* addresses tried in this attempt, counted from good */
    int64_t until, next_at;       /* end of the whole attempt, and of this address' share */
    const struct tls_config *tls; /* set before opening, as is tls_host: speak TLS. Not owned */
    const char *tls_host;         /* whom the addresses belong to; not owned, until closed */
    struct tls *session;          /* from RC_HANDSHAKE on */
    bool tls_failed;              /* the handshake with an earlier address failed; error says why */
    bool push;                    /* this connection subscribes */
    bool
        only_master; /* set before opening: ROLE goes in front of everything, another answer is a failure */
    bool is_replica; /* failed for that reason */
    bool answered;   /* the server has said something */
    bool written;    /* something has left: the server may have seen it */
    bool
        auth_failed; /* AUTH was refused; error says why. What was sent behind it may have been served
                                       all the same, as a default user without a password */
    struct redis_conn_auth auth;
    const char *where;   /* for messages; not owned */
    char peer_text[128]; /* "host:port" of the current address */
    char *out;
    size_t out_len, out_size;
    redisReader *reader;
    redisReplyObjectFunctions fn; /* hiredis' own, with a bound on arrays */
    void *(*create_array)(const redisReadTask *, redis_conn_elements);
    size_t fed; /* bytes since the last complete reply */
    struct redis_conn_tag tags[REDIS_CONN_TAGS];
    int ntags;
    struct dlock_error error;
};

struct redis_conn_reply {
    int tag;
    int64_t sent;
    redisReply *r; /* the caller's to free (freeReplyObject) */
};

/* What an error reply means to us. */
enum redis_conn_class {
    RE_OTHER,
    RE_PERM,      /* NOAUTH WRONGPASS NOPERM DENIED */
    RE_TYPE,      /* WRONGTYPE */
    RE_TRANSIENT, /* LOADING BUSY TRYAGAIN MASTERDOWN CLUSTERDOWN: ask again on this connection */
    RE_REPLICA,   /* READONLY UNBLOCKED */
    RE_CLUSTER,   /* MOVED ASK */
    RE_REFUSED    /* MISCONF OOM NOREPLICAS, too many clients */
};
enum redis_conn_class redis_conn_classify(const char *text);
/*
 * Fill err from an error reply; returns its code. Servers quote what they did not understand, so whatever
 * of the text is shown has user and password blanked.
 */
int redis_conn_reply_error(struct dlock_error *err, const char *where,
                           const struct redis_conn_auth *, const char *text);
/* Whatever else of a server's text is shown: with user and password blanked, fit for a message. */
void redis_conn_show(char *out, size_t size, const struct redis_conn_auth *, const char *text);
/* The same for the answer to AUTH, of which only the first word is shown. */
int redis_conn_auth_error(struct dlock_error *err, const char *where,
                          const struct redis_conn_auth *, const char *text);

/*
 * Begin to connect; the addresses are tried in turn from the one that worked last, all of them before
 * the time until. Not while open. Returns 0, or a negative code (and state RC_FAILED).
 */
int redis_conn_open(struct redis_conn *, const struct dlock_env *, const struct dlock_peer *,
                    int npeers, const struct redis_conn_auth *, const char *where, int64_t until);
/* The same while the addresses are not known yet: commands can be queued, and wait for redis_conn_aim. */
int redis_conn_open_later(struct redis_conn *, const struct dlock_env *,
                          const struct redis_conn_auth *, const char *where, int64_t until);
/* Only in RC_WAITING: here they are. Returns as redis_conn_open. */
int redis_conn_aim(struct redis_conn *, const struct dlock_peer *, int npeers);
/* Only in RC_WAITING: they could not be found out, and that is why. State RC_FAILED. */
void redis_conn_give_up(struct redis_conn *, const struct dlock_error *why);
static inline bool redis_conn_is_open(const struct redis_conn *c)
{
    return c->state == RC_WAITING || c->state == RC_CONNECTING || c->state == RC_HANDSHAKE ||
           c->state == RC_UP;
}
/* On the way to an address: next_at is to be watched, redis_conn_work to be called then. */
static inline bool redis_conn_is_connecting(const struct redis_conn *c)
{
    return c->state == RC_CONNECTING || c->state == RC_HANDSHAKE;
}
/* Queue a command. 0, or DLOCK_ENOMEM (and state RC_FAILED). Needs redis_conn_flush. */
int redis_conn_send(struct redis_conn *, int tag, int argc, const char **argv, const size_t *len);
/* Write what is queued, as far as the socket takes it. */
void redis_conn_flush(struct redis_conn *);
/* True while a command with this tag is unanswered. */
bool redis_conn_waits(const struct redis_conn *, int tag);
int redis_conn_interest(const struct redis_conn *, struct pollfd *, int64_t *wake_at);
/* Connect, read, write: whatever is possible now. */
void redis_conn_work(struct redis_conn *);
/* 1 and a reply; 0: none; negative: state RC_FAILED, see error. Replies that came before a failure come first. */
int redis_conn_next(struct redis_conn *, struct redis_conn_reply *);
/* Close in a way that lets the server still read what was sent. State RC_CLOSED. */
void redis_conn_close(struct redis_conn *);
/* The same, because the server is a replica: the next attempt begins with the next address. */
void redis_conn_close_replica(struct redis_conn *);

#endif
