/*
 * conn.h - one connection to a Redis server: address list, TLS, AUTH, RESP, deadlines.
 *
 * The caller queues commands with redis_conn_send, each under a tag, and takes their replies, in
 * the same order and with the same tags, from redis_conn_next. Commands queued before the
 * connection is up leave in one write, behind AUTH. Nothing here blocks: poll what
 * redis_conn_interest names, then call redis_conn_work.
 *
 * hiredis parses the replies. The socket is ours: hiredis' own socket is not CLOEXEC, is written
 * without MSG_NOSIGNAL, and is connected to a single address.
 */
#ifndef DLOCK_REDIS_CONN_H
#define DLOCK_REDIS_CONN_H

#include "tls/tls.h"
#include "util.h"

#include <hiredis/hiredis.h>
#include <string.h>

#define REDIS_CONN_TAGS 16   /* unanswered commands at most */
#define REDIS_CONN_PUSH (-1) /* tag of a pub/sub message, or of changed keys */
#define REDIS_CONN_AUTH (-2) /* tags of our own AUTH and ROLE; the caller never sees them */
#define REDIS_CONN_ROLE (-3)
#define REDIS_CONN_TRACK (-4) /* redis_conn_track() */
#define REDIS_CONN_MAX_REPLY (1024 * 1024)
#define REDIS_CONN_PEERS 8 /* addresses tried at most */
#define REDIS_PEER_TEXT 64

enum redis_conn_state {
    RC_CLOSED,  /* no socket */
    RC_WAITING, /* no socket: the addresses are not known yet (redis_conn_open_later) */
    RC_CONNECTING,
    RC_HANDSHAKE, /* of TLS; no queued command leaves before its end */
    RC_UP,
    RC_FAILED /* no socket any more; error says why */
};

/* Of script.c: may an error be explained? */
enum redis_why { WHY_NOT, WHY_MAY, WHY_IS };

struct redis_conn_tag {
    int tag;
    int64_t sent; /* clock before the write that carried the command; 0: not written yet */
    bool sha1;    /* the script conn->script */
    enum redis_why why;
};

struct redis_conn_auth {
    const char *user, *password; /* not owned; password NULL: no AUTH */
    const char *file;            /* each opening reads the password from here; NULL: none */
};

/* The type that hiredis passes to createArray. */
#if HIREDIS_MAJOR >= 1
typedef size_t redis_conn_elements;
#else
typedef int redis_conn_elements;
#endif

struct redis_conn_reply {
    int tag;
    int64_t sent;
    bool sha1; /* the answer to conn->script */
    enum redis_why why;
    redisReply *r; /* the caller frees it (freeReplyObject) */
};

struct redis_conn {
    enum redis_conn_state state;
    int fd;

    /* Set before opening; they stay from one opening to the next. Pointers are not owned. */
    const struct dlock_env *env;
    const char *where;      /* for messages */
    struct tls_config *tls; /* NULL: no TLS */
    struct redis_conn_auth auth;
    bool push;        /* this connection subscribes */
    bool only_master; /* send ROLE first, and fail unless the server is a master */

    /* These stay as well. */
    bool tracks; /* redis_conn_track() has queued its commands, or did in vain on the last */
    int good;    /* index of the address that worked last */
    /* The lock is held: a refused secret, or a file that cannot be read, is an outage. */
    bool held;
    char *secret; /* what auth.file had; redis_node_done() frees it */

    /* From here on an opening begins with zeros. */
    char tls_host[256];                        /* the host of the addresses, for the certificate */
    int64_t until;                             /* the end of the attempt */
    struct dlock_peer peers[REDIS_CONN_PEERS]; /* a copy: the core may replace its list meanwhile */
    int npeers;
    int tried;                     /* addresses tried in this attempt, counted from good */
    int64_t next_at;               /* end of the time for the current address */
    char address[REDIS_PEER_TEXT]; /* of the current peer, for errors; "": where has the address */
    struct tls *session;           /* from RC_HANDSHAKE on */

    bool answered;              /* the server has sent something */
    const char *other_protocol; /* of those bytes, as it seems; or NULL */
    bool written;               /* something has left: the server may have seen it */
    /* error keeps these reasons, also when more fails afterwards. */
    bool tls_failed; /* the handshake with an earlier address failed */
    /* AUTH was refused. A default user may still have served the commands behind AUTH. */
    bool auth_failed;
    bool auth_ignored; /* the server has no password */
    bool is_replica;   /* only_master was set, and the server is a replica */
    struct dlock_error error;

    char *out; /* not written yet */
    size_t out_len, out_size;
    redisReader *reader;
    redisReplyObjectFunctions fn; /* hiredis' own, with a bound on arrays */
    void *(*create_array)(const redisReadTask *, redis_conn_elements);
    bool out_of_bounds; /* the last array was refused */
    /* From RESP3 to RESP2: an incomplete header; unread bytes of a string; amid another line. */
    char header[32];
    size_t header_len, text_left;
    bool in_line;
    size_t fed; /* bytes since the last complete reply */
    struct redis_conn_tag tags[REDIS_CONN_TAGS];
    int ntags;

    /* Of script.c. */
    struct redis_conn_script *script; /* malloc'ed: sent by its SHA-1, and not answered; or NULL */
    bool by_text;                     /* the server does not know the scripts by their SHA-1 */
    const struct redis_script *lock;  /* of the last script */
    bool together;                    /* the last script was a shared holder's, or a slot's */
    struct redis_conn_reply unclear;  /* the error to be explained by WHY_IS; r NULL: none */
    bool is_sentinel;                 /* known once a script was refused */
};

