/*
 * fakenodes.h - Redis servers of a Redlock inside a unit test. They serve only the scripts of a
 * vote, a renewal, a release and a query, have one key, and are stopped, slow or emptied by the
 * test. The clock is the test's, too: nothing here sleeps.
 */
#ifndef FAKENODES_H
#define FAKENODES_H

#include "backend.h"
#include "backends/redis/script.h"
#include "run_record.h"
#include "unit.h"
#include "uri.h"
#include "util.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define NODES_MAX 5
#define CONNS_MAX 24
#define READERS_MAX 8
#define MSEC(n) (DLOCK_MSEC * (n))

extern const struct dlock_backend dlock_backend_redlock;

enum fake_kind { F_OTHER, F_VOTE, F_KEEP, F_LEAVE, F_STATUS, F_BREAK, F_FORGET, F_KINDS };

struct fake_conn {
    int fd;
    char in[32768];
    size_t len;
    char channel[256]; /* of the waiter; "": none */
};

struct fake {
    int lfd;
    uint16_t port;
    struct fake_conn conns[CONNS_MAX];
    int nconns;
    char value[1024]; /* the key; "": free */
    int64_t ends;     /* when it expires; 0: never */
    struct {
        char value[1024];
        int64_t ends;
    } readers[READERS_MAX]; /* shared holders: the key is theirs while there are some */
    int nreaders;
    char run[RUN_RECORD_MAX]; /* the run record; "": none */
    int64_t skew;             /* of its clock */
    int64_t started;          /* for the restart grace; 0: long ago */
    long long fence, left_ms; /* left_ms: of another client's lock */
    long long longest_ms;     /* the largest ttl of other waiters */
    long long claim_ms;       /* of a waiter that was called; 0: none */
    int granted;              /* votes */
    int place;
    /* Set by the test. */
    bool writer_waits;   /* it stands in line before all readers */
    bool stopped;        /* reads nothing; what its sockets hold is served when it goes on */
    bool slow[F_KINDS];  /* stops at a command of this kind, on this connection */
    int first_slow;      /* ... from that connection on */
    bool held[F_KINDS];  /* it has stopped at one */
    const char *error;   /* what it answers to every script */
    int served[F_KINDS]; /* commands so far */
    int looks;           /* PTTL */
};

static int64_t fake_clock = 1000 * DLOCK_SEC;

static int64_t fake_now(void *ctx)
{
    (void)ctx;
    return fake_clock;
}

/* Different each time, the same in every run. */
static int fake_random(void *ctx, void *buf, size_t len)
{
    static uint32_t seed = 1;
    unsigned char *p = buf;
    (void)ctx;
    while (len-- > 0)
        *p++ = (unsigned char)((seed = seed * 1103515245u + 12345u) >> 16);
    return 0;
}

static const struct dlock_env fake_env = {.now = fake_now, .random = fake_random};

/* ---------------------------------------------------------------------- server */

static bool fake_open(struct fake *f)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)};
    socklen_t len = sizeof(in);
    memset(f, 0, sizeof(*f));
    f->left_ms = 60000;
    f->place = 1;
    f->lfd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (f->lfd < 0 || bind(f->lfd, (struct sockaddr *)&in, sizeof(in)) != 0 ||
        listen(f->lfd, 32) != 0 || getsockname(f->lfd, (struct sockaddr *)&in, &len) != 0)
        return false;
    f->port = ntohs(in.sin_port);
    return true;
}

/* Cut all connections; down: and accept no new ones. */
static void fake_cut(struct fake *f, bool down)
{
    while (f->nconns > 0)
        close(f->conns[--f->nconns].fd);
    if (down && f->lfd >= 0) {
        close(f->lfd);
        f->lfd = -1;
    }
}

static void fake_say(int fd, const char *fmt, ...)
{
    char text[4096];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    (void)!send(fd, text, (size_t)n, MSG_NOSIGNAL);
}

