/*
 * fake.c - a backend that does what files tell it, for tests of the keeper and the guard without a store.
 *
 * fake:///DIR#name: each slot reads DIR/acquire, DIR/renew, DIR/release ("WORD [DELAY_MS]"), again every
 * 5 ms while it has not ended, so that a test can change its mind in the middle:
 *   acquire: grant (default) | busy | wait | fail | hang        renew: ok (default) | unclear | lost | hang
 *   release: clean (default) | notours | unclear | hang
 * DIR/notice ("setup", "exclusion" or "detail"): such a notice comes with the acquire.
 * DIR/lost: once it exists, the lock is lost unasked. DIR/log receives one line an operation, with its
 * time in ns. DIR/held exists while the lock is held (an exclusive create: two holders are an error), and
 * is left behind by a crash with its expiry inside, as a store would; the fence counts in DIR/fence.
 */
#include "backend.h"
#include "util.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define POLL_EVERY (5 * DLOCK_MSEC)

enum doing { IDLE, ACQUIRING, HELD, RENEWING, RELEASING, ASKING };

struct dlock_be {
    const struct dlock_spec *spec;
    enum doing doing;
    bool wait, held, told, answered, noticed;
    int64_t started, until;
    char token[DLOCK_TOKEN_LEN + 1];
    struct dlock_info info;
};

static int64_t now_of(struct dlock_be *b)
{
    return b->spec->env->now(b->spec->env->ctx);
}

static const char *path_of(struct dlock_be *b, const char *file, char *buf, size_t size)
{
    snprintf(buf, size, "%s/%s", b->spec->uri->path, file);
    return buf;
}

static bool read_file(struct dlock_be *b, const char *file, char *text, size_t size)
{
    char path[512];
    FILE *f = fopen(path_of(b, file, path, sizeof path), "re");
    if (!f)
        return false;
    size_t n = fread(text, 1, size - 1, f);
    text[n] = '\0';
    text[strcspn(text, "\n")] = '\0';
    fclose(f);
    return true;
}

static void write_file(struct dlock_be *b, const char *file, const char *mode, const char *text)
{
    char path[512];
    FILE *f = fopen(path_of(b, file, path, sizeof path), mode);
    if (!f)
        return;
    fputs(text, f);
    fclose(f);
}

static void note(struct dlock_be *b, const char *what)
{
    char line[128];
    snprintf(line, sizeof line, "%s %" PRId64 " %d\n", what, now_of(b), (int)getpid());
    write_file(b, "log", "ae", line);
}

/* The scripted word of an operation once its delay is over, else "". */
static const char *word(struct dlock_be *b, const char *file, const char *usual, char *buf,
                        size_t size)
{
    int delay = 0;
    char text[128];
    snprintf(buf, size, "%s", usual);
    if (read_file(b, file, text, sizeof text) && text[0])
        sscanf(text, "%31s %d", buf, &delay);
    if (now_of(b) < b->started + delay * DLOCK_MSEC)
        buf[0] = '\0';
    return buf;
}

static int be_open(struct dlock_be **out, const struct dlock_spec *spec, struct dlock_error *err)
{
    struct dlock_be *b = calloc(1, sizeof *b);
    if (!b)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    b->spec = spec;
    *out = b;
    return 0;
}

static void start(struct dlock_be *b, enum doing doing, const char *what)
{
    b->doing = doing;
    b->started = now_of(b);
    note(b, what);
}

static void be_acquire(struct dlock_be *b, bool wait)
{
    b->wait = wait;
    b->told = false;
    dlock_token_new(b->spec->env, b->token);
    start(b, ACQUIRING, "acquire");
}

static void be_renew(struct dlock_be *b)
{
    start(b, RENEWING, "renew");
}

static void be_release(struct dlock_be *b, int64_t until)
{
    b->until = until;
    start(b, RELEASING, "release");
}

static void be_ask(struct dlock_be *b, enum dlock_ask what, const char *arg)
{
    (void)what;
    (void)arg;
    b->answered = false;
    start(b, ASKING, "ask");
}

static int be_interest(struct dlock_be *b, struct pollfd *pfd, int cap, int64_t *wake_at)
{
    (void)pfd;
    (void)cap;
    if (b->doing != IDLE)
        *wake_at = dlock_min(*wake_at, now_of(b) + POLL_EVERY);
    return 0;
}

static uint64_t next_fence(struct dlock_be *b)
{
    char text[64] = "0";
    read_file(b, "fence", text, sizeof text);
    uint64_t fence = strtoull(text, NULL, 10) + 1;
    snprintf(text, sizeof text, "%" PRIu64 "\n", fence);
    write_file(b, "fence", "we", text);
    return fence;
}

static void write_held(struct dlock_be *b, int64_t until)
{
    char text[64];
    snprintf(text, sizeof text, "%" PRId64 " %d %s\n", until, (int)getpid(), b->token);
    write_file(b, "held.new", "we", text);
    char from[512], to[512];
    rename(path_of(b, "held.new", from, sizeof from), path_of(b, "held", to, sizeof to));
}

static bool taken(struct dlock_be *b)
{
    char text[128];
    int64_t until = 0;
    return read_file(b, "held", text, sizeof text) && sscanf(text, "%" SCNd64, &until) == 1 &&
           now_of(b) < until;
}

static int fail_event(const struct dlock_be *b, struct dlock_event *ev, enum dlock_ev type,
                      int code, const char *text)
{
    ev->type = type;
    dlock_fail(&ev->error, code, 0, "%s: %s (lock '%s')", b->spec->uri->where, text,
               b->spec->uri->name);
    return 1;
}

