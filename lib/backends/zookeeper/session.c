/*
 * session.c - the session: its servers, its heartbeats, its errors. The session returns what has
 * happened (enum zk_news) to zookeeper.c, which drives the operations.
 *
 * The lease: until when can the server not have ended our session? The leader ends a session after
 * hearing nothing of the session for the negotiated time-out. We know when we sent the answered
 * requests. Only an answered write proves that our server is connected to the leader: a cut-off
 * follower still answers pings and reads. And the leader hears of our activity only in the
 * follower's answer to the leader's own ping, every half tick. So the lease counts from the newest
 * heartbeat sent at least a third of the time-out before the last answered heartbeat. (ZooKeeper's
 * SessionTrackerImpl, LearnerHandler.ping.)
 *
 * Thousands may wait for a lock, and a write is work for all servers. So only the holders write,
 * and the waiters next in line or granted together with the next (enum zk_rank). All waiters behind
 * look at their nodes behind a sync, which goes to the leader and back and is written nowhere. Our
 * server reports a look like any activity of the session, by a working way to the leader. A look
 * proves no quorum: the lease never moves by looks alone. But the write of a waiter coming to the
 * front moves the lease at once, to the newest look, or write, a third of the time-out older.
 */
#include "zookeeper.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* --------------------------------------------------------------------- errors */

/* What an error means. DLOCK_EUNAVAIL: the connection is at fault. why NULL: the library's text. */
static const struct meaning {
    int rc, code;
    const char *why;
} meanings[] = {
    {ZCONNECTIONLOSS, DLOCK_EUNAVAIL, NULL},
    {ZRUNTIMEINCONSISTENCY, DLOCK_EUNAVAIL, NULL}, /* an answer out of order: it hangs up */
    {ZOPERATIONTIMEOUT, DLOCK_EUNAVAIL, NULL},
    {ZSESSIONMOVED, DLOCK_EUNAVAIL, NULL},
    {ZNOTREADONLY, DLOCK_EUNAVAIL, NULL},
    {ZTHROTTLEDOP, DLOCK_EUNAVAIL, NULL},
    {ZNEWCONFIGNOQUORUM, DLOCK_EUNAVAIL, NULL},
    {ZRECONFIGINPROGRESS, DLOCK_EUNAVAIL, NULL},
    {ZINVALIDSTATE, DLOCK_EUNAVAIL, NULL},
    {ZSESSIONEXPIRED, DLOCK_EUNAVAIL, NULL},
    {ZCLOSING, DLOCK_EUNAVAIL, NULL},
    {ZNOAUTH, DLOCK_EPERM, "this user has no permission there"},
    {ZAUTHFAILED, DLOCK_EPERM, "the server refused the authentication"},
    {ZINVALIDACL, DLOCK_EPERM, NULL},
    {ZSESSIONCLOSEDREQUIRESASLAUTH, DLOCK_EPERM, NULL},
    {ZUNIMPLEMENTED, DLOCK_EUNUSABLE, "the server is older than 3.5"},
    {ZNOCHILDRENFOREPHEMERALS, DLOCK_EUNUSABLE,
     "a node of that path is ephemeral and cannot have children"},
    {ZEPHEMERALONLOCALSESSION, DLOCK_EUNUSABLE, NULL},
    {ZK_NOMEMORY, DLOCK_ENOMEM, "out of memory"},
    {ZSYSTEMERROR, DLOCK_EOS, NULL},
    {ZOK, DLOCK_EPROTO, NULL}, /* the rest */
};

static const struct meaning *meaning_of(int rc)
{
    const struct meaning *m = meanings;
    while (m->rc != ZOK && m->rc != rc)
        m++;
    return m;
}

bool zk_transient(int rc)
{
    return meaning_of(rc)->code == DLOCK_EUNAVAIL;
}

