/*
 * nested.c - the backend of an inner dlock. Its store is the keeper of the outer dlock (nested.h),
 * and its lease is the outer lease: nothing is renewed here, each outer renewal is passed on. The
 * lock ends with the connection.
 *
 * Where the keeper cannot be reached, or does not hold the lock (any more), acquire ends by an
 * error with which nested_unreachable() is true: the caller then makes an ordinary attempt. A
 * silent keeper is another error, since that keeper may hold the lock.
 *
 * Not guaranteed: anything against a process of the same user that poses as the keeper.
 */
#include "nested.h"

#include "backends/networked.h"
#include "util.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

/* Between tries to connect while the queue of the keeper's socket is full. */
#define FULL_PAUSE (5 * DLOCK_MSEC)
#define FULL_PAUSE_MAX (100 * DLOCK_MSEC)

/* Ten years: no hold lasts longer. */
#define TTL_MAX (3650 * 24 * 3600 * DLOCK_SEC)

enum nested_op {
    OP_IDLE,
    OP_CONNECTING, /* again at retry_at */
    OP_ASKING,
    OP_HELD
};

struct nested_backend {
    const struct dlock_spec *spec;
    enum nested_op op;
    int fd;      /* the connection; -1: none */
    int lock_fd; /* passed: carries a file's lock; else see keep_both(); -1: none */
    bool local;  /* the lock is a file's */
    long pid;    /* of the outer keeper; 0: unknown */
    bool again;  /* this is the second connection: the keeper closed the first without a reply */
    int64_t until, retry_at;
    int64_t end_at; /* nested_hold.end_at of the newest reply */
    struct dlock_backoff pause;
    struct event_queue events;
};

static struct nested_backend *self(struct dlock_be *be)
{
    return (struct nested_backend *)be;
}

static int64_t now_of(const struct nested_backend *b)
{
    return b->spec->env->now(b->spec->env->ctx);
}

/* --- the lock's key --------------------------------------------------------------------------- */

char *nested_key(const struct dlock_uri *u)
{
    /* What libpq takes from the environment where the URI leaves it out. */
    static const char *const names[] = {"PGHOST", "PGHOSTADDR", "PGPORT",        "PGDATABASE",
                                        "PGUSER", "PGSERVICE",  "PGSERVICEFILE", "PGSYSCONFDIR"};
    bool libpq = strcmp(u->scheme, "postgres") == 0;
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    if (!f)
        return NULL;
    fprintf(f, "%s\n%s", u->where, u->name);
    for (int i = 0; i < u->nparams; i++)
        if (!dlock_names_secret(u->params[i].key, strlen(u->params[i].key)))
            fprintf(f, "\n%s=%s", u->params[i].key, u->params[i].value);
    for (size_t i = 0; libpq && i < DLOCK_LEN(names); i++)
        fprintf(f, "\n%s", getenv(names[i]) ? getenv(names[i]) : "");
    /* A database without a name has the name of its user. */
    if (libpq && !*u->path && u->nhosts > 0)
        fprintf(f, "\n%s", u->hosts[0].user ? u->hosts[0].user : "");
    if (fclose(f) == 0)
        return text;
    free(text);
    return NULL;
}

char *nested_file_key(const struct stat *st, bool fcntl_lock)
{
    char text[80];
    snprintf(text, sizeof(text), "%s\n%llu:%llu", fcntl_lock ? "fcntl" : "flock",
             (unsigned long long)st->st_dev, (unsigned long long)st->st_ino);
    return strdup(text);
}

/* FNV-1a. The keeper compares the whole key. */
uint64_t nested_digest(const char *key)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (; *key; key++)
        h = (h ^ (unsigned char)*key) * UINT64_C(0x100000001b3);
    return h;
}

const char *nested_digests(char buf[NESTED_DIGESTS_SIZE], uint64_t key, uint64_t name)
{
    snprintf(buf, NESTED_DIGESTS_SIZE, "%016llx:%016llx", (unsigned long long)key,
             (unsigned long long)name);
    return buf;
}

/* --- rules ------------------------------------------------------------------------------------ */

