/*
 * session.c - the session: its servers, its heartbeats, its errors. It reports to zookeeper.c (enum zk_news), which
 * drives the operations.
 *
 * The lease: until when can the server not have ended our session? The leader ends a session when it has not heard of
 * it for the negotiated time-out. We know when we sent the requests that were answered. Only an answered write proves
 * that our server is connected to the leader: a follower that is cut off still answers pings and reads. And the leader
 * hears of our activity only in the follower's answer to the leader's own ping, every half tick. So the lease counts
 * from the newest heartbeat that was sent at least a third of the time-out before the last one that was answered.
 * (ZooKeeper's SessionTrackerImpl, LearnerHandler.ping.)
 *
 * Thousands may wait for one lock, and a write is work for all servers. So only the holders
 * write, and the waiters that are next or will be granted together with the next one (enum zk_rank). The other waiters look at their nodes behind a sync, which goes to the leader and back and is written nowhere. A look
 * is activity of the session that our server reports like any other, by a way to the leader that works. It proves no
 * quorum: the lease never moves by looks alone. But the write of a waiter that comes to the front moves it at once, to
 * the newest look, or write, that is a third of the time-out older.
 */
#include "zookeeper.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --------------------------------------------------------------------- errors */

bool zk_transient(int rc)
{
    switch (rc) {
    case ZCONNECTIONLOSS:
    case ZRUNTIMEINCONSISTENCY: /* an answer out of order: the library hangs up */
    case ZOPERATIONTIMEOUT:
    case ZSESSIONMOVED:
    case ZNOTREADONLY:
    case ZTHROTTLEDOP:
    case ZNEWCONFIGNOQUORUM:
    case ZRECONFIGINPROGRESS:
    case ZINVALIDSTATE:
    case ZSESSIONEXPIRED:
    case ZCLOSING:
        return true;
    default:
        return false;
    }
}

static int code_of(int rc)
{
    switch (rc) {
    case ZNOAUTH:
    case ZAUTHFAILED:
    case ZINVALIDACL:
    case ZSESSIONCLOSEDREQUIRESASLAUTH:
        return DLOCK_EPERM;
    case ZK_NOMEMORY:
        return DLOCK_ENOMEM;
    case ZSYSTEMERROR:
        return DLOCK_EOS;
    case ZUNIMPLEMENTED:
    case ZEPHEMERALONLOCALSESSION:
    case ZNOCHILDRENFOREPHEMERALS:
        return DLOCK_EUNUSABLE;
    default:
        return zk_transient(rc) ? DLOCK_EUNAVAIL : DLOCK_EPROTO;
    }
}

int zk_error(const struct zk_backend *be, int rc, const char *what, struct dlock_error *err)
{
    const char *why, *hint = "";
    switch (rc) {
    case ZNOAUTH:
        why = be->lock.credentials ? "this user has no permission there" : "no permission there";
        hint = be->lock.credentials ? ""
                                    : " without authentication (user:password@ before the servers)";
        break;
    case ZAUTHFAILED:
        why = "the server refused the authentication";
        break;
    case ZUNIMPLEMENTED:
        why = "the server is older than 3.5";
        break;
    case ZNOCHILDRENFOREPHEMERALS:
        why = "a node of that path is ephemeral and cannot have children";
        break;
    case ZK_NOMEMORY:
        why = "out of memory";
        break;
    default:
        why = zerror(rc);
        break;
    }
    return dlock_fail_lock(err, code_of(rc), 0, be->spec->uri, "%s: %s%s", what, why, hint);
}

enum zk_verdict zk_again(struct zk_backend *be)
{
    be->again_at = zk_now(be) + 20 * DLOCK_MSEC;
    return ZK_GOES_ON;
}

enum zk_verdict zk_failed(struct zk_backend *be, int rc, const char *what, struct dlock_error *err)
{
    if (zk_transient(rc))
        return zk_again(be);
    zk_error(be, rc, what, err);
    return ZK_FAILED;
}

enum zk_verdict zk_no_memory(struct dlock_error *err)
{
    dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    return ZK_FAILED;
}

/* -------------------------------------------------------------------- servers */