static enum fake_kind fake_kind(char **argv, int argc)
{
    static const enum fake_kind kinds[] = {
        [SCRIPT_VOTE] = F_VOTE,          [SCRIPT_KEEP] = F_KEEP,     [SCRIPT_LEAVE] = F_LEAVE,
        [SCRIPT_UNVOTE] = F_LEAVE,       [SCRIPT_STATUS] = F_STATUS, [SCRIPT_BREAK] = F_BREAK,
        [SCRIPT_FORGET_VOTE] = F_FORGET,
    };
    if (argc < 5 || strncmp(argv[0], "EVAL", 4) != 0)
        return F_OTHER;
    for (size_t i = 0; i < DLOCK_LEN(kinds); i++) {
        const struct lua *lua = redis_script_lua((enum redis_script_op)i);
        if (strcmp(argv[1], argv[0][4] == '\0' ? lua->text : lua->sha1) == 0)
            return kinds[i];
    }
    return F_OTHER;
}

#define BULK "$%zu\r\n%s\r\n"

/* Wake the waiter. */
__attribute__((unused)) static void fake_call(struct fake *f, const char *word)
{
    for (int i = 0; i < f->nconns; i++) {
        const char *to = f->conns[i].channel;
        if (to[0] != '\0')
            fake_say(f->conns[i].fd, "*3\r\n$7\r\nmessage\r\n" BULK BULK, strlen(to), to,
                     strlen(word), word);
    }
}

/* The key has changed: tell the waiter. */
__attribute__((unused)) static void fake_change(struct fake *f)
{
    for (int i = 0; i < f->nconns; i++)
        if (f->conns[i].channel[0] != '\0')
            fake_say(f->conns[i].fd,
                     "*3\r\n$7\r\nmessage\r\n$20\r\n__redis__:invalidate\r\n*1\r\n$1\r\nn\r\n");
}

static void fake_other(struct fake *f, struct fake_conn *c, char **argv, int argc)
{
    int fd = c->fd;
    bool held = f->value[0] != '\0' || f->nreaders > 0;
    if (strcmp(argv[0], "PTTL") == 0) {
        f->looks++;
        if (strcmp(argv[1], "n") == 0)
            fake_say(fd, ":%lld\r\n", held ? f->left_ms : -2);
        else
            fake_say(fd, ":%lld\r\n", f->claim_ms > 0 ? f->claim_ms : -2);
        return;
    }
    if (strcmp(argv[0], "SUBSCRIBE") == 0 && argc == 2 && strstr(argv[1], "wake:") != NULL)
        snprintf(c->channel, sizeof(c->channel), "%s", argv[1]);
    if (strcmp(argv[0], "SUBSCRIBE") == 0 && argc == 2)
        fake_say(fd, "*3\r\n$9\r\nsubscribe\r\n" BULK ":1\r\n", strlen(argv[1]), argv[1]);
    else if (strcmp(argv[0], "CLIENT") == 0 && strcmp(argv[1], "ID") == 0)
        fake_say(fd, ":7\r\n");
    else if (strcmp(argv[0], "CLIENT") == 0)
        fake_say(fd, "+OK\r\n");
    else if (strcmp(argv[0], "INFO") == 0)
        fake_say(fd, "$11\r\nmaxmemory:0\r\n");
    else
        fake_say(fd, "-NOPERM no\r\n");
}

static void fake_remove(struct fake *f, int i)
{
    f->readers[i] = f->readers[--f->nreaders];
}

static int fake_find(const struct fake *f, const char *mine)
{
    for (int i = 0; i < f->nreaders; i++)
        if (strcmp(f->readers[i].value, mine) == 0)
            return i;
    return -1;
}

static void fake_admit(struct fake *f, const char *mine, long long ttl_ms)
{
    int at = fake_find(f, mine);
    if (at < 0 && f->nreaders < READERS_MAX)
        at = f->nreaders++;
    if (at < 0)
        return;
    snprintf(f->readers[at].value, sizeof(f->readers[at].value), "%s", mine);
    f->readers[at].ends = fake_clock + ttl_ms * DLOCK_MSEC;
}

