/*
 * fake.c - a backend that does what files tell it: tests of keeper and guard without a store.
 *
 * fake:///DIR#name: each slot reads DIR/acquire, DIR/renew, DIR/release ("WORD [DELAY_MS]"), again
 * every 5 ms while it has not ended, so that a test can change its mind in the middle:
 *   acquire: grant (default) | busy | wait | skip | fail | hang
 *   renew: ok (default) | unclear | lost | hang | broken (marked by another process)
 *   release: clean (default) | notours | unclear | hang
 * DIR/record: the record of --once, as run_record.h has it; a skip without one makes one up.
 * DIR/stays: once it exists, a released lock stays held for --min-hold. DIR/notice ("setup",
 * "exclusion" or "detail"): such a notice comes with the acquire.
 * DIR/ask: "away": queries fail; "slow": a step takes SLOW_ANSWER. A break of the holder makes
 * "renew" say "broken"; with force it removes DIR/held. DIR/findings: what a check finds, "LEVEL
 * TEXT" on a line; "failure" has code 77.
 * DIR/lost: once it exists, the lock is lost unasked. DIR/log receives one line an operation, with
 * its time in ns. DIR/held exists while the lock is held (an exclusive create: two holders are an
 * error), and is left behind by a crash with its expiry inside, as a store would; the fence counts
 * in DIR/fence.
 */
#include "backend.h"
#include "run_record.h"
#include "util.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define POLL_EVERY (5 * DLOCK_MSEC)
#define SLOW_ANSWER (60 * DLOCK_MSEC)

enum doing { IDLE, ACQUIRING, HELD, RENEWING, RELEASING, ASKING };

struct dlock_be {
    const struct dlock_spec *spec;
    enum doing doing;
    bool wait, held, told, answered, noticed;
    int64_t started, until;
    char token[DLOCK_TOKEN_LEN + 1];
    uint64_t fence;
    const struct dlock_order *order; /* NULL: the question is a check */
    int findings;                    /* told already */
    struct dlock_info info;
    struct dlock_run run;
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

static bool has_file(struct dlock_be *b, const char *file)
{
    char path[512];
    return access(path_of(b, file, path, sizeof path), F_OK) == 0;
}

static int64_t wall_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    return ts.tv_sec * INT64_C(1000) + ts.tv_nsec / DLOCK_MSEC;
}

/* 1: b->run is the record. 0: there is none. -1: something else is in its place. */
static int read_record(struct dlock_be *b)
{
    char text[RUN_RECORD_MAX + 1];
    if (!has_file(b, "record"))
        return 0;
    return read_file(b, "record", text, sizeof text) &&
                   run_record_parse(text, strlen(text), wall_ms(), &b->run)
               ? 1
               : -1;
}

static void write_record(struct dlock_be *b)
{
    char who[1000], text[RUN_RECORD_MAX];
    run_record_who(b->spec, who, sizeof who);
    run_record_format(&b->run, who, text, sizeof text);
    write_file(b, "record", "we", text);
}

