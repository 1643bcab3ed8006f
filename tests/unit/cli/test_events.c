/*
 * The lines of --events (cli/events.c); tests/system/cli/events.bats reads them with a JSON parser.
 */
#include "events.h"
#include "messages.h"
#include "report.h"
#include "sink.h"
#include "unit.h"
#include "util.h"

#include <fcntl.h>
#include <unistd.h>

#define SEC DLOCK_SEC

static struct events *e; /* of the test that runs, or ran last */
static int reader = -1;
static char text[64 << 10];

static void open_events(void)
{
    char number[16];
    int p[2];
    events_close(e);
    e = NULL;
    close(reader);
    if (!CHECK_INT(pipe(p), 0))
        exit(1);
    reader = p[0];
    fcntl(reader, F_SETFL, O_NONBLOCK);
    snprintf(number, sizeof(number), "%d", p[1]);
    CHECK_INT(events_open(&e, number, 0, NULL), 0);
    events_set_lock(e, "job", "redis://h:6379/0");
}

/*
 * What was written since the last call, without what differs from run to run: version, time, pid.
 */
static const char *lines(void)
{
    ssize_t n = read(reader, text, sizeof(text) - 1);
    char *to = text;
    text[n > 0 ? n : 0] = '\0';
    for (char *at = text; *at;) {
        char *end = strchr(at, '\n'), *event = strstr(at, "\"event\""), *when, *rest;
        if (!end || strncmp(at, "{\"v\":1,", 7) != 0 || event != at + 7)
            return "no line";
        when = strstr(at, ",\"time\":\"");
        rest = when ? strstr(when, ",\"pid\":") : NULL;
        if (!rest || rest > end || rest - when != 34)
            return "no time";
        rest += strcspn(rest + 1, ",}") + 1;
        memmove(to, event, (size_t)(when - event));
        to += when - event;
        memmove(to, rest, (size_t)(end + 1 - rest));
        to += end + 1 - rest;
        at = end + 1;
    }
    *to = '\0';
    return text;
}

static void waiting(const struct dlock_info *holder, int place, int64_t now)
{
    events_waiting(e, "job", "redis://h:6379/0", holder, place, now);
}

#define JOB ",\"lock\":\"job\",\"store\":\"redis://h:6379/0\""

TEST(a_run_is_told_from_wait_to_end)
{
    int64_t t = dlock_now(); /* before the run begins: no time passes until the first event */
    open_events();
    struct dlock_info holder = {.pid = 7,
                                .host = "web1",
                                .user = "root",
                                .command = "backup.sh",
                                .note = "n",
                                .since_ms = 1000,
                                .waited_ms = 5,
                                .fence = UINT64_C(9007199254740993)};
    waiting(&holder, 2, t);
    CHECK_STR(lines(),
              "\"event\":\"waiting\"" JOB
              ",\"wait_ms\":0,\"place\":2,\"holder\":{\"host\":\"web1\","
              "\"pid\":7,\"user\":\"root\",\"command\":\"backup.sh\",\"note\":\"n\",\"since_ms\":"
              "1000,\"waited_ms\":5,\"fence\":\"9007199254740993\"}}\n");
    t += 3 * SEC;
    events_granted(e, &(struct dlock_info){.fence = 42}, 30 * SEC, t);
    CHECK_HAS(lines(), "\"event\":\"granted\"" JOB ",\"wait_ms\":");
    CHECK_HAS(text, ",\"fence\":\"42\",\"lease_left_ms\":30000}\n");
    events_renewed(e);
    events_renewed(e);
    events_trouble(e, "no \"answer\"", t, 4 * SEC, t + 10 * SEC);
    CHECK_STR(lines(), "\"event\":\"trouble\"" JOB ",\"for_ms\":10000,\"term_in_ms\":4000,"
                       "\"reason\":\"no \\\"answer\\\"\"}\n");
    events_trouble(e, "", t, -1, t);
    CHECK_STR(lines(), "\"event\":\"trouble\"" JOB ",\"for_ms\":0}\n");
    events_recovered(e, t, t + 11 * SEC);
    CHECK_STR(lines(), "\"event\":\"recovered\"" JOB ",\"after_ms\":11000}\n");
    events_lost(e, false, "gone");
    events_term(e, 5 * SEC);
    events_kill(e);
    CHECK_STR(lines(), "\"event\":\"lost\"" JOB ",\"reason\":\"gone\"}\n"
                       "\"event\":\"term\"" JOB ",\"kill_in_ms\":5000}\n"
                       "\"event\":\"kill\"" JOB "}\n");
    events_released(e, "unconfirmed", t + 20 * SEC);
    CHECK_STR(lines(),
              "\"event\":\"released\"" JOB ",\"hold_ms\":20000,\"how\":\"unconfirmed\"}\n");
    events_end(e, &(struct events_end){EVENTS_LOST, 15, 79, "gone"}, t + 30 * SEC);
    CHECK_HAS(lines(), "\"event\":\"end\"" JOB ",\"outcome\":\"lost\",\"wait_ms\":");
    CHECK_HAS(text,
              ",\"hold_ms\":20000,\"fence\":\"42\",\"renewals\":2,\"signal\":15,\"exit_code\":"
              "79,\"reason\":\"gone\",\"dropped\":0}\n");
    events_end(e, &(struct events_end){EVENTS_ERROR, -1, 71, NULL}, t);
    CHECK_STR(lines(), "");
}