static void fake_expire(struct fake *f)
{
    if (f->ends != 0 && fake_clock >= f->ends)
        f->value[0] = '\0';
    for (int i = f->nreaders - 1; i >= 0; i--)
        if (fake_clock >= f->readers[i].ends)
            fake_remove(f, i);
}

/* The key is set by another client: it is the readers' no more. */
__attribute__((unused)) static void fake_take(struct fake *f, const char *value)
{
    f->nreaders = 0;
    f->ends = 0;
    snprintf(f->value, sizeof(f->value), "%s", value);
}

/* The value that the server names as the holder's; "": the lock is free. */
static const char *fake_holder(const struct fake *f)
{
    return f->value[0] == '\0' && f->nreaders > 0 ? f->readers[0].value : f->value;
}

/* The answer of KEEP, LEAVE and UNVOTE; recorded (-1: not told): is the run record there? */
static void fake_owned(int fd, bool ours, const char *found, int recorded)
{
    fake_say(fd, "*%d\r\n:%d\r\n", recorded < 0 ? 3 : 4, ours);
    if (ours || found[0] == '\0')
        fake_say(fd, "$-1\r\n:1\r\n");
    else
        fake_say(fd, BULK ":1\r\n", strlen(found), found);
    if (recorded >= 0)
        fake_say(fd, ":%d\r\n", recorded);
}

static long long fake_up_ms(const struct fake *f)
{
    return f->started == 0 ? 864000000 : (fake_clock - f->started) / DLOCK_MSEC - 1000;
}

static void fake_read_vote(struct fake *f, int fd, char **argv)
{
    const char *holder = fake_holder(f);
    long long up_ms = fake_up_ms(f);
    char fence[24];
    if (f->value[0] != '\0' || f->writer_waits) {
        const char *word = holder[0] != '\0' ? "busy" : "claim";
        fake_say(fd, "*8\r\n" BULK "$1\r\n0\r\n:%lld\r\n:1\r\n" BULK ":1\r\n:0\r\n:0\r\n",
                 strlen(word), word, f->left_ms, strlen(holder), holder);
    } else if (up_ms < atoll(argv[9])) {
        fake_say(fd,
                 "*8\r\n$5\r\ngrace\r\n$1\r\n0\r\n:%lld\r\n:1\r\n$0\r\n\r\n:1\r\n:%lld\r\n:0\r\n",
                 atoll(argv[9]) - up_ms, up_ms);
    } else {
        f->fence += f->fence == 0;
        int len = snprintf(fence, sizeof(fence), "%lld", f->fence);
        fake_admit(f, argv[6], atoll(argv[8]));
        fake_say(
            fd,
            "*8\r\n$7\r\ngranted\r\n$%d\r\n%s\r\n:1000\r\n:0\r\n$0\r\n\r\n:1\r\n:%lld\r\n:%lld\r\n",
            len, fence, up_ms, f->longest_ms);
        f->granted++;
    }
}

/* --------------------------------------------------------------- --once, --min-hold */

/* The words of the last argument before the run record. */
static const char *fake_words(const char *last, int n, long long *words)
{
    for (int i = 0; i < n; i++) {
        char *end;
        words[i] = strtoll(last, &end, 10);
        last = end + (*end == ' ');
    }
    return last;
}

