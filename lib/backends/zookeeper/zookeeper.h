/* zookeeper.h - what the files of the ZooKeeper backend share. */
#ifndef DLOCK_ZK_H
#define DLOCK_ZK_H

#include "backends/networked.h"
#include "backends/zookeeper/wire/conn.h"
#include "run_record.h"

/* What the core has asked for, and how far that is. */
enum zk_job { OP_NONE, OP_ACQUIRE, OP_HOLD, OP_RELEASE, OP_STATUS, OP_FORGET };

/* What a request is for. */
enum zk_tag {
    T_AUTH = 1,
    T_BEAT, /* set our node: a heartbeat */
    T_CREATE,
    T_PARENT, /* create a part of the path to the lock, or to its run record */
    T_SYNC,
    T_LIST,
    T_FIND,  /* list: the answer to the create was lost; is the node there? */
    T_SELF,  /* get our node, which was found by T_FIND */
    T_PRED,  /* get a node that we wait for, with a watch */
    T_FRONT, /* get a holder's node, to show it */
    T_DELETE,
    T_ORPHAN,  /* delete another node of ours */
    T_INFO,    /* get, for status */
    T_RECORD,  /* get the run record */
    T_RUNNING, /* multi: our node holds, and the record says so */
    T_END,     /* multi: the end of the run, and our node is deleted */
    T_FORGET,
    /* Expired run records: the days, the shards of one, the names in one, their records; a removal. */
    T_SWEEP_DAYS,
    T_SWEEP_SHARDS,
    T_SWEEP_NAMES,
    T_SWEEP_RECORD,
    T_SWEPT
};

/* Is there a node of ours? */
enum zk_node_state { NODE_NONE, NODE_ASKED, NODE_UNCLEAR, NODE_THERE };

/* How far an acquire with a node is. */
enum zk_stage {
    STAGE_QUEUE,    /* in the queue */
    STAGE_RIPENING, /* our turn, but the lease is too old: a heartbeat renews it */
    STAGE_RECORD,   /* our turn, with --once: the run record is read, or written */
    STAGE_BUSY,     /* !wait, and not our turn: giving our place up */
    STAGE_SKIPPED   /* our turn, but the run has succeeded already: the same */
};

/* What our node's data says of us, for the waiter behind us. Also of a holder that was granted at once: WORD_WAITS. */
enum zk_word { WORD_WAITS, WORD_NEXT, WORD_HELD };

/* How the nodes are named: those of which programs ours look like. Others' are honoured in every layout. */
enum zk_layout {
    LAYOUT_CURATOR,    /* InterProcessMutex */
    LAYOUT_CURATOR_RW, /* InterProcessReadWriteLock */
    LAYOUT_KAZOO       /* Lock, WriteLock, ReadLock */
};

/* How close to the lock a waiter is. It only grows: the nodes in front of ours can only go. */
enum zk_rank {
    RANK_BEHIND,
    RANK_SECOND, /* behind the next one: its heartbeats are writes from here on */
    RANK_NEXT
};

enum zk_grant { NOT_GRANTED, GRANT_HELD, GRANT_LOST };

/* What an operation comes to when an answer was taken. Only zookeeper.c ends an operation. */
enum zk_verdict {
    ZK_GOES_ON,
    ZK_GRANTED,
    ZK_BUSY,
    ZK_SKIPPED,
    ZK_DONE,     /* ASK_FORGET */
    ZK_RELEASED, /* be->release.how; err, if it has a code, says why */
    ZK_FAILED    /* err */
};

/* What the session has to report. */
enum zk_news {
    NEWS_NONE,
    NEWS_CONNECTED, /* for the first time, or again */
    NEWS_DISCONNECTED,
    NEWS_EXPIRED,
    NEWS_SHORTER, /* a held lock: this server grants a shorter session than the lease was computed with */
    NEWS_USELESS, /* acquire, release, status: err says why this session cannot serve it */
    NEWS_MESSAGE  /* an answer or a watch, for the operation */
};

/* A node that we wait for. */
struct zk_watched {
    char *path;
    unsigned serial; /* of the request that has set the watch; 0: we do not look at it any more */
};

