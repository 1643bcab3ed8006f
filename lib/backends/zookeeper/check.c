/*
 * check.c - what a run would meet: the session, the rights, the servers.
 *
 * The rights are tried by a multi, which is done whole or not at all. Its last operation fails
 * always: it deletes a node that the operation before has deleted. So the server checks the rights
 * of all, and changes nothing.
 */
#include "words.h"
#include "zookeeper.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Fewer connections from one address are few for a host with some holders and waiters. */
#define CONNECTIONS_LEAST 10

struct zk_check {
    char *path;      /* of the node that tries the rights */
    unsigned serial; /* of that multi */
    int depth;       /* so many nodes above it are missing */
    bool records;    /* the rights for run records are tried */
    bool asking;     /* the servers, singly, for their words */
    int asked;       /* how many words were asked for */
    int alone;       /* servers that say that they stand alone */
    struct zk_words words;
};

/* The operations of the multi that tries the rights. */
enum { TRY_CREATE, TRY_DELETE, TRY_FAILS };

static zk_answer_fn queue_read, rights_tried;

static void end_check(struct zk_backend *be)
{
    if (!be->check)
        return;
    zk_words_end(&be->check->words);
    free(be->check->path);
    free(be->check);
    be->check = NULL;
}

void zk_check_drop(struct zk_backend *be)
{
    end_check(be);
    findings_drop(&be->found);
}

/* -------------------------------------------------------------------- session */

/* The server grants sessions of its own limits, 2 to 20 ticks by default. */
static void check_session(struct zk_backend *be)
{
    const struct dlock_spec *spec = be->spec;
    int64_t granted = be->session.timeout;
    char ours[32], theirs[32], least[32];
    dlock_format_duration(spec->ttl, ours, sizeof(ours));
    dlock_format_duration(granted, theirs, sizeof(theirs));
    dlock_format_duration(spec->least_ttl, least, sizeof(least));
    if (granted < spec->least_ttl)
        finding_fail(
            &be->found, DLOCK_EUNUSABLE,
            "session: the server grants %s (ttl: %s), this grace needs %s; use a shorter --grace, "
            "or raise maxSessionTimeout",
            theirs, ours, least);
    else if (granted < spec->ttl / DLOCK_MSEC * DLOCK_MSEC)
        finding_warn(
            &be->found,
            "session: the server grants %s, not the ttl of %s; raise maxSessionTimeout, or use "
            "--ttl %.9gs",
            theirs, ours, (double)granted / DLOCK_SEC);
    else if (granted > spec->ttl)
        finding_warn(
            &be->found,
            "session: the server grants %s, not the ttl of %s, so a crash keeps the lock longer; "
            "lower minSessionTimeout, or use --ttl %.9gs",
            theirs, ours, (double)granted / DLOCK_SEC);
    else
        finding_ok(&be->found, "session: %s, as the ttl", theirs);
}

/* ---------------------------------------------------------------------- queue */

/* The layout of a contender's name. */
static enum zk_layout layout_of(const char *name)
{
    if (strstr(name, "__lock__") || strstr(name, "__rlock__"))
        return LAYOUT_KAZOO;
    return strstr(name, "__WRIT__") || strstr(name, "__READ__") ? LAYOUT_CURATOR_RW
                                                                : LAYOUT_CURATOR;
}

/* The lock's children: the right to read, and programs that would not heed our names. */
static enum zk_verdict queue_read(struct zk_backend *be, const struct zk_msg *m)
{
    static const char *const names[] = {"curator", "curator-rw", "kazoo"};
    int64_t seq;
    if (m->serial != be->list_serial)
        return ZK_GOES_ON;
    if (m->rc == ZNOAUTH)
        finding_fail(&be->found, DLOCK_EPERM,
                     "rights: this user may not read %s; give it READ there", be->lock.parent);
    else if (m->rc != ZOK && m->rc != ZNONODE)
        return zk_failed(be, m->rc, "cannot read the queue");
    for (int i = 0; i < m->nnames; i++) {
        enum zk_layout layout = layout_of(m->names[i]);
        if (!zk_sequence(m->names[i], &seq) || layout == be->lock.layout)
            continue;
        finding_warn(
            &be->found,
            "queue: a client with names as of %s is there, and may not heed ours; use ?layout=%s",
            names[layout], names[layout]);
        break;
    }
    return ZK_GOES_ON;
}

/* --------------------------------------------------------------------- rights */