/* As scripts/parts/put.lua: mine is the value. True: our record is there. */
static bool fake_record(struct fake *f, const char *mine, const char *last, int nwords)
{
    struct dlock_run was, new;
    long long words[3], now = 1790000000000 + (fake_clock + f->skew) / DLOCK_MSEC;
    const char *text = fake_words(last, nwords, words), *who = strstr(text, " dlock1");
    bool some = run_record_parse(f->run, strlen(f->run), now, &was);
    if (f->run[0] != '\0' && !some)
        return false;
    if (who == NULL || !run_record_parse(text, strlen(text), now, &new))
        return unit_fail(UNIT_AT, "no record: %s", last);
    bool same = some && strcmp(was.token, new.token) == 0;
    if (strcmp(f->value, mine) == 0 &&
        (new.begin_ms == 0 || !some || was.fence < new.fence || was.state == DLOCK_RUN_RUNNING)) {
        if (new.begin_ms == 0) {
            new.begin_ms = same ? was.begin_ms : now;
            new.end_ms = new.state == DLOCK_RUN_RUNNING ? 0 : now;
        }
        (void)run_record_format(&new, who + 1, f->run, sizeof(f->run));
        return true;
    }
    return same && was.state == new.state;
}

/* As scripts/unvote.lua. */
static void fake_unvote(struct fake *f, int fd, const char *mine, const char *last)
{
    long long words[2];
    bool recorded = *fake_words(last, 2, words) != '\0' && fake_record(f, mine, last, 3);
    int64_t ends = fake_clock + words[1] * DLOCK_MSEC;
    if (f->value[0] != '\0' && strcmp(f->value, mine) == 0) {
        strcat(f->value, " over=1");
        f->ends = f->ends != 0 && f->ends < ends ? f->ends : ends;
        if (words[1] == 0)
            f->value[0] = '\0';
        fake_owned(fd, true, "", recorded);
    } else {
        fake_owned(fd, false, f->value, recorded);
    }
}

/* The scripts for a reader. */
static void fake_serve_reader(struct fake *f, int fd, enum fake_kind kind, char **argv)
{
    int at = fake_find(f, argv[6]);
    if (kind == F_VOTE && at >= 0) {
        fake_say(fd, "*5\r\n$5\r\ntwice\r\n$1\r\n0\r\n:0\r\n:0\r\n$0\r\n\r\n");
    } else if (kind == F_VOTE) {
        fake_read_vote(f, fd, argv);
    } else if (kind == F_KEEP && (at >= 0 || (f->value[0] == '\0' && argv[9][0] == '1'))) {
        fake_admit(f, argv[6], atoll(argv[7]));
        f->fence = atoll(argv[8]) > f->fence ? atoll(argv[8]) : f->fence;
        fake_owned(fd, true, "", -1);
    } else if (kind == F_LEAVE && at >= 0) {
        fake_remove(f, at);
        fake_owned(fd, true, "", -1);
    } else {
        fake_owned(fd, false, f->value, -1);
    }
}

/* As scripts/break.lua. */
static const char *fake_break(struct fake *f, const char *token, const char *how)
{
    static const char mark[] = " break=1";
    size_t len = strlen(f->value), end = sizeof(mark) - 1;
    bool marked = len > end && strcmp(f->value + len - end, mark) == 0;
    if (len == 0 || strncmp(f->value, token, DLOCK_TOKEN_LEN) != 0)
        return "changed";
    if (strcmp(how, "force") == 0)
        f->value[0] = '\0';
    else if (strcmp(how, "undo") == 0 && marked)
        f->value[len - end] = '\0';
    else if (strcmp(how, "mark") == 0 && !marked)
        strcat(f->value, mark);
    return "done";
}