#define ZK_BEATS 32

/* The node below the chroot that has the run records. No lock's name begins so. */
#define ZK_ONCE "dlock-once"
#define ZK_DAY_LEN 10 /* "2026-12-31" */

/* A run record's node, as we have read it. */
struct zk_run {
    bool there;
    int32_t version;
    char day[ZK_DAY_LEN + 1]; /* of its index node; "": unknown */
    struct dlock_run run;
};

/* What one sweep looks at, at most. */
#define SWEEP_MAX 20
#define SWEEP_SHARDS 4
struct zk_swept {
    unsigned serial;
    char *place; /* SHARD/NAME */
};

struct zk_session {
    struct zk_conn *conn; /* NULL: there is no session, and the rest means nothing */
    int fd;
    struct zk_ending *endings; /* of the sessions before this one */
    bool connected, authed;
    int64_t opened_at;          /* clock before the session was asked for */
    int64_t id;                 /* 0: not yet */
    int64_t timeout;            /* ns, as negotiated; before that, ttl */
    struct dlock_peer *servers; /* as the library has them, in the order in which it tries them */
    int nservers;
    int64_t away_at; /* without a connection: when to tell the core so; DLOCK_NEVER: there is one */
    bool resumed;    /* since there was a connection */
    int64_t next_server_at;
    int servers_tried; /* since there was a connection */
    uint64_t refusing; /* before the first connection: the servers, by bit, that are of no use */
    struct dlock_error refused; /* what the last of them said; code 0: nothing */
    struct {
        unsigned serial;  /* the outstanding one; 0: none */
        bool write;       /* it sets our node; else it is a sync and a look at the node */
        unsigned edition; /* a write: of the record */
        unsigned sync;    /* a look: serial of its sync */
        bool synced;      /* that was answered */
        int64_t sent, until;
        int64_t next_at; /* the next one while waiting; for a held lock the core decides */
        /* When the answered ones were sent, oldest first: the lease's. */
        int64_t answered[ZK_BEATS];
        int n;
    } beat;
};

struct zk_backend {
    const struct dlock_spec *spec;
    enum zk_job op;
    enum zk_grant grant;
    int64_t
        contact_until; /* acquire, status: for the first contact; DLOCK_NEVER: it has succeeded */
    int64_t
        again_at; /* when to take the next step, if connected; DLOCK_NEVER: an answer brings it */
    struct outage outage;
    struct event_queue events;
    struct dlock_info info; /* of an event */

    struct {               /* from the URI */
        char *parent;      /* the lock's own node: chroot and name */
        size_t chroot_len; /* of parent: not made as containers */
        char *credentials; /* "user:password" or NULL */
        const struct ACL_vector *acl;
        enum zk_layout layout;
        char record[1024]; /* our node's data */
        enum dlock_record record_of;
        unsigned edition; /* counts its changes */
    } lock;

    struct zk_session session;

    struct {
        enum zk_node_state state;
        char token[DLOCK_TOKEN_LEN + 1];
        char *
            stem; /* of our nodes' paths in this session, with a GUID; the server appends the sequence */
        char *path;
        uint64_t fence; /* 0: not known yet */
        int64_t create_sent;
        unsigned told; /* the edition of the record that the server has confirmed */
    } node;

    struct {              /* nodes above one that could not be created */
        const char *path; /* lock.parent or run.above */
        size_t len;       /* of the part that is being made; 0: none */
    } making;

    struct {               /* the last time that the server has told, in the Stat of our node */
        int64_t server_ms; /* Unix ms */
        int64_t at;        /* our clock, when that came */
    } clock;

    struct {                          /* the run record */
        char *base, *place, *path;    /* CHROOT/dlock-once, SHARD/NAME, the record's node */
        char *above;                  /* see making */
        struct zk_run found;          /* as it was read last; version: as it is now */
        struct dlock_run now;         /* that of this hold */
        char day[ZK_DAY_LEN + 1];     /* on which it expires, as asked for last */
        char indexed[ZK_DAY_LEN + 1]; /* by the record, it has an index node on this day */
        char met[ZK_DAY_LEN + 1];     /* on this one, the server says */
        unsigned serial;              /* of the outstanding get */
        int64_t sent;                 /* when "running" was asked for */
        unsigned edition;             /* and the node's data with it */
        bool written;                 /* "running" is there */
        bool node_gone;               /* the end could not be written, since our node was gone */
    } run;

