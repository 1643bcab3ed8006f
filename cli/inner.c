/*
 * inner.c - see inner.h. A process that connects must have our uid, or be root, and prove by the
 * token, within a second, that the process runs under the lock. Any other connection is closed
 * without an answer, which means to the client that the lock is not held here.
 *
 * A query (--held) proves the same, and is answered and closed at once: a query never counts, and
 * nothing waits for a query. Queries are answered even when no room is left for another inner
 * dlock.
 */
#include "inner.h"

#include "pidfd.h"
#include "proc.h"
#include "spawn.h"
#include "util.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#define BACKLOG 127
#define AUTH_TIME DLOCK_SEC
#define CONNS_MAX 512
#define UNPROVEN_MAX 128
/* Without a free descriptor no accept succeeds, and the listening socket stays readable. */
#define ACCEPT_PAUSE (100 * DLOCK_MSEC)
#define EVENTS_AT_ONCE 32
/* Any process can connect: the number of connections must not keep us from renewing. */
#define ACCEPTS_AT_ONCE (BACKLOG + 1)
#define SPARE_FDS 8

struct conn {
    struct conn *next;
    const dlock *lk; /* in: the lock that the process runs under */
    int fd;
    int pidfd;     /* of the process that connected; -1: none */
    pid_t pid;     /* of the process; 0: unknown */
    bool in;       /* the process has proved that it runs under the lock */
    bool full;     /* too many connections: only a query is answered */
    int64_t until; /* time to prove */
};

enum inner_state {
    INNER_HELD,
    INNER_ENDING, /* the lock will be lost */
    INNER_LOST
};

struct inner {
    struct inner_lock locks[DLOCK_SET_MAX];
    int nlocks;
    char name[NESTED_SOCKET_MAX + 1];
    int epoll, listen; /* listen -1: stopped */
    enum inner_state state;
    int64_t run_until; /* of --max-run, by dlock_now(); DLOCK_NEVER: none */
    int64_t accept_at; /* paused until then; DLOCK_NEVER: not paused */
    struct conn *conns;
    int nconns, nin;
};

/* ------------------------------------------------------------ socket --- */

static bool watch(const struct inner *in, int op, int fd, void *ptr)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = ptr};
    return epoll_ctl(in->epoll, op, fd, &ev) == 0;
}

/*
 * Where the caller allows few descriptors the command must start all the same, and a new connection
 * to the store must find a free descriptor.
 */
static bool leaves_room(int fd)
{
    struct rlimit limit;
    errno = EMFILE;
    return getrlimit(RLIMIT_NOFILE, &limit) == 0 && (rlim_t)fd + SPARE_FDS < limit.rlim_cur;
}

struct inner *inner_listen(void)
{
    struct inner *in = calloc(1, sizeof(*in));
    struct sockaddr_un a;
    int sys;
    if (!in)
        return NULL;
    in->epoll = in->listen = -1;
    in->accept_at = in->run_until = DLOCK_NEVER;
    /* A new name: connections to a former holder must not reach this holder. */
    sys = -nested_new_name(in->name);
    if (sys <= 0) {
        socklen_t len = nested_address(&a, in->name);
        in->epoll = epoll_create1(EPOLL_CLOEXEC);
        in->listen = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (in->epoll >= 0 && in->listen >= 0 && leaves_room(in->listen) &&
            bind(in->listen, (struct sockaddr *)&a, len) == 0 && listen(in->listen, BACKLOG) == 0 &&
            watch(in, EPOLL_CTL_ADD, in->listen, NULL))
            return in;
        sys = errno;
    }
    inner_close(in);
    errno = sys;
    return NULL;
}

struct inner *inner_open(struct inner *in, const struct inner_lock *locks, int n)
{
    if (!in)
        in = inner_listen();
    if (in) {
        memcpy(in->locks, locks, sizeof(*locks) * (size_t)n);
        in->nlocks = n;
    }
    return in;
}

/* ------------------------------------------------------- connections --- */

/* Close the connection *at, and take it off the list. */
static void drop(struct inner *in, struct conn **at)
{
    struct conn *c = *at;
    *at = c->next;
    in->nconns--;
    in->nin -= c->in;
    close(c->fd); /* and leaves the epoll */
    if (c->pidfd >= 0)
        close(c->pidfd);
    free(c);
}

/* Close the connection that has proved nothing for the longest time. False: there is none. */
static bool drop_unproven(struct inner *in)
{
    struct conn **oldest = NULL;
    for (struct conn **at = &in->conns; *at; at = &(*at)->next)
        if (!(*at)->in)
            oldest = at;
    if (oldest)
        drop(in, oldest);
    return oldest;
}

/* Move the descriptor to the lowest free number. */
static int lowest(int fd)
{
    int low = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (low >= 0)
        close(low < fd ? fd : low);
    return low >= 0 && low < fd ? low : fd;
}