/* argv: EVALSHA hash 1 name db prefix ARGV[3] ... */
static void fake_serve(struct fake *f, struct fake_conn *c, char **argv, int argc)
{
    int fd = c->fd;
    enum fake_kind kind = fake_kind(argv, argc);
    const char *mine = argc > 6 ? argv[6] : "";
    fake_expire(f);
    bool ours = f->value[0] != '\0' && strcmp(f->value, mine) == 0;
    /* The last argument has a part for the run record, or for the least hold. */
    const char *last = argv[argc - 1];
    bool runs =
        (kind == F_VOTE && strstr(last, " run") != NULL) ||
        (kind == F_KEEP && strchr(last, ' ') != NULL) ||
        (kind == F_LEAVE && strchr(last, ' ') != NULL && strcmp(strchr(last, ' '), " 0") != 0);
    long long up_ms = fake_up_ms(f);
    f->served[kind]++;
    if (kind == F_OTHER) {
        fake_other(f, c, argv, argc);
    } else if (f->error != NULL) {
        fake_say(fd, "-%s\r\n", f->error);
    } else if (kind == F_LEAVE && runs) {
        fake_unvote(f, fd, mine, argv[8]);
    } else if (strncmp(mine, "s:", 2) == 0) {
        fake_serve_reader(f, fd, kind, argv);
    } else if (kind == F_STATUS) {
        fake_say(fd, "*8\r\n:%d\r\n" BULK ":1\r\n:1000\r\n$1\r\n7\r\n*0\r\n" BULK "*0\r\n",
                 f->value[0] != '\0', strlen(f->value), f->value, strlen(f->run), f->run);
    } else if (kind == F_BREAK) {
        const char *word = fake_break(f, mine, argv[8]);
        fake_say(fd, "*1\r\n" BULK, strlen(word), word);
    } else if (kind == F_FORGET) {
        f->run[0] = '\0';
        fake_say(fd, "*1\r\n$4\r\ndone\r\n");
    } else if (kind == F_VOTE && ours) {
        fake_say(fd, "*5\r\n$5\r\ntwice\r\n$1\r\n0\r\n:0\r\n:0\r\n$0\r\n\r\n");
    } else if (kind == F_VOTE && (f->value[0] != '\0' || f->nreaders > 0)) {
        const char *holder = fake_holder(f);
        fake_say(fd, "*8\r\n$4\r\nbusy\r\n$1\r\n0\r\n:%lld\r\n:%d\r\n" BULK ":1\r\n:0\r\n:%lld\r\n",
                 f->value[0] != '\0' && f->ends != 0
                     ? (long long)((f->ends - fake_clock) / DLOCK_MSEC)
                     : f->left_ms,
                 f->place, strlen(holder), holder, f->longest_ms);
    } else if (kind == F_VOTE && up_ms < atoll(argv[9])) {
        fake_say(
            fd, "*8\r\n$5\r\ngrace\r\n$1\r\n0\r\n:%lld\r\n:1\r\n$0\r\n\r\n:1\r\n:%lld\r\n:%lld\r\n",
            atoll(argv[9]) - up_ms, up_ms, f->longest_ms);
    } else if (kind == F_VOTE) {
        char fence[24];
        snprintf(f->value, sizeof(f->value), "%s", mine);
        f->ends = fake_clock + atoll(argv[8]) * DLOCK_MSEC;
        int len = snprintf(fence, sizeof(fence), "%lld", ++f->fence);
        fake_say(fd,
                 "*%d\r\n$7\r\ngranted\r\n$%d\r\n%s\r\n:1000\r\n:0\r\n$0\r\n\r\n:%" PRId64
                 "\r\n:%lld\r\n:%lld\r\n",
                 runs ? 11 : 8, len, fence, 1790000000000 + (fake_clock + f->skew) / DLOCK_MSEC,
                 up_ms, f->longest_ms);
        if (runs && f->run[0] == '\0')
            fake_say(fd, ":0\r\n$-1\r\n:-2\r\n");
        else if (runs)
            fake_say(fd, ":0\r\n" BULK ":60000\r\n", strlen(f->run), f->run);
        f->granted++;
    } else if (kind == F_KEEP &&
               (ours || (f->value[0] == '\0' && f->nreaders == 0 && argv[9][0] == '1'))) {
        snprintf(f->value, sizeof(f->value), "%s", mine);
        f->ends = fake_clock + atoll(argv[7]) * DLOCK_MSEC;
        f->fence = atoll(argv[8]) > f->fence ? atoll(argv[8]) : f->fence;
        fake_owned(fd, true, "", runs ? fake_record(f, mine, argv[10], 2) : -1);
    } else if (kind == F_LEAVE && ours) {
        f->value[0] = '\0';
        fake_owned(fd, true, "", -1);
    } else {
        fake_owned(fd, false, fake_holder(f), -1);
    }
}