    struct {
        const char *token; /* of the record that was shown */
        bool held;         /* the lock is */
        bool alone;        /* the record has no index node */
    } forget;

    struct {            /* see sweep.c */
        unsigned asked; /* outstanding requests; 0: there is no sweep */
        char today[ZK_DAY_LEN + 1], day[ZK_DAY_LEN + 1];
        struct {
            unsigned serial;
            char *path;
            bool emptied; /* we have looked at all that is in it */
        } shards[SWEEP_SHARDS];
        bool whole; /* that day has no other shards */
        bool cleared;
        struct zk_swept at[SWEEP_MAX];
        int n;
    } sweep;

    struct {
        bool wait;
        enum zk_stage stage;
        bool flat_parents;                  /* the server knows no containers */
        unsigned list_serial, front_serial; /* front: also of T_SELF */
        struct zk_watched *watched;         /* one node; or the holders of all slots */
        int nwatched;
        bool
            behind_slot; /* that one has a slot, or waits for one, as we do: when it is granted, we look again */
        char *heard;        /* path: the node of such a one that has said so; NULL: none */
        char *front;        /* path of the holder's node that is shown */
        bool front_watched; /* it is the one that we watch */
        bool front_known;   /* be->info describes it */
        bool followed;      /* slots: another one stands behind us */
        int place;          /* when we looked last, 1 is next; 0: not behind others yet */
        enum zk_rank rank, rank_by_place;
    } acquire;

    struct {
        int64_t until; /* DLOCK_NEVER: no renewal is outstanding */
    } renew;

    struct {
        int64_t until;
        int64_t leave_by; /* until then a process that ends may wait for the end of its session */
        unsigned serial;  /* of the outstanding delete; 0: none */
        bool unanswered;  /* the answer to a delete was lost */
        bool over;        /* it is clean, and a sweep goes on */
        enum dlock_release_how how;
    } release;

    struct { /* the nodes, given out one by one */
        struct dlock_info *found;
        unsigned *gets; /* serials of the outstanding gets */
        int n, at, left;
        unsigned list_serial;
        bool read_run, has_run; /* the run record: answered; not given out yet */
    } status;
};

static inline int64_t zk_now(const struct zk_backend *be)
{
    return be->spec->env->now(be->spec->env->ctx);
}
static inline const char *zk_where(const struct zk_backend *be)
{
    return be->spec->uri->where;
}
/* How long an answer may take. The server may grant a session shorter than the ttl that op_timeout was made for. */
static inline int64_t zk_patience(const struct zk_backend *be)
{
    return dlock_min(be->spec->op_timeout, be->session.timeout / 8);
}

/* uri.c: set be->lock from be->spec; 0, DLOCK_EUSAGE, or what reading a password file failed with. */
int zk_check_spec(struct zk_backend *be, struct dlock_error *err);
/* Make our node's data: what the create and the heartbeats write. */
void zk_set_record(struct zk_backend *be, enum dlock_record as, enum zk_word word);
/* Free what be->lock, node and acquire have allocated. */
void zk_done(struct zk_backend *be);
/* Make a new token and a new stem, which must be NULL. 0, DLOCK_EOS, DLOCK_ENOMEM. */
int zk_new_stem(struct zk_backend *be, struct dlock_error *err);

/* queue.c: the children of a lock's node, as a queue. */
struct zk_child {
    int64_t seq;
    const char *name; /* in the list it was made from */
    enum dlock_mode mode;
    unsigned slots; /* DLOCK_MODE_SLOTS: how many there are */
    int place;      /* 0: it may hold the lock; else its place among the waiters, 1 is next */
};
/* The sequence at the end of a name; false: no contender's name. */
bool zk_sequence(const char *name, int64_t *seq);
/* The contenders among names, first in line first; malloc'ed, *n of them. NULL: out of memory. */
struct zk_child *zk_line(char *const *names, int nnames, int *n);

