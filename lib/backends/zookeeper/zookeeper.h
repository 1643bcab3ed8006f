/* zookeeper.h - what the files of the ZooKeeper backend share. */
#ifndef DLOCK_ZK_H
#define DLOCK_ZK_H

#include "backends/networked.h"
#include "backends/zookeeper/wire/conn.h"
#include "findings.h"
#include "run_record.h"

/* The operation requested by the core. */
enum zk_op {
    ZK_OP_NONE,
    ZK_OP_ACQUIRE,
    ZK_OP_HOLD,
    ZK_OP_RELEASE,
    ZK_OP_STEP, /* of status, break or forget */
    ZK_OP_LIST,
    ZK_OP_CHECK
};

/* Does our node exist? */
enum zk_node_state { NODE_NONE, NODE_ASKED, NODE_UNCLEAR, NODE_THERE };

/* How far an acquire with a node is. */
enum zk_stage {
    STAGE_QUEUE,  /* in the queue */
    STAGE_LEASE,  /* our turn, but the lease is too old: a heartbeat renews the lease */
    STAGE_RECORD, /* our turn, with --once: reading or writing the run record */
    STAGE_BUSY,   /* !wait, and not our turn: deleting our node */
    STAGE_SKIPPED /* our turn, but the run has succeeded already: deleting our node */
};

/*
 * The word in our node's data, for the waiter behind us. A holder that was granted at once still
 * has WORD_WAITS.
 */
enum zk_word { WORD_WAITS, WORD_NEXT, WORD_HELD };

/* The program with node names like ours. Nodes of all programs count in every layout. */
enum zk_layout {
    LAYOUT_CURATOR,    /* InterProcessMutex */
    LAYOUT_CURATOR_RW, /* InterProcessReadWriteLock */
    LAYOUT_KAZOO       /* Lock, WriteLock, ReadLock */
};

/* How close to the lock a waiter is. The rank only grows: nodes in front of ours can only go. */
enum zk_rank {
    RANK_BEHIND,
    RANK_SECOND, /* behind the next waiter: heartbeats are writes from this rank on */
    RANK_NEXT
};

enum zk_grant { NOT_GRANTED, GRANT_HELD, GRANT_LOST };

/* What the session has to report. */
enum zk_news {
    NEWS_NONE,
    NEWS_CONNECTED, /* for the first time, or again */
    NEWS_RESUMED,   /* with a new handle: the requests so far are not answered */
    NEWS_EXPIRED,
    NEWS_SHORTER, /* a held lock: this server grants a shorter session than the lease assumes */
    NEWS_FAILED,  /* acquire, release, status: be->err says why this session cannot serve */
    NEWS_BEAT,    /* the answer to the heartbeat of our node */
    NEWS_MESSAGE  /* a watch, or the answer to another request, for the operation */
};

#define ZK_BEATS 32

/*
 * In the data of a node whose client looks for a mark: a mark on another node would be overwritten.
 */
#define ZK_MARKS " marks=1"
/* The longest mark, each byte of its text as three. */
#define ZK_MARK_MAX (3 * DLOCK_BREAKER_SIZE + 48)
#define ZK_DATA_MAX (1024 + ZK_MARK_MAX)

/* ASK_BREAK has marked a hold. */
struct zk_mark {
    char by[DLOCK_BREAKER_SIZE]; /* "": there is no mark */
    int64_t at_ms;               /* by the clock of the client that breaks the hold */
};

/* The node below the chroot under which the run records are. No lock's name begins so. */
#define ZK_ONCE "dlock-once"
#define ZK_DAY_LEN 10 /* "2026-12-31" */

/* A run record's node, as it was read. */
struct zk_run {
    bool there;
    int32_t version;
    char day[ZK_DAY_LEN + 1]; /* of the index node; "": unknown */
    struct dlock_run run;
};

/* The lock, from the URI. */
struct zk_lock {
    char *parent;      /* the lock's node: chroot and name */
    size_t chroot_len; /* of parent: this part is not made of containers */
    char *credentials; /* "user:password" or NULL */
    const struct ACL_vector *acl;
    enum zk_layout layout;
};