socklen_t nested_address(struct sockaddr_un *a, const char *name)
{
    size_t len = strnlen(name, NESTED_SOCKET_MAX);
    *a = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(a->sun_path + 1, name, len);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + len);
}

#define OUR_NET "/proc/self/ns/net"
#define OUR_TIME "/proc/self/ns/time"

/* The number of a namespace, 32 bits; 0: unknown. */
static unsigned long namespace_number(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? (unsigned long)st.st_ino & 0xffffffff : 0;
}

/* The namespaces of the process that made this name. False: the name has another form. */
static bool namespaces_of(const char *name, unsigned long *net, unsigned long *time)
{
    return sscanf(name, "dlock-%lx-%lx-", net, time) == 2;
}

int nested_new_name(char name[NESTED_SOCKET_MAX + 1])
{
    char token[DLOCK_TOKEN_LEN + 1];
    int rc = dlock_token_new(&dlock_env_system, token);
    if (rc == 0)
        snprintf(name, NESTED_SOCKET_MAX + 1, "dlock-%lx-%lx-%.16s", namespace_number(OUR_NET),
                 namespace_number(OUR_TIME), token);
    return rc;
}

bool nested_is_here(const char *name)
{
    unsigned long net, time;
    return namespaces_of(name, &net, &time) && net != 0 && net == namespace_number(OUR_NET);
}

int nested_allows(const struct nested_hold *h, enum dlock_mode mode, unsigned slots)
{
    if (mode == DLOCK_MODE_SHARED || h->mode == DLOCK_MODE_EXCLUSIVE)
        return 0;
    if (mode == DLOCK_MODE_EXCLUSIVE || h->mode == DLOCK_MODE_SHARED)
        return DLOCK_EBUSY;
    return h->slots == slots ? 0 : DLOCK_EDATA;
}

bool nested_trusts(uid_t uid)
{
    return uid == geteuid() || uid == 0;
}

/* --- acquire ---------------------------------------------------------------------------------- */

static void drop(struct nested_backend *b)
{
    if (b->fd >= 0)
        close(b->fd);
    if (b->lock_fd >= 0)
        close(b->lock_fd);
    b->fd = b->lock_fd = -1;
    b->op = OP_IDLE;
}

/* The acquire fails: the error of its event, to be filled in. */
static struct dlock_error *failed(struct nested_backend *b)
{
    drop(b);
    return &events_add(&b->events, EV_FAILED)->error;
}

/* sys: ECONNREFUSED, or ESHUTDOWN: the outer dlock has ended. */
static void unreachable(struct nested_backend *b, int sys, const char *why)
{
    dlock_fail_lock(failed(b), DLOCK_EUNUSABLE, sys, b->spec->uri,
                    "the dlock that holds the lock above this one cannot be reached: %s", why);
}

static void fail_sys(struct nested_backend *b, int sys)
{
    if (sys == ECONNREFUSED)
        unreachable(b, nested_is_here(b->spec->outer->socket) ? ESHUTDOWN : ECONNREFUSED,
                    strerror(sys));
    else if (sys == EPERM || sys == EACCES || sys == ECONNRESET || sys == EPIPE)
        unreachable(b, ECONNREFUSED, strerror(sys));
    else
        dlock_fail_lock(failed(b), DLOCK_EOS, sys, b->spec->uri,
                        "cannot ask the dlock that holds the lock above this one: %s",
                        strerror(sys));
}

static void ask(struct nested_backend *b)
{
    const struct nested_outer *outer = b->spec->outer;
    struct nested_request q = {
        .version = NESTED_VERSION, .mode = (int32_t)b->spec->mode, .slots = b->spec->slots};
    struct ucred peer;
    socklen_t len = sizeof(peer);
    size_t key = strnlen(outer->key, sizeof(q.key)); /* a longer key matches none */
    if (getsockopt(b->fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) != 0) {
        fail_sys(b, errno);
        return;
    }
    b->pid = peer.pid;
    if (!nested_trusts(peer.uid)) {
        unreachable(b, ECONNREFUSED, "it is another user's");
        return;
    }
    memcpy(q.token, outer->token, sizeof(outer->token));
    memcpy(q.key, outer->key, key);
    /* If the keeper has closed the connection, its reply, if any, says why. */
    if (send(b->fd, &q, offsetof(struct nested_request, key) + key, MSG_DONTWAIT | MSG_NOSIGNAL) <
            0 &&
        errno != EPIPE && errno != ECONNRESET)
        fail_sys(b, errno);
    else
        b->op = OP_ASKING;
}