enum zk_wait_for {
    WAIT_NONE,   /* it may hold the lock */
    WAIT_NODE,   /* until that node is gone */
    WAIT_SLOT,   /* until one of the slots in front is gone: their holders' */
    WAIT_IN_VAIN /* for slots of another number, which are in use */
};
struct zk_wait {
    enum zk_wait_for what;
    int node;          /* WAIT_NODE: its index in the line */
    enum zk_rank rank; /* as far as the line tells it */
    unsigned slots;    /* WAIT_IN_VAIN: the number in use */
};
/* What the node line[at] waits for. */
struct zk_wait zk_wait_of(const struct zk_child *line, int at);
/*
 * The word in a node's data. The node of another program, and one whose word we cannot read, count as a holder's: the
 * waiter behind it takes itself for the next one, which costs some heartbeats more.
 */
enum zk_word zk_read_word(const char *data, int len);
/* Fill info from a node's name, data (NULL or len bytes) and stat. waiter: by its place in the queue. */
void zk_read_info(const char *name, bool waiter, const char *data, int len, const struct Stat *stat,
                  struct dlock_info *info);

/* session.c */
/* Begin a session; be->session must have none. 0, or a negative code. */
int zk_session_open(struct zk_backend *be, struct dlock_error *err);
/* End the session, if there is one; does not wait for the server. */
void zk_session_close(struct zk_backend *be);
/*
 * The next thing to report; handles the messages that concern the session alone. m is the caller's to free after
 * NEWS_MESSAGE. NEWS_NONE: the mailbox is empty; then the session's timers have been looked at, too.
 */
enum zk_news zk_session_next(struct zk_backend *be, struct zk_msg *m, struct dlock_error *err);
/*
 * Send a heartbeat, if there is a node and none is outstanding: a write where the lease, or the waiter behind us, needs
 * one, else a look.
 */
void zk_beat(struct zk_backend *be);
/* The server has answered a write that was sent at that time. */
void zk_heard(struct zk_session *s, int64_t sent);
/* The server has answered a look, behind a sync, that was sent at that time. */
void zk_seen(struct zk_session *s, int64_t sent);
/* Is it unknown whether our node was there when the last heartbeat was served? */
bool zk_beat_unanswered(const struct zk_session *s);
/* From when on the lease counts: the head of session.c says why. */
int64_t zk_lease_from(const struct zk_session *s);
/* Is the connection at fault, not the request? Then the request may be repeated. */
bool zk_transient(int rc);
/* Describe rc, of the library or the server, in err; what: the step that failed. Returns the code. */
int zk_error(const struct zk_backend *be, int rc, const char *what, struct dlock_error *err);
/* Repeat the step in a moment. */
enum zk_verdict zk_again(struct zk_backend *be);
/* A request has failed: repeat the step if the connection was at fault. what: as above. */
enum zk_verdict zk_failed(struct zk_backend *be, int rc, const char *what, struct dlock_error *err);
enum zk_verdict zk_no_memory(struct dlock_error *err);

/* acquire.c: our node. Acquire and release are its to drive. */
enum zk_verdict zk_released(struct zk_backend *be, enum dlock_release_how how);
/* What the watches tell is of no use any more. */
void zk_forget_watches(struct zk_backend *be);
/* Make the nodes of that path, which stays as it is until then; then the next step is taken. */
enum zk_verdict zk_make(struct zk_backend *be, const char *path, struct dlock_error *err);
/* Ask for the end of our node. */
void zk_delete_node(struct zk_backend *be);
/* Acquiring: our node was deleted, or there never was one. Begin again at once. */
enum zk_verdict zk_node_gone(struct zk_backend *be);
/* Releasing: our node was gone before. */
enum zk_verdict zk_not_ours(struct zk_backend *be, struct dlock_error *err);
/* Must a heartbeat renew the lease before a grant? After an outage the command would be ended at once. */
bool zk_lease_is_old(const struct zk_backend *be);
/* Do what comes next: for an acquire (connected) create, find or check our node; for a release delete it. */
enum zk_verdict zk_node_step(struct zk_backend *be, struct dlock_error *err);
/* Take an answer or a watch; its data may be taken over. */
enum zk_verdict zk_node_message(struct zk_backend *be, struct zk_msg *m, struct dlock_error *err);