struct zk_session {
    struct zk_conn *conn; /* NULL: there is no session, and the rest means nothing */
    int fd;
    bool connected;
    unsigned auth_serial; /* of the authentication; 0: not sent in this session */
    bool resumed;         /* a new handle was tried since the last connection */
    int64_t id;           /* 0: not known yet */
    int64_t timeout;      /* ns, as negotiated; before the negotiation, ttl */
    int64_t away_at; /* when to tell the core of a missing connection; DLOCK_NEVER: connected */
    struct {
        struct dlock_peer *list; /* in the order in which the library tries them */
        int n;
        int64_t next_at;   /* when to try the next server */
        int tried;         /* number of attempts since there was a connection */
        uint64_t refusing; /* before the first connection: useless servers, a bit each */
    } servers;
    struct {
        unsigned serial;      /* of the outstanding heartbeat; 0: none */
        bool write;           /* a write of our node; else a look: a sync and a get */
        unsigned edition;     /* write: the edition of our node's data */
        unsigned sync_serial; /* look: serial of the sync */
        bool synced;          /* look: the sync was answered */
        int64_t sent, until;
        int64_t next_at; /* next heartbeat of a waiter; the core times the holder's */
    } beat;
    struct {
        /* When the answered heartbeats were sent, oldest first; the lease counts from sent[0]. */
        int64_t sent[ZK_BEATS];
        int n;
    } lease;
};

/* Our node in the queue. */
struct zk_node {
    enum zk_node_state state;
    char token[DLOCK_TOKEN_LEN + 1];
    char *stem; /* path with this session's GUID; the server appends the sequence */
    char *path;
    uint64_t fence; /* 0: not known yet */
    int64_t create_sent;
    int32_t version; /* of the data, as far as we know */
    struct zk_mark mark;
    unsigned self_serial;   /* of the get of a found or changed node */
    unsigned delete_serial; /* of the outstanding delete; 0: none */
    bool delete_unanswered; /* the answer to a delete was lost */
    struct {
        char text[ZK_DATA_MAX];
        enum dlock_record kind;
        unsigned edition;   /* counts the changes of text */
        unsigned confirmed; /* the edition confirmed by the server */
    } data;
};

/* An acquire, from the create to the grant. */
struct zk_acquire {
    bool wait;
    enum zk_stage stage;
    int place;                        /* by the last look, 1 is next; 0: not behind others yet */
    enum zk_rank rank, rank_by_place; /* the latter: as far as the queue tells */
    bool followed;                    /* slots: a later slot stands behind ours */
    struct {                          /* the watched nodes */
        struct zk_watched *nodes;     /* a single node, or the holders of all slots */
        int n;
        bool behind_slot; /* the watched node is a slot like ours: look again at its grant */
        char *granted;    /* path of the slot whose grant was seen last; NULL: none */
    } watch;
    struct { /* the holder, shown to the user */
        unsigned serial;
        char *path;
        bool watched; /* the holder's node is the watched node */
        bool known;   /* info is filled in */
        struct dlock_info info;
    } front;
};

/* The run record of a lock. */
struct zk_once {
    struct {
        char *base, *place, *record; /* CHROOT/dlock-once, SHARD/NAME, the record's node */
        char *above;                 /* the nodes to make first: be->making.path */
    } path;
    struct zk_run found;   /* as read last, with the version as of now */
    struct dlock_run mine; /* of this hold */
    unsigned serial;       /* of the outstanding get or write */
    struct {
        char wanted[ZK_DAY_LEN + 1]; /* the day of expiry, as written last */
        char met[ZK_DAY_LEN + 1];    /* the server says that this day's index node exists */
    } day;
    struct { /* the multi that writes "running" */
        int64_t sent;
        unsigned edition; /* of our node's data in the multi */
        bool written;
    } running;
    bool node_gone; /* the end could not be written, since our node was gone */
};

struct zk_backend {
    const struct dlock_spec *spec;
    enum zk_op op;
    /* Acquire, status: deadline of the first contact; DLOCK_NEVER: made. */
    int64_t contact_until;
    /* When to advance the operation, if connected; DLOCK_NEVER: an answer does. */
    int64_t advance_at;
    unsigned list_serial; /* of the last list of the lock's children */
    struct outage outage;
    struct event_queue events;
    struct dlock_error refusal; /* what the last refusing server said; code 0: nothing */
    struct dlock_error err;     /* the reason of the last verdict or news; code 0: none */

    struct zk_lock lock;
    struct zk_session session;
    struct zk_node node;
    struct zk_once run;

    struct {              /* missing nodes above a node */
        const char *path; /* lock.parent or run.path.above */
        size_t len;       /* of the part in the making; 0: none */
        bool flat;        /* the server knows no containers */
    } making;