void zk_error(struct zk_backend *be, int rc, const char *what)
{
    const struct meaning *m = meaning_of(rc);
    const char *why = m->why ? m->why : zerror(rc);
    if (rc == ZNOAUTH && !be->lock.credentials)
        why = "no permission there without authentication (user:password@ before the servers)";
    dlock_fail_lock(&be->err, m->code, 0, be->spec->uri, "%s: %s", what, why);
}

enum zk_verdict zk_retry(struct zk_backend *be)
{
    be->advance_at = zk_now(be) + 20 * DLOCK_MSEC;
    return ZK_GOES_ON;
}

enum zk_verdict zk_failed(struct zk_backend *be, int rc, const char *what)
{
    if (zk_transient(rc))
        return zk_retry(be);
    zk_error(be, rc, what);
    return ZK_FAILED;
}

enum zk_verdict zk_no_memory(struct zk_backend *be)
{
    dlock_fail(&be->err, DLOCK_ENOMEM, 0, "out of memory");
    return ZK_FAILED;
}

/* -------------------------------------------------------------------- servers */

static bool same_place(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
    char one[ZK_ADDR_TEXT], other[ZK_ADDR_TEXT];
    return strcmp(zk_addr_text(a, one, true), zk_addr_text(b, other, true)) == 0;
}

/*
 * The core's addresses in random order: clients spread over the ensemble. malloc'ed; NULL: out of
 * memory.
 */
static struct dlock_peer *shuffled(const struct dlock_spec *spec)
{
    struct dlock_peer *peers = calloc((size_t)spec->npeers + 1, sizeof(*peers));
    if (!peers)
        return NULL;
    memcpy(peers, spec->peers, (size_t)spec->npeers * sizeof(*peers));
    for (int i = spec->npeers - 1; i > 0; i--) {
        unsigned r = 0;
        if (spec->env->random(spec->env->ctx, &r, sizeof(r)) != 0)
            continue;
        struct dlock_peer t = peers[i];
        peers[i] = peers[r % (unsigned)(i + 1)];
        peers[r % (unsigned)(i + 1)] = t;
    }
    return peers;
}

/* Does the session use the core's present addresses? Their order means nothing. */
static bool servers_are_current(const struct zk_session *s, const struct dlock_spec *spec)
{
    bool same = s->servers.n == spec->npeers;
    for (int i = 0; same && i < spec->npeers; i++) {
        int at = 0;
        while (at < s->servers.n && !same_place(&spec->peers[i].addr, &s->servers.list[at].addr))
            at++;
        same = at < s->servers.n;
    }
    return same;
}

/* No connection yet: when do we give up this server and go to the next? */
static void expect_connection(struct zk_backend *be)
{
    struct zk_session *s = &be->session;
    int n = s->servers.n;
    int64_t most = be->spec->connect_timeout, each = dlock_min(DLOCK_SEC, most / (n + 1));
    /*
     * Each time all servers were tried, each gets more time: a new session may be slow. But the
     * time has a limit: behind a network cut for long, an attempt begun meanwhile sends its next
     * packet only much later.
     */
    each = dlock_min(most, each << dlock_min(s->servers.tried++ / dlock_max(n, 1), 5));
    /*
     * We give up a lone server, too, but not at first contact: a starting server may accept a
     * connection and never serve it.
     */
    bool first = s->id == 0 && be->contact_until != DLOCK_NEVER;
    s->servers.next_at = n > 1 || !first ? zk_now(be) + each : DLOCK_NEVER;
}

/*
 * Without a connection. The servers may have moved (a restart in a cluster gives new addresses):
 * the core, when told of the outage, looks the names up now and then. When the core has new
 * addresses, the attempt at the old addresses ends.
 */
