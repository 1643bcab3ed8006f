/*
 * held_mode.c - --held: are the locks that this process runs under held still? Their keepers are asked, not the stores: all
 * at once, by the sockets in DLOCK_HELD (nested.h), within ANSWER_TIME in all. Only "held, and for so long" counts as held.
 *
 * Not guaranteed: anything against a process of the same user that pretends to be the keeper.
 */
#include "held.h"
#include "messages.h"
#include "modes.h"
#include "open.h"
#include "util.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ANSWER_TIME DLOCK_SEC
/* Between tries while the keeper, or we, cannot have one more connection. */
#define RETRY_PAUSE (10 * DLOCK_MSEC)

#define IS_SILENT "has not answered within 1 s: is it stopped?"

struct query {
    struct held e;
    int fd; /* -1: not connected */
    bool answered;
    const char *missing; /* why there is no answer yet */
    struct ucred keeper; /* pid 0: not known */
    struct dlock_clocks asked;
    int64_t left; /* as the keeper said; since asked some of it may be over */
};

struct queries {
    const struct options *o;
    struct query of[HELD_MAX];
    int n;
};

/* ----------------------------------------------------- which of them --- */

/* The innermost ones of a list that is longer than dlock makes it. */
static void read_list(struct queries *q)
{
    const char *list = getenv("DLOCK_HELD");
    struct held e;

    for (; held_next(&list, &e); q->n++) {
        if (q->n == HELD_MAX)
            memmove(&q->of[0], &q->of[1], sizeof(q->of[0]) * (size_t)--q->n);
        q->of[q->n] = (struct query){.e = e, .fd = -1, .missing = IS_SILENT};
    }
}

/* Keep those whose digest, or name's digest, is this one, if there are any. */
static bool keep(struct queries *q, bool name, uint64_t digest)
{
    int n = 0;

    for (int i = 0; i < q->n; i++)
        if ((name ? q->of[i].e.name : q->of[i].e.digest) == digest)
            q->of[n++] = q->of[i];
    if (n > 0)
        q->n = n;
    return n > 0;
}

/* The lock by another name than DLOCK_NAME: as LOCK, a URI, "@name" or a path. 0, or an exit code after the message. */
static int keep_lock(struct queries *q)
{
    int code = 0;
    bool found = false;
    struct dlock_uri *uri = open_uri(q->o, q->o->lock, &code);

    if (!uri)
        return code;
    for (int fcntl = 0; fcntl < 2 && !found; fcntl++) {
        char *key = open_key(uri, fcntl);
        found = key && keep(q, false, nested_digest(key));
        free(key);
    }
    dlock_uri_free(uri);
    if (found)
        return 0;
    message("--held: '%s' names no lock that this process runs under", q->o->lock);
    return dlock_error_exit(DLOCK_EUSAGE);
}

/* 0, or an exit code after the message. */
static int find(struct queries *q)
{
    read_list(q);
    if (q->n == 0) {
        message(
            "--held is for a command that dlock runs: DLOCK_HELD names no lock here (-F sets none, and sudo removes it)");
        return dlock_error_exit(DLOCK_EUSAGE);
    }
    if (!q->o->lock || keep(q, true, nested_digest(q->o->lock)))
        return 0;
    return keep_lock(q);
}

/* ------------------------------------------------------------- asking --- */

/* "the lock 'nightly'"; the environment tells the name of the innermost one only. */
static const char *lock_text(const struct queries *q, const struct query *one, char *buf,
                             size_t size)
{
    const char *name = getenv("DLOCK_NAME"), *token = getenv("DLOCK_TOKEN");

    if (q->o->lock)
        name = q->o->lock;
    else if (!token || strcmp(token, one->e.token) != 0)
        name = NULL;
    snprintf(buf, size, name ? "the lock '%s'" : "a lock above this process", name);
    return buf;
}

#define DLOCK_TEXT_SIZE 32
/* "dlock 812"; without the number where it is not known, or of another pid namespace. */
static const char *dlock_text(const struct query *one, char buf[DLOCK_TEXT_SIZE])
{
    snprintf(buf, DLOCK_TEXT_SIZE, one->keeper.pid > 0 ? "dlock %ld" : "dlock",
             (long)one->keeper.pid);
    return buf;
}