    int64_t clock_ms; /* the server's time (Unix ms) minus our clock, from the Stat of our node */

    struct zk_acquire acquire;

    struct {
        enum zk_grant grant;
        int64_t renew_until; /* DLOCK_NEVER: no renewal is outstanding */
    } hold;

    struct {
        int64_t until;
        bool sweeping; /* released cleanly; the sweep goes on */
        enum dlock_release_how how;
    } release;

    /* The operation's own state; NULL: it has not begun. */
    struct zk_reading *reading; /* ZK_OP_STEP: what was read (status.c) */
    struct zk_walk *walk;       /* ZK_OP_LIST (list.c) */
    struct zk_check *check;     /* ZK_OP_CHECK (check.c) */
    struct zk_sweep *sweep;     /* with a grant (sweep.c) */

    const struct dlock_order *order;       /* ZK_OP_STEP */
    unsigned step_serial;                  /* of the set, delete or multi of ZK_OP_STEP */
    const struct dlock_question *question; /* ZK_OP_LIST, ZK_OP_CHECK */
    struct findings found;                 /* ZK_OP_CHECK */
};

static inline int64_t zk_now(const struct zk_backend *be)
{
    return be->spec->env->now(be->spec->env->ctx);
}
/* A time from a Stat, limited: no value of the server may overflow our sums. */
static inline int64_t zk_stat_ms(int64_t ms)
{
    return dlock_max(0, dlock_min(ms, INT64_MAX / 4));
}
/* The Stat of a just written node has this time. */
static inline void zk_note_time(struct zk_backend *be, int64_t server_ms)
{
    be->clock_ms = zk_stat_ms(server_ms) - zk_now(be) / DLOCK_MSEC;
}
/* The server's time, in Unix ms, by the last Stat and our clock. */
static inline int64_t zk_server_ms(const struct zk_backend *be)
{
    return zk_now(be) / DLOCK_MSEC + be->clock_ms;
}
static inline const char *zk_where(const struct zk_backend *be)
{
    return be->spec->uri->where;
}
/* Queries hold nothing: the length of their session means nothing. */
static inline bool zk_is_query(const struct zk_backend *be)
{
    return be->op >= ZK_OP_STEP;
}
/*
 * How long an answer may take. op_timeout was made for the ttl; the server may grant a shorter
 * session.
 */
static inline int64_t zk_answer_timeout(const struct zk_backend *be)
{
    return dlock_min(be->spec->op_timeout, be->session.timeout / 8);
}
/* Send a multi; returns the serial. */
static inline unsigned zk_ask_multi(struct zk_backend *be, zk_answer_fn *answered,
                                    const struct zk_request *ops, int n)
{
    return zk_conn_ask(
        be->session.conn,
        &(struct zk_request){.call = ZK_MULTI, .answered = answered, .ops = ops, .nops = n});
}
/* Send a request with a path alone; returns the serial. */
static inline unsigned zk_ask(struct zk_backend *be, enum zk_call call, zk_answer_fn *answered,
                              const char *path)
{
    return zk_conn_ask(
        be->session.conn,
        &(struct zk_request){.call = call, .answered = answered, .path = path, .version = -1});
}
/* Ask for the lock's children. */
static inline void zk_ask_list(struct zk_backend *be, zk_answer_fn *answered)
{
    be->list_serial = zk_ask(be, ZK_CHILDREN, answered, be->lock.parent);
}
/* Does a renewal write the begin of a run? Then it begins with a look at the record. */
static inline bool zk_run_begins(const struct zk_backend *be)
{
    return be->op == ZK_OP_HOLD && be->spec->hold->begin == RUN_NOW;
}
/* Read the run record. */
static inline void zk_ask_record(struct zk_backend *be, zk_answer_fn *answered)
{
    be->run.serial = zk_ask(be, ZK_GET, answered, be->run.path.record);
}

/* uri.c */
/* Set be->lock and be->run.path from be->spec; 0, DLOCK_EUSAGE, or a password file's error. */
int zk_check_spec(struct zk_backend *be, struct dlock_error *err);
/* Set be->lock.credentials, again for each new session. Results as above; an error sets nothing. */
int zk_set_credentials(struct zk_backend *be, struct dlock_error *err);
/* Make a new token and a new stem, which must be NULL. 0, DLOCK_EOS, DLOCK_ENOMEM. */
int zk_new_stem(struct zk_backend *be, struct dlock_error *err);