static bool be_stays(struct dlock_be *b)
{
    return has_file(b, "stays");
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

static void be_ask(struct dlock_be *b, const struct dlock_question *q)
{
    (void)q;
    b->order = NULL;
    b->findings = 0;
    start(b, ASKING, "ask");
}

static void be_step(struct dlock_be *b, const struct dlock_order *order)
{
    b->order = order;
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

static void write_held(struct dlock_be *b, int64_t until, const char *over)
{
    char text[128];
    snprintf(text, sizeof text, "%" PRId64 " %d %s%s\n", until, (int)getpid(), b->token, over);
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

/* Does it stay held for --min-hold alone? */
static bool is_over(struct dlock_be *b)
{
    char text[128];
    return read_file(b, "held", text, sizeof text) && strstr(text, " over");
}

/* As the store would: no longer than what is asked for, and at least for --min-hold. */
static void extend(struct dlock_be *b, int64_t from)
{
    int64_t until = from + b->spec->ttl;
    if (b->spec->min_hold > 0 && be_stays(b))
        until = dlock_max(until,
                          b->spec->hold->until ? b->spec->hold->until : from + b->spec->min_hold);
    write_held(b, until, "");
}

static int fail_event(const struct dlock_be *b, struct dlock_event *ev, enum dlock_ev type,
                      int code, const char *text)
{
    ev->type = type;
    dlock_fail_lock(&ev->error, code, 0, b->spec->uri, "%s", text);
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

static int skip(struct dlock_be *b, struct dlock_event *ev)
{
    b->doing = IDLE;
    note(b, "skip");
    ev->type = EV_SKIPPED;
    ev->run = &b->run;
    return 1;
}

/* With --once, before the grant. True: an event ends the acquire. */
static bool ends_by_record(struct dlock_be *b, struct dlock_event *ev)
{
    int found = b->spec->once ? read_record(b) : 0;
    if (found < 0) {
        b->doing = IDLE;
        ev->type = EV_FAILED;
        run_record_foreign(&ev->error, b->spec, "DIR/record");
        return true;
    }
    return found > 0 && run_record_skips(&b->run, b->spec->once) && skip(b, ev);
}

static void begin_record(struct dlock_be *b)
{
    b->run = (struct dlock_run){.state = DLOCK_RUN_RUNNING,
                                .status = -1,
                                .fence = b->fence,
                                .begin_ms = wall_ms(),
                                .kept_ns = b->spec->once};
    memcpy(b->run.token, b->token, sizeof b->run.token);
    write_record(b);
}

static int do_acquire(struct dlock_be *b, struct dlock_event *ev)
{
    char w[32];
    if (do_notice(b, ev))
        return 1;
    word(b, "acquire", "grant", w, sizeof w);
    if (strcmp(w, "skip") == 0) {
        b->run = (struct dlock_run){
            .state = DLOCK_RUN_SUCCEEDED, .age_ns = 300 * DLOCK_SEC, .pid = 42, .host = "fakehost"};
        read_record(b);
        return skip(b, ev);
    }
    if (strcmp(w, "fail") == 0) {
        b->doing = IDLE;
        return fail_event(b, ev, EV_FAILED, DLOCK_EUNAVAIL, "told to fail");
    }
    if (strcmp(w, "grant") == 0 && !taken(b)) {
        if (ends_by_record(b, ev))
            return 1;
        b->doing = HELD;
        b->held = true;
        ev->type = EV_GRANTED;
        ev->from = b->started;
        if (b->told)
            ev->from = now_of(b);
        ev->ttl = b->spec->ttl;
        ev->fence = b->fence = next_fence(b);
        memcpy(ev->token, b->token, sizeof ev->token);
        extend(b, ev->from);
        if (run_record_begun(b->spec))
            begin_record(b);
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
        b->info.over = is_over(b);
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
    if (b->spec->hold->begin == RUN_NOW)
        begin_record(b);
    ev->type = EV_RENEWED;
    ev->from = b->started;
    ev->ttl = b->spec->ttl;
    extend(b, ev->from);
    if (strcmp(w, "broken") == 0) {
        static const char by[] = "root@db1, note \"stuck\"";
        ev->broken = true;
        dlock_broken(&ev->error, b->spec, by, strlen(by));
    }
    return 1;
}

/* The conditional step that ends a hold of ours. */
static void end_hold(struct dlock_be *b)
{
    char path[512];
    int64_t until = b->spec->hold->until;
    if (run_record_begun(b->spec)) {
        run_record_end(b->spec, &b->run);
        b->run.end_ms = wall_ms();
        write_record(b);
    }
    if (until > now_of(b) && be_stays(b))
        write_held(b, until, " over");
    else
        unlink(path_of(b, "held", path, sizeof path));
}

static int do_release(struct dlock_be *b, struct dlock_event *ev)
{
    char w[32];
    word(b, "release", "clean", w, sizeof w);
    if (w[0] == '\0' || strcmp(w, "hang") == 0) {
        if (now_of(b) < b->until)
            return 0;
        snprintf(w, sizeof w, "unclear");
    }
    b->doing = IDLE;
    note(b, w);
    ev->type = EV_RELEASED;
    ev->how = !b->held ? DLOCK_RELEASE_NOTHING : DLOCK_RELEASE_CLEAN;
    if (strcmp(w, "notours") == 0)
        ev->how = DLOCK_RELEASE_NOT_OURS;
    if (strcmp(w, "unclear") == 0)
        ev->how = DLOCK_RELEASE_UNCLEAR;
    if (b->held && ev->how == DLOCK_RELEASE_CLEAN)
        end_hold(b);
    b->held = false;
    return 1;
}

/* What a status query says of the holder. */
static void read_holder(struct dlock_be *b)
{
    char text[128];
    b->info.left_ns = b->spec->ttl;
    b->info.over = is_over(b);
    if (read_file(b, "held", text, sizeof text))
        sscanf(text, "%*s %ld %32s", &b->info.pid, b->info.token);
    b->info.broken = read_file(b, "renew", text, sizeof text) && strcmp(text, "broken") == 0;
    if (!b->info.broken)
        return;
    snprintf(b->info.broken_by, sizeof b->info.broken_by, "root@db1, note \"stuck\"");
    b->info.broken_ms = dlock_wall() / DLOCK_MSEC - 5000;
}

static bool be_next(struct dlock_be *b, struct dlock_info *info)
{
    bool holds = !b->answered && taken(b);
    if (holds)
        read_holder(b);
    *info = b->info;
    b->answered = true;
    return holds;
}

static void do_read(struct dlock_be *b, struct dlock_event *ev)
{
    int found = read_record(b);
    b->answered = false;
    ev->type = EV_READ;
    ev->run = found > 0 ? &b->run : NULL;
    if (found < 0 && b->order->question->what == ASK_FORGET)
        run_record_foreign(&ev->error, b->spec, "DIR/record");
}

static void do_step(struct dlock_be *b, struct dlock_event *ev)
{
    const struct dlock_order *o = b->order;
    char path[512];
    ev->type = EV_STEPPED;
    if (o->what == STEP_FORGET) {
        ev->stepped = read_record(b) > 0 && strcmp(b->run.token, o->run->token) == 0;
        if (ev->stepped)
            unlink(path_of(b, "record", path, sizeof path));
        return;
    }
    read_holder(b);
    ev->stepped = taken(b) && strcmp(b->info.token, o->holder->token) == 0;
    if (ev->stepped && o->what == STEP_FREE)
        unlink(path_of(b, "held", path, sizeof path));
    else if (ev->stepped)
        write_file(b, "renew", "we", "broken");
}

static int do_check(struct dlock_be *b, struct dlock_event *ev)
{
    char path[512], line[256] = "", level[16] = "";
    FILE *f = fopen(path_of(b, "findings", path, sizeof path), "re");
    for (int i = 0; f && i <= b->findings; i++)
        if (!fgets(line, sizeof line, f))
            line[0] = '\0';
    if (f)
        fclose(f);
    line[strcspn(line, "\n")] = '\0';
    if (sscanf(line, "%15s", level) != 1) {
        b->doing = IDLE;
        ev->type = EV_DONE;
        return 1;
    }
    b->findings++;
    ev->finding = strcmp(level, "ok") == 0        ? DLOCK_FINDING_OK
                  : strcmp(level, "warning") == 0 ? DLOCK_FINDING_WARNING
                                                  : DLOCK_FINDING_FAILURE;
    ev->type = EV_FINDING;
    dlock_fail(&ev->error, ev->finding == DLOCK_FINDING_FAILURE ? DLOCK_EPERM : 0, 0, "%s",
               line + strlen(level) + 1);
    return 1;
}

static int do_ask(struct dlock_be *b, struct dlock_event *ev)
{
    char text[128];
    if (!read_file(b, "ask", text, sizeof text))
        text[0] = '\0';
    if (strcmp(text, "slow") == 0 && now_of(b) - b->started < SLOW_ANSWER)
        return 0;
    if (strcmp(text, "away") == 0) {
        b->doing = IDLE;
        return fail_event(b, ev, EV_FAILED, DLOCK_EUNAVAIL, "told to be away");
    }
    if (!b->order)
        return do_check(b, ev);
    b->doing = IDLE;
    (b->order->what == STEP_READ ? do_read : do_step)(b, ev);
    return 1;
}

static int be_process(struct dlock_be *b, const struct pollfd *pfd, int n, struct dlock_event *ev)
{
    (void)pfd;
    (void)n;
    if ((b->doing == HELD || b->doing == RENEWING) && b->held && has_file(b, "lost")) {
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
    .caps = CAP_LEASE | CAP_FENCE | CAP_ONCE,
    .open = be_open,
    .acquire = be_acquire,
    .stays = be_stays,
    .renew = be_renew,
    .release = be_release,
    .ask = be_ask,
    .step = be_step,
    .next = be_next,
    .interest = be_interest,
    .process = be_process,
    .close = be_close,
};