/* pass: -1, or a descriptor to send along. False: there is no room, or the peer has closed. */
static bool reply(const struct conn *c, const struct nested_reply *r, int pass)
{
    return fds_send(c->fd, r, sizeof(*r), pass) == 0;
}

/*
 * The one place that says how a lock is held, and until when work under the lock may run. A lock
 * that is ending stays so: a late renewal keeps other holders out, but does not save the work.
 */
static void describe(const struct inner *in, const dlock *lk, struct nested_hold *h)
{
    dlock_describe(lk, h);
    h->end_at = dlock_min(h->end_at, in->run_until);
    if (in->state != INNER_HELD)
        h->end_at = 0;
}

void inner_run_until(struct inner *in, int64_t at)
{
    if (in)
        in->run_until = at;
}

/* Does the request, of len bytes, prove by this key that the client runs under this lock? */
static bool proves(const struct inner_lock *l, const char *key, const struct nested_request *q,
                   size_t len)
{
    size_t head = offsetof(struct nested_request, key), n = strlen(key);
    return n < sizeof(q->key) && len == head + n && q->version == NESTED_VERSION &&
           memcmp(q->token, dlock_token(l->lk), DLOCK_TOKEN_LEN + 1) == 0 &&
           memcmp(q->key, key, n) == 0;
}

static void answer_query(const struct inner *in, const struct conn *c, const dlock *lk)
{
    struct nested_reply r = {.type = NESTED_HELD, .left = DLOCK_NEVER};
    describe(in, lk, &r.hold);
    if (r.hold.end_at != DLOCK_NEVER)
        r.left = r.hold.end_at - dlock_lease_now(r.hold.raw_minus_boot);
    if (r.left <= 0)
        r.type = NESTED_LOST;
    snprintf(r.text, sizeof(r.text), "%s", dlock_name(lk));
    reply(c, &r, -1);
}

/* Accept an inner dlock. False: close the connection. */
static bool admit(struct inner *in, struct conn *c, const struct nested_request *q)
{
    struct nested_reply r = {.type = NESTED_HELD};
    struct ucred peer = {0};
    socklen_t len = sizeof(peer);
    describe(in, c->lk, &r.hold);
    if (c->full)
        r.type = NESTED_FULL;
    else if (in->state != INNER_HELD)
        r.type = NESTED_LOST;
    else if (nested_allows(&r.hold, (enum dlock_mode)q->mode, q->slots) != 0)
        r.type = NESTED_REFUSED;
    if (r.type != NESTED_HELD) {
        reply(c, &r, -1);
        return false;
    }
    /* What the lock ends with must stay open until the tree of the inner dlock is gone. */
    int pass = dlock_fd(c->lk);
    if (!reply(c, &r, pass >= 0 ? pass : dlock_session_fd(c->lk)))
        return false;
    if (getsockopt(c->fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0 && peer.pid > 0)
        c->pidfd = (int)syscall(SYS_pidfd_open, peer.pid, 0);
    c->pid = peer.pid;
    /* A pid may be reused after the client's death, which closes the connection. */
    if (recv(c->fd, &(char){0}, 1, MSG_DONTWAIT | MSG_PEEK) == 0)
        return false;
    c->in = true;
    c->until = DLOCK_NEVER;
    in->nin++;
    return true;
}

/* Read a request, or the end. False: close the connection. */
static bool read_conn(struct inner *in, struct conn *c)
{
    struct nested_request q;
    char digests[NESTED_DIGESTS_SIZE];
    ssize_t n = recv(c->fd, &q, sizeof(q), MSG_DONTWAIT);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR;
    if (c->in)
        return n > 0;
    for (int i = 0; n > 0 && i < in->nlocks; i++) {
        const struct inner_lock *l = &in->locks[i];
        if (!l->key)
            continue;
        nested_digests(digests, nested_digest(l->key), nested_digest(dlock_name(l->lk)));
        if (proves(l, digests, &q, (size_t)n) && q.mode == NESTED_QUERY) {
            answer_query(in, c, l->lk);
            return false;
        }
        if (proves(l, l->key, &q, (size_t)n)) {
            c->lk = l->lk;
            return admit(in, c, &q);
        }
    }
    return false;
}

static void accept_all(struct inner *in)
{
    for (int i = 0; i < ACCEPTS_AT_ONCE; i++) {
        struct ucred peer;
        socklen_t len = sizeof(peer);
        int fd = accept4(in->listen, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED)
                return;
            watch(in, EPOLL_CTL_DEL, in->listen, NULL);
            in->accept_at = dlock_now() + ACCEPT_PAUSE;
            return;
        }
        bool ours = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0 &&
                    (peer.uid == geteuid() || peer.uid == 0);
        struct conn *c = ours ? malloc(sizeof(*c)) : NULL;
        if (!c) {
            close(fd);
            continue;
        }
        /* Any process of our user can connect, and must not keep inner dlocks out. */
        if (in->nconns - in->nin >= UNPROVEN_MAX)
            drop_unproven(in);
        while (!leaves_room(fd + 1) && drop_unproven(in))
            fd = lowest(fd);
        *c = (struct conn){
            .next = in->conns, .fd = fd, .pidfd = -1, .until = dlock_now() + AUTH_TIME};
        in->conns = c;
        in->nconns++;
        /* The pidfd needs a descriptor, too. */
        c->full = in->nin >= CONNS_MAX || !leaves_room(fd + 1);
        bool stays = watch(in, EPOLL_CTL_ADD, fd, c) && read_conn(in, c);
        if (stays && c->full)
            reply(c, &(struct nested_reply){.type = NESTED_FULL}, -1);
        if (!stays || c->full)
            drop(in, &in->conns);
    }
}

