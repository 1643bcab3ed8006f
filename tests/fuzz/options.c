/*
 * options.c - the command line, a word a line. The first lines may be variables, NAME=VALUE, before
 * a line "dlock", which begins the words.
 */
#include "fuzz.h"

#include "options.h"

#include <getopt.h>

#define WORDS 40

/* The words stand without gaps, as in a process. Returns their number. */
static int take_words(struct fuzz *f, char *argv[WORDS + 1], char **all)
{
    int n = 0;
    char *at = *all = malloc(f->n + 2);
    FUZZ_HOLDS(at);
    for (char *line; n < WORDS && (line = fuzz_line(f)) != NULL; n++) {
        argv[n] = at;
        at = stpcpy(at, line) + 1;
        free(line);
    }
    argv[n] = NULL;
    return n;
}

static void take_variables(struct fuzz *f)
{
    static const char *const names[] = {"DLOCK_", "SHELL"};
    clearenv();
    for (char *line; f->n > 0 && (line = fuzz_line(f)) != NULL; free(line)) {
        char *value = strchr(line, '=');
        if (!value) { /* "dlock" */
            free(line);
            return;
        }
        *value = '\0';
        for (size_t i = 0; i < DLOCK_LEN(names); i++)
            if (strncmp(line, names[i], strlen(names[i])) == 0)
                setenv(line, value + 1, 1);
    }
}

static void check(const struct options *o, int argc)
{
    bool needs_lock = o->mode == MODE_RUN || o->mode == MODE_STATUS || o->mode == MODE_SCHEMA ||
                      o->mode == MODE_FORGET || o->mode == MODE_BREAK || o->mode == MODE_CHECK;
    FUZZ_HOLDS(!needs_lock || o->lock);
    FUZZ_HOLDS((o->mode == MODE_RUN) == (o->command != NULL));
    FUZZ_HOLDS(o->nalso >= 0 && o->nalso < DLOCK_SET_MAX);
    FUZZ_HOLDS(o->slots >= 0 && o->slots <= DLOCK_SLOTS_MAX && o->wait_ns >= 0 && o->ttl_ns > 0);
    FUZZ_HOLDS(o->grace_ns >= -1 && o->max_run_ns >= 0 && o->min_hold_ns >= 0 && o->once_ns >= 0);
    for (int i = 0; o->command && o->command[i]; i++)
        FUZZ_HOLDS(i <= argc + 2 && strlen(o->command[i]) < SIZE_MAX);
    for (int code = 0; code < 256; code++)
        options_success(o, code);
    options_need_guard(o);
    options_must_guard(o);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz f = {data, size};
    static char name[] = "dlock";
    char *words[WORDS + 1], *argv[WORDS + 2] = {name}, *all;
    struct options o;
    struct dlock_error err = {0};
    take_variables(&f);
    int argc = 1 + take_words(&f, words, &all);
    memcpy(argv + 1, words, sizeof(words));
    optind = 0; /* getopt begins anew */
    int rc = options_parse(&o, argc, argv, &err);
    FUZZ_HOLDS(rc == 0 || rc == DLOCK_EUSAGE);
    if (rc != 0)
        fuzz_clean(err.msg, sizeof(err.msg));
    else
        check(&o, argc);
    if (rc == 0)
        options_done(&o);
    free(all);
    return 0;
}