TEST(what_is_not_known_is_left_out)
{
    int64_t t = dlock_now();
    open_events();
    waiting(NULL, 0, t);
    CHECK_STR(lines(), "\"event\":\"waiting\"" JOB ",\"wait_ms\":0}\n");
    events_released(e, "nothing", t); /* a cancelled wait: nothing was granted */
    events_end(e, &(struct events_end){EVENTS_TIMEOUT, -1, 75, NULL}, t);
    CHECK_STR(lines(), "\"event\":\"end\"" JOB ",\"outcome\":\"timeout\",\"wait_ms\":0,"
                       "\"renewals\":0,\"exit_code\":75,\"dropped\":0}\n");
}

TEST(a_grant_says_how_the_lock_is_shared)
{
    open_events();
    struct dlock_info held = {.mode = DLOCK_MODE_SHARED, .fence = 7};
    events_granted(e, &held, DLOCK_NEVER, 1);
    CHECK_HAS(lines(), ",\"wait_ms\":0,\"mode\":\"shared\",\"fence\":\"7\"}\n");
    held = (struct dlock_info){.mode = DLOCK_MODE_SLOTS, .slots = 3, .slot = 1};
    events_granted(e, &held, 2 * SEC, 1);
    CHECK_HAS(lines(), ",\"wait_ms\":0,\"mode\":\"slots\",\"slots\":3,\"slot\":0,"
                       "\"lease_left_ms\":2000}\n");
    held.slot = 0; /* a store that does not number them */
    events_granted(e, &held, 2 * SEC, 1);
    CHECK_HAS(lines(), ",\"mode\":\"slots\",\"slots\":3,\"lease_left_ms\":2000}\n");
}

TEST(the_start_names_the_parts_of_the_lock)
{
    static const struct {
        const char *uri, *path, *parts;
    } all[] = {
        {"redis://u:secret@h/3?db=4&auth=secret&user=u#job", "",
         "redis\",\"address\":\"h:6379\",\"database\":\"3\",\"parameters\":\"db=4\"}\n"},
        {"redis+unix:///tmp/s?db=1#job", "",
         "redis+unix\",\"address\":\"/tmp/s\",\"parameters\":\"db=1\"}\n"},
        {"zk://h1,[::1]:7/a/b#job", "",
         "zk\",\"address\":\"h1:2181,[::1]:7\",\"database\":\"a/b\"}\n"},
        {"file:///tmp#job", "/tmp/job.lock", "file\",\"path\":\"/tmp/job.lock\"}\n"},
    };
    open_events();
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        struct dlock_uri *u;
        REQUIRE_INT(dlock_uri_parse(&u, all[i].uri, NULL), 0);
        events_start(e, u, all[i].path);
        CHECK_HAS(lines(), "\"event\":\"start\"");
        CHECK_HAS(text, "\"lock\":\"job\"");
        CHECK_HAS(text, "\"kind\":\"");
        CHECK_STR(strstr(text, "\"kind\":\"") + 8, all[i].parts);
        dlock_uri_free(u);
    }
}

/* ---------------------------------------------------------------- wait --- */

static struct report r;
static dlock *job, *other;

