/*
 * names.c - --print-names (not in --help): the locks "@name" that have a file, one a line, as LOCK is written. For the
 * shells' completions. Nothing is printed where they are in a networked store, and nothing is made.
 */
#include "messages.h"
#include "modes.h"
#include "uri.h"
#include "util.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char suffix[] = ".lock";

/* Is it a name as dlock writes it, "a%2Fb.lock", and one that a terminal can show? */
static bool is_ours(const char *file, size_t len)
{
    bool good = strcmp(file + len, suffix) == 0;

    for (size_t at = 0; good && at < len;) {
        bool encoded = strncmp(file + at, "%25", 3) == 0 || strncmp(file + at, "%2F", 3) == 0;
        if (file[at] == '%' && !encoded)
            return false;
        at += dlock_text_char(file + at, len - at, &good);
    }
    return good;
}

static int filter(const struct dirent *e)
{
    size_t len = strlen(e->d_name), end = strlen(suffix);

    return (e->d_type == DT_REG || e->d_type == DT_UNKNOWN) && len > end &&
           is_ours(e->d_name, len - end);
}

/* In the place of LOCK '%' and '#' are special, and '/' is not: the other way round than in a file's name. */
static void print_name(const char *file)
{
    putchar('@');
    for (const char *end = file + strlen(file) - strlen(suffix); file < end; file++) {
        if (strncmp(file, "%2F", 3) == 0) {
            putchar('/');
            file += 2;
        } else if (*file == '#') {
            fputs("%23", stdout);
        } else {
            putchar(*file);
        }
    }
    putchar('\n');
}

int names_mode(const struct options *o, const struct sigstate *sig)
{
    struct dlock_error err;
    struct dirent **found = NULL;
    char *dir = NULL;
    int n = 0;
    (void)sig;

    if (dlock_default_dir(&dir, getenv("DLOCK_STORE"), &err) < 0)
        return message_error(o, &err);
    if (dir)
        n = scandir(dir, &found, filter, alphasort);
    for (int i = 0; i < n; i++) {
        print_name(found[i]->d_name);
        free(found[i]);
    }
    free(found);
    free(dir);
    return 0;
}
