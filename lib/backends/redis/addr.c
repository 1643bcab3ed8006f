/* addr.c - an address that a server names: text to numbers. See addr.h. */
#include "addr.h"

#include <stdlib.h>
#include <string.h>

bool redis_addr_host(const char *text, size_t len, char host[REDIS_ADDR_HOST])
{
    if (len >= REDIS_ADDR_HOST)
        return false;
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i];
        /* Only bytes that are harmless in a message; '%': the zone of a link-local address. */
        if ((c | 32) >= 'a' && (c | 32) <= 'z')
            continue;
        if (!(c >= '0' && c <= '9') && (c == '\0' || !strchr("-._:%", c)))
            return false;
    }
    memcpy(host, text, len);
    host[len] = '\0';
    return true;
}

bool redis_addr_split(const char *text, size_t len, struct redis_named *to)
{
    const char *colon = memrchr(text, ':', len);
    int64_t port;
    if (!colon || !dlock_read_number(colon + 1, (size_t)(text + len - colon) - 1, &port) ||
        port < 1 || port > 65535)
        return false;
    to->port = (unsigned)port;
    len = (size_t)(colon - text);
    if (len >= 2 && text[0] == '[' && text[len - 1] == ']') {
        text++;
        len -= 2;
    }
    return redis_addr_host(text, len, to->host);
}

int redis_addr_start(struct redis_addr *a, const struct redis_named *to, struct dlock_error *err)
{
    struct dlock_host h = {.port = (unsigned short)to->port};
    struct dlock_uri uri = {.hosts = &h, .nhosts = 1};
    *a = (struct redis_addr){0};
    if (to->host[0] == '\0' || to->port < 1 || to->port > 65535)
        return dlock_fail(err, DLOCK_EPROTO, 0, "'%s:%u' is not an address", to->host, to->port);
    h.host = strdup(to->host); /* the resolver copies it */
    if (!h.host)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    int rc = dlock_resolver_start(&a->resolver, &uri, err);
    free(h.host);
    if (rc < 0) {
        a->resolver = NULL;
        return rc;
    }
    return redis_addr_result(a, err);
}

int redis_addr_result(struct redis_addr *a, struct dlock_error *err)
{
    struct dlock_peer *peers = NULL;
    int n = 0;
    if (!a->resolver)
        return a->npeers > 0 ? 1 : dlock_fail(err, DLOCK_EUNAVAIL, 0, "no address known");
    int rc = dlock_resolver_result(&a->resolver, false, &peers, &n, err);
    if (rc <= 0)
        return rc;
    a->npeers = n < REDIS_CONN_PEERS ? n : REDIS_CONN_PEERS;
    memcpy(a->peers, peers, sizeof(*peers) * (size_t)a->npeers);
    free(peers);
    return redis_addr_result(a, err);
}

int redis_addr_fd(const struct redis_addr *a)
{
    return a->resolver ? dlock_resolver_fd(a->resolver) : -1;
}

void redis_addr_close_in_child(struct redis_addr *a)
{
    dlock_resolver_close_in_child(a->resolver);
    a->resolver = NULL;
}

void redis_addr_done(struct redis_addr *a)
{
    dlock_resolver_free(a->resolver);
    a->resolver = NULL;
    a->npeers = 0;
}
