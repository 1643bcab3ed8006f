/*
 * redlock_open.c - what the URI says about the servers of a Redlock.
 */
#include "redlock.h"

#include "params.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void init_node(struct dlock_be *be, int i)
{
    const struct dlock_host *h = &be->spec->uri->hosts[i];
    struct redlock_node *n = &be->nodes[i];
    bool v6 = strchr(h->host, ':') != NULL;

    n->host = i;
    snprintf(n->where, sizeof(n->where), v6 ? "[%s]:%u" : "%s:%u", h->host, h->port);
    n->cmd.fd = n->wake.fd = -1;
    n->wake_until = n->wake_retry = DLOCK_NEVER;
    n->pause = n->wake_pause =
        (struct dlock_backoff){.base = 50 * DLOCK_MSEC, .max = DLOCK_SEC, .cur = 50 * DLOCK_MSEC};
    n->auth.user = h->user;
    n->auth.password = h->password != NULL ? h->password : be->secret;
    /* A user without a password ("nopass") still has to be named. */
    if (n->auth.password == NULL && h->user != NULL && *h->user != '\0')
        n->auth.password = "";
}

int redlock_check_spec(struct dlock_be *be, struct dlock_error *err)
{
    const struct dlock_spec *spec = be->spec;
    const char *grace = dlock_uri_param(spec->uri, "restart-grace");
    int rc, db;

    if (spec->mode != DLOCK_EXCLUSIVE)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "%s is not available for redlock",
                          spec->mode == DLOCK_SHARED ? "a shared lock" : "--slots");
    if (spec->uri->nhosts > REDLOCK_NODES)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "%d servers: a redlock has at most %d",
                          spec->uri->nhosts, REDLOCK_NODES);
    be->restart_grace = spec->ttl;
    if (grace != NULL && (rc = dlock_parse_duration(grace, &be->restart_grace, err)) != 0)
        return rc;
    if ((rc = redis_parse_db(spec->uri->path + (*spec->uri->path == '/'), &db, err)) != 0)
        return rc;
    if (redis_script_init(&be->script, spec->uri->name, db) != 0)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    if (strcmp(spec->uri->scheme, "redlocks") == 0 &&
        (rc = tls_config_from_uri(spec, &be->tls, err)) != 0)
        return rc;
    if ((rc = redis_find_secret(spec, &be->secret, err)) != 0)
        return rc;
    be->nodes = calloc((size_t)spec->uri->nhosts, sizeof(*be->nodes));
    if (be->nodes == NULL)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    be->n = spec->uri->nhosts;
    be->quorum = be->n / 2 + 1;
    for (int i = 0; i < be->n; i++)
        init_node(be, i);
    return 0;
}

/* One server under two names would have two votes. */
int redlock_check_peers(struct dlock_be *be, struct dlock_error *err)
{
    const struct dlock_peer *p = be->spec->peers;
    for (int i = 0; i < be->spec->npeers; i++)
        for (int k = 0; k < i; k++)
            if (p[i].host != p[k].host && p[i].len == p[k].len &&
                memcmp(&p[i].addr, &p[k].addr, p[i].len) == 0)
                return dlock_fail(err, DLOCK_EUSAGE, 0,
                                  "%s and %s are one address: a redlock needs different servers",
                                  be->nodes[p[k].host].where, be->nodes[p[i].host].where);
    return 0;
}