static void begin_wait(void)
{
    static const struct options quiet = {.quiet = true, .wait_ns = DLOCK_NEVER};
    struct dlock_options lo;
    dlock_options_init(&lo, sizeof(lo));
    if (!job)
        CHECK(dlock_open(&job, "file:///tmp#job", &lo, NULL) == 0 &&
              dlock_open(&other, "file:///tmp#other", &lo, NULL) == 0);
    open_events();
    report_begin(&r, &quiet, job, e);
}

/* The store says this of the wait for lk; pid 0: it does not know the holder. */
static void waits(const dlock *lk, long pid, int place)
{
    struct dlock_info holder = {.pid = pid, .waited_ms = -1};
    struct dlock_report heard = {.place = place, .info = pid ? &holder : NULL};
    report_about(&r, lk);
    report_waiting(&r, &heard);
}

static void a_second_passes(void)
{
    r.wait.event_at -= SEC;
}

TEST(a_wait_has_a_line_for_each_change_but_at_most_one_a_second)
{
    begin_wait();
    waits(job, 1, 3);
    CHECK_HAS(lines(), "\"place\":3");
    a_second_passes();
    waits(job, 1, 3); /* no change */
    CHECK_STR(lines(), "");
    CHECK_INT(report_wake(&r), DLOCK_NEVER);
    waits(job, 1, 2);
    CHECK_HAS(lines(), "\"place\":2");
    waits(job, 2, 2);
    waits(job, 3, 1);
    CHECK_STR(lines(), "");
    int64_t due = report_wake(&r);
    CHECK(due > dlock_now() && due <= dlock_now() + SEC);
    report_tick(&r, due - 1);
    CHECK_STR(lines(), "");
    report_tick(&r, due);
    CHECK_HAS(lines(), "\"place\":1,\"holder\":{\"pid\":3}");
    CHECK_INT(report_wake(&r), DLOCK_NEVER);
    waits(job, 0, 1);
    /* What was held back is old now. */
    report_granted(&r);
    CHECK_INT(report_wake(&r), DLOCK_NEVER);
    report_tick(&r, due + 9 * SEC);
    CHECK_HAS(lines(), "\"event\":\"granted\"");
    CHECK(!strstr(text, "waiting"));
}

TEST(what_was_held_back_about_one_lock_of_a_set_is_not_told_of_another)
{
    begin_wait();
    waits(job, 1, 2);
    waits(job, 1, 1);
    CHECK_HAS(lines(), "\"place\":2");
    /* An event about one that is held already comes in between. */
    report_about(&r, other);
    report_tick(&r, r.wait.event_at);
    CHECK_HAS(lines(), "\"lock\":\"job\"");
    CHECK_HAS(text, "\"place\":1");
    waits(job, 1, 1); /* no change */
    CHECK_STR(lines(), "");
    a_second_passes();
    a_second_passes();
    waits(job, 1, 2);
    waits(job, 1, 1);
    CHECK_HAS(lines(), "\"place\":2");
    /* The next one is waited for: what was held back is old now. */
    waits(other, 1, 1);
    CHECK_STR(lines(), "");
    report_tick(&r, r.wait.event_at);
    CHECK_HAS(lines(), "\"lock\":\"other\",\"store\":\"/tmp\",\"set\":\"job\"");
    CHECK_HAS(text, "\"place\":1,\"holder\":{\"pid\":1");
}

/* Fills an array with the text that grows most. */
#define FILL(a, c) (memset(a, c, sizeof(a) - 1), (a)[sizeof(a) - 1] = '\0')

