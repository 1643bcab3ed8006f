/*
 * files.c - files that a person writes: the store of @name (/etc/dlock/store), a password,
 * /etc/passwd. Each reader gets each input.
 */
#include "fuzz.h"

#include <fcntl.h>
#include <unistd.h>

static struct fuzz passwd;

static FILE *open_passwd(void)
{
    return passwd.n > 0 ? fmemopen((void *)(uintptr_t)passwd.p, passwd.n, "r") : NULL;
}

#define fopen(path, mode) open_passwd()
#define geteuid() ((uid_t)7)
#include "../../lib/identity.c"

#define SECRET "hunter2-hunter2"

static char path[200];
static int fd;

static void clean_up(void)
{
    unlink(path);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    const char *tmp = getenv("TMPDIR");
    (void)argc;
    (void)argv;
    snprintf(path, sizeof(path), "%s/fuzz.XXXXXX", tmp ? tmp : "/tmp");
    fd = mkstemp(path);
    FUZZ_HOLDS(fd >= 0);
    atexit(clean_up);
    clearenv();
    setenv("DLOCK_STORE_FILE", path, 1);
    return 0;
}

static int times(const char *word)
{
    int n = 0;
    const uint8_t *p = passwd.p, *end = passwd.p + passwd.n;
    for (; (p = memmem(p, (size_t)(end - p), word, strlen(word))); p += strlen(word))
        n++;
    return n;
}

static void check_error(int rc, const struct dlock_error *err)
{
    FUZZ_HOLDS(rc == err->code && err->msg[0]);
    fuzz_clean(err->msg, sizeof(err->msg));
    /* Where the word stands elsewhere, too, in the scheme say, a message may quote it. */
    if (times("://:" SECRET "@") == 1 && times(SECRET) == 1)
        FUZZ_HOLDS(!strstr(err->msg, SECRET));
}

/* The store, and the URI of a lock there, which need not be a good one. */
static void read_store(void)
{
    struct dlock_error err;
    struct dlock_uri *uri = NULL;
    char *base = NULL, *text = NULL;
    int rc = dlock_find_store(&base, NULL, &err);
    if (rc != 0) {
        check_error(rc, &err);
        FUZZ_HOLDS(!base);
        return;
    }
    FUZZ_HOLDS(base && dlock_uri_scheme_len(base) > 0 && !strpbrk(base, "#\r\n"));
    FUZZ_HOLDS(dlock_default_uri(&text, "a/job", NULL, &err) == 0 && strstr(text, "#a/job"));
    if (dlock_uri_parse(&uri, text, &err) == 0)
        FUZZ_HOLDS(uri->scheme && uri->path && strcmp(uri->name, "a/job") == 0);
    dlock_uri_free(uri);
    dlock_wipe(text);
    dlock_wipe(base);
}

static void read_password(void)
{
    struct dlock_error err;
    char *secret = NULL;
    int rc = dlock_read_secret(&secret, path, &err);
    if (rc == 0)
        FUZZ_HOLDS(!strpbrk(secret, "\r\n"));
    else
        check_error(rc, &err);
    dlock_wipe(secret);
}

static void read_passwd(void)
{
    char name[32];
    dlock_user_name(7, name, sizeof(name));
    fuzz_clean(name, sizeof(name));
    char *home = dlock_home_dir();
    FUZZ_HOLDS(!home || (*home == '/' && !strpbrk(home, ":\n")));
    free(home);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    passwd = (struct fuzz){data, size};
    FUZZ_HOLDS(pwrite(fd, data, size, 0) == (ssize_t)size && ftruncate(fd, (off_t)size) == 0);
    read_store();
    read_password();
    read_passwd();
    return 0;
}