/* "addr:port" */
static const char *place_text(const struct sockaddr_storage *ss, char *buf, size_t size,
                              bool brackets)
{
    const struct sockaddr_in *in4 = (const void *)ss;
    const struct sockaddr_in6 *in6 = (const void *)ss;
    bool six = ss->ss_family == AF_INET6;
    char addr[INET6_ADDRSTRLEN] = "?";
    inet_ntop(ss->ss_family, six ? (const void *)&in6->sin6_addr : (const void *)&in4->sin_addr,
              addr, sizeof(addr));
    snprintf(buf, size, six && brackets ? "[%s]:%u" : "%s:%u", addr,
             ntohs(six ? in6->sin6_port : in4->sin_port));
    return buf;
}

static bool same_place(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
    const struct sockaddr_in *a4 = (const void *)a, *b4 = (const void *)b;
    const struct sockaddr_in6 *a6 = (const void *)a, *b6 = (const void *)b;
    if (a->ss_family != b->ss_family)
        return false;
    if (a->ss_family == AF_INET)
        return a4->sin_port == b4->sin_port && a4->sin_addr.s_addr == b4->sin_addr.s_addr;
    return a6->sin6_port == b6->sin6_port &&
           memcmp(&a6->sin6_addr, &b6->sin6_addr, sizeof(a6->sin6_addr)) == 0;
}

static void swap(struct dlock_peer *a, struct dlock_peer *b)
{
    struct dlock_peer t = *a;
    *a = *b;
    *b = t;
}

/* The core's addresses in random order: clients spread over the ensemble. malloc'ed; NULL: out of memory. */
static struct dlock_peer *shuffled(const struct dlock_spec *spec)
{
    struct dlock_peer *peers = calloc((size_t)spec->npeers + 1, sizeof(*peers));
    if (!peers)
        return NULL;
    memcpy(peers, spec->peers, (size_t)spec->npeers * sizeof(*peers));
    for (int i = spec->npeers - 1; i > 0; i--) {
        unsigned r = 0;
        if (spec->env->random(spec->env->ctx, &r, sizeof(r)) == 0)
            swap(&peers[i], &peers[r % (unsigned)(i + 1)]);
    }
    return peers;
}

/* "addr:port,addr:port"; malloc'ed. NULL: out of memory. */
static char *servers_text(const struct dlock_peer *peers, int n)
{
    size_t size = (size_t)n * (INET6_ADDRSTRLEN + 8) + 1, used = 0;
    char *out = calloc(1, size);
    for (int i = 0; out && i < n; i++) {
        char text[INET6_ADDRSTRLEN + 16];
        /* The library's own format: the port is behind the last colon, IPv6 or not. */
        used += (size_t)snprintf(out + used, size - used, "%s%s", used ? "," : "",
                                 place_text(&peers[i].addr, text, sizeof(text), false));
    }
    return out;
}

static bool is_among(const struct dlock_peer *p, const struct dlock_peer *peers, int n)
{
    while (n > 0 && !same_place(&p->addr, &peers[n - 1].addr))
        n--;
    return n > 0;
}

/* Does the session use the addresses that the core has now? Their order means nothing. */
static bool servers_are_current(const struct zk_session *s, const struct dlock_spec *spec)
{
    bool same = s->nservers == spec->npeers;
    for (int i = 0; same && i < spec->npeers; i++)
        same = is_among(&spec->peers[i], s->servers, s->nservers);
    return same;
}

/* No connection yet: when do we give up this server and go to the next one? */
static void expect_connection(struct zk_backend *be)
{
    struct zk_session *s = &be->session;
    int n = s->nservers;
    int64_t most = be->spec->connect_timeout, each = dlock_min(DLOCK_SEC, most / (n + 1));
    /*
     * Each time all of them were tried, they get more: a new session may take its time. But not more than that: behind
     * a network that was cut for long, an attempt that began meanwhile sends its next packet only much later.
     */
    each = dlock_min(most, each << dlock_min(s->servers_tried++ / dlock_max(n, 1), 5));
    /* A lone server, too, but at first contact: a server that starts may accept a connection and never serve it. */
    bool first = s->id == 0 && be->contact_until != DLOCK_NEVER;
    s->next_server_at = n > 1 || !first ? zk_now(be) + each : DLOCK_NEVER;
}

/* Tell the core that there is no connection; and why, if a server has said so. */
static void tell_away(struct zk_backend *be)
{
    struct dlock_error err = be->session.refused;
    if (err.code == 0)
        dlock_fail_at(&err, DLOCK_EUNAVAIL, 0, zk_where(be), "the connection is lost");
    err.code = DLOCK_EUNAVAIL;
    if (be->op == OP_ACQUIRE)
        outage_goes_on(&be->outage, be->spec, &be->events, &err);
    else
        events_add(&be->events, EV_AWAY)->error = err;
}