/* Try to make and to delete the node check.path. */
static enum zk_verdict try_rights(struct zk_backend *be)
{
    const char *path = be->check->path;
    struct zk_request ops[] = {
        [TRY_CREATE] = {.call = ZK_CREATE, .path = path, .acl = be->lock.acl},
        [TRY_DELETE] = {.call = ZK_DELETE, .path = path, .version = -1},
        [TRY_FAILS] = {.call = ZK_DELETE, .path = path, .version = -1}};
    be->check->serial = zk_ask_multi(be, rights_tried, ops, DLOCK_LEN(ops));
    return ZK_GOES_ON;
}

/* Begin with a new node below parent, which need not exist. */
static enum zk_verdict try_below(struct zk_backend *be, const char *parent, int len)
{
    char token[DLOCK_TOKEN_LEN + 1];
    free(be->check->path);
    be->check->path = NULL;
    be->check->depth = 0;
    if (dlock_token_new(be->spec->env, token) < 0 ||
        asprintf(&be->check->path, "%.*s/dlock-check-%s-", len, parent, token) < 0)
        return zk_no_memory(be);
    return try_rights(be);
}

/* A multi's answer: about subject, the rights below the node of len bytes. */
static void tell_rights(struct zk_backend *be, const struct zk_msg *m, int len)
{
    const char *what = be->check->records ? "run records" : "rights", *path = be->check->path;
    const char *above = len > 0 ? path : "/";
    len = len > 0 ? len : 1;
    if (m->failed == TRY_CREATE && m->rc == ZNOAUTH)
        finding_fail(&be->found, DLOCK_EPERM,
                     "%s: this user may not create nodes below %.*s; give it CREATE there", what,
                     len, above);
    else if (m->failed == TRY_CREATE)
        finding_fail(&be->found, DLOCK_EUNUSABLE, "%s: %s: %s; use another chroot", what, path,
                     m->rc == ZNOCHILDRENFOREPHEMERALS ? "the node above is ephemeral"
                                                       : zerror(m->rc));
    else if (m->failed == TRY_DELETE && be->check->depth == 0)
        finding_warn(
            &be->found,
            "%s: this user may not delete nodes below %.*s, so a release ends the session; give it "
            "DELETE there",
            what, len, above);
    else if (be->check->depth > 0)
        finding_ok(&be->found, "%s: %s does not exist yet; a run makes it", what, path);
    else
        finding_ok(&be->found, "%s: create and delete below %.*s", what, len, above);
}

/* Where the node above is missing, a run makes that: try it there. */
static enum zk_verdict rights_tried(struct zk_backend *be, const struct zk_msg *m)
{
    char *path = be->check->path;
    if (m->serial != be->check->serial)
        return ZK_GOES_ON;
    be->check->serial = 0;
    int len = (int)(strrchr(path, '/') - path);
    if (zk_transient(m->rc) || m->failed < 0)
        return zk_failed(be, m->rc, "cannot try the rights");
    if (m->failed == TRY_CREATE && m->rc == ZNONODE && len > 0) {
        path[len] = '\0';
        be->check->depth++;
        return try_rights(be);
    }
    if (m->failed == TRY_CREATE && m->rc == ZNODEEXISTS) /* another client has made it */
        return zk_retry(be);
    tell_rights(be, m, len);
    if (be->spec->once > 0 && !be->check->records) {
        const char *record = be->run.path.record;
        be->check->records = true;
        return try_below(be, record, (int)(strrchr(record, '/') - record));
    }
    be->contact_until = DLOCK_NEVER; /* the words have their own time */
    be->check->asking = true;
    return ZK_GOES_ON;
}

enum zk_verdict zk_check_ask(struct zk_backend *be)
{
    if (be->check && be->check->asking) /* that needs no session */
        return ZK_GOES_ON;
    zk_check_drop(be);
    be->check = calloc(1, sizeof(*be->check));
    if (!be->check)
        return zk_no_memory(be);
    be->check->words.fd = -1;
    if (be->lock.credentials)
        finding_ok(&be->found, "login: %.*s, by digest; a wrong password shows as a missing right",
                   (int)strcspn(be->lock.credentials, ":"), be->lock.credentials);
    check_session(be);
    zk_ask_list(be, queue_read);
    return try_below(be, be->lock.parent, (int)strlen(be->lock.parent));
}

/* -------------------------------------------------------------------- servers */

/* Copy the value behind a key, up to one of the characters in end, or of the line's end. */
static void read_value(const char *text, const char *key, const char *end, char value[64])
{
    const char *at = strstr(text, key);
    at = at ? at + strlen(key) : "";
    dlock_clean_text(value, 64, at, strcspn(at, end));
}

