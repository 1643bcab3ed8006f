/* findings.c - see findings.h. */
#include "findings.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define DAY 86400    /* s */
#define CERT_DAYS 14 /* a certificate that ends earlier should be renewed */

void findings_add(struct findings *f, enum dlock_finding level, int code, const char *fmt, ...)
{
    char text[sizeof(f->all->error.msg)];
    va_list ap;
    if (f->n == FINDINGS_MAX)
        return;
    if (f->n == f->size) {
        size_t size = f->size > 0 ? f->size * 2 : 16;
        struct finding *more = realloc(f->all, size * sizeof(*more));
        f->no_memory = f->no_memory || !more;
        if (!more)
            return;
        f->all = more;
        f->size = size;
    }
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    f->all[f->n].level = level;
    dlock_fail(&f->all[f->n++].error, code, 0, "%s%s%s", f->server ? f->server : "",
               f->server ? " " : "", text);
}

void findings_add_certificate(struct findings *f, int64_t ends)
{
    long long days = (ends - dlock_wall() / DLOCK_SEC) / DAY;
    if (days < CERT_DAYS)
        finding_warn(f, "certificate: ends in %lld day%s; renew it", days, days == 1 ? "" : "s");
    else
        finding_ok(f, "certificate: ends in %lld days", days);
}

bool findings_take(struct findings *f, struct dlock_event *ev)
{
    if (!f->ended)
        return false;
    *ev = (struct dlock_event){.type = f->no_memory ? EV_FAILED : EV_DONE};
    if (f->taken < f->n) {
        *ev = (struct dlock_event){
            .type = EV_FINDING, .finding = f->all[f->taken].level, .error = f->all[f->taken].error};
        f->taken++;
        return true;
    }
    if (f->no_memory)
        dlock_fail(&ev->error, DLOCK_ENOMEM, 0, "out of memory");
    findings_drop(f);
    return true;
}

void findings_drop(struct findings *f)
{
    free(f->all);
    *f = (struct findings){0};
}