/*
 * Without a connection. The servers may have moved (a restart in a cluster gives them new addresses): the core looks the
 * names up now and then, if it is told. If it has other addresses, an attempt at the old ones ends, and they are tried.
 */
static void follow_servers(struct zk_backend *be, int64_t now)
{
    struct zk_session *s = &be->session;
    if (now >= s->away_at && be->op != OP_NONE) {
        s->away_at = now + DLOCK_SEC;
        tell_away(be);
    }
    if (be->spec->npeers == 0 || servers_are_current(s, be->spec))
        return;
    struct dlock_peer *servers = shuffled(be->spec);
    char *text = servers ? servers_text(servers, be->spec->npeers) : NULL;
    if (!text || !zk_conn_aim(s->conn, servers, be->spec->npeers, text)) {
        free(text);
        free(servers); /* the next time */
        return;
    }
    free(text);
    free(s->servers);
    s->servers = servers;
    s->nservers = be->spec->npeers;
    s->refusing = 0;
    s->servers_tried = 0;
    zk_conn_cut(s->conn);
    expect_connection(be);
}

/* -------------------------------------------------------------- begin and end */

static void beats_begin(struct zk_session *s)
{
    /* There was no session before that. */
    s->beat.answered[0] = s->opened_at;
    s->beat.n = 1;
    s->beat.serial = 0;
    s->beat.next_at = s->beat.until = DLOCK_NEVER;
}

int zk_session_open(struct zk_backend *be, struct dlock_error *err)
{
    struct zk_session *s = &be->session;
    s->servers = shuffled(be->spec);
    s->nservers = be->spec->npeers;
    char *text = s->servers ? servers_text(s->servers, s->nservers) : NULL;
    if (!text)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    s->timeout = be->spec->ttl;
    s->opened_at = zk_now(be);
    s->away_at = s->opened_at + DLOCK_SEC;
    s->refusing = 0;
    s->servers_tried = 0;
    beats_begin(s);
    s->resumed = false;
    s->fd = zk_conn_open(&s->conn, text, (int)(be->spec->ttl / DLOCK_MSEC), err);
    free(text);
    if (s->fd < 0) {
        struct dlock_error why = err ? *err : (struct dlock_error){.code = s->fd};
        return dlock_fail_lock(err, why.code, why.sys, be->spec->uri, "%s", why.msg);
    }
    expect_connection(be);
    return 0;
}

/*
 * A server hangs up on a client that has seen a newer state than its own. One that has lost its data would do so indefinitely,
 * and never say that the session is gone: to a new handle for the session, which has seen nothing, it does. If there was
 * just no server or no quorum, the session lives, with its place in the queue. What we read next may be older than what
 * we have seen; but nodes in front of ours can only go, so that cannot grant the lock too early.
 */
static void resume(struct zk_backend *be)
{
    struct zk_session *s = &be->session;
    struct dlock_error err;
    char *text = servers_text(s->servers, s->nservers);
    int fd = text ? zk_conn_resume(&s->conn, text, (int)(s->timeout / DLOCK_MSEC), &err) : -1;
    free(text);
    s->resumed = true;
    if (fd < 0)
        return;
    s->fd = fd;
    s->authed = false;
    s->beat.serial = 0;
    s->beat.until = DLOCK_NEVER;
    if (be->node.state == NODE_ASKED)
        be->node.state = NODE_UNCLEAR;
    zk_forget_watches(be);
    be->acquire.list_serial = be->acquire.front_serial = 0;
    expect_connection(be);
}

/* Has a waiter had no connection for so long that a server would have ended its session? */
static bool must_resume(const struct zk_backend *be, int64_t now)
{
    const struct zk_session *s = &be->session;
    return be->op == OP_ACQUIRE && be->contact_until == DLOCK_NEVER && s->id != 0 && !s->resumed &&
           be->outage.since != 0 && now - be->outage.since > s->timeout;
}

void zk_session_close(struct zk_backend *be)
{
    struct zk_session *s = &be->session;
    if (s->conn)
        zk_conn_close(s->conn, &s->endings);
    s->conn = NULL;
    free(s->servers);
    s->servers = NULL;
    s->nservers = 0;
    s->connected = s->authed = false;
    s->id = 0;
    s->beat.serial = 0;
    s->away_at = s->next_server_at = s->beat.next_at = s->beat.until = DLOCK_NEVER;
}

