/*
 * names.c - --print-names (not in --help), for the shells' completions: each lock "@name" that has
 * a file, on a line, as LOCK is written. Prints nothing for a networked store, and creates nothing.
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

/* Has the file a name as dlock writes it, "a%2Fb.lock", and can a terminal show the name? */
static int filter(const struct dirent *e)
{
    const char *file = e->d_name;
    size_t size = strlen(file), len = size - strlen(suffix);
    bool good = true;
    if ((e->d_type != DT_REG && e->d_type != DT_UNKNOWN) || size <= strlen(suffix) ||
        strcmp(file + len, suffix) != 0)
        return false;
    for (size_t at = 0; good && at < len;) {
        bool encoded = strncmp(file + at, "%25", 3) == 0 || strncmp(file + at, "%2F", 3) == 0;
        if (file[at] == '%' && !encoded)
            return false;
        at += dlock_text_char(file + at, len - at, &good);
    }
    return good;
}

int names_mode(const struct options *o, const struct sigstate *sig)
{
    struct dlock_error err;
    struct dirent **found = NULL;
    char *base = NULL, *dir = NULL;
    int n = 0;
    (void)sig;
    int rc = dlock_find_store(&base, getenv("DLOCK_STORE"), &err);
    if (rc == 0)
        rc = dlock_default_dir(&dir, base, &err);
    dlock_wipe(base);
    if (rc < 0)
        return message_error(o, &err);
    if (dir)
        n = scandir(dir, &found, filter, alphasort);
    for (int i = 0; i < n; i++) {
        const char *c = found[i]->d_name, *end = c + strlen(c) - strlen(suffix);
        /* '/' is encoded in the name of a file, '#' and '?' in a LOCK, and '%' in both. */
        putchar('@');
        for (; c < end; c++) {
            if (strncmp(c, "%2F", 3) == 0) {
                putchar('/');
                c += 2;
            } else if (*c == '#' || *c == '?') {
                fputs(*c == '#' ? "%23" : "%3F", stdout);
            } else {
                putchar(*c);
            }
        }
        putchar('\n');
        free(found[i]);
    }
    free(found);
    free(dir);
    return 0;
}