/* A notice of the kind that the test asks for, once. */
static bool do_notice(struct dlock_be *b, struct dlock_event *ev)
{
    char w[32];
    if (b->noticed || !read_file(b, "notice", w, sizeof w))
        return false;
    b->noticed = true;
    ev->type = EV_NOTICE;
    dlock_fail(&ev->error,
               strcmp(w, "setup") == 0       ? DLOCK_EUNAVAIL
               : strcmp(w, "exclusion") == 0 ? DLOCK_ELOST
                                             : 0,
               0, "fake: notice of %s", w);
    return true;
}

static int do_acquire(struct dlock_be *b, struct dlock_event *ev)
{
    char w[32];
    if (do_notice(b, ev))
        return 1;
    word(b, "acquire", "grant", w, sizeof w);
    if (strcmp(w, "fail") == 0) {
        b->doing = IDLE;
        return fail_event(b, ev, EV_FAILED, DLOCK_EUNAVAIL, "told to fail");
    }
    if (strcmp(w, "grant") == 0 && !taken(b)) {
        b->doing = HELD;
        b->held = true;
        ev->type = EV_GRANTED;
        ev->from = b->started;
        if (b->told)
            ev->from = now_of(b);
        ev->ttl = b->spec->ttl;
        ev->fence = next_fence(b);
        memcpy(ev->token, b->token, sizeof ev->token);
        write_held(b, ev->from + ev->ttl);
        return 1;
    }
    if (strcmp(w, "busy") == 0 || strcmp(w, "wait") == 0 || strcmp(w, "grant") == 0) {
        if (b->wait && b->told)
            return 0;
        b->told = true;
        snprintf(b->info.host, sizeof b->info.host, "fakehost");
        snprintf(b->info.command, sizeof b->info.command, "fakecommand");
        b->info.pid = 4711;
        b->info.left_ns = -1;
        ev->info = &b->info;
        ev->place = 1;
        ev->type = b->wait ? EV_WAITING : EV_BUSY;
        if (!b->wait)
            b->doing = IDLE;
        return 1;
    }
    return 0;
}

static int do_renew(struct dlock_be *b, struct dlock_event *ev)
{
    char w[32];
    word(b, "renew", "ok", w, sizeof w);
    if (w[0] == '\0' || strcmp(w, "hang") == 0) {
        if (now_of(b) < b->started + b->spec->op_timeout)
            return 0;
        snprintf(w, sizeof w, "unclear");
    }
    b->doing = HELD;
    note(b, w);
    if (strcmp(w, "lost") == 0) {
        b->held = false;
        return fail_event(b, ev, EV_LOST, DLOCK_ELOST, "told to lose");
    }
    if (strcmp(w, "unclear") == 0)
        return fail_event(b, ev, EV_UNCLEAR, DLOCK_EUNAVAIL, "no answer");
    ev->type = EV_RENEWED;
    ev->from = b->started;
    ev->ttl = b->spec->ttl;
    write_held(b, ev->from + ev->ttl);
    return 1;
}

static int do_release(struct dlock_be *b, struct dlock_event *ev)
{
    char w[32], path[512];
    word(b, "release", "clean", w, sizeof w);
    if (w[0] == '\0' || strcmp(w, "hang") == 0) {
        if (now_of(b) < b->until)
            return 0;
        snprintf(w, sizeof w, "unclear");
    }
    b->doing = IDLE;
    note(b, w);
    ev->type = EV_RELEASED;
    ev->how = !b->held ? DLOCK_REL_NOTHING : DLOCK_REL_CLEAN;
    if (strcmp(w, "notours") == 0)
        ev->how = DLOCK_REL_NOT_OURS;
    if (strcmp(w, "unclear") == 0)
        ev->how = DLOCK_REL_UNCLEAR;
    if (b->held && ev->how == DLOCK_REL_CLEAN)
        unlink(path_of(b, "held", path, sizeof path));
    b->held = false;
    return 1;
}

static int do_ask(struct dlock_be *b, struct dlock_event *ev)
{
    if (!b->answered && taken(b)) {
        b->answered = true;
        b->info.left_ns = b->spec->ttl;
        ev->info = &b->info;
        ev->type = EV_INFO;
        return 1;
    }
    b->doing = IDLE;
    ev->type = EV_DONE;
    return 1;
}

static int be_process(struct dlock_be *b, const struct pollfd *pfd, int n, struct dlock_event *ev)
{
    char path[512];
    (void)pfd;
    (void)n;
    if ((b->doing == HELD || b->doing == RENEWING) && b->held &&
        access(path_of(b, "lost", path, sizeof path), F_OK) == 0) {
        b->doing = HELD;
        b->held = false;
        return fail_event(b, ev, EV_LOST, DLOCK_ELOST, "lost unasked");
    }
    switch (b->doing) {
    case ACQUIRING:
        return do_acquire(b, ev);
    case RENEWING:
        return do_renew(b, ev);
    case RELEASING:
        return do_release(b, ev);
    case ASKING:
        return do_ask(b, ev);
    default:
        return 0;
    }
}

static void be_close(struct dlock_be *b)
{
    free(b);
}

static const char *const schemes[] = {"fake", NULL};

const struct dlock_backend dlock_backend_fake = {
    .abi = DLOCK_BACKEND_ABI,
    .build_id = DLOCK_VERSION,
    .name = "fake",
    .package = "none",
    .schemes = schemes,
    .caps = CAP_LEASE | CAP_FENCE,
    .open = be_open,
    .acquire = be_acquire,
    .renew = be_renew,
    .release = be_release,
    .ask = be_ask,
    .interest = be_interest,
    .process = be_process,
    .close = be_close,
};