static void follow_servers(struct zk_backend *be, int64_t now)
{
    struct zk_session *s = &be->session;
    if (now >= s->away_at && be->op != ZK_OP_NONE) {
        struct dlock_error err = be->refusal; /* tell why, if a server has said so */
        s->away_at = now + DLOCK_SEC;
        if (err.code == 0)
            dlock_fail_at(&err, DLOCK_EUNAVAIL, 0, zk_where(be), "the connection is lost");
        err.code = DLOCK_EUNAVAIL;
        if (be->op == ZK_OP_ACQUIRE)
            outage_goes_on(&be->outage, be->spec, &be->events, &err);
        else
            events_add(&be->events, EV_AWAY)->error = err;
    }
    if (be->spec->npeers == 0 || servers_are_current(s, be->spec))
        return;
    struct dlock_peer *servers = shuffled(be->spec);
    if (!servers || !zk_conn_aim(s->conn, servers, be->spec->npeers)) {
        free(servers); /* the next call tries again */
        return;
    }
    free(s->servers.list);
    s->servers.list = servers;
    s->servers.n = be->spec->npeers;
    s->servers.refusing = 0;
    s->servers.tried = 0;
    zk_conn_cut(s->conn);
    expect_connection(be);
}

/* -------------------------------------------------------------- begin and end */

bool zk_session_open(struct zk_backend *be)
{
    struct zk_session *s = &be->session;
    /*
     * The nodes of a session belong to its password, so only a new session reads the file again.
     * Until the file can be read, the password of the last session does.
     */
    (void)zk_set_credentials(be, NULL);
    s->servers.list = shuffled(be->spec);
    s->servers.n = be->spec->npeers;
    if (!s->servers.list) {
        zk_no_memory(be);
        return false;
    }
    s->lease.sent[0] = zk_now(be); /* the session did not exist before */
    s->lease.n = 1;
    s->away_at = s->lease.sent[0] + DLOCK_SEC;
    s->fd = zk_conn_open(&s->conn, s->servers.list, s->servers.n, (int)(s->timeout / DLOCK_MSEC),
                         &be->err);
    if (s->fd < 0) {
        dlock_error_add_lock(&be->err, be->spec->uri);
        return false;
    }
    expect_connection(be);
    return true;
}

/*
 * Go on with the session by a new handle. A server hangs up on a client with a newer state than its
 * own. A server without its data would hang up indefinitely, and never tell of the session's end; a
 * new handle, which has seen nothing, is told. If only a server or the quorum was missing, the
 * session lives on, with its place in the queue. The next state we read may be older than the last;
 * but nodes in front of ours can only go, so an older state cannot grant the lock too early. False:
 * there is no new handle.
 */
static bool resume(struct zk_backend *be)
{
    struct zk_session *s = &be->session;
    int fd = zk_conn_open(&s->conn, s->servers.list, s->servers.n, (int)(s->timeout / DLOCK_MSEC),
                          &be->err);
    s->resumed = true;
    if (fd < 0)
        return false;
    s->fd = fd;
    s->auth_serial = 0;
    s->beat.serial = 0;
    s->beat.until = DLOCK_NEVER;
    expect_connection(be);
    return true;
}

/* Has a waiter had no connection for so long that a server would have ended its session? */
static bool must_resume(const struct zk_backend *be, int64_t now)
{
    const struct zk_session *s = &be->session;
    return be->op == ZK_OP_ACQUIRE && be->contact_until == DLOCK_NEVER && s->id != 0 &&
           !s->resumed && be->outage.since != 0 && now - be->outage.since > s->timeout;
}

void zk_session_close(struct zk_backend *be)
{
    struct zk_session *s = &be->session;
    if (s->conn)
        zk_conn_close(s->conn, dlock_min(DLOCK_SEC, be->release.until - zk_now(be)));
    free(s->servers.list);
    *s = (struct zk_session){.timeout = be->spec->ttl,
                             .away_at = DLOCK_NEVER,
                             .servers.next_at = DLOCK_NEVER,
                             .beat.next_at = DLOCK_NEVER,
                             .beat.until = DLOCK_NEVER};
}

/* ----------------------------------------------------------------- heartbeats */

