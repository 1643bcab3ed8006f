/*
 * held_mode.c - --held: are the locks that this process runs under still held? Asks the keepers,
 * not the stores: all keepers at once, by the sockets in DLOCK_HELD (nested.h), within ANSWER_TIME.
 * A lock counts as held only when its keeper answers for how long.
 *
 * Not guaranteed: anything against a process of the same user that pretends to be the keeper.
 */
#include "held.h"
#include "messages.h"
#include "modes.h"
#include "open.h"
#include "query.h"
#include "util.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ANSWER_TIME DLOCK_SEC
/* Between tries while the keeper, or this process, has no room for one more connection. */
#define RETRY_PAUSE (10 * DLOCK_MSEC)

#define IS_SILENT "has not answered within 1 s: is it stopped?"

struct query {
    struct held e;
    int fd; /* -1: not connected */
    bool answered;
    const char *missing; /* why there is no answer yet */
    struct ucred keeper; /* pid 0: unknown */
    char who[32];        /* "dlock 812"; "dlock": its pid is unknown, or of another namespace */
    struct dlock_clocks asked;
    int64_t left; /* of the lease, counted from asked */
};

struct queries {
    const struct options *o;
    struct query of[HELD_MAX];
    int n;
};

/* ----------------------------------------------------- which locks --- */

/* Keep only the queries with this digest, of the lock's name or of its key, if there are any. */
static bool keep(struct queries *all, bool name, uint64_t digest)
{
    int n = 0;
    for (int i = 0; i < all->n; i++)
        if ((name ? all->of[i].e.name : all->of[i].e.digest) == digest)
            all->of[n++] = all->of[i];
    if (n > 0)
        all->n = n;
    return n > 0;
}

/* Find the locks in DLOCK_HELD, or that of the options. 0, or an exit code after the message. */
static int find(struct queries *all)
{
    const char *list = getenv("DLOCK_HELD"), *lock = all->o->lock;
    struct held e;
    bool found = false;
    int code = 0;
    for (; held_next(&list, &e); all->n++) {
        if (all->n == HELD_MAX) /* a list longer than dlock makes: keep its innermost entries */
            memmove(&all->of[0], &all->of[1], sizeof(all->of[0]) * (size_t)--all->n);
        all->of[all->n] = (struct query){.e = e, .fd = -1, .missing = IS_SILENT, .who = "dlock"};
    }
    if (all->n == 0) {
        message("--held is for a command that dlock runs: DLOCK_HELD names no lock here "
                "(-F sets none, and sudo removes it)");
        return dlock_error_exit(DLOCK_EUSAGE);
    }
    if (!lock || keep(all, true, nested_digest(lock)))
        return 0;
    /* Not a name as in DLOCK_NAME: a URI, "@name" or a path. */
    struct dlock_uri *uri = open_uri(all->o, lock, &code);
    if (!uri)
        return code;
    for (int fcntl = 0; fcntl < 2 && !found; fcntl++) {
        char *key = open_key(uri, fcntl);
        found = key && keep(all, false, nested_digest(key));
        free(key);
    }
    dlock_uri_free(uri);
    if (found)
        return 0;
    message("--held: '%s' names no lock that this process runs under", lock);
    return dlock_error_exit(DLOCK_EUSAGE);
}

/* ------------------------------------------------------------- asking --- */

/* The lock is not held, or may not be. Returns the exit code. */
static int not_held(const struct queries *all, const struct query *q, const char *why)
{
    const char *name = getenv("DLOCK_NAME"), *token = getenv("DLOCK_TOKEN");
    char lock[LOCK_TEXT_MAX];
    /* The environment names the innermost lock only. */
    if (all->o->lock)
        name = all->o->lock;
    else if (!token || strcmp(token, q->e.token) != 0)
        name = NULL;
    snprintf(lock, sizeof(lock), name ? "the lock '%s'" : "a lock above this process", name);
    message("%s may not be held any more: its %s %s", lock, q->who, why);
    return dlock_error_exit(DLOCK_ELOST);
}

/* Does an outer keeper, which is asked as well, have the same hold? */
static bool is_below(const struct queries *all, const struct query *q)
{
    for (const struct query *outer = all->of; outer < q; outer++)
        if (outer->e.digest == q->e.digest && strcmp(outer->e.token, q->e.token) == 0)
            return true;
    return false;
}

static int not_reached(const struct queries *all, struct query *q, int sys)
{
    char why[160];
    if (!nested_is_here(q->e.socket))
        return not_held(all, q, "is in another network namespace, where it cannot be asked");
    if (sys == ECONNREFUSED && is_below(all, q)) {
        q->left = DLOCK_NEVER;
        q->answered = true;
        return 0;
    }
    if (sys == ECONNREFUSED)
        return not_held(all, q, "has ended, or is releasing it");
    snprintf(why, sizeof(why), "cannot be asked: %s", strerror(sys));
    return not_held(all, q, why);
}

static void hang_up(struct query *q)
{
    if (q->fd >= 0)
        close(q->fd);
    q->fd = -1;
}