/* It is not held, or that cannot be known. Returns the exit code. */
static int not_held(const struct queries *q, const struct query *one, const char *why)
{
    char lock[LOCK_TEXT_MAX], holder[DLOCK_TEXT_SIZE];

    message("%s may not be held any more: its %s %s", lock_text(q, one, lock, sizeof(lock)),
            dlock_text(one, holder), why);
    return dlock_error_exit(DLOCK_ELOST);
}

static int not_reached(const struct queries *q, const struct query *one, int sys)
{
    char why[160];

    if (!nested_is_here(one->e.socket))
        return not_held(q, one, "is in another network namespace, where it cannot be asked");
    if (sys == ECONNREFUSED)
        return not_held(q, one, "has ended, or is releasing it");
    snprintf(why, sizeof(why), "cannot be asked: %s", strerror(sys));
    return not_held(q, one, why);
}

/* The end of the connection in place of an answer. */
static int not_answered(const struct queries *q, const struct query *one)
{
    char why[120];

    if (geteuid() == 0 || geteuid() == one->keeper.uid)
        return not_held(q, one, "does not hold it for this process");
    snprintf(why, sizeof(why), "runs as uid %lu, and answers this user and root only",
             (unsigned long)one->keeper.uid);
    return not_held(q, one, why);
}

static void hang_up(struct query *one)
{
    if (one->fd >= 0)
        close(one->fd);
    one->fd = -1;
}

