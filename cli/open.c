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
#include <unistd.h>

/* Beyond the memory in use: room for the longest answer, and stacks for the libraries' threads. */
#define MEMORY_MORE ((rlim_t)64 << 20)
#define STACKS_MORE 16
#define STACK_USUAL ((rlim_t)8 << 20)
#define SHELL_SHOWN 60 /* bytes of a shell's line */

struct dlock_uri *open_uri(const struct options *o, const char *lock, int *code)
{
    struct dlock_error err = {0};
    struct dlock_uri *uri = NULL;
    char *text = NULL;
    int rc = 0;

    if (lock[0] == '@')
        rc = dlock_default_uri(&text, lock + 1, getenv("DLOCK_STORE"), &err);
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

/*
 * The programs that a shell's line runs, without their arguments: "cd ...; deploy ...". Up to a
 * quotation, an expansion or the like, behind which an argument could look like a program.
 * malloc'ed.
 */
static char *line_text(const char *s)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_./,+-";
    const char *behind = "";
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    if (!f)
        return NULL;
    while (*(s += strspn(s, ";&| \t\n"))) {
        size_t n = strspn(s, plain), args;
        if (!strchr(";&| \t\n<>", s[n])) {
            /* PGPASSWORD=..., with a blank: the dots are no value to hide. */
            fprintf(f, "%s%.*s%s...", behind, s[n] == '=' ? (int)n : 0, s, s[n] == '=' ? "= " : "");
            break;
        }
        fprintf(f, "%s%.*s", behind, (int)n, s);
        behind = "; ";
        s += n + strspn(s + n, " \t");
        args = strcspn(s, ";&|\n'\"\\$`(){}<>#");
        bool quoted = s[args] && !strchr(";&|\n", s[args]);
        if (args > 0 || quoted)
            fprintf(f, " ...");
        if (quoted)
            break;
        s += args;
    }
    if (fclose(f) == 0)
        return text;
    free(text);
    return NULL;
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

/*
 * The part of the command that the store shows to other machines: the first word, and the programs
 * that a shell runs. The arguments may hold a password, and backups keep the store. --note is for
 * everything else.
 */
static char *command_text(const struct options *o)
{
    if (!o->command)
        return NULL;
    const char *word = o->command[0], *runs = NULL;
    char *line, *text;
    bool is_line = false;
    /* An assignment, such as PGPASSWORD=...: the variable only. */
    size_t name = strcspn(word, "=/");
    if (is_shell(word) || o->shell_string)
        runs = shell_runs(o->command + 1, &is_line);
    if (!runs)
        return strndup(word, word[name] == '=' ? name + 1 : strlen(word));
    line = is_line ? line_text(runs) : strdup(runs);
    const char *cut = line && strlen(line) > SHELL_SHOWN ? "..." : "";
    if (!line || asprintf(&text,
                          o->shell_string ? "%.0s%.*s%s"
                          : is_line       ? "%s -c \"%.*s%s\""
                                          : "%s %.*s%s",
                          word, SHELL_SHOWN, line, cut) < 0)
        text = NULL;
    free(line);
    return text;
}

/* Never 0 for a wait: 0 means one try. */
int64_t open_wait(const struct options *o, int64_t waited)
{
    if (o->nonblock)
        return 0;
    return o->wait_ns == DLOCK_NEVER ? DLOCK_NEVER : dlock_max(1, o->wait_ns - waited);
}

/* For -v: which lock this is. */
static void tell_lock(const dlock *lk)
{
    const struct dlock_uri *uri = dlock_uri_of(lk);
    char text[LOCK_TEXT_MAX], path[PATH_MAX], params[256];

    if (open_path(uri, path))
        message("the lock is the file %s", path);
    else
        message("%s%s%s", message_lock(lk, "the lock is ", text),
                *dlock_uri_params_text(uri, params, sizeof(params)) ? ", " : "", params);
}

dlock *open_handle(const struct options *o, enum dlock_mode mode, struct dlock_uri **uri,
                   const struct open_how *how, int *code)
{
    struct dlock_error err;
    struct dlock_options lo;
    dlock *lk = NULL;

    dlock_options_init(&lo, sizeof(lo));
    lo.mode = mode;
    lo.slots = o->slots;
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
    if (dlock_open_nested(&lk, uri, how->outer, &lo, &err) < 0)
        *code = message_error(o, &err);
    else if (message_tells(o, ABOUT_DETAIL) && how->waited == 0)
        tell_lock(lk);
    free(command);
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
    unsigned long used = 0;
    struct rlimit data, stack;
    FILE *f = fopen("/proc/self/statm", "re");
    bool known = f && fscanf(f, "%*u %*u %*u %*u %*u %lu", &used) == 1;
    if (f)
        fclose(f);
    if (!known || getrlimit(RLIMIT_DATA, &data) != 0 || getrlimit(RLIMIT_STACK, &stack) != 0)
        return;
    rlim_t each = stack.rlim_cur == RLIM_INFINITY ? STACK_USUAL : stack.rlim_cur;
    if (each > RLIM_INFINITY / 2 / STACKS_MORE)
        return;
    rlim_t most = used * (rlim_t)sysconf(_SC_PAGESIZE) + MEMORY_MORE + each * STACKS_MORE;
    if (data.rlim_cur > most) /* RLIM_INFINITY is the greatest value */
        data.rlim_cur = most;
    setrlimit(RLIMIT_DATA, &data);
#endif
}