void zk_lease_confirm(struct zk_session *s, int64_t sent, bool write)
{
    int64_t *list = s->lease.sent;
    int at = write ? 0 : 1;     /* a look leaves the first entry, which is the lease's */
    if (s->lease.n == ZK_BEATS) /* forgetting the last entry makes the lease shorter: safe */
        s->lease.n--;
    list[s->lease.n++] = sent;
    /* Of the entries from at on, only the newest old enough to count matters. */
    int keep = at;
    while (keep + 1 < s->lease.n && list[keep + 1] <= sent - s->timeout / 3)
        keep++;
    memmove(list + at, list + keep, (size_t)(s->lease.n - keep) * sizeof(*list));
    s->lease.n -= keep - at;
}

bool zk_lease_is_old(const struct zk_backend *be)
{
    return zk_now(be) - be->session.lease.sent[0] > be->session.timeout / 24 * 13;
}

void zk_beat(struct zk_backend *be)
{
    struct zk_session *s = &be->session;
    bool write = be->hold.grant == GRANT_HELD || be->acquire.stage == STAGE_LEASE ||
                 be->acquire.rank != RANK_BEHIND ||
                 be->node.data.confirmed != be->node.data.edition;
    if (!s->connected || be->node.state != NODE_THERE)
        return;
    if (s->beat.serial != 0 && (s->beat.write || !write)) /* a write need not wait for a look */
        return;
    s->beat.sent = zk_now(be);
    s->beat.until = s->beat.sent + zk_answer_timeout(be);
    s->beat.next_at = be->hold.grant == GRANT_HELD ? DLOCK_NEVER : s->beat.sent + s->timeout / 6;
    s->beat.write = write;
    s->beat.edition = be->node.data.edition;
    s->beat.synced = false;
    if (!write)
        s->beat.sync_serial = zk_ask(be, ZK_SYNC, NULL, be->node.path);
    s->beat.serial = zk_conn_ask(s->conn, &(struct zk_request){.call = write ? ZK_SET : ZK_GET,
                                                               .path = be->node.path,
                                                               .data = be->node.data.text,
                                                               .version = be->node.version});
}

/* The connection is lost; the library looks for a server. */
static void disconnected(struct zk_backend *be)
{
    if (!be->session.connected)
        return;
    be->session.connected = false;
    be->session.away_at = zk_now(be);
    expect_connection(be);
}

static enum zk_news session_timers(struct zk_backend *be)
{
    struct zk_session *s = &be->session;
    int64_t now = zk_now(be);
    if (!s->connected)
        follow_servers(be, now);
    if (!s->connected && must_resume(be, now) && resume(be))
        return NEWS_RESUMED;
    if (now >= s->servers.next_at) {
        zk_conn_cut(s->conn);
        expect_connection(be);
    }
    if (now >= s->beat.until) {
        s->beat.serial = 0;
        s->beat.until = DLOCK_NEVER;
        /*
         * A late answer is not worth the wait: another server may do better. Nothing more is sent
         * on this connection, since the answer would be lost. The library reports the end, too.
         */
        if (zk_conn_cut(s->conn))
            disconnected(be);
    }
    if (now >= s->beat.next_at) {
        s->beat.next_at = now + s->timeout / 6;
        zk_beat(be);
    }
    return NEWS_NONE;
}

/* ------------------------------------------------------------------- messages */

