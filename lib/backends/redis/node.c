/*
 * node.c - a Redis server. See node.h.
 *
 * On the second connection the first waiter is also told when the key changes (client-side
 * caching): a DEL by another program or an expiry is noticed at once.
 *
 * A stopped server executes the contents of its socket buffers when it goes on [measured], also for
 * closed connections. So a value whose try has no answer stays pending until the server has
 * confirmed its undo.
 */
#include "node.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum wake_tag { TAG_ID = 1, TAG_WAKE, TAG_CHANGED }; /* of commands on wake */

void redis_node_init(struct redis_node *n, const struct dlock_env *env, const char *where,
                     struct tls_config *tls)
{
    n->cmd = n->wake = (struct redis_conn){.fd = -1, .env = env, .where = where, .tls = tls};
    n->wake.push = true;
    n->wake_until = DLOCK_NEVER;
}

void redis_node_done(struct redis_node *n)
{
    redis_node_close(n);
    redis_conn_close(&n->wake);
    redis_node_forget(n, NULL);
    dlock_wipe(n->cmd.secret);
    dlock_wipe(n->wake.secret);
}

void redis_node_close_in_child(struct redis_node *n)
{
    redis_conn_close_in_child(&n->cmd);
    redis_conn_close_in_child(&n->wake);
}

void redis_node_credentials(struct redis_node *n, const struct dlock_host *h, const char *secret,
                            const char *file)
{
    struct redis_conn_auth auth = {h->user, h->password ? h->password : secret,
                                   h->password ? NULL : file};
    /* A user without a password ("nopass") must still be named. */
    if (!auth.password && h->user && *h->user != '\0')
        auth.password = "";
    n->cmd.auth = n->wake.auth = auth;
}

/* -------------------------------------------------------------------- driving */

int redis_node_interest(const struct redis_node *node, struct pollfd *pfd, int cap,
                        int64_t *wake_at)
{
    int n = 0;
    if (cap > n)
        n += redis_conn_interest(&node->cmd, &pfd[n], wake_at);
    if (cap > n)
        n += redis_conn_interest(&node->wake, &pfd[n], wake_at);
    return n;
}

void redis_node_work(struct redis_node *node, const struct pollfd *pfd, int n)
{
    for (int k = 0; k < 2; k++) {
        struct redis_conn *c = k == 0 ? &node->cmd : &node->wake;
        bool due = redis_conn_is_connecting(c) && c->env->now(c->env->ctx) >= c->next_at;
        for (int i = 0; i < n; i++)
            due |= pfd[i].revents != 0 && redis_conn_is_open(c) && pfd[i].fd == c->fd;
        if (due)
            redis_conn_work(c);
    }
}

void redis_node_close(struct redis_node *n)
{
    redis_script_resend_undo(&n->cmd);
    redis_conn_close(&n->cmd);
    n->tracking = TRACK_OFF;
}

int64_t redis_node_clock(struct redis_node *n, int64_t theirs_ms, int64_t sent, int64_t now)
{
    const struct dlock_peer *p = &n->cmd.peers[n->cmd.good];
    /* After a failover this is another server, with its own clock. */
    if (!redis_same_peer(&n->clock_of, p))
        n->clock = (struct redis_clock){0};
    n->clock_of = *p;
    return redis_clock_jump(&n->clock, theirs_ms, sent, now);
}

/* ------------------------------------------------------------------- wake-ups */

void redis_node_subscribe(struct redis_node *n, const char *channel, int64_t until)
{
    /* CLIENT ID in front: RESP2 does not allow it after SUBSCRIBE. */
    const char *ask_id[] = {"CLIENT", "ID"};
    const char *wake[] = {"SUBSCRIBE", channel};
    const char *changed[] = {"SUBSCRIBE", REDIS_SCRIPT_INVALIDATE};
    n->wake_state = WAKE_STARTING;
    n->wake_until = until;
    n->wake_id = 0;
    n->can_track = false;
    (void)redis_conn_send(&n->wake, TAG_ID, 2, ask_id);
    (void)redis_conn_send(&n->wake, TAG_WAKE, 2, wake);
    (void)redis_conn_send(&n->wake, TAG_CHANGED, 2, changed);
    redis_conn_flush(&n->wake);
}

void redis_node_unsubscribe(struct redis_node *n)
{
    redis_conn_close(&n->wake);
    n->wake_state = WAKE_OFF;
    n->wake_until = DLOCK_NEVER;
    /* The server's reports went to the closed connection. */
    if (n->tracking == TRACK_ON)
        n->tracking = TRACK_OFF;
}