/* 0, or an exit code after the message. */
static int ask(const struct queries *q, struct query *one)
{
    struct nested_request r = {.version = NESTED_VERSION, .mode = NESTED_QUERY};
    size_t len = offsetof(struct nested_request, key) + NESTED_DIGESTS_SIZE - 1;
    socklen_t size = sizeof(one->keeper);

    if (getsockopt(one->fd, SOL_SOCKET, SO_PEERCRED, &one->keeper, &size) != 0)
        return not_reached(q, one, errno);
    if (!nested_trusts(one->keeper.uid, one->keeper.pid))
        return not_held(q, one, "has ended, or is another user's");
    memcpy(r.token, one->e.token, sizeof(one->e.token));
    nested_digests(r.key, one->e.digest, one->e.name);
    one->asked = dlock_clocks_read(&dlock_env_system);
    /* Closed already? Then that is read. */
    if (send(one->fd, &r, len, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno != EPIPE &&
        errno != ECONNRESET)
        return not_reached(q, one, errno);
    return 0;
}

/* Connect and ask; without effect while that is not possible for a moment. 0, or an exit code after the message. */
static int reach(const struct queries *q, struct query *one)
{
    struct sockaddr_un a;
    socklen_t len = nested_address(&a, one->e.socket);

    if (strcmp(one->e.socket, "-") == 0)
        return not_held(q, one, "could not make a socket to be asked by");
    one->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (one->fd < 0) { /* too many descriptors: the next answer makes room */
        one->missing = "cannot be asked: no descriptor is free";
        return 0;
    }
    if (connect(one->fd, (struct sockaddr *)&a, len) == 0)
        return ask(q, one);
    int sys = errno;
    hang_up(one);
    return sys == EAGAIN || sys == EINTR ? 0 : not_reached(q, one, sys);
}

/* 0, or an exit code after the message. */
static int judge(struct query *one, struct nested_reply *r)
{
    char holder[DLOCK_TEXT_SIZE];

    hang_up(one);
    one->missing = r->type == NESTED_FULL ? "has too many connections" : IS_SILENT;
    if (r->type == NESTED_FULL)
        return 0; /* again */
    if (r->type == NESTED_HELD && r->left > 0) {
        one->left = dlock_min(r->left, DLOCK_NEVER - one->asked.boot);
        one->answered = true;
        return 0;
    }
    r->text[sizeof(r->text) - 1] = '\0';
    message("%s has lost the lock '%s', or is about to lose it", dlock_text(one, holder), r->text);
    return dlock_error_exit(DLOCK_ELOST);
}

/* 0, or an exit code after the message. */
static int receive(const struct queries *q, struct query *one)
{
    struct nested_reply r;
    ssize_t n = recv(one->fd, &r, sizeof(r), MSG_DONTWAIT);

    /* It was closed with our query unread; a reply may have been sent before. */
    if (n < 0 && errno == ECONNRESET)
        n = recv(one->fd, &r, sizeof(r), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    return n == (ssize_t)sizeof(r) ? judge(one, &r) : not_answered(q, one);
}

/* A signal ends a query at once: we hold nothing that must be released. */
static void check_signals(const struct sigstate *sig)
{
    struct signalfd_siginfo si;

    while (signals_read(sig, &si)) {
        if (signals_stops((int)si.ssi_signo))
            signals_stop_self((int)si.ssi_signo);
        else if (signals_cancels((int)si.ssi_signo))
            signals_die((int)si.ssi_signo);
    }
}

/* The first that has no answer yet; NULL: all have one. */
static const struct query *waits_for(const struct queries *q)
{
    for (int i = 0; i < q->n; i++)
        if (!q->of[i].answered)
            return &q->of[i];
    return NULL;
}

static void wait_for_answers(const struct queries *q, const struct sigstate *sig, int64_t until)
{
    struct pollfd p[HELD_MAX + 1] = {{.fd = sig->fd, .events = POLLIN}};
    nfds_t n = 1;

    for (int i = 0; i < q->n; i++) {
        if (q->of[i].fd >= 0)
            p[n++] = (struct pollfd){.fd = q->of[i].fd, .events = POLLIN};
        else if (!q->of[i].answered)
            until = dlock_min(until, dlock_now() + RETRY_PAUSE);
    }
    poll(p, n, dlock_poll_ms(dlock_now(), until));
    check_signals(sig);
}

/* The innermost first. 0, or an exit code after the message. */
static int turn(struct queries *q)
{
    int code = 0;

    for (int i = q->n - 1; i >= 0 && code == 0; i--) {
        struct query *one = &q->of[i];
        if (one->fd < 0 && !one->answered)
            code = reach(q, one);
        if (one->fd >= 0 && code == 0)
            code = receive(q, one);
    }
    return code;
}

/* Until all have answered. 0, or an exit code after the message: the first answer that is not "held" ends it. */
static int ask_all(struct queries *q, const struct sigstate *sig)
{
    int64_t until = dlock_now() + ANSWER_TIME;
    const struct query *missing;
    int code;

    while ((code = turn(q)) == 0 && (missing = waits_for(q))) {
        if (dlock_now() >= until)
            return not_held(q, missing, missing->missing);
        wait_for_answers(q, sig, until);
    }
    return code;
}

/* -------------------------------------------------------------- result --- */

/* What is left now of the one that has the least; both clocks count. */
static int64_t least(const struct queries *q, const struct query **which)
{
    int64_t min = DLOCK_NEVER;

    *which = &q->of[0];
    for (int i = 0; i < q->n; i++) {
        const struct query *one = &q->of[i];
        int64_t end = one->asked.boot + one->left;
        if (end == DLOCK_NEVER)
            continue;
        int64_t left = end - dlock_lease_now(one->asked.raw - one->asked.boot);
        if (left < min)
            *which = one;
        min = dlock_min(min, left);
    }
    return min;
}

static int print(const struct queries *q)
{
    const struct query *which;
    int64_t left = least(q, &which);

    if (left == DLOCK_NEVER)
        puts("inf");
    else if (left < DLOCK_MSEC)
        return not_held(q, which, "is about to end what runs under it");
    else
        printf("%lld\n", (long long)(left / DLOCK_MSEC));
    return 0;
}

int held_mode(const struct options *o, const struct sigstate *sig)
{
    struct queries q = {.o = o};
    int code = find(&q);

    if (code == 0)
        code = ask_all(&q, sig);
    for (int i = 0; i < q.n; i++)
        hang_up(&q.of[i]);
    return code ? code : print(&q);
}