/* queue.c: the children of a lock's node, as a queue. */
struct zk_child {
    int64_t seq;
    const char *name; /* in the caller's list of names */
    enum dlock_mode mode;
    unsigned slots; /* DLOCK_MODE_SLOTS: how many there are */
    int place;      /* 0: may hold the lock; else the place among the waiters, 1 is next */
};
/* The sequence at the end of a name; false: the name is no contender's. */
bool zk_sequence(const char *name, int64_t *seq);
/* The *n contenders among names, first in line first; malloc'ed. NULL: out of memory. */
struct zk_child *zk_line(char *const *names, int nnames, int *n);

enum zk_wait_for {
    WAIT_NONE,   /* the node may hold the lock */
    WAIT_NODE,   /* until that node is gone */
    WAIT_SLOT,   /* until any holder of a slot is gone */
    WAIT_IN_VAIN /* the lock is in use with a different number of slots */
};
struct zk_wait {
    enum zk_wait_for what;
    int node;          /* WAIT_NODE: index in the line */
    enum zk_rank rank; /* as far as the line tells */
    unsigned slots;    /* WAIT_IN_VAIN: the number in use */
};
/* What the node line[at] waits for. */
struct zk_wait zk_wait_of(const struct zk_child *line, int at);
/*
 * The word in a node's data. WORD_HELD for a node of a foreign program and for an unreadable word:
 * the waiter behind takes itself for the next, which costs some more heartbeats.
 */
enum zk_word zk_read_word(const char *data, int len);
/* Compose our node's data, which the create and the heartbeats write. */
void zk_set_data(struct zk_backend *be, enum dlock_record as, enum zk_word word);
/* Compose a mark, behind the rest of a node's data. Returns its length. */
size_t zk_format_mark(const struct zk_mark *, char text[ZK_MARK_MAX]);
/* The mark in a node's data. False: none. */
bool zk_read_mark(const char *data, int len, struct zk_mark *);
/* Does the client of this node look for a mark? */
bool zk_takes_marks(const char *data, int len);
/* Fill info from a node's name, data (NULL or len bytes) and stat. waiter: by the queue's order. */
void zk_read_info(const char *name, bool waiter, const char *data, int len, const struct Stat *stat,
                  struct dlock_info *info);

/* session.c */
/* Begin a session; be->session must have none. False: be->err says why. */
bool zk_session_open(struct zk_backend *be);
/* End the session, if there is a session. */
void zk_session_close(struct zk_backend *be);
/*
 * What has happened next; handles messages for the session alone. *m must be zeroed; the caller
 * frees its contents. NEWS_NONE: the mailbox is empty, and the session's timers were looked at.
 */
enum zk_news zk_session_next(struct zk_backend *be, struct zk_msg *m);
/*
 * Send a heartbeat, if our node exists and no heartbeat is outstanding: a write where the lease, or
 * the waiter behind us, needs a write, else a look.
 */
void zk_beat(struct zk_backend *be);
/* The server has answered a heartbeat sent at this time: a write, or a look behind a sync. */
void zk_lease_confirm(struct zk_session *s, int64_t sent, bool write);
/* Must a heartbeat renew the lease before a grant? Else the command would be ended at once. */
bool zk_lease_is_old(const struct zk_backend *be);
/* Is the connection at fault, not the request? Then the request may be repeated. */
bool zk_transient(int rc);
/* Describe rc, of the library or the server, in be->err; what: the failed step. */
void zk_error(struct zk_backend *be, int rc, const char *what);
/* Try again in a moment. */
enum zk_verdict zk_retry(struct zk_backend *be);
/* A request has failed: try again if the connection was at fault. what: as above. */
enum zk_verdict zk_failed(struct zk_backend *be, int rc, const char *what);
enum zk_verdict zk_no_memory(struct zk_backend *be);

/* acquire.c: our node, which drives acquire and release. */
/* The release has ended so. */
enum zk_verdict zk_released(struct zk_backend *be, enum dlock_release_how how);
/* Ignore all watches, and the answers to all requests but heartbeats. A create is unclear then. */
void zk_forget_requests(struct zk_backend *be);
/* Make the nodes of path, then advance. path must live until then. */
enum zk_verdict zk_make(struct zk_backend *be, const char *path);
/* Ask for the end of our node. */
enum zk_verdict zk_delete_node(struct zk_backend *be);
/* Acquiring: our node was deleted, or never existed. Begin again at once. */
enum zk_verdict zk_node_gone(struct zk_backend *be);
/* Releasing: our node was gone before. */
enum zk_verdict zk_not_ours(struct zk_backend *be);
/* Go on: an acquire (connected) creates, finds or checks our node, a release deletes the node. */
enum zk_verdict zk_node_advance(struct zk_backend *be);
enum zk_verdict zk_beat_answered(struct zk_backend *be, const struct zk_msg *m);
/* A write found our node changed by another client: read the node. */
enum zk_verdict zk_node_touched(struct zk_backend *be);
enum zk_verdict zk_watch_fired(struct zk_backend *be, const struct zk_msg *m);

