/* open.c - from LOCK to a handle: the URI is parsed once, then handed to the library. */
#include "open.h"

#include "backend.h"
#include "messages.h"
#include "util.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

/* Room for our own memory, for the longest answer, and for stacks of the libraries' threads. */
#define MEMORY_MOST ((rlim_t)72 << 20)
#define STACKS_MORE 16
#define STACK_USUAL ((rlim_t)8 << 20)
#define SHELL_SHOWN 60 /* bytes of a shell's line */

int open_name(char **text, const char *name, bool make, struct dlock_error *err)
{
    char *store = getenv("DLOCK_STORE"), *base = NULL, *dir = NULL;
    int rc = make ? 0 : dlock_find_store(&base, store, err);
    if (!make && rc == 0 && !base)
        rc = dlock_default_dir(&dir, NULL, err);
    if (rc == 0)
        rc = dlock_default_uri(text, name, dir ? dir : store, err);
    dlock_wipe(base);
    free(dir);
    return rc;
}

struct dlock_uri *open_uri(const struct options *o, const char *lock, int *code)
{
    struct dlock_error err = {0};
    struct dlock_uri *uri = NULL;
    char *text = NULL;
    int rc = 0;
    if (lock[0] == '@')
        rc = open_name(&text, lock + 1, o->mode != MODE_CHECK, &err);
    if (rc == 0)
        rc = dlock_uri_parse(&uri, text ? text : lock, &err);
    if (rc < 0)
        *code = message_error(o, &err);
    if (text)
        explicit_bzero(text, strlen(text));
    free(text);
    return uri;
}

int open_uris(const struct options *o, struct dlock_uri *uris[DLOCK_SET_MAX])
{
    int code = 0;
    uris[0] = open_uri(o, o->lock, &code);
    for (int i = 0; i < o->nalso && code == 0; i++)
        uris[i + 1] = open_uri(o, o->also[i].lock, &code);
    return code;
}

void open_tell_names(const struct options *o, struct dlock_uri *const *uris)
{
    const char *store = getenv("DLOCK_STORE");
    struct dlock_error err;
    if (!message_tells(o, ABOUT_CONDITION))
        return;
    for (int i = 0; i <= o->nalso; i++) {
        const char *lock = i == 0 ? o->lock : o->also[i - 1].lock, *name = uris[i]->name;
        char *base = NULL;
        if (lock[0] == '@' && dlock_find_store(&base, store, &err) == 0 && !base)
            message("%s is on this machine only", lock);
        dlock_wipe(base);
        /* A path may end in '/', and no variable is the end of "x.lock". */
        if (!uris[i]->bare && *name && strchr("-_.:/", name[strlen(name) - 1]))
            message("the lock's name \"%s\" ends in '%c': an unset variable?", name,
                    name[strlen(name) - 1]);
    }
}

/* NULL also for a lock that is no file's. */
static char *path_of(const struct dlock_uri *uri)
{
    bool is_file = dlock_registry_hold(uri->scheme) & CAP_FD;
    const struct dlock_backend *be = is_file ? dlock_registry_find(uri->scheme, NULL) : NULL;
    return be ? be->path(uri) : NULL;
}

bool open_path(const struct dlock_uri *uri, char buf[PATH_MAX])
{
    char *path = path_of(uri), *plain = path ? strdup(path) : NULL;
    buf[0] = '\0';
    if (plain)
        dlock_hide_secrets(plain, false);
    /* Of a missing file glibc resolves the directory, and fails. */
    if (plain && (strcmp(path, plain) != 0 || (!realpath(path, buf) && !buf[0])))
        snprintf(buf, PATH_MAX, "%s", plain);
    free(path);
    free(plain);
    return buf[0];
}

char *open_key(const struct dlock_uri *uri, bool fcntl)
{
    struct stat st;
    if (!(dlock_registry_hold(uri->scheme) & CAP_FD))
        return nested_key(uri);
    char *path = path_of(uri);
    bool found = path && fstatat(AT_FDCWD, path, &st, uri->bare ? 0 : AT_SYMLINK_NOFOLLOW) == 0;
    free(path);
    return found ? nested_file_key(&st, fcntl) : NULL;
}

/* What a shell with these arguments runs: the line of -c, or a file. NULL: neither is there. */
static const char *shell_runs(char *const *args, bool *line)
{
    for (; *args && (**args == '-' || **args == '+'); args++) {
        bool letters = **args == '-' && (*args)[1] != '-';
        *line = *line || (letters && strchr(*args, 'c'));
        if (letters && strchr(*args, 's')) /* its standard input */
            return NULL;
        if ((*args)[strlen(*args) - 1] == 'o' && args[1]) /* -o pipefail */
            args++;
    }
    return *args;
}

static bool is_shell(const char *program)
{
    static const char *const shells[] = {"sh", "bash", "dash", "ash", "ksh", "mksh", "zsh", "fish"};
    const char *slash = strrchr(program, '/');
    for (size_t i = 0; i < DLOCK_LEN(shells); i++)
        if (strcmp(slash ? slash + 1 : program, shells[i]) == 0)
            return true;
    return false;
}

