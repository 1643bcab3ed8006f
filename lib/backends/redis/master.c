/*
 * master.c - a lock in the master behind Sentinel: finding it, and following it when it moves.
 *
 * Every new connection begins with a round of questions to the sentinels (sentinel.c), and with ROLE: nothing is
 * remembered from an earlier one. A cut-off old master goes on confirming whatever it is asked, so neither a grant
 * nor a renewal counts before a majority of the sentinels names the server that it came from (confirm.c).
 */
#include "redis.h"

#include "sentinel.h"

#include <stdlib.h>
#include <string.h>

enum seek { SEEK_NOTHING, SEEK_ASKING, SEEK_RESOLVING };

struct redis_sentinel {
    struct sentinels s;
    enum seek seek; /* for connections in RC_WAITING */
    bool failed;    /* the last one found nobody: that is no trouble of the master */
    bool checking;  /* a switch was announced: a round will tell whether it concerns us */
    struct sentinel_addr master; /* whom cmd is connected to, or was last */
    struct redis_addr addr;
};

int redis_sentinel_open(struct dlock_be *be, struct dlock_error *err)
{
    be->sentinel = calloc(1, sizeof(*be->sentinel));
    if (be->sentinel == NULL)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    return sentinels_open(&be->sentinel->s, be->spec, err);
}

void redis_sentinel_close(struct dlock_be *be)
{
    if (be->sentinel == NULL)
        return;
    sentinels_close(&be->sentinel->s);
    redis_addr_done(&be->sentinel->addr);
    free(be->sentinel);
    be->sentinel = NULL;
}

/* ------------------------------------------------------------------ connecting */

void redis_sentinel_connect(struct dlock_be *be, struct redis_conn *c, int64_t until)
{
    struct redis_sentinel *m = be->sentinel;
    const struct redis_conn *cmd = &be->cmd;
    bool shared =
        m->seek != SEEK_NOTHING && (be->cmd.state == RC_WAITING || be->wake.state == RC_WAITING);
    int64_t now = redis_now(be);

    c->only_master = true;
    if (redis_conn_open_later(c, be->spec->env, &be->auth, redis_where(be), until) != 0 || shared)
        return;
    /* The calls must come from the server in which we stand in line. */
    if (c == &be->wake && redis_conn_is_open(cmd) && cmd->state != RC_WAITING) {
        bool up = cmd->state == RC_UP;
        (void)redis_conn_aim(c, up ? &cmd->peers[cmd->good] : cmd->peers, up ? 1 : cmd->npeers);
        return;
    }
    redis_addr_done(&m->addr);
    m->seek = SEEK_ASKING;
    m->failed = m->checking = false;
    /* Somewhat earlier than the caller's time: it is worth knowing that it was not the master who was silent. */
    sentinels_ask(&m->s, until - (until - now) / 8);
}

static void give_up(struct dlock_be *be, const struct dlock_error *why)
{
    be->sentinel->seek = SEEK_NOTHING;
    be->sentinel->failed = true;
    if (be->cmd.state == RC_WAITING)
        redis_conn_give_up(&be->cmd, why);
    if (be->wake.state == RC_WAITING)
        redis_conn_give_up(&be->wake, why);
}

/* Is c's server one of those found? */
static bool is_found(const struct redis_sentinel *m, const struct redis_conn *c)
{
    const struct dlock_peer *p = &c->peers[c->good];
    for (int i = 0; i < m->addr.npeers; i++)
        if (m->addr.peers[i].len == p->len && memcmp(&m->addr.peers[i].addr, &p->addr, p->len) == 0)
            return true;
    return false;
}

static void aim(struct dlock_be *be)
{
    struct redis_sentinel *m = be->sentinel;

    m->seek = SEEK_NOTHING;
    if (be->cmd.state == RC_WAITING) {
        if (be->wake.state == RC_CONNECTING || (be->wake.state == RC_UP && !is_found(m, &be->wake)))
            redis_wake_drop(be);
        (void)redis_conn_aim(&be->cmd, m->addr.peers, m->addr.npeers);
    }
    if (be->wake.state == RC_WAITING)
        (void)redis_conn_aim(&be->wake, m->addr.peers, m->addr.npeers);
}

