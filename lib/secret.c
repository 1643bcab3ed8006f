/*
 * secret.c - passwords from files, and texts without the passwords in them.
 *
 * next_secret() alone decides which part of a text is secret. dlock_fail() and the program's
 * messages let every text pass through it: a message may quote a word of the caller, or a library's
 * error text with such a word.
 */
#include "util.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#define PASSWORD_MAX 4096
/* As Kubernetes makes: password -> ..data/password. */
#define LINKS_MAX 8

static bool is_trusted(uid_t uid)
{
    return uid == 0 || uid == geteuid();
}

/*
 * Replace the link at by the path that it holds. False with errno, or with why: another user's link
 * could lead to any file that this user can read.
 */
static bool follow(char at[PATH_MAX], char *why, size_t size)
{
    char target[PATH_MAX], *slash = strrchr(at, '/');
    struct stat st;
    int fd = open(at, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t n = fstat(fd, &st) == 0 ? readlinkat(fd, "", target, sizeof(target)) : -1;
    close(fd);
    if (n < 0)
        return false;
    if (!is_trusted(st.st_uid)) {
        snprintf(why, size, "a link of user %u: only those of root and of user %u are followed",
                 (unsigned)st.st_uid, (unsigned)geteuid());
        return false;
    }
    size_t folder = slash && target[0] != '/' ? (size_t)(slash + 1 - at) : 0;
    if (folder + (size_t)n >= PATH_MAX) {
        errno = ENAMETOOLONG;
        return false;
    }
    memcpy(at + folder, target, (size_t)n);
    at[folder + (size_t)n] = '\0';
    return true;
}

/* The descriptor; -1 with errno, or with why. */
static int open_through_links(const char *path, char *why, size_t size)
{
    char at[PATH_MAX];
    errno = ENAMETOOLONG;
    if (snprintf(at, sizeof(at), "%s", path) >= (int)sizeof(at))
        return -1;
    for (int links = 0; links <= LINKS_MAX; links++) {
        int fd = open(at, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        if (fd >= 0 || errno != ELOOP || !follow(at, why, size))
            return fd;
    }
    errno = ELOOP;
    return -1;
}

/* why: the reason not to use the file; "": none. The mask of an ACL is in the group's bits. */
static void find_fault(char *why, size_t size, const struct stat *st, bool secret)
{
    unsigned mode = (unsigned)st->st_mode & 07777;
    if (!S_ISREG(st->st_mode))
        snprintf(why, size, "not a regular file");
    else if (!is_trusted(st->st_uid))
        snprintf(why, size, "belongs to user %u: it must belong to root or to user %u",
                 (unsigned)st->st_uid, (unsigned)geteuid());
    else if (secret && mode & S_IRWXO)
        snprintf(why, size,
                 "others have access to it (mode %04o): use chmod 600, or 640 for its group", mode);
    else if (mode & (S_IWGRP | S_IWOTH))
        snprintf(why, size, "%s can write to it (mode %04o): use chmod go-w",
                 mode & S_IWOTH ? "others" : "its group, or a user in its ACL,", mode);
    else if (st->st_size > PASSWORD_MAX)
        snprintf(why, size, "larger than 4 KiB");
}

/* secret: others must not read the file, either. */
static int read_small(char **out, const char *path, bool secret, const char *what,
                      struct dlock_error *err)
{
    char buf[PASSWORD_MAX + 1], why[160] = "";
    struct stat st;
    ssize_t n = 0;
    int rc = 0, fd = open_through_links(path, why, sizeof(why));
    if (fd < 0 || fstat(fd, &st) != 0)
        rc = errno;
    else
        find_fault(why, sizeof(why), &st, secret);
    if (rc == 0 && !why[0] && (n = read(fd, buf, PASSWORD_MAX)) < 0)
        rc = errno;
    if (fd >= 0)
        close(fd);
    if (why[0])
        return dlock_fail(err, DLOCK_EPERM, 0, "%s %s: %s", what, path, why);
    if (rc != 0)
        return dlock_fail(err, DLOCK_EPERM, rc, "%s %s: %s", what, path, strerror(rc));
    buf[n] = '\0';
    *out = strdup(buf);
    explicit_bzero(buf, sizeof(buf));
    return *out ? 0 : dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
}

/*
 * A file open to all users is no secret. Group read is fine: the credentials of a systemd service
 * with User= have an ACL, and Kubernetes gives secrets to the group of a pod.
 */
int dlock_read_secret(char **out, const char *path, struct dlock_error *err)
{
    int rc = read_small(out, path, true, "password-file", err);
    if (rc == 0)
        (*out)[strcspn(*out, "\r\n")] = '\0';
    return rc;
}

int dlock_read_config(char **out, const char *path, const char *what, struct dlock_error *err)
{
    return read_small(out, path, false, what, err);
}

void dlock_wipe(char *s)
{
    if (s)
        explicit_bzero(s, strlen(s));
    free(s);
}

/* ------------------------------------------------------------ in texts --- */

/* A piece of a text. */
struct piece {
    char *p, *end;
};

static char *find_last(struct piece s, char c)
{
    return s.p < s.end ? memrchr(s.p, c, (size_t)(s.end - s.p)) : NULL;
}

bool dlock_names_secret(const char *name, size_t len)
{
    static const char *const parts[] = {"secret", "pass",    "pwd",    "token", "credential",
                                        "scram",  "api_key", "apikey", "auth",  "signature"};
    /* Messages need a file's name: "password-file". */
    if (len >= 4 && strncasecmp(name + len - 4, "file", 4) == 0)
        return false;
    for (; len > 0; name++, len--)
        for (size_t i = 0; i < DLOCK_LEN(parts); i++) {
            size_t n = strlen(parts[i]);
            if (n <= len && strncasecmp(name, parts[i], n) == 0)
                return true;
        }
    return false;
}

/* Is s, behind "://", no list of hosts and ports, but "user:password" without '@'? */
static bool lacks_at(struct piece s)
{
    for (char *p = s.p; p < s.end && !strchr("/?#", *p); p++) {
        if (*p == '[') { /* an IPv6 address */
            char *close = memchr(p, ']', (size_t)(s.end - p));
            p = close ? close : p;
        }
        if (*p != ':')
            continue;
        char *q = p + 1;
        while (q < s.end && *q >= '0' && *q <= '9')
            q++;
        /* A message may put a quotation mark, a bracket or its own colon behind a port. */
        if ((p == s.p && q > p + 1) || (q < s.end && !strchr(",/?#:;.!)>]}'\"", *q)))
            return true;
        p = q - 1;
    }
    return false;
}

/* User and password of a URI. s.p: behind "://"; word: where its word ends. */
static struct piece in_authority(struct piece s, char *word, bool cut)
{
    char *at = find_last((struct piece){s.p, word}, '@');
    if (cut && word == s.end)
        return s;
    if (!at && lacks_at((struct piece){s.p, word})) {
        at = find_last(s, '@');
        if (!at)
            at = cut ? s.end : word;
    }
    return (struct piece){s.p, at ? at : s.p};
}

/*
 * The key of a parameter, percent-encoded; also as in signed URLs (S3, Azure, Google). Our own
 * messages have "KEY=VALUE".
 */
static bool is_secret_key(struct piece key)
{
    char text[128];
    size_t n = 0;
    for (char *p = key.p; p < key.end && n < sizeof(text); n++) {
        int c = dlock_percent(p, key.end);
        text[n] = (char)(c >= 0 ? c : *p);
        p += c >= 0 ? 3 : 1;
    }
    return dlock_names_secret(text, n) || (n == 3 && memcmp(text, "sig", n) == 0) ||
           (n == 3 && memcmp(text, "key", n) == 0);
}

/* "PGPASSWORD=X", "--password=X". Unlike in a URL, a secret word ends the key: not "author=X". */
static struct piece in_assignment(struct piece s)
{
    static const char *const ends[] = {"password", "passwd", "pass",    "pwd",       "secret",
                                       "token",    "apikey", "api_key", "signature", "auth"};
    char *eq = s.p;
    struct piece value = {s.p, s.p};
    while (eq < s.end && (strchr("_-.", *eq) || ((*eq | 32) >= 'a' && (*eq | 32) <= 'z') ||
                          (*eq >= '0' && *eq <= '9')))
        eq++;
    if (eq == s.end || *eq != '=')
        return value;
    for (size_t i = 0; i < DLOCK_LEN(ends); i++) {
        size_t n = strlen(ends[i]);
        if ((size_t)(eq - s.p) >= n && strncasecmp(eq - n, ends[i], n) == 0)
            value = (struct piece){eq + 1, s.end};
    }
    return value;
}

/* "-u USER:PASSWORD", as of curl(1). s: from the beginning of a word on. */
static struct piece in_user_option(struct piece s)
{
    static const char *const options[] = {"--user", "--proxy-user", "-u", "-U"};
    struct piece none = {s.p, s.p};
    for (size_t i = 0; i < DLOCK_LEN(options); i++) {
        size_t n = strlen(options[i]);
        if ((size_t)(s.end - s.p) <= n || strncmp(s.p, options[i], n) != 0)
            continue;
        char *word = s.p + n, *end;
        word += *word == ' ' || *word == '=';
        for (end = word; end < s.end && (unsigned char)*end > ' ';)
            end++;
        char *colon = word < end ? memchr(word, ':', (size_t)(end - word)) : NULL;
        if (colon && strncmp(colon, "://", 3) != 0)
            return (struct piece){colon + 1, end};
    }
    return none;
}

/* "redis:user:password@host", without "//". colon: behind letters. */
static struct piece behind_scheme(char *begin, char *colon, char *word)
{
    static const char *const schemes[] = {"redis", "rediss",  "valkey",     "valkeys",  "redlock",
                                          "zk",    "jdbc",    "postgresql", "postgres", "zookeeper",
                                          "mysql", "mariadb", "mysql2"};
    struct piece none = {colon, colon};
    for (size_t i = 0; i < DLOCK_LEN(schemes); i++) {
        size_t n = strlen(schemes[i]);
        if ((size_t)(colon - begin) < n || strncasecmp(colon - n, schemes[i], n) != 0)
            continue;
        char *at = find_last((struct piece){colon + 1, word}, '@');
        if (at && !memmem(colon, (size_t)(at - colon), "://", 3))
            return (struct piece){colon + 1, at};
        return none;
    }
    return none;
}

/* The value of a secret parameter. s: from behind '?', '&' or ';' to the end of the word. */
static struct piece in_query(struct piece s, bool cut)
{
    char *eq = s.p, *stop, *at = find_last(s, '@'), *hash = cut ? NULL : find_last(s, '#');
    while (eq < s.end && !strchr("=?&#/", *eq))
        eq++;
    if (eq == s.end || *eq != '=' || !is_secret_key((struct piece){s.p, eq}))
        return (struct piece){s.p, s.p};
    stop = memchr(eq, '&', (size_t)(s.end - eq));
    /* The value may be a URI, whose password has the '&'. */
    if (!stop || (at > stop && memmem(eq, (size_t)(stop - eq), "://", 3)))
        stop = hash && hash > eq ? hash : s.end;
    return (struct piece){eq + 1, stop};
}

/*
 * Find the first secret in text: the text between "://" and the last '@' of a word, the value of
 * a parameter such as "?password=", or what a command line shows. one_word: blanks belong to the
 * word. cut: the end of the text is missing, and may have the '@'. False: there is no secret.
 */
static bool next_secret(struct piece text, bool one_word, bool cut, struct piece *found)
{
    char *word = text.p;
    for (char *p = text.p; p < text.end; p++) {
        struct piece s = {p, p};
        if (p >= word)
            for (word = one_word ? text.end : p; word < text.end && (unsigned char)*word > ' ';)
                word++;
        if (text.end - p > 3 && memcmp(p, "://", 3) == 0)
            s = in_authority((struct piece){p + 3, text.end}, word, cut);
        else if (*p == '?' || *p == '&' || *p == ';')
            s = in_query((struct piece){p + 1, word}, cut && word == text.end);
        else if (*p == ':')
            s = behind_scheme(text.p, p, word);
        else if (p == text.p || strchr(" \t\n\"'(`,", p[-1])) {
            s = in_assignment((struct piece){p, word});
            if (s.p == s.end)
                s = in_user_option((struct piece){p, text.end});
        }
        if (s.p < s.end) {
            *found = s;
            return true;
        }
    }
    return false;
}

/*
 * A CI system obeys commands in a job's log: "##vso[", "##[" and "##teamcity[", and a line that
 * begins with "::set-output" and the like.
 */
static void break_commands(char *text)
{
    char *p = text + strspn(text, " ");
    if (strncmp(p, "::", 2) == 0 && (p[2] | 32) >= 'a' && (p[2] | 32) <= 'z')
        *p = '?';
    for (p = text; (p = strstr(p, "##")); p++) {
        char *c = p + 2;
        while ((*c | 32) >= 'a' && (*c | 32) <= 'z')
            c++;
        if (*c == '[')
            p[1] = '?';
    }
}

void dlock_hide_secrets(char *text, bool cut)
{
    struct piece rest = {text, text + strlen(text)}, s;
    char *w = text;
    while (next_secret(rest, false, cut, &s)) {
        /* Hidden before: a text around it has gone on behind the stars. */
        if (s.end - s.p > 3 && memcmp(s.p, "***", 3) == 0 && strchr("\"'.),", s.p[3]))
            s.end = s.p + 3;
        size_t before = (size_t)(s.p - rest.p), stars = (size_t)dlock_min(s.end - s.p, 3);
        memmove(w, rest.p, before);
        memset(w + before, '*', stars);
        w += before + stars;
        rest.p = s.end;
    }
    memmove(w, rest.p, strlen(rest.p) + 1);
    break_commands(text);
}

static void blank(struct piece rest, bool one_word)
{
    struct piece s;
    for (; next_secret(rest, one_word, false, &s); rest.p = s.end)
        memset(s.p, 'x', (size_t)(s.end - s.p));
}

void dlock_blank_secrets(char *text)
{
    blank((struct piece){text, text + strlen(text)}, false);
}

void dlock_blank_lock(char *lock)
{
    char *end = lock + strlen(lock), *name = find_last((struct piece){lock, end}, '#');
    /* By itself: a '@' in the name says nothing about the store. */
    if (name)
        blank((struct piece){name, end}, true);
    blank((struct piece){lock, name ? name : end}, true);
}