/* run_node.c: the names and the text of run records */
/* Set be->run.path. 0 or DLOCK_ENOMEM. */
int zk_set_run_paths(struct zk_backend *be, struct dlock_error *err);
/* The path of a record's node; malloc'ed. NULL: out of memory. */
char *zk_run_path(const struct zk_backend *be, const char *place);
/*
 * The path of an index node; with "" for place, of the day's node; also for day, of the node above
 * the days. malloc'ed. NULL: out of memory.
 */
char *zk_index_path(const struct zk_backend *be, const char *day, const char *place);
/* The day, by UTC, of a time in Unix ms. */
void zk_day(int64_t ms, char day[ZK_DAY_LEN + 1]);
bool zk_is_day(const char *s);
/* When a record expires, Unix ms by the server's clock. */
int64_t zk_run_over_ms(const struct dlock_run *r);
/* The data of a record's node. */
void zk_format_run(const struct zk_backend *be, const struct dlock_run *r, const char *day,
                   char text[RUN_RECORD_MAX]);
/* Read the answer to a get. NULL, or a description of foreign data; then *r is untouched. */
const char *zk_read_run(const struct zk_msg *m, int64_t now_ms, struct zk_run *r);

/* once.c: the run record of our hold */
/* The answer to a get of the record: at our turn, when the run of a set begins, at the end. */
enum zk_verdict zk_record_read(struct zk_backend *be, const struct zk_msg *m);
/* Our turn has come: ZK_GRANTED, or the record comes first. */
enum zk_verdict zk_run_turn(struct zk_backend *be);
/* Delete our node, and record the end of its run, if a run has begun. */
enum zk_verdict zk_run_end(struct zk_backend *be);
/* The answer to a get of the record, into be->run.found. NULL, or a description of foreign data. */
const char *zk_take_record(struct zk_backend *be, const struct zk_msg *m, int64_t now_ms);
/* The record's node holds foreign data. */
enum zk_verdict zk_foreign_run(struct zk_backend *be, const char *what);

/* sweep.c */
/* Begin to remove some expired records. */
void zk_sweep(struct zk_backend *be);
bool zk_sweep_goes_on(const struct zk_backend *be);
void zk_sweep_end(struct zk_backend *be);

/* list.c */
/* Connected: begin to walk, or go on. */
enum zk_verdict zk_list_ask(struct zk_backend *be);
/* Is there an entry to hand out, or the end? */
bool zk_list_ready(const struct zk_backend *be);
/* The next entry in ev, whose type stays untouched if there is none yet; ZK_DONE: the end. */
enum zk_verdict zk_list_next(struct zk_backend *be, struct dlock_event *ev);
/* The session has ended: ask again. */
void zk_list_forget(struct zk_backend *be);
/* Forget what was found. */
void zk_list_drop(struct zk_backend *be);

/* check.c */
/* Connected: look at the session and the rights. */
enum zk_verdict zk_check_ask(struct zk_backend *be);
/* Ask the servers for their words, when the rights are tried. True: the check is over. */
bool zk_check_words(struct zk_backend *be);
/* As interest(), for the words. */
int zk_check_interest(const struct zk_backend *be, struct pollfd *, int cap, int64_t *wake_at);
/* Forget what was found. */
void zk_check_drop(struct zk_backend *be);

/* status.c */
/* Connected: carry out the order. ZK_BUSY: it is not as read. */
enum zk_verdict zk_step_ask(struct zk_backend *be);
/* The step is over: queue its event. */
void zk_step_end(struct zk_backend *be, bool done);
/* After STEP_READ: the next node. False: all were handed out. */
bool zk_step_next(struct zk_backend *be, struct dlock_info *);
/* Forget what was read. */
void zk_step_drop(struct zk_backend *be);

/* zookeeper.c: free all memory but the session's. */
void zk_done(struct zk_backend *be);

#endif