size_t open_assigned_len(const char *word)
{
    size_t name = strcspn(word, "=/");
    return word[name] == '=' ? name + 1 : 0;
}

/*
 * The part of the command that the store shows to other machines: the first word, and the beginning
 * of what a shell runs, without the secrets. malloc'ed.
 */
static char *command_text(const struct options *o)
{
    if (!o->command)
        return NULL;
    const char *word = o->command[0], *runs = NULL;
    bool is_line = false;
    char *text;
    size_t name = open_assigned_len(word);
    if (is_shell(word) || o->shell_string)
        runs = shell_runs(o->command + 1, &is_line);
    if (!runs)
        return strndup(word, name > 0 ? name - 1 : strlen(word));
    /* Secrets first, so that the cut leaves no part of a secret. */
    char shown[SHELL_SHOWN + 1], *whole = strdup(runs);
    if (!whole)
        return NULL;
    for (char *p = whole; (p = strpbrk(p, "\t\n"));)
        *p = ' ';
    dlock_hide_secrets(whole, false);
    dlock_clean_text(shown, sizeof(shown), whole, strlen(whole));
    const char *cut = strlen(whole) >= sizeof(shown) ? "..." : "";
    free(whole);
    if (asprintf(&text,
                 o->shell_string ? "%.0s%s%s"
                 : is_line       ? "%s -c \"%s%s\""
                                 : "%s %s%s",
                 word, shown, cut) < 0)
        return NULL;
    return text;
}

/* Never 0 for a wait: 0 means one try. */
int64_t open_wait(const struct options *o, int64_t waited)
{
    if (o->nonblock)
        return 0;
    return o->wait_ns == DLOCK_NEVER ? DLOCK_NEVER : dlock_max(1, o->wait_ns - waited);
}

void open_tell(const struct options *o, const dlock *lk)
{
    const struct dlock_uri *uri = dlock_uri_of(lk);
    char text[LOCK_TEXT_MAX], path[PATH_MAX], params[256];
    if (!message_tells(o, ABOUT_DETAIL))
        return;
    if (open_path(uri, path))
        message("the lock is the file %s", path);
    else
        message("%s%s%s", message_lock(lk, "the lock is ", text),
                *dlock_uri_params_text(uri, params, sizeof(params)) ? ", " : "", params);
}

int open_lock(dlock **out, const struct options *o, enum dlock_mode mode, struct dlock_uri **uri,
              const struct open_how *how, struct dlock_error *err)
{
    struct dlock_options lo;
    dlock_options_init(&lo, sizeof(lo));
    lo.mode = mode;
    lo.slots = mode == DLOCK_MODE_SLOTS ? (unsigned)o->slots : 0;
    lo.fcntl = o->fcntl;
    lo.ttl_ns = o->ttl_ns;
    /* --on-lost kill sends no TERM first, so that no time is needed between TERM and KILL. */
    lo.grace_ns = o->on_lost == ON_LOST_KILL ? 0 : o->grace_ns;
    lo.wait_ns = open_wait(o, how->waited);
    lo.connect_timeout_ns = o->connect_timeout_ns;
    if (how->look)
        lo.holder = DLOCK_HOLDER_WAITING;
    else if (!message_tells(o, message_about_busy(o)) && !o->events)
        lo.holder = DLOCK_HOLDER_NEVER;
    else if (!message_tells(o, ABOUT_WAIT) && !o->events)
        lo.holder = DLOCK_HOLDER_BUSY;
    char *command = command_text(o);
    lo.command = command;
    lo.note = o->note;
    lo.retry = o->retry;
    /* --forget: a store that has no records must say so. */
    lo.once_ns = how->also ? 0 : o->mode == MODE_FORGET ? DLOCK_SEC : o->once_ns;
    lo.min_hold_ns = o->min_hold_ns;
    int rc = dlock_open_nested(out, uri, how->outer, &lo, err);
    free(command);
    return rc;
}

dlock *open_handle(const struct options *o, enum dlock_mode mode, struct dlock_uri **uri, int *code)
{
    struct dlock_error err;
    dlock *lk = NULL;
    if (open_lock(&lk, o, mode, uri, &(struct open_how){0}, &err) < 0)
        *code = message_error(o, &err);
    else
        open_tell(o, lk);
    return lk;
}

/*
 * The server alone decides how long an answer is, and libpq (unlike hiredis here) allocates the
 * whole answer at once. At the limit malloc fails as on a full machine. The guard has no such
 * limit: the command inherits the caller's limits from the guard.
 */
void open_bound_memory(void)
{
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* they map terabytes */
    struct rlimit data, stack;
    if (getrlimit(RLIMIT_DATA, &data) != 0 || getrlimit(RLIMIT_STACK, &stack) != 0)
        return;
    rlim_t each = stack.rlim_cur == RLIM_INFINITY ? STACK_USUAL : stack.rlim_cur;
    if (each > RLIM_INFINITY / 2 / STACKS_MORE)
        return;
    rlim_t most = MEMORY_MOST + each * STACKS_MORE;
    if (data.rlim_cur > most) /* RLIM_INFINITY is the greatest value */
        data.rlim_cur = most;
    setrlimit(RLIMIT_DATA, &data);
#endif
}