static void seek(struct dlock_be *be)
{
    struct redis_sentinel *m = be->sentinel;
    struct dlock_error err;
    int rc = 0;

    if (m->seek == SEEK_ASKING) {
        rc = sentinels_found(&m->s, &m->master, &err);
        if (rc > 0) {
            m->seek = SEEK_RESOLVING;
            rc = redis_addr_start(&m->addr, m->master.host, m->master.port, &err);
        }
    } else if (m->seek == SEEK_RESOLVING) {
        rc = redis_addr_result(&m->addr, &err);
    }
    if (rc > 0)
        aim(be);
    else if (rc < 0)
        give_up(be, &err);
}

bool redis_sentinel_worth_retry(const struct dlock_be *be, const struct dlock_error *err)
{
    return be->sentinel != NULL && !be->sentinel->failed && err->code == DLOCK_EUNAVAIL &&
           redis_now(be) < be->op_until;
}

/* ------------------------------------------------------------------- following */

void redis_sentinel_question(struct dlock_be *be, int64_t newer_than)
{
    struct redis_sentinel *m = be->sentinel;
    if (m != NULL && m->seek == SEEK_NOTHING && m->s.since < newer_than)
        sentinels_ask(&m->s, redis_now(be) + be->spec->op_timeout);
}

enum redis_answer redis_sentinel_answer(const struct dlock_be *be)
{
    const struct redis_sentinel *m = be->sentinel;
    if (m == NULL)
        return ANSWER_YES;
    switch (sentinels_verdict(&m->s, &m->master)) {
    case VERDICT_YES:
        return ANSWER_YES;
    case VERDICT_OTHER:
        return ANSWER_OTHER;
    case VERDICT_NONE:
        return ANSWER_NO;
    case VERDICT_PENDING:
        break;
    }
    return ANSWER_PENDING;
}

void redis_sentinel_doubt(const struct dlock_be *be, struct dlock_error *err)
{
    sentinels_doubt(&be->sentinel->s, &be->sentinel->master, err);
}

void redis_sentinel_listen(struct dlock_be *be, int64_t at)
{
    if (be->sentinel == NULL)
        return;
    if (at == DLOCK_NEVER || be->sentinel->s.listen_at == DLOCK_NEVER)
        sentinels_listen(&be->sentinel->s, at);
    if (at == DLOCK_NEVER)
        be->sentinel->checking = false;
}

void redis_sentinel_follow(struct dlock_be *be)
{
    struct dlock_error *note = &events_add(&be->events, EV_NOTICE)->error;

    be->sentinel->checking = false;
    sentinels_doubt(&be->sentinel->s, &be->sentinel->master, note);
    note->code = 0;
    if (be->doing == DO_ACQUIRE)
        redis_wait_move(be);
    else
        redis_renew_move(be);
}

/* True: the master that we have has to be compared with what a round says. */
static bool compares(struct dlock_be *be)
{
    struct redis_sentinel *m = be->sentinel;

    if (m->seek != SEEK_NOTHING)
        return false; /* an announcement keeps until then */
    if (sentinels_heard(&m->s)) {
        if (be->doing == DO_ACQUIRE && be->cmd.state == RC_CLOSED)
            be->cmd_out.retry_at = dlock_min(be->cmd_out.retry_at, redis_now(be));
        else if (be->doing == DO_ACQUIRE || be->granted)
            m->checking = true;
        if (m->checking)
            redis_sentinel_question(be, DLOCK_NEVER);
    }
    return m->checking || (be->doing == DO_RENEW && redis_conn_is_open(&be->cmd));
}

void redis_sentinel_step(struct dlock_be *be)
{
    if (be->sentinel == NULL)
        return;
    seek(be);
    if (!compares(be))
        return;
    enum redis_answer a = redis_sentinel_answer(be);
    if (a == ANSWER_OTHER && (be->doing == DO_ACQUIRE || be->granted))
        redis_sentinel_follow(be);
    else if (a != ANSWER_PENDING)
        be->sentinel->checking = false;
}

/* --------------------------------------------------------------------- driving */

int redis_sentinel_interest(const struct dlock_be *be, struct pollfd *pfd, int cap,
                            int64_t *wake_at)
{
    const struct redis_sentinel *m = be->sentinel;
    if (m == NULL)
        return 0;
    int n = sentinels_interest(&m->s, pfd, cap, wake_at);
    if (m->seek == SEEK_RESOLVING && n < cap)
        pfd[n++] = (struct pollfd){.fd = redis_addr_fd(&m->addr), .events = POLLIN};
    return n;
}

void redis_sentinel_work(struct dlock_be *be, const struct pollfd *pfd, int n)
{
    if (be->sentinel != NULL)
        sentinels_work(&be->sentinel->s, pfd, n);
}