static void try_connect(struct nested_backend *b)
{
    struct sockaddr_un a;
    socklen_t len = nested_address(&a, b->spec->outer->socket);
    if (b->fd < 0)
        b->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (b->fd < 0)
        fail_sys(b, errno);
    else if (connect(b->fd, (struct sockaddr *)&a, len) == 0)
        ask(b);
    else if (errno == EAGAIN) /* the queue of connections is full */
        b->retry_at = now_of(b) + dlock_backoff_next(&b->pause, b->spec->env);
    else
        fail_sys(b, errno);
}

static void nested_acquire(struct dlock_be *be, bool wait)
{
    struct nested_backend *b = self(be);
    unsigned long net, time;
    (void)wait; /* an ancestor's lock is granted at once, or not at all */
    drop(b);
    b->events.n = 0;
    b->op = OP_CONNECTING;
    b->again = false;
    b->until = now_of(b) + b->spec->connect_timeout;
    b->pause = (struct dlock_backoff){.base = FULL_PAUSE, .max = FULL_PAUSE_MAX};
    /* A time namespace has a CLOCK_BOOTTIME of its own: the times of the lease would differ. */
    if (namespaces_of(b->spec->outer->socket, &net, &time) && time != namespace_number(OUR_TIME))
        unreachable(b, ECONNREFUSED, "it is in another time namespace");
    else
        try_connect(b);
}

/* --- replies ---------------------------------------------------------------------------------- */

/* *passed: a descriptor was sent, but this process could not open it. */
#define PASSED_LOST (-2)