TEST(the_longest_line_fits_and_ends_whole)
{
    static const char bytes[] = {'"', '\\', 'x', 1, (char)0xff};
    char lock[5000], reason[512];
    for (size_t i = 0; i < sizeof(bytes); i++) {
        open_events();
        struct dlock_info holder = {.foreign = true,
                                    .mode = DLOCK_MODE_SLOTS,
                                    .slots = DLOCK_SLOTS_MAX,
                                    .slot = DLOCK_SLOTS_MAX,
                                    .pid = INT32_MAX,
                                    .since_ms = INT64_MAX,
                                    .waited_ms = INT64_MAX,
                                    .fence = UINT64_MAX};
        FILL(lock, bytes[i]);
        FILL(reason, bytes[i]);
        FILL(holder.host, bytes[i]);
        FILL(holder.user, bytes[i]);
        FILL(holder.command, bytes[i]);
        FILL(holder.note, bytes[i]);
        struct dlock_host host = {0};
        struct dlock_param param = {.key = lock, .value = lock};
        struct dlock_uri u = {.raw = "?",
                              .name = lock,
                              .where = lock,
                              .scheme = "redis+sentinel",
                              .hosts = &host,
                              .nhosts = 1,
                              .params = &param,
                              .nparams = 1};
        memcpy(lock + 2000, "://", 3);
        lock[3500] = '/';
        ssize_t n;
        events_start(e, &u, "");
        n = read(reader, text, sizeof(text));
        CHECK(n > 2500 && n <= SINK_LINE);
        events_set_lock(e, lock + 1, lock);
        events_set_lock(e, lock, lock);
        events_waiting(e, lock, lock, &holder, INT32_MAX, INT64_MAX / 2);
        n = read(reader, text, sizeof(text));
        CHECK(n > 2500 && n <= SINK_LINE);
        CHECK(n > 0 && memcmp(text + n - 3, "}}\n", 3) == 0);
        CHECK(memchr(text, '\n', (size_t)n) == text + n - 1);
        events_granted(e, &holder, INT64_MAX - 1, 1);
        n = read(reader, text, sizeof(text));
        events_end(e, &(struct events_end){EVENTS_UNAVAILABLE, 255 << 8, 255, reason}, INT64_MAX);
        n = read(reader, text, sizeof(text));
        CHECK(n > 2000 && n <= SINK_LINE);
        text[n > 0 ? n : 0] = '\0';
        CHECK_HAS(text, ",\"dropped\":0}\n");
    }
}

TEST(texts_are_cut_between_characters_and_secrets_hidden)
{
    open_events();
    char lock[2000];
    FILL(lock, '"');
    events_set_lock(e, lock, "é");
    events_kill(e);
    CHECK_HAS(lines(),
              "\\\"\\\"...\",\"store\":\"é\","); /* no odd backslash in front of the dots */
    CHECK_INT(strstr(text, "...") - strstr(text, "lock\":\"") - 7, 896);
    events_set_lock(e, "a", "b");
    events_lost(e, false, "cannot reach redis://u:geheim@h/0?password=geheim");
    CHECK_HAS(lines(), "\"reason\":\"cannot reach redis://***@h/0?password=***\"}\n");
}

TEST(what_a_full_pipe_drops_is_counted_in_the_last_line)
{
    open_events();
    char c[4096];
    fcntl(reader, F_SETPIPE_SZ, 8192);
    for (int i = 0; i < 200; i++)
        events_kill(e);
    while (read(reader, c, sizeof(c)) > 0)
        ;
    events_end(e, &(struct events_end){EVENTS_EXITED, 0, 0, NULL}, dlock_now());
    lines();
    CHECK_HAS(text, "\"exit_status\":0,\"exit_code\":0,\"dropped\":");
    CHECK(strstr(text, "\"dropped\":0}") == NULL);
}

TEST(a_line_that_is_drawn_at_the_same_terminal_is_erased_first)
{
    int master = posix_openpt(O_RDWR | O_NOCTTY), slave, save = dup(2);
    char number[16];
    REQUIRE(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
    REQUIRE((slave = open(ptsname(master), O_RDWR | O_NOCTTY)) >= 0);
    snprintf(number, sizeof(number), "%d", slave);
    dup2(slave, 2);
    events_close(e);
    e = NULL;
    REQUIRE_INT(events_open(&e, number, 0, NULL), 0);
    message_draw("waiting");
    waiting(NULL, 1, SEC);
    dup2(save, 2);
    close(save);
    /* The terminal hands over what was written a moment later, perhaps in pieces. */
    struct pollfd p = {.fd = master, .events = POLLIN};
    size_t at = 0;
    text[0] = '\0';
    while (!strchr(text, '\n') && poll(&p, 1, 5000) == 1) {
        ssize_t n = read(master, text + at, sizeof(text) - 1 - at);
        if (n <= 0)
            break;
        text[at += (size_t)n] = '\0';
    }
    CHECK_HAS(text, "waiting\033[K\r\033[K{\"v\":1");
    close(master);
}

UNIT_MAIN