/* The first connection: what does the server make of our ttl? */
static enum zk_news negotiated(struct zk_backend *be)
{
    struct zk_session *s = &be->session;
    char ours[32], theirs[32], least[32];
    if (s->timeout == be->spec->ttl / DLOCK_MSEC * DLOCK_MSEC || zk_is_query(be))
        return NEWS_CONNECTED;
    dlock_format_duration(be->spec->ttl, ours, sizeof(ours));
    dlock_format_duration(s->timeout, theirs, sizeof(theirs));
    dlock_format_duration(be->spec->least_ttl, least, sizeof(least));
    if (s->timeout < be->spec->least_ttl) {
        dlock_fail_at(&be->err, DLOCK_EUNUSABLE, 0, zk_where(be),
                      "the server grants sessions of %s (ttl: %s), this grace needs %s: %s", theirs,
                      ours, least, "use a shorter grace, or raise the server's maxSessionTimeout");
        return NEWS_FAILED;
    }
    dlock_fail_at(&events_add(&be->events, EV_NOTICE)->error, DLOCK_EUNAVAIL, 0, zk_where(be),
                  "the server grants sessions of %s, not the ttl of %s: that is the lease now",
                  theirs, ours);
    return NEWS_CONNECTED;
}

/* A later connection: each server negotiates anew. */
static enum zk_news negotiated_again(struct zk_backend *be, int64_t timeout)
{
    if (timeout >= be->session.timeout)
        return NEWS_CONNECTED; /* the lease assumes less */
    be->session.timeout = timeout;
    if (be->hold.grant == GRANT_HELD)
        return NEWS_SHORTER;
    if (be->op != ZK_OP_ACQUIRE || timeout >= be->spec->least_ttl)
        return NEWS_CONNECTED;
    dlock_fail_at(&be->err, DLOCK_EUNUSABLE, 0, zk_where(be),
                  "the server grants shorter sessions now");
    return NEWS_FAILED;
}

static enum zk_news on_state(struct zk_backend *be, const struct zk_msg *m)
{
    struct zk_session *s = &be->session;
    int64_t timeout = m->timeout_ms * DLOCK_MSEC;
    enum zk_news news;
    if (m->state == ZOO_EXPIRED_SESSION_STATE)
        return NEWS_EXPIRED;
    if (m->state == ZOO_AUTH_FAILED_STATE) {
        zk_error(be, ZAUTHFAILED, "no session");
        return be->op == ZK_OP_ACQUIRE || zk_is_query(be) ? NEWS_FAILED : NEWS_NONE;
    }
    if (m->state != ZOO_CONNECTED_STATE) {
        disconnected(be);
        return NEWS_NONE;
    }
    s->connected = true;
    s->resumed = false;
    s->servers.tried = 0;
    s->away_at = s->servers.next_at = DLOCK_NEVER;
    if (be->refusal.code != DLOCK_EPROTO) /* else the next packet may be as bad again */
        be->refusal.code = 0;
    if (s->id == 0) {
        s->id = m->session;
        s->timeout = timeout;
        news = negotiated(be);
    } else {
        news = negotiated_again(be, timeout);
    }
    if (news == NEWS_CONNECTED && be->lock.credentials && s->auth_serial == 0)
        /* The library repeats the authentication on later connections. */
        s->auth_serial = zk_conn_ask(
            s->conn, &(struct zk_request){.call = ZK_AUTH, .data = be->lock.credentials});
    return news;
}

/*
 * A server refuses connections, or breaks the protocol. On first contact, when all servers do, the
 * operation is over. Later the library tries the next server soon, and a wait goes on, with a new
 * session if need be.
 */