/* Connect and send the query, if there is room. 0, or an exit code after the message. */
static int ask(const struct queries *all, struct query *q)
{
    struct nested_request r = {.version = NESTED_VERSION, .mode = NESTED_QUERY};
    size_t len = offsetof(struct nested_request, key) + NESTED_DIGESTS_SIZE - 1;
    struct sockaddr_un a;
    socklen_t alen = nested_address(&a, q->e.socket), size = sizeof(q->keeper);
    if (strcmp(q->e.socket, "-") == 0)
        return not_held(all, q, "could not make a socket to be asked by");
    q->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (q->fd < 0) { /* too many descriptors: the next answer makes room */
        q->missing = "cannot be asked: no descriptor is free";
        return 0;
    }
    if (connect(q->fd, (struct sockaddr *)&a, alen) != 0) {
        int sys = errno;
        hang_up(q);
        return sys == EAGAIN || sys == EINTR ? 0 : not_reached(all, q, sys);
    }
    if (getsockopt(q->fd, SOL_SOCKET, SO_PEERCRED, &q->keeper, &size) != 0)
        return not_reached(all, q, errno);
    if (q->keeper.pid > 0)
        snprintf(q->who, sizeof(q->who), "dlock %ld", (long)q->keeper.pid);
    if (!nested_trusts(q->keeper.uid))
        return not_held(all, q, "has ended, or is another user's");
    memcpy(r.token, q->e.token, sizeof(q->e.token));
    nested_digests(r.key, q->e.digest, q->e.name);
    q->asked = dlock_clocks_read(&dlock_env_system);
    /* A keeper that has closed the connection already may have replied: receive() finds out. */
    if (send(q->fd, &r, len, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno != EPIPE &&
        errno != ECONNRESET)
        return not_reached(all, q, errno);
    return 0;
}

/* 0, or an exit code after the message. */
static int receive(const struct queries *all, struct query *q)
{
    struct nested_reply r;
    char text[120];
    ssize_t n = recv(q->fd, &r, sizeof(r), MSG_DONTWAIT);
    /* The keeper has closed the connection with the query unread; a reply may still be there. */
    if (n < 0 && errno == ECONNRESET)
        n = recv(q->fd, &r, sizeof(r), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (n != (ssize_t)sizeof(r) && (geteuid() == 0 || geteuid() == q->keeper.uid))
        return not_held(all, q, "does not hold it for this process");
    if (n != (ssize_t)sizeof(r)) {
        snprintf(text, sizeof(text), "runs as uid %lu, and answers only that user and root",
                 (unsigned long)q->keeper.uid);
        return not_held(all, q, text);
    }
    hang_up(q);
    q->missing = r.type == NESTED_FULL ? "has too many connections" : IS_SILENT;
    if (r.type == NESTED_FULL)
        return 0; /* ask again */
    if (r.type == NESTED_HELD && r.left > 0) {
        q->left = dlock_min(r.left, DLOCK_NEVER - q->asked.boot);
        q->answered = true;
        return 0;
    }
    r.text[sizeof(r.text) - 1] = '\0';
    message("%s has lost the lock '%s', or is about to lose it", q->who, r.text);
    return dlock_error_exit(DLOCK_ELOST);
}

/*
 * Until all keepers have answered, the innermost lock first. The first answer other than "held"
 * ends the query. 0, or an exit code after the message.
 */
static int ask_all(struct queries *all, const struct sigstate *sig)
{
    int64_t until = dlock_now() + ANSWER_TIME;
    for (;;) {
        struct pollfd p[HELD_MAX + 1] = {{.fd = sig->fd, .events = POLLIN}};
        nfds_t n = 1;
        const struct query *silent = NULL;
        int64_t wake = until;
        for (int i = all->n - 1; i >= 0; i--) {
            struct query *q = &all->of[i];
            int code = 0;
            if (q->fd < 0 && !q->answered)
                code = ask(all, q);
            if (q->fd >= 0 && code == 0)
                code = receive(all, q);
            if (code != 0)
                return code;
            if (q->answered)
                continue;
            silent = q;
            if (q->fd >= 0)
                p[n++] = (struct pollfd){.fd = q->fd, .events = POLLIN};
            else
                wake = dlock_min(until, dlock_now() + RETRY_PAUSE);
        }
        if (!silent)
            return 0;
        if (dlock_now() >= until)
            return not_held(all, silent, silent->missing);
        poll(p, n, dlock_poll_ms(dlock_now(), wake));
        query_signals(sig, NULL, NULL); /* this process holds nothing to release */
    }
}

/* Prints the time that is left of the lease that ends first; both clocks count. */
static int print(const struct queries *all)
{
    const struct query *first = &all->of[0];
    int64_t left = DLOCK_NEVER;
    for (int i = 0; i < all->n; i++) {
        const struct query *q = &all->of[i];
        int64_t end = q->asked.boot + q->left;
        int64_t rest = end - dlock_lease_now(q->asked.raw - q->asked.boot);
        if (end == DLOCK_NEVER || rest >= left)
            continue;
        first = q;
        left = rest;
    }
    if (left == DLOCK_NEVER)
        puts("inf");
    else if (left < DLOCK_MSEC)
        return not_held(all, first, "is about to end what runs under it");
    else
        printf("%lld\n", (long long)(left / DLOCK_MSEC));
    return 0;
}

int held_mode(const struct options *o, const struct sigstate *sig)
{
    struct queries all = {.o = o};
    int code = find(&all);
    if (code == 0)
        code = ask_all(&all, sig);
    for (int i = 0; i < all.n; i++)
        hang_up(&all.of[i]);
    return code ? code : print(&all);
}