/* ----------------------------------------------------------------- heartbeats */

/* Note one more; of those from at on that are old enough to count, only the newest matters. */
static void note(struct zk_session *s, int64_t sent, int at)
{
    int64_t *list = s->beat.answered;
    if (s->beat.n == ZK_BEATS) /* forgetting the last one makes the lease shorter: safe */
        s->beat.n--;
    list[s->beat.n++] = sent;
    int keep = at;
    while (keep + 1 < s->beat.n && list[keep + 1] <= sent - s->timeout / 3)
        keep++;
    memmove(list + at, list + keep, (size_t)(s->beat.n - keep) * sizeof(*list));
    s->beat.n -= keep - at;
}

void zk_heard(struct zk_session *s, int64_t sent)
{
    note(s, sent, 0);
}

/* The first of the list is the lease's: it stays. */
void zk_seen(struct zk_session *s, int64_t sent)
{
    note(s, sent, 1);
}

bool zk_beat_unanswered(const struct zk_session *s)
{
    return s->beat.sent > s->beat.answered[s->beat.n - 1];
}

int64_t zk_lease_from(const struct zk_session *s)
{
    return s->beat.answered[0];
}

static bool beat_must_write(const struct zk_backend *be)
{
    return be->grant == GRANT_HELD || be->acquire.stage == STAGE_RIPENING ||
           be->acquire.rank != RANK_BEHIND || be->node.told != be->lock.edition;
}

void zk_beat(struct zk_backend *be)
{
    struct zk_session *s = &be->session;
    bool write = beat_must_write(be);
    if (!s->connected || be->node.state != NODE_THERE)
        return;
    if (s->beat.serial != 0 && (s->beat.write || !write)) /* a write need not wait for a look */
        return;
    s->beat.sent = zk_now(be);
    s->beat.until = s->beat.sent + zk_patience(be);
    s->beat.next_at = be->grant == GRANT_HELD ? DLOCK_NEVER : s->beat.sent + s->timeout / 6;
    s->beat.write = write;
    s->beat.edition = be->lock.edition;
    s->beat.synced = false;
    if (!write)
        s->beat.sync = zk_conn_ask(
            s->conn, &(struct zk_request){.call = ZK_SYNC, .tag = T_SYNC, .path = be->node.path});
    s->beat.serial = zk_conn_ask(s->conn, &(struct zk_request){.call = write ? ZK_SET : ZK_GET,
                                                               .tag = T_BEAT,
                                                               .path = be->node.path,
                                                               .data = be->lock.record});
}

static enum zk_news on_beat(struct zk_backend *be, const struct zk_msg *m)
{
    struct zk_session *s = &be->session;
    if (m->serial != s->beat.serial || be->node.state != NODE_THERE)
        return NEWS_NONE;
    s->beat.serial = 0;
    s->beat.until = DLOCK_NEVER;
    if (m->rc == ZOK && s->beat.write) {
        zk_heard(s, s->beat.sent);
        zk_note_time(be, m->stat.mtime);
        be->node.told = s->beat.edition;
    } else if (m->rc == ZOK && s->beat.synced) {
        zk_seen(s, s->beat.sent);
    }
    return NEWS_MESSAGE;
}

/* Give this connection up, and send nothing more on it: the answer would be lost. The library reports its end, too. */
static void cut(struct zk_backend *be)
{
    struct zk_session *s = &be->session;
    if (!zk_conn_cut(s->conn) || !s->connected)
        return;
    s->connected = false;
    s->away_at = zk_now(be);
    expect_connection(be);
}

static void timers(struct zk_backend *be)
{
    struct zk_session *s = &be->session;
    int64_t now = zk_now(be);
    if (!s->connected)
        follow_servers(be, now);
    if (!s->connected && must_resume(be, now))
        resume(be);
    if (now >= s->next_server_at) {
        zk_conn_cut(s->conn);
        expect_connection(be);
    }
    if (now >= s->beat.until) {
        /* A late answer is not worth the wait: another server may do better. */
        s->beat.serial = 0;
        s->beat.until = DLOCK_NEVER;
        cut(be);
    }
    if (now >= s->beat.next_at) {
        s->beat.next_at = now + s->timeout / 6;
        zk_beat(be);
    }
}

