/* uri.c - check the URI and the core's settings, before there is a connection. */
#include "zookeeper.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The nodes of each program, and what stands between GUID and sequence. */
static const struct {
    const char *name, *exclusive, *shared;
} layouts[] = {
    [LAYOUT_CURATOR] = {"curator", "lock-", "r-lock-"},
    [LAYOUT_CURATOR_RW] = {"curator-rw", "__WRIT__", "__READ__"},
    [LAYOUT_KAZOO] = {"kazoo", "__lock__", "__rlock__"},
};

/* The authenticated user may do everything, all users may read. */
static struct ACL creator_read[2];
static const struct ACL_vector acl_read = {.count = 2, .data = creator_read};

/* Does the server accept s in a path? It counts in UTF-16, and accepts no surrogates. */
static bool good_text(const char *s)
{
    const unsigned char *u = (const unsigned char *)s;
    for (; *u; u++) {
        if (*u < 0x20 || *u == 0x7f || *u >= 0xf0 || (*u == 0xc2 && u[1] < 0xa0))
            return false;
        if (*u >= 0xe0) {
            unsigned c = (*u & 0xfU) << 12 | (u[1] & 0x3fU) << 6 | (u[2] & 0x3fU);
            if ((c >= 0xd800 && c <= 0xf8ff) || c >= 0xfff0)
                return false;
            u += 2;
        }
    }
    return true;
}

static int bad_name(const struct zk_backend *be, const char *why, struct dlock_error *err)
{
    return dlock_fail(err, DLOCK_EUSAGE, 0,
                      "the lock's name '%s' cannot be a path in ZooKeeper: %s", be->spec->uri->name,
                      why);
}

/* The lock's path: each part is the name of a node. */
static int set_path(struct zk_backend *be, struct dlock_error *err)
{
    const struct dlock_uri *uri = be->spec->uri;
    size_t chroot = strlen(uri->path);
    int64_t seq;
    while (chroot > 0 && uri->path[chroot - 1] == '/')
        chroot--;
    if (asprintf(&be->lock.parent, "%.*s/%s", (int)chroot, uri->path, uri->name) < 0) {
        be->lock.parent = NULL;
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    }
    be->lock.chroot_len = chroot;
    const char *path = be->lock.parent, *name = path + chroot + 1;
    if (!good_text(path))
        return bad_name(be, "it has a character that is not allowed there", err);
    for (const char *p = path; *p;) {
        char part[512];
        size_t n = strcspn(++p, "/");
        if (n == 0)
            return bad_name(be, "a part of it is empty", err);
        if (n >= sizeof(part))
            return bad_name(be, "it is too long", err);
        memcpy(part, p, n);
        part[n] = '\0';
        if (strcmp(part, ".") == 0 || strcmp(part, "..") == 0)
            return bad_name(be, "'.' and '..' are not allowed there", err);
        if (p == path + 1 && strcmp(part, "zookeeper") == 0)
            return bad_name(be, "/zookeeper is the server's own", err);
        if (strcmp(part, ZK_ONCE) == 0 ||
            (p == name && strncmp(part, ZK_ONCE, sizeof(ZK_ONCE) - 1) == 0))
            return bad_name(be, ZK_ONCE " is where the run records are", err);
        if (p > name && zk_sequence(part, &seq))
            return bad_name(
                be, "a part that ends in ten digits looks like a waiter for the lock above it",
                err);
        p += n;
    }
    return 0;
}

/* The credentials of any host are good for all hosts, which are one ensemble. */
int zk_set_credentials(struct zk_backend *be, struct dlock_error *err)
{
    const struct dlock_uri *uri = be->spec->uri;
    const char *file = dlock_uri_param(be->spec->uri, "password-file");
    const char *user = NULL, *password = NULL;
    char *secret = NULL, *both = NULL;
    for (int i = 0; i < uri->nhosts && !user && !password; i++) {
        user = uri->hosts[i].user;
        password = uri->hosts[i].password;
    }
    if (file) {
        int rc = dlock_read_secret(&secret, file, err);
        if (rc < 0)
            return rc;
        password = secret;
    }
    int rc = 0;
    if ((user && *user) != (password != NULL))
        rc = dlock_fail(err, DLOCK_EUSAGE, 0,
                        "ZooKeeper's digest authentication needs a user and a password");
    else if (password && asprintf(&both, "%s:%s", user, password) < 0)
        rc = dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    dlock_wipe(secret);
    if (rc == 0) {
        dlock_wipe(be->lock.credentials);
        be->lock.credentials = both;
    }
    return rc;
}

/* Parameters in URLs for other programs. */
#define SERVERS "list all servers after '//': zk://H1:2181,H2:2181"
#define CREDENTIALS "write USER:PASSWORD@ before the first host, or ?password-file=FILE"
#define NO_TLS "there is no TLS to ZooKeeper yet"
/* clang-format off */
/* Of Dubbo, with ZooKeeper as its registry; kazoo; Curator. */
static const char *const ignored[] = {
    "timeout", "session", "session_timeout", "connection_timeout", "connect_timeout", "blocking",
    "max_retries", "client", "transporter", "check", "register", "subscribe", NULL};
