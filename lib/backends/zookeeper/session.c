/* session.c - the session: its servers, its length, its end. */
#include "zookeeper.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

void zk_leave(struct dlock_be *be)
{
    if (be->conn) {
        zk_ending_wait(be->ending, 0);
        be->ending = zk_conn_close(be->conn);
    }
    be->conn = NULL;
    be->connected = be->again = be->ripe = be->authed = false;
    free(be->stem); /* the next session's nodes are others */
    be->stem = NULL;
    be->session = 0;
    be->node = NODE_NONE; /* if there is one, it goes with the session */
    be->making = 0;
    be->list_serial = be->pred_serial = be->who_serial = be->beat_serial = be->delete_serial = 0;
    be->next_server_at = be->next_beat_at = be->beat_until = DLOCK_NEVER;
}

/* While there is another server to go to, a silent one is given little time. */
void zk_expect_connection(struct dlock_be *be)
{
    int64_t each = dlock_min(DLOCK_SEC, be->spec->connect_timeout / (be->spec->npeers + 1));
    /* Each time all of them were tried, they get more: a session may be slow to come about. */
    each <<= dlock_min(be->servers_tried++ / dlock_max(be->spec->npeers, 1), 5);
    /* A lone one, too, once there is a session: while it starts it may take a connection and never look at it. */
    be->next_server_at = be->spec->npeers > 1 || be->session != 0 ? zk_now(be) + each : DLOCK_NEVER;
}

void zk_connect(struct dlock_be *be)
{
    struct dlock_error err;
    if (be->conn)
        return;
    char *servers = zk_servers(be->spec);
    be->timeout = be->spec->ttl;
    be->opened_at = zk_now(be);
    be->refusing = 0;
    be->servers_tried = 0;
    zk_beats_begin(be);
    if (!servers)
        dlock_fail(&err, DLOCK_ENOMEM, 0, "out of memory");
    if (!servers || zk_conn_open(&be->conn, servers, (int)(be->spec->ttl / DLOCK_MSEC), &err) < 0) {
        free(servers);
        zk_fail(be, &err);
        return;
    }
    free(servers);
    zk_expect_connection(be);
}

void zk_fail(struct dlock_be *be, const struct dlock_error *err)
{
    struct dlock_error why = *err;
    if (be->node == NODE_NONE)
        zk_leave(be); /* else the core has it undone by release */
    be->doing = ZK_NOTHING;
    be->busy = false;
    be->op_until = DLOCK_NEVER;
    events_add(&be->events, EV_FAILED)->error = why;
}

/* The first connection: what the server makes of our ttl. False: of no use. */
static bool negotiated(struct dlock_be *be)
{
    int64_t ttl = be->spec->ttl / DLOCK_MSEC * DLOCK_MSEC;
    char ours[32], theirs[32], least[32];
    be->session = zk_conn_session(be->conn);
    be->timeout = zk_conn_timeout_ms(be->conn) * DLOCK_MSEC;
    if (be->timeout == ttl || be->doing == ZK_ASK)
        return true;
    dlock_format_duration(be->spec->ttl, ours, sizeof ours);
    dlock_format_duration(be->timeout, theirs, sizeof theirs);
    if (be->timeout < be->spec->least_ttl) {
        struct dlock_error err;
        dlock_format_duration(be->spec->least_ttl, least, sizeof least);
        dlock_fail(
            &err, DLOCK_EUNAVAIL, 0,
            "%s: the server grants sessions of %s, not the ttl of %s, and with this grace it "
            "must be %s at least: a shorter --grace, or a larger maxSessionTimeout there",
            zk_where(be), theirs, ours, least);
        zk_fail(be, &err);
        return false;
    }
    dlock_fail(&events_add(&be->events, EV_NOTICE)->error, DLOCK_EUNAVAIL, 0,
               "%s: the server grants sessions of %s, not the ttl of %s: that is the lease now",
               zk_where(be), theirs, ours);
    return true;
}

/* Every server that we come to bounds it anew. False: of no use any more. */
static bool negotiated_again(struct dlock_be *be)
{
    int64_t now = zk_conn_timeout_ms(be->conn) * DLOCK_MSEC;
    struct dlock_error err;
    if (now >= be->timeout)
        return true; /* what we count with is less */
    be->timeout = now;
    if (be->held) {
        /* The lease was computed with more, and the command cannot be told of less. */
        zk_lost(be, "the server grants shorter sessions now");
        return false;
    }
    if (be->doing != ZK_ACQUIRE || now >= be->spec->least_ttl)
        return true;
    dlock_fail(&err, DLOCK_EUNAVAIL, 0, "%s: the server grants shorter sessions now", zk_where(be));
    zk_fail(be, &err);
    return false;
}

