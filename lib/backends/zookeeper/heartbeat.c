/*
 * heartbeat.c - the lease: until when the server cannot have ended our session.
 *
 * The leader ends a session when it has not heard of it for the negotiated time. What we know is when we sent
 * what was answered. Only a write proves that the server we talk to has its leader (a follower that is cut off goes on
 * to answer pings and reads), and even then the leader hears of our activity only with the follower's answer to its own
 * ping, every half tick. So the lease counts from the newest heartbeat that was sent at least a third of
 * the time-out before the last one that was answered. (ZooKeeper's SessionTrackerImpl, LearnerHandler.ping.)
 */
#include "zookeeper.h"

#include <string.h>

void zk_beats_begin(struct dlock_be *be)
{
    /* There was no session before. */
    be->beats[0] = be->opened_at;
    be->nbeats = 1;
    be->beat_serial = 0;
    be->next_beat_at = be->beat_until = DLOCK_NEVER;
}

void zk_heard(struct dlock_be *be, int64_t sent)
{
    int drop = 0;
    if (be->nbeats == ZK_BEATS) /* to know less is safe */
        be->nbeats--;
    be->beats[be->nbeats++] = sent;
    while (drop + 1 < be->nbeats && be->beats[drop + 1] <= sent - be->timeout / 3)
        drop++;
    be->nbeats -= drop;
    memmove(be->beats, be->beats + drop, (size_t)be->nbeats * sizeof be->beats[0]);
}

int64_t zk_lease_from(const struct dlock_be *be)
{
    return be->beats[0];
}

/* The server may have made the session shorter than the ttl that op_timeout was made for. */
static int64_t patience(const struct dlock_be *be)
{
    return dlock_min(be->spec->op_timeout, be->timeout / 8);
}

void zk_beat(struct dlock_be *be)
{
    if (!be->connected || be->node != NODE_THERE || be->beat_serial != 0)
        return;
    be->beat_sent = zk_now(be);
    be->beat_until = be->beat_sent + patience(be);
    be->next_beat_at = be->held ? DLOCK_NEVER : be->beat_sent + be->timeout / 6;
    be->beat_serial = zk_conn_set(be->conn, T_BEAT, be->path, be->record);
}

void zk_renew(struct dlock_be *be)
{
    be->renewing = true;
    be->renew_until = zk_now(be) + patience(be);
    zk_beat(be);
}

static void unclear(struct dlock_be *be, const struct dlock_error *why)
{
    if (!be->renewing)
        return;
    be->renewing = false;
    be->renew_until = DLOCK_NEVER;
    events_add(&be->events, EV_UNCLEAR)->error = *why;
}

void zk_lost(struct dlock_be *be, const char *why)
{
    be->held = be->renewing = false;
    be->lost = true;
    be->renew_until = DLOCK_NEVER;
    dlock_fail(&events_add(&be->events, EV_LOST)->error, DLOCK_ELOST, 0,
               "%s: the lock '%s' is lost: %s", zk_where(be), be->spec->uri->name, why);
}

static void node_lost(struct dlock_be *be)
{
    be->node = NODE_NONE;
    if (!be->held) {
        zk_node_gone(be);
        return;
    }
    zk_lost(be, "its node is gone");
}

void zk_on_beat(struct dlock_be *be, const struct zk_msg *m)
{
    struct dlock_error err;
    if (m->serial != be->beat_serial || be->node != NODE_THERE)
        return;
    be->beat_serial = 0;
    be->beat_until = DLOCK_NEVER;
    if (be->doing == ZK_RELEASE)
        return; /* the delete behind it tells */
    if (m->rc == ZNONODE) {
        node_lost(be);
        return;
    }
    if (m->rc != ZOK) {
        zk_error(be, m->rc, "the renewal failed", &err);
        unclear(be, &err);
        return;
    }
    zk_heard(be, be->beat_sent);
    if (be->ripe && be->doing == ZK_ACQUIRE) {
        be->ripe = false;
        zk_list(be);
    }
    if (!be->renewing)
        return;
    be->renewing = false;
    be->renew_until = DLOCK_NEVER;
    struct dlock_event *ev = events_add(&be->events, EV_RENEWED);
    ev->from = zk_lease_from(be);
    ev->ttl = be->timeout;
}

void zk_beat_timers(struct dlock_be *be, int64_t now)
{
    struct dlock_error err;
    if (now >= be->beat_until) {
        /* The answer, should it come, is not worth the wait: another server may be better off. */
        be->beat_serial = 0;
        be->beat_until = DLOCK_NEVER;
        zk_conn_cut(be->conn);
    }
    if (be->renewing && now >= be->renew_until) {
        no_answer(&err, be->spec, patience(be));
        unclear(be, &err);
    }
    if (now >= be->next_beat_at) {
        be->next_beat_at = now + be->timeout / 6;
        zk_beat(be);
    }
}
