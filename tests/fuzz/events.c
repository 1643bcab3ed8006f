/*
 * events.c - the lines of --events about any texts: each is one object of JSON in UTF-8, fits into
 * a line of a pipe, and none is lost. The input's lines are the texts.
 */
#include "events.h"

#include "fuzz.h"
#include "sink.h"

#include <fcntl.h>
#include <unistd.h>

/* --------------------------------------------------------------- JSON --- */

static bool value(const char **at);

static bool word(const char **at, const char *w)
{
    size_t n = strlen(w);
    bool same = strncmp(*at, w, n) == 0;
    *at += same ? n : 0;
    return same;
}

static bool string(const char **at)
{
    const char *p = *at;
    if (*p++ != '"')
        return false;
    while (*p && *p != '"') {
        bool good;
        size_t n = dlock_text_char(p, strnlen(p, 4), &good);
        if (!good)
            return false;
        if (*p == '\\') {
            n = p[1] == 'u' ? 6 : 2;
            if (!strchr("\"\\u", p[1]) || (n == 6 && strspn(p + 2, "0123456789abcdef") < 4))
                return false;
        }
        p += n;
    }
    *at = p + 1;
    return *p == '"';
}

static bool members(const char **at, char end, bool named)
{
    if (**at == end)
        return word(at, (char[]){end, '\0'});
    do
        if ((named && !(string(at) && word(at, ":"))) || !value(at))
            return false;
    while (word(at, ","));
    return word(at, (char[]){end, '\0'});
}

static bool value(const char **at)
{
    if (word(at, "{"))
        return members(at, '}', true);
    if (word(at, "["))
        return members(at, ']', false);
    if (word(at, "true") || word(at, "false"))
        return true;
    if (**at == '"')
        return string(at);
    word(at, "-");
    size_t digits = strspn(*at, "0123456789");
    *at += digits;
    return digits > 0;
}

/* ------------------------------------------------------------- events --- */

static int ends[2];
static char number[16];

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    FUZZ_HOLDS(pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0);
    fcntl(ends[1], F_SETPIPE_SZ, 1 << 17);
    snprintf(number, sizeof(number), "%d", ends[1]);
    return 0;
}

/* The next text, never NULL; the last one again once the input is over. */
static const char *next_text(struct fuzz *f, char **last)
{
    char *text = fuzz_line(f);
    if (text) {
        free(*last);
        *last = text;
    }
    return *last;
}

/* A holder as a store gives it: with clean texts. */
static void take_holder(struct fuzz *f, char **last, struct dlock_info *i)
{
    const char *text = next_text(f, last);
    *i = (struct dlock_info){.pid = 7, .since_ms = FUZZ_NOW_MS, .left_ns = -1, .waited_ms = 1};
    i->mode = (enum dlock_mode)(strlen(text) % 3);
    i->slots = i->mode == DLOCK_MODE_SLOTS ? 3 : 0;
    i->slot = (int)i->slots;
    dlock_clean_text(i->host, sizeof(i->host), text, strlen(text));
    text = next_text(f, last);
    dlock_clean_text(i->user, sizeof(i->user), text, strlen(text));
    text = next_text(f, last);
    dlock_clean_text(i->command, sizeof(i->command), text, strlen(text));
    text = next_text(f, last);
    dlock_clean_text(i->note, sizeof(i->note), text, strlen(text));
}

/* Write one line of each kind. Returns how many. */
static int write_all(struct events *e, struct fuzz *f)
{
    struct dlock_info holder;
    char *last = fuzz_copy("", 0);
    events_set_lock(e, next_text(f, &last), "redis://h:6379/0");
    take_holder(f, &last, &holder);
    events_waiting(e, "also", next_text(f, &last), &holder, 2, FUZZ_NOW);
    events_granted(e, &holder, DLOCK_SEC, FUZZ_NOW);
    events_trouble(e, next_text(f, &last), FUZZ_NOW, -1, FUZZ_NOW);
    events_recovered(e, FUZZ_NOW, FUZZ_NOW);
    events_lost(e, true, next_text(f, &last));
    events_term(e, DLOCK_SEC);
    events_kill(e);
    events_released(e, "clean", FUZZ_NOW);
    struct events_end end = {.outcome = EVENTS_LOST, .code = 79, .reason = next_text(f, &last)};
    events_end(e, &end, FUZZ_NOW);
    free(last);
    return 9;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char all[1 << 17];
    struct fuzz f = {data, size};
    struct events *e;
    fcntl(ends[1], F_SETFD, 0); /* a descriptor of the caller */
    FUZZ_HOLDS(events_open(&e, number, 0, NULL) == 0);
    int lines = write_all(e, &f);
    events_close(e);
    ssize_t n = read(ends[0], all, sizeof(all) - 1);
    FUZZ_HOLDS(n > 0);
    all[n] = '\0';
    const char *at = all;
    for (; lines > 0; lines--) {
        const char *begin = at;
        FUZZ_HOLDS(*at == '{' && value(&at) && *at == '\n');
        at++;
        FUZZ_HOLDS(at - begin <= SINK_LINE);
    }
    FUZZ_HOLDS(*at == '\0');
    return 0;
}