enum redis_wake_reply redis_node_wake_answered(struct redis_node *n,
                                               const struct redis_conn_reply *rep,
                                               struct dlock_error *err)
{
    const redisReply *r = rep->r;
    if (n->wake.auth_failed) {
        *err = n->wake.error;
        return REPLY_REFUSED;
    }
    switch (rep->tag) {
    case REDIS_CONN_PUSH:
        return n->wake_state == WAKE_READY ? REPLY_MESSAGE : REPLY_NOTHING;
    case TAG_ID:
        n->wake_id = r->type == REDIS_REPLY_INTEGER ? r->integer : 0;
        return REPLY_NOTHING;
    case TAG_WAKE:
        if (r->type != REDIS_REPLY_ERROR)
            return REPLY_NOTHING;
        redis_conn_reply_error(err, &n->wake, r->str);
        return REPLY_REFUSED;
    case TAG_CHANGED:
        /* Without the number, or the permission: the first waiter polls. */
        n->can_track = r->type != REDIS_REPLY_ERROR && n->wake_id > 0;
        n->wake_state = WAKE_READY;
        n->wake_until = DLOCK_NEVER;
        n->tracking = TRACK_OFF;
        return REPLY_SUBSCRIBED;
    default:
        return REPLY_NOTHING;
    }
}

void redis_node_track(struct redis_node *n, int tag)
{
    char id[24];
    const char *argv[] = {"CLIENT", "TRACKING", "ON", "REDIRECT", id, "NOLOOP"};
    snprintf(id, sizeof(id), "%lld", n->wake_id);
    n->cmd.tracks = false; /* no longer on this connection */
    if (redis_conn_send(&n->cmd, tag, DLOCK_LEN(argv), argv) == 0)
        n->tracking = TRACK_ON;
}

/* Refused (an old proxy, a missing permission): the first waiter polls. */
void redis_node_track_answered(struct redis_node *n, const redisReply *r)
{
    if (r->type == REDIS_REPLY_ERROR)
        n->tracking = TRACK_REFUSED;
}

/* --------------------------------------------------------------- pending undo */

static void forget_at(struct redis_node *n, int i)
{
    free(n->undo.value[i]);
    n->undo.n--;
    memmove(n->undo.value + i, n->undo.value + i + 1,
            sizeof(n->undo.value[0]) * (size_t)(n->undo.n - i));
    if (i < n->undo.at)
        n->undo.at--;
}

void redis_node_remember(struct redis_node *n, char *value)
{
    if (!value)
        return;
    if (n->undo.n == REDIS_NODE_UNDO)
        forget_at(n, 0);
    n->undo.value[n->undo.n++] = value;
}

void redis_node_forget(struct redis_node *n, const char *value)
{
    for (int i = n->undo.n - 1; i >= 0; i--)
        if (!value || strcmp(n->undo.value[i], value) == 0)
            forget_at(n, i);
}

void redis_node_undo(struct redis_node *n, const struct redis_script *s, int tag, bool asking)
{
    if (redis_conn_is_open(&n->cmd) && redis_conn_waits(&n->cmd, tag))
        return;
    n->undo.at = 0;
    n->undo.sent = n->undo.n;
    /* At once, because the answers must keep this order. */
    for (int i = 0; i < n->undo.n; i++)
        redis_node_leave(n, s, tag, asking,
                         &(struct redis_script_args){.value = n->undo.value[i], .at_once = true});
}

void redis_node_undo_answered(struct redis_node *n, const redisReply *r)
{
    if (n->undo.sent == 0)
        return;
    n->undo.sent--;
    if (r->type == REDIS_REPLY_ERROR)
        n->undo.at++;
    else if (n->undo.at < n->undo.n)
        forget_at(n, n->undo.at);
}

void redis_node_leave(struct redis_node *n, const struct redis_script *s, int tag, bool asking,
                      const struct redis_script_args *args)
{
    if (asking)
        redis_node_asking(n);
    (void)redis_script_send(s, &n->cmd, tag, asking ? SCRIPT_DROP : SCRIPT_LEAVE, args);
}

void redis_node_asking(struct redis_node *n)
{
    static const char *const asking[] = {"ASKING"};
    n->cmd.by_text = true; /* ASKING holds for one command, which must not be a NOSCRIPT */
    (void)redis_conn_send(&n->cmd, 0, 1, asking);
}
