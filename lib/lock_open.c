/*
 * lock_open.c - a handle from its URI and options: what is asked for is checked, and the store's table is found.
 */
#include "lock.h"

#include "util.h"

#include <stdlib.h>

static int check_options(const struct dlock_options *o, const struct dlock_backend *be,
                         struct dlock_error *err)
{
    if (o->mode == DLOCK_SHARED && !(be->caps & CAP_SHARED))
        return dlock_fail(err, DLOCK_EUSAGE, 0, "shared locks are not available for %s", be->name);
    if (o->mode == DLOCK_SLOTS && !(be->caps & CAP_SLOTS))
        return dlock_fail(err, DLOCK_EUSAGE, 0, "slots are not available for %s", be->name);
    if (o->connect_timeout_ns <= 0 || o->wait_ns < 0)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "a time-out must be greater than zero");
    return 0;
}

static void set_lease(dlock *d, const struct dlock_options *o)
{
    bool leased = d->table->caps & CAP_LEASE;
    d->lease_cfg = (struct lease_config){
        .ttl = leased ? o->ttl_ns : DLOCK_NEVER,
        .grace = o->grace_ns >= 0 ? o->grace_ns : lease_default_grace(o->ttl_ns),
        .lag = d->table->caps & CAP_LAG,
        .default_grace = o->grace_ns < 0,
    };
    lease_init(&d->lease, &d->lease_cfg);
}

static void set_spec(dlock *d, const struct dlock_options *o)
{
    struct dlock_times t;
    lease_timeline(&t, &d->lease_cfg, o->ttl_ns, 0);
    dlock_who_init(&d->who, o->command, o->note);
    d->spec = (struct dlock_spec){
        .env = &dlock_env_system,
        .uri = d->uri,
        .mode = o->mode,
        .slots = o->slots,
        .ttl = o->ttl_ns,
        .least_ttl = lease_least_ttl(&d->lease_cfg),
        .connect_timeout = o->connect_timeout_ns,
        /* Three tries fit between the first renewal and the second: one lost packet costs nothing. */
        .op_timeout = dlock_min(o->connect_timeout_ns, dlock_max(LOCK_UNDO_BRIEF, t.term_at / 6)),
        .who = &d->who,
    };
}

static int open_handle(dlock *d, const struct dlock_options *o, struct dlock_error *err)
{
    struct dlock_error why;
    d->table = dlock_registry_find(d->uri->scheme, &why);
    if (!d->table) {
        if (err)
            *err = why;
        return why.code;
    }
    d->opt = *o;
    d->opt.command = d->opt.note = NULL; /* copied into who */
    int rc = check_options(o, d->table, err);
    if (rc < 0)
        return rc;
    set_lease(d, o);
    rc = lease_check(&d->lease_cfg, err);
    if (rc < 0)
        return rc;
    set_spec(d, o);
    rc = d->table->open(&d->be, &d->spec, err);
    if (rc < 0)
        return rc;
    d->wait_until = d->contact_by = DLOCK_NEVER;
    return dlock_uri_check_params(d->uri, err);
}

int dlock_open_uri(dlock **out, struct dlock_uri **uri, const struct dlock_options *o,
                   struct dlock_error *err)
{
    dlock *d = calloc(1, sizeof *d);
    int rc = DLOCK_ENOMEM;
    if (d) {
        d->uri = *uri;
        rc = open_handle(d, o, err);
    } else {
        dlock_fail(err, rc, 0, "out of memory");
        dlock_uri_free(*uri);
    }
    *uri = NULL;
    if (rc < 0)
        dlock_close(d);
    else
        *out = d;
    return rc;
}

int dlock_open(dlock **out, const char *text, const struct dlock_options *o,
               struct dlock_error *err)
{
    struct dlock_uri *uri;
    int rc = dlock_uri_parse(&uri, text, err);
    return rc < 0 ? rc : dlock_open_uri(out, &uri, o, err);
}

void dlock_close(dlock *d)
{
    if (!d)
        return;
    if (d->be)
        d->table->close(d->be);
    if (d->resolver)
        dlock_resolver_free(d->resolver);
    free(d->peers);
    dlock_uri_free(d->uri);
    free(d);
}
