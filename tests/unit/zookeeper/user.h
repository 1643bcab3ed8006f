/* user.h - the ZooKeeper backend of a lock that is never asked for, for the unit tests. */
#ifndef USER_H
#define USER_H

#include "backends/zookeeper/zookeeper.h"
#include "uri.h"

struct user {
    struct dlock_uri *uri;
    struct dlock_spec spec;
    struct dlock_identity identity;
    struct zk_backend be;
    struct dlock_error err;
    int rc;
};

static struct user u; /* of the URI that was opened last */

/* Without I/O; 0 or the code, in u.rc. */
static int open_uri(const char *text)
{
    zk_done(&u.be);
    dlock_uri_free(u.uri);
    memset(&u, 0, sizeof u);
    u.rc = dlock_uri_parse(&u.uri, text, &u.err);
    if (u.rc != 0)
        return u.rc;
    dlock_identity_init(&u.identity, "unit", "");
    u.spec = (struct dlock_spec){
        .env = &dlock_env_system,
        .uri = u.uri,
        .ttl = 30 * DLOCK_SEC,
        .connect_timeout = 5 * DLOCK_SEC,
        .op_timeout = DLOCK_SEC,
        .identity = &u.identity,
    };
    u.be.spec = &u.spec;
    u.rc = zk_check_spec(&u.be, &u.err);
    return u.rc;
}

/* Each of these is refused as wrong usage, by one line with that text. */
static void check_refused(const char *const *uris, size_t n, const char *text)
{
    for (size_t i = 0; i < n; i++) {
        if (!CHECK_INT(open_uri(uris[i]), DLOCK_EUSAGE) || !CHECK_HAS(u.err.msg, text))
            printf("# %s\n", uris[i]);
        CHECK(!strchr(u.err.msg, '\n') && !strstr(u.err.msg, ":pw"));
    }
}

#endif