/* ------------------------------------------------------------------- messages */

static enum zk_news too_short(struct zk_backend *be, struct dlock_error *err)
{
    char ours[32], theirs[32], least[32];
    dlock_format_duration(be->spec->ttl, ours, sizeof(ours));
    dlock_format_duration(be->session.timeout, theirs, sizeof(theirs));
    dlock_format_duration(be->spec->least_ttl, least, sizeof(least));
    dlock_fail_at(err, DLOCK_EUNUSABLE, 0, zk_where(be),
                  "the server grants sessions of %s (ttl: %s), this grace needs %s: %s", theirs,
                  ours, least, "use a shorter grace, or raise the server's maxSessionTimeout");
    return NEWS_USELESS;
}

/* It holds nothing: the length of its session means nothing. */
static bool is_query(const struct zk_backend *be)
{
    return be->op == OP_STATUS || be->op == OP_FORGET;
}

/* The first connection: what does the server make of our ttl? */
static enum zk_news negotiated(struct zk_backend *be, struct dlock_error *err)
{
    struct zk_session *s = &be->session;
    char ours[32], theirs[32];
    if (s->timeout == be->spec->ttl / DLOCK_MSEC * DLOCK_MSEC || is_query(be))
        return NEWS_CONNECTED;
    if (s->timeout < be->spec->least_ttl)
        return too_short(be, err);
    dlock_format_duration(be->spec->ttl, ours, sizeof(ours));
    dlock_format_duration(s->timeout, theirs, sizeof(theirs));
    dlock_fail_at(&events_add(&be->events, EV_NOTICE)->error, DLOCK_EUNAVAIL, 0, zk_where(be),
                  "the server grants sessions of %s, not the ttl of %s: that is the lease now",
                  theirs, ours);
    return NEWS_CONNECTED;
}

/* Every server that we come to negotiates again. */
static enum zk_news negotiated_again(struct zk_backend *be, int64_t timeout,
                                     struct dlock_error *err)
{
    if (timeout >= be->session.timeout)
        return NEWS_CONNECTED; /* we count with less */
    be->session.timeout = timeout;
    if (be->grant == GRANT_HELD)
        return NEWS_SHORTER;
    if (be->op != OP_ACQUIRE || timeout >= be->spec->least_ttl)
        return NEWS_CONNECTED;
    dlock_fail_at(err, DLOCK_EUNUSABLE, 0, zk_where(be), "the server grants shorter sessions now");
    return NEWS_USELESS;
}

static enum zk_news on_connected(struct zk_backend *be, const struct zk_msg *m,
                                 struct dlock_error *err)
{
    struct zk_session *s = &be->session;
    int64_t timeout = m->timeout_ms * DLOCK_MSEC;
    enum zk_news news;
    s->connected = true;
    s->resumed = false;
    s->servers_tried = 0;
    s->away_at = s->next_server_at = DLOCK_NEVER;
    if (s->refused.code != DLOCK_EPROTO) /* after that the next packet may be as bad again */
        s->refused.code = 0;
    if (s->id == 0) {
        s->id = m->session;
        s->timeout = timeout;
        news = negotiated(be, err);
    } else {
        news = negotiated_again(be, timeout, err);
    }
    if (news == NEWS_CONNECTED && be->lock.credentials && !s->authed) {
        s->authed = true; /* on later connections the library repeats it */
        zk_conn_ask(s->conn, &(struct zk_request){
                                 .call = ZK_AUTH, .tag = T_AUTH, .data = be->lock.credentials});
    }
    return news;
}

static enum zk_news on_disconnected(struct zk_backend *be)
{
    if (be->session.connected) {
        be->session.away_at = zk_now(be);
        expect_connection(be);
    }
    be->session.connected = false;
    return NEWS_DISCONNECTED;
}

static enum zk_news on_state(struct zk_backend *be, const struct zk_msg *m, struct dlock_error *err)
{
    if (m->state == ZOO_CONNECTED_STATE)
        return on_connected(be, m, err);
    if (m->state == ZOO_EXPIRED_SESSION_STATE)
        return NEWS_EXPIRED;
    if (m->state != ZOO_AUTH_FAILED_STATE)
        return on_disconnected(be);
    zk_error(be, ZAUTHFAILED, "no session", err);
    return be->op == OP_ACQUIRE || is_query(be) ? NEWS_USELESS : NEWS_NONE;
}