/* Serve one command of the input. Returns its bytes; 0: none is complete, or it must wait. */
static size_t fake_command(struct fake *f, struct fake_conn *c)
{
    char *argv[12], *p = c->in, *end = c->in + c->len;
    long len[12];
    int argc = 0, n = 0;
    c->in[c->len] = '\0';
    for (char *line; argc == 0 || argc <= n; argc++, p = line) {
        line = p < end ? strchr(p, '\n') : NULL;
        if (line++ == NULL)
            return 0;
        if (argc == 0) {
            n = atoi(p + 1);
            continue;
        }
        argv[argc - 1] = line;
        len[argc - 1] = atol(p + 1);
        line += len[argc - 1] + 2;
        if (line > end || argc == 12)
            return 0;
    }
    for (int i = 0; i < n; i++)
        argv[i][len[i]] = '\0';
    enum fake_kind kind = fake_kind(argv, n);
    bool wait = f->held[kind] = f->slow[kind] && c - f->conns >= f->first_slow;
    if (!wait)
        fake_serve(f, c, argv, n);
    for (int i = 0; i < n && wait; i++)
        argv[i][len[i]] = '\r';
    return wait ? 0 : (size_t)(p - c->in);
}

/* True: something has happened. */
static bool fake_step(struct fake *f)
{
    bool any = false;
    if (f->stopped)
        return false;
    for (int fd; f->lfd >= 0 && f->nconns < CONNS_MAX &&
                 (fd = accept4(f->lfd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0;
         any = true) {
        /* The clock stands still: no answer may wait for an acknowledgement. */
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        f->conns[f->nconns++] = (struct fake_conn){.fd = fd};
    }
    for (int i = 0; i < f->nconns; i++) {
        struct fake_conn *c = &f->conns[i];
        ssize_t n = recv(c->fd, c->in + c->len, sizeof(c->in) - 1 - c->len, MSG_DONTWAIT);
        if (n > 0)
            c->len += (size_t)n;
        any |= n > 0;
        for (size_t used; (used = fake_command(f, c)) > 0; any = true)
            memmove(c->in, c->in + used, c->len -= used);
        if (n == 0) {
            close(c->fd);
            *c = f->conns[--f->nconns];
            i--;
        }
    }
    return any;
}

/* ----------------------------------------------------------------------- world */

static const char *fake_params = ""; /* of the URI, from '?' on */
static enum dlock_mode fake_mode = DLOCK_MODE_EXCLUSIVE;
static int64_t fake_once; /* for the next client */

struct world {
    struct fake f[NODES_MAX];
    int n;
    struct dlock_uri *uri;
    struct dlock_spec spec;
    struct dlock_identity identity;
    struct dlock_hold hold;
    struct dlock_peer peers[NODES_MAX];
    struct dlock_be *be;
    struct dlock_event ended; /* the ending event, or LOST; EV_NONE: none yet */
    int nended, notices, away, back;
};

/* The address of a server under another number: 127.0.0.n. */
static void world_aim(struct world *w, int host, int server, int n)
{
    struct sockaddr_in *in = (struct sockaddr_in *)&w->peers[host].addr;
    *in = (struct sockaddr_in){.sin_family = AF_INET,
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK - 1 + (uint32_t)n),
                               .sin_port = htons(w->f[server].port)};
    w->peers[host].host = host;
    w->peers[host].len = sizeof(*in);
}

/* A client of the servers in w->f. */
static bool world_client(struct world *w, int64_t ttl, int64_t op_timeout)
{
    struct dlock_error err = {0};
    char text[512] = "redlock://";
    for (int i = 0; i < w->n; i++) {
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%sh%d:%u", i > 0 ? "," : "", i,
                 w->f[i].port);
        world_aim(w, i, i, 1);
    }
    strcat(text, fake_params);
    strcat(text, "#n");
    if (dlock_uri_parse(&w->uri, text, &err) != 0)
        return unit_fail(UNIT_AT, "%s", err.msg);
    dlock_identity_init(&w->identity, "unit", "");
    w->spec = (struct dlock_spec){
        .env = &fake_env,
        .uri = w->uri,
        .peers = w->peers,
        .npeers = w->n,
        .mode = fake_mode,
        .ttl = ttl,
        .connect_timeout = 5 * DLOCK_SEC,
        .op_timeout = op_timeout,
        .identity = &w->identity,
        .hold = &w->hold,
        .once = fake_once,
    };
    if (dlock_backend_redlock.open(&w->be, &w->spec, &err) != 0)
        return unit_fail(UNIT_AT, "%s", err.msg);
    return true;
}