/* run_node.c: the names and the text of run records */
/* Set be->run's paths. 0 or DLOCK_ENOMEM. */
int zk_set_run_paths(struct zk_backend *be, struct dlock_error *err);
/* The path of a record; of an index node, or, with "" for place, of the node of a day. malloc'ed; NULL: out of memory. */
char *zk_run_path(const struct zk_backend *be, const char *place);
char *zk_index_path(const struct zk_backend *be, const char *day, const char *place);
/* A time from a Stat, within limits that sums of it do not leave, whatever the server says. */
static inline int64_t zk_stat_ms(int64_t ms)
{
    return dlock_max(0, dlock_min(ms, INT64_MAX / 4));
}
/* The day, by UTC, of a time in Unix ms. */
void zk_day(int64_t ms, char day[ZK_DAY_LEN + 1]);
bool zk_is_day(const char *s);
/* When a record expires, Unix ms by the server's clock. */
int64_t zk_run_over_ms(const struct dlock_run *r);
/* The data of a record's node. */
void zk_format_run(const struct zk_backend *be, const struct dlock_run *r, const char *day,
                   char text[RUN_RECORD_MAX]);
/* Read the answer to a get. NULL, or what else is in the place of a record; then *r is untouched. */
const char *zk_read_run(const struct zk_msg *m, int64_t now_ms, struct zk_run *r);

/* once.c: the run record of our hold */
/* The Stat of a node that was just written has this time. */
void zk_note_time(struct zk_backend *be, int64_t server_ms);
/* Read the record. */
void zk_ask_record(struct zk_backend *be);
/* The server's time, in Unix ms, as far as it has told. */
int64_t zk_server_ms(const struct zk_backend *be);
/* It is our turn: ZK_GRANTED, or the record comes first. */
enum zk_verdict zk_run_turn(struct zk_backend *be);
/* Does the release write the end of a run? Then zk_run_end deletes our node. */
bool zk_run_ends(const struct zk_backend *be);
enum zk_verdict zk_run_end(struct zk_backend *be, struct dlock_error *err);
/* Take an answer to one of these requests. */
enum zk_verdict zk_run_message(struct zk_backend *be, const struct zk_msg *m,
                               struct dlock_error *err);
/* Fill err: something else is in the place of the record; returns its code. */
int zk_foreign_run(const struct zk_backend *be, const char *what, struct dlock_error *err);

/* sweep.c */
/* Begin to remove some records that have expired. */
void zk_sweep(struct zk_backend *be);
bool zk_sweep_goes_on(const struct zk_backend *be);
/* Is it an answer of a sweep? Then it is taken. */
bool zk_sweep_message(struct zk_backend *be, const struct zk_msg *m);
void zk_sweep_end(struct zk_backend *be);

/* forget.c */
/* Take an answer: ZK_GOES_ON, ZK_DONE, ZK_BUSY or ZK_FAILED. */
enum zk_verdict zk_forget_answer(struct zk_backend *be, const struct zk_msg *m,
                                 struct dlock_error *err);

/* status.c */
/* Connected: ask for the nodes of the lock and its record, for --status and --forget. */
void zk_status_ask(struct zk_backend *be);
/* Take an answer: ZK_GOES_ON or ZK_FAILED. */
enum zk_verdict zk_status_answer(struct zk_backend *be, const struct zk_msg *m,
                                 struct dlock_error *err);
/* Is all of it known? */
static inline bool zk_status_complete(const struct zk_backend *be)
{
    return be->status.found && be->status.read_run && be->status.left == 0;
}
/* Complete: put the next node into be->info; false: that was the last. */
bool zk_status_next(struct zk_backend *be);
/* Forget what was found. */
void zk_status_drop(struct zk_backend *be);

#endif
