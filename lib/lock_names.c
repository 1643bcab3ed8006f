/*
 * lock_names.c - a handle's name look-ups: what they bring is taken over, and the store's names are looked up
 * again when it may have moved.
 */
#include "lock.h"

#include "util.h"

#include <stdlib.h>

#define RESOLVE_AGAIN (10 * DLOCK_SEC)

static bool names(const struct dlock_peer *peers, int n, int host)
{
    for (int i = 0; i < n; i++)
        if (peers[i].host == host)
            return true;
    return false;
}

/* Take these addresses; a host that has none among them keeps what it had. False: out of memory, all stay. */
static bool take_peers(dlock *d, struct dlock_peer *peers, int n)
{
    int all = n;
    struct dlock_peer *p = realloc(peers, ((size_t)n + (size_t)d->spec.npeers + 1) * sizeof *p);
    if (!p) {
        free(peers);
        return false;
    }
    for (int i = 0; i < d->spec.npeers; i++)
        if (!names(p, n, d->peers[i].host))
            p[all++] = d->peers[i];
    free(d->peers);
    d->peers = p;
    d->spec.peers = p;
    d->spec.npeers = all;
    return true;
}

void lock_resolved(dlock *d)
{
    struct dlock_peer *peers;
    struct dlock_error why;
    int n;
    int rc = dlock_resolver_result(d->resolver, &peers, &n, &why);
    if (rc != 0) {
        dlock_resolver_free(d->resolver);
        d->resolver = NULL;
        d->resolved_at = lock_now(d);
    } else if (d->phase == PH_RESOLVING && lock_now(d) >= d->partly_at) {
        /* A name server that is silent about one host of several must not cost the others. */
        rc = dlock_resolver_so_far(d->resolver, &peers, &n);
    }
    if (rc == 0)
        return;
    if (rc > 0 && !take_peers(d, peers, n))
        rc = dlock_fail(&why, DLOCK_ENOMEM, 0, "out of memory");
    if (d->phase != PH_RESOLVING)
        return; /* a look-up beside a reconnect: when it fails, the old addresses stay */
    if (rc > 0) {
        lock_ask_backend(d);
    } else {
        d->why = why;
        lock_report_failed(d);
    }
}

void lock_resolve_again(dlock *d)
{
    if (d->resolver || d->uri->nhosts == 0 || lock_now(d) - d->resolved_at < RESOLVE_AGAIN)
        return;
    d->resolved_at = lock_now(d);
    dlock_resolver_start(&d->resolver, d->uri, NULL);
}