/* -------------------------------------------------------------- turn --- */

int64_t inner_wake(const struct inner *in)
{
    int64_t at = in ? in->accept_at : DLOCK_NEVER;
    for (const struct conn *c = in ? in->conns : NULL; c; c = c->next)
        at = dlock_min(at, c->until);
    return at;
}

void inner_turn(struct inner *in)
{
    struct epoll_event ev[EVENTS_AT_ONCE];
    int64_t now;
    int n;
    if (!in)
        return;
    n = epoll_wait(in->epoll, ev, EVENTS_AT_ONCE, 0);
    /* First the ends: all connections that epoll_wait names are open still, and close once. */
    for (int i = 0; i < n; i++)
        if (ev[i].data.ptr && !read_conn(in, ev[i].data.ptr)) {
            struct conn **at = &in->conns;
            while (*at != ev[i].data.ptr)
                at = &(*at)->next;
            drop(in, at);
        }
    for (int i = 0; i < n; i++)
        if (!ev[i].data.ptr && in->listen >= 0)
            accept_all(in);
    now = dlock_now();
    for (struct conn **at = &in->conns; *at;)
        if (now >= (*at)->until)
            drop(in, at);
        else
            at = &(*at)->next;
    if (now >= in->accept_at) {
        in->accept_at = DLOCK_NEVER;
        if (in->listen >= 0)
            watch(in, EPOLL_CTL_ADD, in->listen, NULL);
    }
}

void inner_settle(struct inner *in)
{
    inner_turn(in);
    if (in && in->listen >= 0)
        accept_all(in);
}

int inner_fd(const struct inner *in)
{
    return in ? in->epoll : -1;
}

int inner_listen_fd(const struct inner *in)
{
    return in ? in->listen : -1;
}

const char *inner_socket(const struct inner *in)
{
    return in ? in->name : "-";
}

int inner_count(const struct inner *in)
{
    return in ? in->nin : 0;
}

/* ------------------------------------------------------------- orders --- */

void inner_extended(struct inner *in)
{
    struct nested_reply r = {.type = NESTED_HELD};
    if (!in || in->state == INNER_LOST)
        return;
    /* A dlock whose socket is full does not run: the next renewal is sent again. */
    for (struct conn *c = in->conns; c; c = c->next)
        if (c->in) {
            describe(in, c->lk, &r.hold);
            reply(c, &r, -1);
        }
}

void inner_ending(struct inner *in)
{
    if (in && in->state == INNER_HELD)
        in->state = INNER_ENDING;
}

void inner_lost(struct inner *in, const char *why)
{
    struct nested_reply r = {.type = NESTED_LOST};
    if (!in || in->state == INNER_LOST)
        return;
    in->state = INNER_LOST;
    snprintf(r.text, sizeof(r.text), "%s", why);
    for (struct conn *c = in->conns; c; c = c->next)
        if (c->in) {
            reply(c, &r, -1);
            shutdown(c->fd, SHUT_WR); /* says the same where the socket was full */
        }
}

static void send_signal(const struct conn *c, int sig)
{
    if (c->in && c->pidfd >= 0)
        syscall(SYS_pidfd_send_signal, c->pidfd, sig, NULL, 0);
}

void inner_ask_to_end(const struct inner *in, bool descendants)
{
    for (const struct conn *c = in ? in->conns : NULL; c; c = c->next)
        if (descendants || !proc_descends(c->pid, getpid()))
            send_signal(c, SIGTERM);
}

void inner_kill(struct inner *in, const char *why)
{
    inner_lost(in, why);
    for (const struct conn *c = in ? in->conns : NULL; c; c = c->next)
        send_signal(c, SIGKILL);
}

void inner_stop(struct inner *in)
{
    if (!in)
        return;
    if (in->listen >= 0)
        close(in->listen);
    in->listen = -1;
    for (struct conn **at = &in->conns; *at;)
        if ((*at)->in)
            at = &(*at)->next;
        else
            drop(in, at);
}

void inner_close(struct inner *in)
{
    inner_stop(in);
    while (in && in->conns)
        drop(in, &in->conns);
    if (in && in->epoll >= 0)
        close(in->epoll);
    free(in);
}