static void on_connected(struct dlock_be *be)
{
    be->connected = true;
    be->servers_tried = 0;
    be->next_server_at = DLOCK_NEVER;
    if (be->refused.code != DLOCK_EPROTO) /* what comes behind that may be as bad again */
        be->refused.code = 0;
    if (be->session == 0 ? !negotiated(be) : !negotiated_again(be))
        return;
    if (be->credentials && !be->authed) {
        be->authed = true; /* on later connections the library repeats it */
        zk_conn_auth(be->conn, T_AUTH, "digest", be->credentials);
    }
    switch (be->doing) {
    case ZK_ACQUIRE:
        zk_stand_in_line(be);
        break;
    case ZK_HOLD:
        if (be->renewing)
            zk_beat(be);
        break;
    case ZK_RELEASE:
        zk_give_back(be);
        break;
    case ZK_ASK:
        zk_list(be);
        break;
    case ZK_NOTHING:
        break;
    }
}

static void on_disconnected(struct dlock_be *be)
{
    struct dlock_error err;
    if (be->connected)
        zk_expect_connection(be);
    be->connected = false;
    if (be->doing != ZK_ACQUIRE || be->first || be->outage.since != 0)
        return;
    dlock_fail(&err, DLOCK_EUNAVAIL, 0, "%s: the connection is lost", zk_where(be));
    outage_goes_on(&be->outage, be->spec, &be->events, &err);
}

static void on_expired(struct dlock_be *be)
{
    struct dlock_error err;
    bool held = be->held;
    dlock_fail(&err, held ? DLOCK_ELOST : DLOCK_EUNAVAIL, 0,
               "%s: the lock '%s' is lost: the server has ended the session", zk_where(be),
               be->spec->uri->name);
    zk_leave(be);
    switch (be->doing) {
    case ZK_HOLD:
        if (held)
            zk_lost(be, "the server has ended the session");
        break;
    case ZK_ACQUIRE: /* at the end of the line, with a new session */
        be->busy = false;
        zk_connect(be);
        break;
    case ZK_RELEASE:
        zk_released(be,
                    !held             ? DLOCK_REL_NOTHING
                    : be->delete_lost ? DLOCK_REL_UNCLEAR
                                      : DLOCK_REL_NOT_OURS,
                    &err);
        break;
    case ZK_ASK:
        zk_connect(be);
        break;
    case ZK_NOTHING:
        break;
    }
}

static void on_auth_failed(struct dlock_be *be)
{
    struct dlock_error err;
    zk_error(be, ZAUTHFAILED, "no session", &err);
    if (be->doing == ZK_ACQUIRE || be->doing == ZK_ASK)
        zk_fail(be, &err);
}

void zk_on_state(struct dlock_be *be, int state)
{
    if (state == ZOO_CONNECTED_STATE)
        on_connected(be);
    else if (state == ZOO_EXPIRED_SESSION_STATE)
        on_expired(be);
    else if (state == ZOO_AUTH_FAILED_STATE)
        on_auth_failed(be);
    else
        on_disconnected(be);
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
           memcmp(&a6->sin6_addr, &b6->sin6_addr, sizeof a6->sin6_addr) == 0;
}

static const char *trouble_text(int rc)
{
    switch (rc) {
    case EPROTO:
        return "what it says is not ZooKeeper's protocol";
    case ESHUTDOWN:
        return "it hangs up: no quorum, or too many connections from here (maxClientCnxns)";
    default:
        return strerror(rc);
    }
}

/*
 * A server that cannot be connected to, or talks nonsense: on first contact, when that is true of all of them, it is over.
 * Later there is another connection soon, and it counts how long there is none of use.
 */
void zk_on_trouble(struct dlock_be *be, const struct zk_msg *m)
{
    struct sockaddr_storage addr;
    char text[INET6_ADDRSTRLEN + 16];
    int n = be->spec->npeers;
    bool nonsense = m->rc == EPROTO;
    if ((be->session != 0 && !nonsense) || (be->doing != ZK_ACQUIRE && be->doing != ZK_ASK) ||
        m->len != (int)sizeof addr)
        return;
    memcpy(&addr, m->data, sizeof addr);
    dlock_fail(&be->refused, nonsense ? DLOCK_EPROTO : DLOCK_EUNAVAIL, m->rc,
               "%s: %s: %s (lock '%s')", zk_where(be), zk_place(&addr, text, sizeof text, true),
               trouble_text(m->rc), be->spec->uri->name);
    if (be->session != 0 || m->rc == ESHUTDOWN) /* another time it may not */
        return;
    for (int i = 0; i < n && i < 64; i++)
        if (same_place(&addr, &be->spec->peers[i].addr))
            be->refusing |= UINT64_C(1) << i;
    if (n > 0 && n < 64 && be->refusing == (UINT64_C(1) << n) - 1) {
        struct dlock_error err = be->refused;
        zk_fail(be, &err);
    }
}