/* 1: a reply, with its descriptor, -1 or PASSED_LOST in *passed; 0: none yet; -1: the end. */
static int receive(const struct nested_backend *b, struct nested_reply *r, int *passed)
{
    union {
        struct cmsghdr align;
        char buf[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec iov = {.iov_base = r, .iov_len = sizeof(*r)};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = &control,
                         .msg_controllen = sizeof(control)};
    ssize_t n = recvmsg(b->fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    /* The keeper closed with our request unread; it may have sent a reply before. */
    if (n < 0 && errno == ECONNRESET)
        n = recvmsg(b->fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    *passed = -1;
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    struct cmsghdr *c = n >= 0 ? CMSG_FIRSTHDR(&msg) : NULL;
    bool rights = c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS;
    size_t fds = rights ? (c->cmsg_len - CMSG_LEN(0)) / sizeof(int) : 0;
    for (size_t i = 0; i < fds; i++) {
        int fd;
        memcpy(&fd, CMSG_DATA(c) + i * sizeof(fd), sizeof(fd));
        if (i == 0)
            *passed = fd;
        else
            close(fd); /* only one belongs to a reply */
    }
    if (*passed < 0 && msg.msg_flags & MSG_CTRUNC)
        *passed = PASSED_LOST;
    if (n == (ssize_t)sizeof(*r)) {
        r->text[sizeof(r->text) - 1] = '\0';
        return 1;
    }
    if (*passed >= 0)
        close(*passed);
    return -1;
}

/* Can the keeper's numbers be true? Sums of those that are do not overflow. */
static bool is_sane(const struct nested_backend *b, const struct nested_hold *h)
{
    bool endless = h->ttl == DLOCK_NEVER;
    return h->from >= 0 && h->from <= now_of(b) && (endless || (h->ttl > 0 && h->ttl <= TTL_MAX)) &&
           h->raw_minus_boot >= -DLOCK_RAW_NEVER && h->raw_minus_boot <= DLOCK_RAW_NEVER &&
           h->end_at >= 0 && h->fence <= INT64_MAX && h->mode >= DLOCK_MODE_EXCLUSIVE &&
           h->mode <= DLOCK_MODE_SLOTS && h->slots <= DLOCK_SLOTS_MAX && h->slot >= 0 &&
           h->slot <= DLOCK_SLOTS_MAX;
}

static struct dlock_event *put_times(struct nested_backend *b, enum dlock_ev type,
                                     const struct nested_hold *h)
{
    struct dlock_event *ev = events_add(&b->events, type);
    ev->from = ev->asked = h->from;
    ev->ttl = h->ttl;
    ev->raw_minus_boot = h->raw_minus_boot;
    b->end_at = h->end_at;
    return ev;
}

/* The outer dlock holds the file that the key names. */
static bool is_outer_file(const struct nested_backend *b, int fd)
{
    struct stat st;
    char *key = fstat(fd, &st) == 0 ? nested_file_key(&st, b->spec->fcntl) : NULL;
    bool same = key && strcmp(key, b->spec->outer->key) == 0;
    free(key);
    return same;
}

/* Does this descriptor carry the lock? The try changes nothing if the outer dlock has the lock. */
static bool carries_lock(const struct nested_backend *b, const struct nested_hold *h, int fd)
{
    bool exclusive = h->mode == DLOCK_MODE_EXCLUSIVE;
    struct flock all = {.l_type = exclusive ? F_WRLCK : F_RDLCK, .l_whence = SEEK_SET};
    if (!is_outer_file(b, fd))
        return false;
    if (b->spec->fcntl)
        return fcntl(fd, F_OFD_SETLK, &all) == 0;
    return flock(fd, (exclusive ? LOCK_EX : LOCK_SH) | LOCK_NB) == 0;
}

/*
 * The guard keeps one descriptor, and needs two: the connection, and what the outer dlock passed.
 * Both are sent to a socket that is never read, and stay open until that socket is closed, which
 * becomes lock_fd. 0 or -errno.
 */
static int keep_both(struct nested_backend *b)
{
    int ends[2], both[2] = {b->fd, b->lock_fd};
    union {
        struct cmsghdr align;
        char buf[CMSG_SPACE(sizeof(both))];
    } control = {.align = {.cmsg_level = SOL_SOCKET,
                           .cmsg_type = SCM_RIGHTS,
                           .cmsg_len = CMSG_LEN(sizeof(both))}};
    struct iovec iov = {.iov_base = &(char){0}, .iov_len = 1};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = &control,
                         .msg_controllen = sizeof(control)};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        return -errno;
    memcpy(CMSG_DATA(&control.align), both, sizeof(both));
    int rc = sendmsg(ends[0], &msg, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -errno : 0;
    close(ends[0]);
    close(b->lock_fd);
    b->lock_fd = ends[1];
    return rc;
}

static void granted(struct nested_backend *b, const struct nested_reply *r, int passed)
{
    const struct dlock_spec *spec = b->spec;
    char ttl[32], least[32];
    b->lock_fd = passed;
    int rc = passed == PASSED_LOST ? -EMFILE : b->local || passed < 0 ? 0 : keep_both(b);
    if (rc < 0) {
        fail_sys(b, -rc);
        return;
    }
    if (!is_sane(b, &r->hold)) {
        unreachable(b, ECONNREFUSED, "its answer has numbers that cannot be true");
        return;
    }
    if (b->local && !carries_lock(b, &r->hold, passed)) {
        unreachable(b, ECONNREFUSED, "it has not passed on the file's lock");
        return;
    }
    if (r->hold.ttl != DLOCK_NEVER && r->hold.ttl < spec->least_ttl) {
        dlock_fail_lock(
            failed(b), DLOCK_EUNUSABLE, 0, spec->uri,
            "the lock is held with a ttl of %s, and this grace needs one of at least %s",
            dlock_format_duration(r->hold.ttl, ttl, sizeof(ttl)),
            dlock_format_duration(spec->least_ttl, least, sizeof(least)));
        return;
    }
    b->op = OP_HELD;
    struct dlock_event *ev = put_times(b, EV_GRANTED, &r->hold);
    ev->fence = r->hold.fence;
    ev->slot = r->hold.slot;
    ev->mode = (enum dlock_mode)r->hold.mode;
    ev->slots = r->hold.slots;
    memcpy(ev->token, spec->outer->token, sizeof(ev->token));
}

/* The first reply. */
static void answered(struct nested_backend *b, const struct nested_reply *r, int passed)
{
    const struct dlock_spec *spec = b->spec;
    const struct nested_hold *h = &r->hold;
    if (r->type == NESTED_HELD && !spec->once) {
        granted(b, r, passed);
        return;
    }
    if (passed >= 0)
        close(passed);
    if (r->type == NESTED_HELD || (r->type == NESTED_REFUSED && spec->once))
        dlock_fail_lock(failed(b), DLOCK_EUSAGE, 0, spec->uri,
                        "run records (once) are not available for a nested dlock: one above it "
                        "holds the same lock, so give --once to that one, or name another lock");
    else if (r->type == NESTED_REFUSED && nested_allows(h, spec->mode, spec->slots) == DLOCK_EDATA)
        other_slots(failed(b), spec, h->slots);
    else if (r->type == NESTED_REFUSED)
        dlock_fail_lock(failed(b), DLOCK_EBUSY, 0, spec->uri,
                        "dlock %ld, under which this one runs, holds the lock %s: %s would wait "
                        "for itself",
                        b->pid, h->mode == DLOCK_MODE_SHARED ? "shared (-s)" : "as one of --slots",
                        spec->mode == DLOCK_MODE_SLOTS ? "--slots" : "-x");
    else if (r->type == NESTED_FULL)
        dlock_fail_at(failed(b), DLOCK_EOS, 0, spec->uri->where,
                      "too many dlocks run under dlock %ld, which holds the lock '%s'", b->pid,
                      spec->uri->name);
    else
        dlock_fail_at(failed(b), DLOCK_ELOST, 0, spec->uri->where,
                      "dlock %ld, under which this one runs, has lost '%s'", b->pid,
                      spec->uri->name);
}

/* why: the keeper's words; NULL: the connection has ended. */
static void lost(struct nested_backend *b, const char *why)
{
    /* The connection stays: it tells the keeper that work under its lock is still ending. */
    b->op = OP_IDLE;
    if (b->local) /* the kernel keeps the lock on our descriptor as well */
        return;
    struct dlock_error *err = &events_add(&b->events, EV_LOST)->error;
    if (why)
        dlock_fail(err, DLOCK_ELOST, 0, "dlock %ld, the holder, has lost the lock%s%s", b->pid,
                   *why ? ": " : "", why);
    else
        dlock_fail(err, DLOCK_ELOST, 0, "dlock %ld, the holder, has ended", b->pid);
}

static void read_replies(struct nested_backend *b)
{
    struct nested_reply r;
    int passed, got = 0;
    while ((b->op == OP_ASKING || b->op == OP_HELD) && (got = receive(b, &r, &passed)) > 0) {
        if (b->op == OP_ASKING) {
            answered(b, &r, passed);
            continue;
        }
        if (passed >= 0)
            close(passed);
        if (r.type == NESTED_HELD && is_sane(b, &r.hold))
            put_times(b, EV_RENEWED, &r.hold);
        else if (r.type == NESTED_HELD)
            lost(b, "its renewal has numbers that cannot be true");
        else if (r.type == NESTED_LOST)
            lost(b, r.text);
    }
    if (got >= 0)
        return;
    if (b->op == OP_HELD) {
        lost(b, NULL);
    } else if (b->op == OP_ASKING && b->again) {
        unreachable(b, ECONNREFUSED, "it does not hold the lock for this process");
    } else if (b->op == OP_ASKING) {
        /* Connect once more: a keeper that was about to release the lock listens no more. */
        drop(b);
        b->again = true;
        b->op = OP_CONNECTING;
        try_connect(b);
    }
}

int64_t nested_end_at(struct dlock_be *be)
{
    return self(be)->end_at;
}

/* --- the slots -------------------------------------------------------------------------------- */

static void nested_release(struct dlock_be *be, int64_t until)
{
    struct nested_backend *b = self(be);
    bool held = b->op == OP_HELD || b->fd >= 0;
    (void)until;
    drop(b);
    b->events.n = 0;
    events_add(&b->events, EV_RELEASED)->how = held ? DLOCK_RELEASE_CLEAN : DLOCK_RELEASE_NOTHING;
}

static int nested_interest(struct dlock_be *be, struct pollfd *pfd, int cap, int64_t *wake_at)
{
    const struct nested_backend *b = self(be);
    if (b->events.n > 0)
        *wake_at = 0;
    if (b->op == OP_CONNECTING)
        *wake_at = dlock_min(*wake_at, b->retry_at);
    if (b->op == OP_CONNECTING || b->op == OP_ASKING)
        *wake_at = dlock_min(*wake_at, b->until);
    if (b->fd < 0 || b->op < OP_ASKING || cap < 1)
        return 0;
    pfd[0] = (struct pollfd){.fd = b->fd, .events = POLLIN};
    return 1;
}

static int nested_process(struct dlock_be *be, const struct pollfd *pfd, int n,
                          struct dlock_event *ev)
{
    struct nested_backend *b = self(be);
    int64_t now = now_of(b);
    char text[32], pid[32] = "";
    (void)pfd; /* recvmsg() says whether there is a reply */
    (void)n;
    if (b->op == OP_CONNECTING && now >= b->retry_at)
        try_connect(b);
    read_replies(b);
    if (b->pid > 0)
        snprintf(pid, sizeof(pid), " %ld", b->pid);
    if ((b->op == OP_CONNECTING || b->op == OP_ASKING) && now >= b->until)
        dlock_fail_lock(failed(b), DLOCK_EUNAVAIL, 0, b->spec->uri,
                        "dlock%s, which holds the lock above this one, has not answered within %s: "
                        "is it stopped?",
                        pid, dlock_format_duration(b->spec->connect_timeout, text, sizeof(text)));
    return events_take(&b->events, ev);
}

static int nested_session_fd(struct dlock_be *be)
{
    const struct nested_backend *b = self(be);
    return b->local || b->lock_fd < 0 ? b->fd : b->lock_fd;
}

static int nested_inherit_fd(struct dlock_be *be, bool shared)
{
    (void)shared; /* the outer dlock's file is never unlocked here */
    return self(be)->lock_fd;
}

static bool nested_is_file(struct dlock_be *be, int fd)
{
    return is_outer_file(self(be), fd);
}

static void nested_close(struct dlock_be *be)
{
    if (be)
        drop(self(be));
    free(be);
}

static int nested_open(struct dlock_be **out, const struct dlock_spec *spec,
                       struct dlock_error *err)
{
    struct nested_backend *b = calloc(1, sizeof(*b));
    if (!b)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    b->spec = spec;
    b->fd = b->lock_fd = -1;
    *out = (struct dlock_be *)b;
    return 0;
}

static int nested_open_local(struct dlock_be **out, const struct dlock_spec *spec,
                             struct dlock_error *err)
{
    int rc = nested_open(out, spec, err);
    if (rc == 0)
        self(*out)->local = true;
    return rc;
}

static const char *const schemes[] = {NULL}; /* found by DLOCK_HELD only */

#define NESTED_TABLE                                                                               \
    .abi = DLOCK_BACKEND_ABI, .build_id = DLOCK_VERSION, .name = "nested", .schemes = schemes,     \
    .acquire = nested_acquire, .release = nested_release, .interest = nested_interest,             \
    .process = nested_process, .session_fd = nested_session_fd, .close = nested_close,             \
    .close_in_child = nested_close

const struct dlock_backend dlock_nested_lease = {
    NESTED_TABLE,
    .open = nested_open,
    .caps = CAP_SHARED | CAP_SLOTS | CAP_FENCE | CAP_LEASE | CAP_NESTED,
};

const struct dlock_backend dlock_nested_local = {
    NESTED_TABLE,
    .open = nested_open_local,
    .caps = CAP_SHARED | CAP_SLOTS | CAP_FENCE | CAP_FD | CAP_NESTED,
    .inherit_fd = nested_inherit_fd,
    .is_file = nested_is_file,
};