static const struct dlock_foreign rules[] = {
    {"backup hosts", FOREIGN_REFUSED, SERVERS, NULL},
    {"chroot", FOREIGN_REFUSED, "write /CHROOT behind the hosts", NULL},
    {"group", FOREIGN_REFUSED,
     "it is no part of the lock's path: write /GROUP behind the hosts, or leave it out", NULL},
    {"read_only", FOREIGN_AS_OURS, "a lock must be written: leave it out", "0 false no"},
    {"user username password auth*", FOREIGN_REFUSED, CREDENTIALS, NULL},
    {"use_ssl ssl tls", FOREIGN_AS_OURS, NO_TLS, "0 false no"},
    {"ssl* tls* verify* ca certfile keyfile", FOREIGN_REFUSED, NO_TLS, NULL},
    {NULL, 0, NULL, NULL},
};
/* clang-format on */

int zk_check_spec(struct zk_backend *be, struct dlock_error *err)
{
    struct dlock_uri *uri = be->spec->uri;
    int rc = dlock_uri_foreign(uri, ignored, rules, err);
    if (rc == 0)
        rc = set_path(be, err);
    if (rc == 0)
        rc = zk_set_credentials(be, err);
    if (rc < 0)
        return rc;
    const char *acl = dlock_uri_param(uri, "acl");
    if (!acl)
        acl = be->lock.credentials ? "creator" : "open";
    if (strcmp(acl, "open") == 0) {
        be->lock.acl = &ZOO_OPEN_ACL_UNSAFE;
    } else if (strcmp(acl, "creator") != 0 && strcmp(acl, "read") != 0) {
        return dlock_fail(err, DLOCK_EUSAGE, 0, "?acl=%s: must be creator, read or open", acl);
    } else if (!be->lock.credentials) {
        return dlock_fail(err, DLOCK_EUSAGE, 0, "?acl=%s needs a user and a password in the URI",
                          acl);
    } else {
        creator_read[0] = ZOO_CREATOR_ALL_ACL.data[0];
        creator_read[1] = ZOO_READ_ACL_UNSAFE.data[0];
        be->lock.acl = *acl == 'c' ? &ZOO_CREATOR_ALL_ACL : &acl_read;
    }
    const char *layout = dlock_uri_param(uri, "layout");
    while (layout && strcmp(layout, layouts[be->lock.layout].name) != 0)
        if (be->lock.layout++ == LAYOUT_KAZOO)
            return dlock_fail(err, DLOCK_EUSAGE, 0,
                              "?layout=%s: must be curator, curator-rw or kazoo", layout);
    if (be->spec->mode == DLOCK_MODE_SLOTS && be->lock.layout != LAYOUT_CURATOR)
        return dlock_fail(err, DLOCK_EUSAGE, 0,
                          "slots with ?layout=%s: the read/write locks of that program know no "
                          "slots, and would not be excluded by one: leave the layout out",
                          layout);
    rc = zk_set_run_paths(be, err);
    if (rc == 0 && be->spec->ttl > 24 * 24 * 3600 * DLOCK_SEC)
        return dlock_fail(err, DLOCK_EUSAGE, 0,
                          "a ttl of more than 24 days is too long for ZooKeeper");
    return rc;
}

int zk_new_stem(struct zk_backend *be, struct dlock_error *err)
{
    const char *t = be->node.token;
    const char *kind = be->spec->mode == DLOCK_MODE_SHARED ? layouts[be->lock.layout].shared
                                                           : layouts[be->lock.layout].exclusive;
    char slots[32] = "";
    int rc = dlock_token_new(be->spec->env, be->node.token);
    if (rc < 0)
        return dlock_fail(err, DLOCK_EOS, -rc, "no random numbers: %s", strerror(-rc));
    /*
     * The kind stands between the GUID and the sequence. Curator's mutex sorts by the text behind
     * "lock-", and ignores names without "lock-": so our readers and slots have it, too, and
     * exclude the mutex.
     */
    if (be->spec->mode == DLOCK_MODE_SLOTS)
        snprintf(slots, sizeof(slots), "s%u-", be->spec->slots);
    if (be->lock.layout == LAYOUT_KAZOO)
        rc = asprintf(&be->node.stem, "%s/%s%s", be->lock.parent, t, kind);
    else /* the form of Curator's protected nodes */
        rc = asprintf(&be->node.stem, "%s/_c_%.8s-%.4s-%.4s-%.4s-%s-%s%s", be->lock.parent, t,
                      t + 8, t + 12, t + 16, t + 20, slots, kind);
    if (rc < 0) {
        be->node.stem = NULL;
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    }
    return 0;
}