/* A server's answer to "srvr", or none. */
static void check_server(struct zk_backend *be, const char *server)
{
    const struct zk_words *w = &be->check->words;
    char version[64], mode[64];
    int major = 0, minor = 0;
    read_value(w->text, "Zookeeper version: ", "-,\r\n", version);
    read_value(w->text, "Mode: ", "\r\n", mode);
    be->check->alone += strcmp(mode, "standalone") == 0;
    if (w->error != 0)
        finding_warn(&be->found, "server %s: %s; start it, or leave it out of the URI", server,
                     strerror(w->error));
    else if (strstr(w->text, "not currently serving") || strcmp(mode, "read-only") == 0)
        finding_warn(&be->found, "server %s: it has no quorum; start the other servers", server);
    else if (strstr(w->text, "not in the whitelist"))
        finding_ok(&be->found,
                   "server %s: up; its version is not told (4lw.commands.whitelist lacks srvr)",
                   server);
    else if (sscanf(version, "%d.%d", &major, &minor) != 2)
        finding_warn(
            &be->found,
            "server %s: no answer to srvr; too many connections (maxClientCnxns), or not ZooKeeper",
            server);
    else if (major < 3 || (major == 3 && minor < 5))
        finding_fail(&be->found, DLOCK_EUNUSABLE, "server %s: ZooKeeper %s; install 3.5 or newer",
                     server, version);
    else
        finding_ok(&be->found, "server %s: ZooKeeper %s, %s", server, version, mode);
}

/* A server's answer to "conf", which few servers allow. */
static void check_settings(struct zk_backend *be, const char *server)
{
    char most[64];
    read_value(be->check->words.text, "maxClientCnxns=", "\r\n", most);
    int n = atoi(most);
    if (n > 0 && n < CONNECTIONS_LEAST)
        finding_warn(
            &be->found,
            "server %s: it takes %d connections from one address, and each holder and waiter there "
            "needs one; raise maxClientCnxns",
            server, n);
}

/* All servers were asked. */
static void check_ensemble(struct zk_backend *be)
{
    int n = be->spec->npeers;
    if (n > 1 && be->check->alone > 1)
        finding_warn(
            &be->found,
            "ensemble: %d of the %d servers stand alone, each with locks of its own; name the "
            "servers of one ensemble",
            be->check->alone, n);
    else if (n == 1 && be->check->alone == 1)
        finding_warn(&be->found,
                     "ensemble: a single server, without which there is no lock; run three");
    else if (n == 1)
        finding_warn(&be->found,
                     "ensemble: the URI names one server; name all, for when this one is down");
    else
        finding_ok(&be->found, "ensemble: %d servers", n);
}

bool zk_check_words(struct zk_backend *be)
{
    static const char *const words[] = {"srvr", "conf"};
    const struct dlock_spec *spec = be->spec;
    int64_t now = zk_now(be);
    char server[ZK_ADDR_TEXT];
    if (!be->check || !be->check->asking)
        return false;
    for (struct zk_words *w = &be->check->words;;) {
        int at = be->check->asked / (int)DLOCK_LEN(words);
        int word = be->check->asked % (int)DLOCK_LEN(words);
        if (at >= spec->npeers) {
            check_ensemble(be);
            end_check(be);
            return be->found.ended = true;
        }
        const struct dlock_peer *peer = &spec->peers[at];
        if (w->fd < 0)
            zk_words_ask(w, peer, words[word],
                         now + dlock_min(DLOCK_SEC, spec->connect_timeout / 2));
        if (!zk_words_over(w, now))
            return false;
        zk_addr_text(&peer->addr, server, true);
        if (word == 0)
            check_server(be, server);
        else
            check_settings(be, server);
        /* A server that does not answer is asked once. */
        be->check->asked += w->error != 0 ? (int)DLOCK_LEN(words) - word : 1;
        zk_words_end(w);
    }
}

int zk_check_interest(const struct zk_backend *be, struct pollfd *pfd, int cap, int64_t *wake_at)
{
    if (!be->check || !be->check->asking)
        return 0;
    const struct zk_words *w = &be->check->words;
    *wake_at = w->fd < 0 ? 0 : dlock_min(*wake_at, w->until);
    if (w->fd < 0 || cap == 0)
        return 0;
    *pfd = (struct pollfd){.fd = w->fd, .events = zk_words_events(w)};
    return 1;
}