static enum zk_news on_trouble(struct zk_backend *be, const struct zk_msg *m)
{
    struct zk_session *s = &be->session;
    char text[ZK_ADDR_TEXT];
    int n = s->servers.n;
    bool nonsense = m->rc == EPROTO || m->rc == EBADMSG, first = be->contact_until != DLOCK_NEVER;
    if (be->op != ZK_OP_ACQUIRE && be->op != ZK_OP_RELEASE && !zk_is_query(be))
        return NEWS_NONE;
    if (first && s->id != 0 && !nonsense)
        return NEWS_NONE;
    const char *why = strerror(m->rc);
    if (nonsense)
        why = "its answer is not ZooKeeper's protocol";
    else if (m->rc == ESHUTDOWN)
        why = "it hung up: no quorum, or too many connections from here (maxClientCnxns)";
    dlock_fail_lock(&be->refusal, nonsense ? DLOCK_EPROTO : DLOCK_EUNAVAIL, m->rc, be->spec->uri,
                    "%s: %s", zk_addr_text(&m->addr, text, true), why);
    /* The server may serve us the next time. */
    if (!first || s->id != 0 || m->rc == ESHUTDOWN || m->rc == EBADMSG)
        return NEWS_NONE;
    for (int i = 0; i < n && i < 64; i++)
        if (same_place(&m->addr, &s->servers.list[i].addr))
            s->servers.refusing |= UINT64_C(1) << i;
    if (n == 0 || n >= 64 || s->servers.refusing != (UINT64_C(1) << n) - 1)
        return NEWS_NONE;
    be->err = be->refusal;
    return NEWS_FAILED;
}

static enum zk_news on_answer(struct zk_backend *be, const struct zk_msg *m)
{
    struct zk_session *s = &be->session;
    if (m->rc == ZOK) {
        be->refusal.code = 0;
        outage_over(&be->outage, &be->events);
    }
    if (m->serial == s->beat.sync_serial) /* comes before the answer to the get behind the sync */
        s->beat.synced = m->rc == ZOK;
    if (m->serial == s->auth_serial && m->rc == ZINVALIDSTATE) /* never sent */
        s->auth_serial = 0; /* a refusal comes as the session's state */
    if (m->serial != s->beat.serial)
        return NEWS_MESSAGE;
    if (be->node.state != NODE_THERE)
        return NEWS_NONE;
    s->beat.serial = 0;
    s->beat.until = DLOCK_NEVER;
    /* A write refused for its version has gone to the leader and a quorum, as all writes. */
    bool refused = m->rc == ZBADVERSION && s->beat.write;
    if (refused || (m->rc == ZOK && (s->beat.write || s->beat.synced)))
        zk_lease_confirm(s, s->beat.sent, s->beat.write);
    if (m->rc == ZOK && s->beat.write) {
        zk_note_time(be, m->stat.mtime);
        be->node.version = m->stat.version;
        be->node.data.confirmed = s->beat.edition;
    }
    return NEWS_BEAT;
}

/*
 * A request was not sent, or messages were dropped. A held lock does not need these messages: the
 * next heartbeat shows how the lock stands, if we know whether there is a connection. The undo
 * after any further operation must not wait for an answer.
 */
static enum zk_news on_dropped(struct zk_backend *be, const struct zk_msg *m)
{
    if (be->node.state == NODE_ASKED)
        be->node.state = NODE_UNCLEAR;
    be->node.delete_serial = 0;
    if (be->op == ZK_OP_HOLD) {
        be->session.beat.serial = 0;
        be->session.beat.until = DLOCK_NEVER;
        enum zk_news news = on_state(be, m);
        if (news != NEWS_CONNECTED)
            return news;
        be->advance_at = zk_now(be) + 20 * DLOCK_MSEC; /* at once there is no memory either */
        return NEWS_NONE;
    }
    zk_error(be, ZK_NOMEMORY, "the session cannot go on");
    return be->op == ZK_OP_NONE ? NEWS_NONE : NEWS_FAILED;
}

enum zk_news zk_session_next(struct zk_backend *be, struct zk_msg *m)
{
    while (zk_conn_next(be->session.conn, m)) {
        enum zk_news news = NEWS_MESSAGE; /* ZK_WATCH */
        if (m->what == ZK_STATE)
            news = on_state(be, m);
        else if (m->what == ZK_ANSWER)
            news = on_answer(be, m);
        else if (m->what == ZK_TROUBLE)
            news = on_trouble(be, m);
        else if (m->what == ZK_DROPPED)
            news = on_dropped(be, m);
        if (news != NEWS_NONE)
            return news;
        zk_msg_done(m);
    }
    return session_timers(be);
}