static const char *trouble_text(int rc)
{
    switch (rc) {
    case EPROTO:
        return "its answer is not ZooKeeper's protocol";
    case ESHUTDOWN:
        return "it hung up: no quorum, or too many connections from here (maxClientCnxns)";
    default:
        return strerror(rc);
    }
}

/*
 * A server refuses connections, or breaks the protocol. On first contact, when all servers do, the operation is over.
 * Later the library tries the next server soon, and a wait goes on, with another session too.
 */
static enum zk_news on_trouble(struct zk_backend *be, const struct zk_msg *m,
                               struct dlock_error *err)
{
    struct zk_session *s = &be->session;
    char text[INET6_ADDRSTRLEN + 16];
    int n = s->nservers;
    bool nonsense = m->rc == EPROTO, first = be->contact_until != DLOCK_NEVER;
    if (be->op != OP_ACQUIRE && !is_query(be))
        return NEWS_NONE;
    if (first && s->id != 0 && !nonsense)
        return NEWS_NONE;
    dlock_fail_lock(&s->refused, nonsense ? DLOCK_EPROTO : DLOCK_EUNAVAIL, m->rc, be->spec->uri,
                    "%s: %s", place_text(&m->addr, text, sizeof(text), true), trouble_text(m->rc));
    if (!first || s->id != 0 || m->rc == ESHUTDOWN) /* the next time it may serve us */
        return NEWS_NONE;
    for (int i = 0; i < n && i < 64; i++)
        if (same_place(&m->addr, &s->servers[i].addr))
            s->refusing |= UINT64_C(1) << i;
    if (n == 0 || n >= 64 || s->refusing != (UINT64_C(1) << n) - 1)
        return NEWS_NONE;
    *err = s->refused;
    return NEWS_USELESS;
}

static enum zk_news on_answer(struct zk_backend *be, const struct zk_msg *m)
{
    struct zk_session *s = &be->session;
    if (m->rc == ZOK) {
        s->refused.code = 0;
        outage_over(&be->outage, &be->events);
    }
    switch (m->tag) {
    case T_BEAT:
        return on_beat(be, m);
    case T_SYNC: /* comes before the answer that was asked for behind it */
        s->beat.synced = s->beat.synced || (m->serial == s->beat.sync && m->rc == ZOK);
        return NEWS_NONE;
    case T_AUTH: /* a refusal comes as the session's state; ZINVALIDSTATE: it was never sent */
        s->authed = s->authed && m->rc != ZINVALIDSTATE;
        return NEWS_NONE;
    default:
        return NEWS_MESSAGE;
    }
}

/*
 * A request was not sent, or messages were dropped. A held lock does not need them: the next heartbeat shows how it
 * stands, if we know whether there is a connection. The undo after another operation must not wait for an answer.
 */
static enum zk_news on_starved(struct zk_backend *be, const struct zk_msg *m,
                               struct dlock_error *err)
{
    if (be->node.state == NODE_ASKED)
        be->node.state = NODE_UNCLEAR;
    be->release.serial = 0;
    if (be->op == OP_HOLD) {
        be->session.beat.serial = 0;
        be->session.beat.until = DLOCK_NEVER;
        return on_state(be, m, err);
    }
    zk_error(be, ZK_NOMEMORY, "the session cannot go on", err);
    return be->op == OP_NONE ? NEWS_NONE : NEWS_USELESS;
}

static enum zk_news on_message(struct zk_backend *be, const struct zk_msg *m,
                               struct dlock_error *err)
{
    switch (m->what) {
    case ZK_STATE:
        return on_state(be, m, err);
    case ZK_ANSWER:
        return on_answer(be, m);
    case ZK_WATCH:
        return NEWS_MESSAGE;
    case ZK_TROUBLE:
        return on_trouble(be, m, err);
    case ZK_STARVED:
        return on_starved(be, m, err);
    }
    return NEWS_NONE;
}

enum zk_news zk_session_next(struct zk_backend *be, struct zk_msg *m, struct dlock_error *err)
{
    while (zk_conn_next(be->session.conn, m)) {
        enum zk_news news = on_message(be, m, err);
        if (news == NEWS_MESSAGE)
            return news;
        zk_msg_done(m);
        if (news != NEWS_NONE)
            return news;
    }
    timers(be);
    return NEWS_NONE;
}