/*
 * Begin to connect. The addresses are tried in turn, from the last good address on, all of them
 * before the time until. tls_host: their host, or NULL. Only while closed or failed.
 * Returns 0, or a negative code (and state RC_FAILED).
 */
int redis_conn_open(struct redis_conn *, const char *tls_host, int64_t until,
                    const struct dlock_peer *, int npeers);
/* The same before the addresses are known: queued commands wait for redis_conn_aim. */
int redis_conn_open_later(struct redis_conn *, const char *tls_host, int64_t until);
/* Only in RC_WAITING: connect to these addresses. Returns as redis_conn_open. */
int redis_conn_aim(struct redis_conn *, const struct dlock_peer *, int npeers);
/* Only in RC_WAITING: the addresses could not be found, for this reason. State RC_FAILED. */
void redis_conn_give_up(struct redis_conn *, const struct dlock_error *why);
static inline bool redis_conn_is_open(const struct redis_conn *c)
{
    return c->state == RC_WAITING || c->state == RC_CONNECTING || c->state == RC_HANDSHAKE ||
           c->state == RC_UP;
}
/* On the way to an address: redis_conn_work is due at next_at. */
static inline bool redis_conn_is_connecting(const struct redis_conn *c)
{
    return c->state == RC_CONNECTING || c->state == RC_HANDSHAKE;
}
/* "127.0.0.1:6379"; "" for a socket's path. Returns buf. */
const char *redis_peer_text(const struct dlock_peer *, char buf[REDIS_PEER_TEXT]);
/* Queue a command, for redis_conn_flush. 0; DLOCK_EUNAVAIL: not open; DLOCK_ENOMEM (RC_FAILED). */
int redis_conn_send(struct redis_conn *, int tag, int argc, const char *const *argv);
/*
 * Queue, once for each connection, the wish to hear when another client changes a key that is read
 * here from now on, and HELLO under hello_tag (its reply is as in RESP2). A change is a reply under
 * REDIS_CONN_PUSH: "invalidate", and the keys (no array: all keys). A server that refuses does not
 * tell. A proxy may hang up: where the answer never came, the next connection does without.
 */
void redis_conn_track(struct redis_conn *, int hello_tag);
/*
 * The server has closed the connection, or has ended, and no read has told us yet. A command that
 * is sent now is lost; afterwards it looks like one that was served and whose answer is lost.
 */
bool redis_conn_has_ended(const struct redis_conn *);
/* Write the queued commands, as far as the socket takes them. */
void redis_conn_flush(struct redis_conn *);
/* True while a command with this tag is unanswered. */
bool redis_conn_waits(const struct redis_conn *, int tag);
/* Fill pfd for poll(): 1, or 0. Lower *wake_at where redis_conn_work is due without an event. */
int redis_conn_interest(const struct redis_conn *, struct pollfd *, int64_t *wake_at);
/* Connect, read and write, as far as possible now. */
void redis_conn_work(struct redis_conn *);
/* 1 and a reply; 0: none yet; negative: RC_FAILED, see error. Earlier replies come first. */
int redis_conn_next(struct redis_conn *, struct redis_conn_reply *);
/* Close; the server can still read all commands. RC_CLOSED. Fine on zeroed memory, and twice. */
void redis_conn_close(struct redis_conn *);
/* The same in a child process: nothing is sent, and the parent's connection stays. */
void redis_conn_close_in_child(struct redis_conn *);
/* The same, because the server is a replica: the next attempt begins with the next address. */
void redis_conn_close_replica(struct redis_conn *);

/* --- errors.c --- */

/* What an error reply means to a lock. */
enum redis_conn_class {
    RE_OTHER,
    RE_PERM,      /* NOAUTH WRONGPASS NOPERM DENIED */
    RE_TYPE,      /* WRONGTYPE */
    RE_TRANSIENT, /* LOADING BUSY TRYAGAIN MASTERDOWN CLUSTERDOWN: retry on this connection */
    RE_REPLICA,   /* READONLY UNBLOCKED */
    RE_CLUSTER,   /* MOVED ASK */
    RE_REFUSED    /* MISCONF OOM NOREPLICAS, too many clients */
};
enum redis_conn_class redis_conn_classify(const char *text);
/* The script scripts/why.lua may tell more; this reply is the script's explanation. */
bool redis_conn_is_vague(const char *text);
bool redis_conn_explains(const redisReply *);
/* A reply to ROLE. */
static inline bool redis_conn_has_role(const redisReply *r, const char *role)
{
    return r->type == REDIS_REPLY_ARRAY && r->elements > 0 &&
           r->element[0]->type == REDIS_REPLY_STRING && strcmp(r->element[0]->str, role) == 0;
}
/*
 * Fill err from an error reply on this connection; returns its code. Servers quote unknown words,
 * so user and password are blanked in err's text.
 */
int redis_conn_reply_error(struct dlock_error *err, const struct redis_conn *, const char *text);
/* The same for the reply to AUTH: err shows its first word only. */
int redis_conn_auth_error(struct dlock_error *err, const struct redis_conn *, const char *text);
/* The server is a Sentinel, which holds no locks. */
int redis_conn_sentinel_error(struct dlock_error *err, const char *where);
/* Any other text of a server: with user and password blanked, fit for a message. */
void redis_conn_show(char *out, size_t size, const struct redis_conn_auth *, const char *text);

#endif