static bool world_open(struct world *w, int n, int64_t ttl, int64_t op_timeout)
{
    memset(w, 0, sizeof(*w));
    w->n = n;
    for (int i = 0; i < n; i++)
        if (!fake_open(&w->f[i]))
            return unit_fail(UNIT_AT, "no server");
    return world_client(w, ttl, op_timeout);
}

static void world_close(struct world *w)
{
    dlock_backend_redlock.close(w->be);
    dlock_uri_free(w->uri);
    for (int i = 0; i < w->n; i++)
        fake_cut(&w->f[i], true);
}

static void world_event(struct world *w, const struct dlock_event *ev)
{
    w->notices += ev->type == EV_NOTICE;
    w->away += ev->type == EV_AWAY;
    w->back += ev->type == EV_BACK;
    if (ev->type == EV_WAITING || ev->type == EV_NOTICE || ev->type == EV_AWAY ||
        ev->type == EV_BACK || ev->type == EV_INFO)
        return;
    w->ended = *ev;
    w->nended++;
}

/* With the clock stopped, until nothing is left to do. Returns when the backend wakes up. */
__attribute__((unused)) static int64_t settle(struct world *w)
{
    const struct dlock_backend *t = &dlock_backend_redlock;
    int64_t wake = DLOCK_NEVER;
    for (int quiet = 0, turns = 0; quiet < 3 && turns < 2000; turns++) {
        struct pollfd p[DLOCK_POLL_MAX];
        struct dlock_event ev;
        wake = DLOCK_NEVER;
        int n = t->interest(w->be, p, DLOCK_POLL_MAX, &wake);
        bool any = poll(p, (nfds_t)n, 0) > 0;
        while (t->process(w->be, p, n, &ev) == 1) {
            world_event(w, &ev);
            any = true;
            n = 0;
        }
        for (int i = 0; i < w->n; i++)
            any |= fake_step(&w->f[i]);
        quiet = any ? 0 : quiet + 1;
    }
    wake = DLOCK_NEVER;
    struct pollfd p[DLOCK_POLL_MAX];
    (void)t->interest(w->be, p, DLOCK_POLL_MAX, &wake);
    return wake;
}

/* Let the time pass, or until an operation has ended. A wake-up in the past is an error. */
__attribute__((unused)) static void pass(struct world *w, int64_t by)
{
    int64_t end = fake_clock + by;
    w->nended = 0;
    w->ended.type = EV_NONE;
    for (int idle = 0; w->nended == 0;) {
        int64_t wake = settle(w);
        if (w->nended > 0 || fake_clock >= end)
            return;
        idle = wake <= fake_clock ? idle + 1 : 0;
        if (idle > 2) {
            unit_fail(UNIT_AT, "busy loop: wants to be woken %" PRId64 " us ago",
                      (fake_clock - wake) / 1000);
            return;
        }
        if (idle == 0)
            fake_clock = wake < end ? wake : end;
    }
}

#define ACQUIRE(w, wait) dlock_backend_redlock.acquire((w)->be, wait)
#define RENEW(w) dlock_backend_redlock.renew((w)->be)
#define RELEASE(w) dlock_backend_redlock.release((w)->be, fake_clock + 5 * DLOCK_SEC)

#endif
