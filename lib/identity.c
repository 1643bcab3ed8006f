/* identity.c - the holder record of the stores. */
#include "util.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#define RECORD_MAX 900
#define RECORD_MAGIC "dlock1"

static bool is_plain(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c != '\0' && strchr("-._~/:@,+", c));
}

static size_t encoded_len(const char *s, size_t n)
{
    size_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += is_plain(s[i]) ? 1 : 3;
    return sum;
}

/* How many bytes of s fit into room once encoded; whole characters only. */
static size_t fitting(const char *s, size_t room)
{
    size_t len = strlen(s), take = 0;
    while (take < len) {
        bool good;
        size_t n = dlock_text_char(s + take, len - take, &good);
        size_t need = encoded_len(s + take, n);
        if (need > room)
            break;
        room -= need;
        take += n;
    }
    return take;
}

static char *encode(char *p, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (is_plain(s[i]))
            *p++ = s[i];
        else
            p += sprintf(p, "%%%02X", (unsigned)(unsigned char)s[i]);
    }
    return p;
}

int dlock_identity_format(const struct dlock_identity *w, enum dlock_record as, char *buf,
                          size_t size)
{
    size_t limit = size > RECORD_MAX ? RECORD_MAX : size > 0 ? size - 1 : 0;
    size_t host = strlen(w->host), user = strlen(w->user), fixed, note, command;
    char pid[48], since[96];
    char *p = buf;
    snprintf(pid, sizeof(pid), " pid=%ld", w->pid);
    if (as == RECORD_WAITS)
        snprintf(since, sizeof(since), " since=%lld", (long long)w->since_ms);
    else { /* since - waited is the begin of the wait to the millisecond: see lockset.c */
        long long waited = (dlock_now() - w->since) / DLOCK_MSEC;
        snprintf(since, sizeof(since), " since=%lld waited=%lld", (long long)w->since_ms + waited,
                 waited);
    }
    fixed = strlen(RECORD_MAGIC " host= user= cmd= note=") + strlen(pid) + strlen(since) +
            encoded_len(w->host, host) + encoded_len(w->user, user);
    if (fixed > limit)
        return -1;
    /* The command is cut first: the user wrote the note. */
    note = fitting(w->note, limit - fixed);
    command = fitting(w->command, limit - fixed - encoded_len(w->note, note));
    p = encode(stpcpy(p, RECORD_MAGIC " host="), w->host, host);
    p = encode(stpcpy(stpcpy(p, pid), " user="), w->user, user);
    p = encode(stpcpy(stpcpy(p, since), " cmd="), w->command, command);
    p = encode(stpcpy(p, " note="), w->note, note);
    *p = '\0';
    return (int)(p - buf);
}

/* Decode a value for display; a bad escape stays. */
static void read_text(char *dst, size_t size, const char *v, size_t len)
{
    char raw[RECORD_MAX];
    size_t n = 0;
    for (const char *end = v + len; v < end && n < sizeof(raw);) {
        int c = dlock_percent(v, end);
        raw[n++] = (char)(c >= 0 ? c : *v);
        v += c >= 0 ? 3 : 1;
    }
    dlock_clean_text(dst, size, raw, n);
}

/* A decimal number, or 0: for display only. */
static int64_t read_number(const char *v, size_t len)
{
    int64_t n;
    return dlock_read_number(v, len, &n) ? n : 0;
}

static void read_pair(struct dlock_info *info, const char *s, size_t len)
{
    const char *eq = memchr(s, '=', len), *v = eq ? eq + 1 : s;
    size_t k = eq ? (size_t)(eq - s) : 0, n = len - (size_t)(v - s);
    if (k == 4 && memcmp(s, "host", k) == 0)
        read_text(info->host, sizeof(info->host), v, n);
    else if (k == 4 && memcmp(s, "user", k) == 0)
        read_text(info->user, sizeof(info->user), v, n);
    else if (k == 3 && memcmp(s, "cmd", k) == 0)
        read_text(info->command, sizeof(info->command), v, n);
    else if (k == 4 && memcmp(s, "note", k) == 0)
        read_text(info->note, sizeof(info->note), v, n);
    else if (k == 3 && memcmp(s, "pid", k) == 0)
        info->pid = (long)dlock_min(read_number(v, n), LONG_MAX);
    else if (k == 5 && memcmp(s, "since", k) == 0)
        info->since_ms = read_number(v, n);
    else if (k == 6 && memcmp(s, "waited", k) == 0)
        info->waited_ms = read_number(v, n);
    else if (k == 6 && memcmp(s, "broken", k) == 0)
        info->broken_ms = read_number(v, n);
    else if (k == 2 && memcmp(s, "by", k) == 0)
        read_text(info->broken_by, sizeof(info->broken_by), v, n);
}

bool dlock_identity_parse(const char *text, size_t len, struct dlock_info *info)
{
    size_t magic = strlen(RECORD_MAGIC), i = magic;
    const char *nl = len > 0 ? memchr(text, '\n', len) : NULL;
    if (nl) /* a record in a file ends with a newline */
        len = (size_t)(nl - text);
    if (len < magic || memcmp(text, RECORD_MAGIC, magic) != 0 ||
        (len > magic && text[magic] != ' '))
        return false;
    info->host[0] = info->user[0] = info->command[0] = info->note[0] = '\0';
    info->pid = 0;
    info->since_ms = 0;
    info->waited_ms = -1;
    while (i < len) {
        const char *start = text + i + 1, *space;
        size_t left = len - i - 1;
        space = left > 0 ? memchr(start, ' ', left) : NULL;
        left = space ? (size_t)(space - start) : left;
        read_pair(info, start, left);
        i += 1 + left;
    }
    return true;
}

/*
 * The line of a user in /etc/passwd, "name:password:uid:gid:gecos:home:shell", malloc'ed; NULL:
 * none. *len: of the name. Not getpwuid(3), which may ask LDAP and hang.
 */
static char *passwd_line(unsigned long uid, size_t *len)
{
    FILE *f = fopen("/etc/passwd", "re");
    char *line = NULL, *end;
    bool found = false;
    size_t cap = 0;
    while (f && !found && getline(&line, &cap, f) > 0) {
        const char *a = strchr(line, ':'), *b = a ? strchr(a + 1, ':') : NULL;
        if (!b || a == line || b[1] < '0' || b[1] > '9')
            continue;
        *len = (size_t)(a - line);
        found = strtoul(b + 1, &end, 10) == uid && *end == ':';
    }
    if (f)
        fclose(f);
    if (!found)
        free(line);
    return found ? line : NULL;
}

void dlock_user_name(unsigned long uid, char *buf, size_t size)
{
    size_t len;
    char *line = passwd_line(uid, &len);
    if (line)
        dlock_clean_text(buf, size, line, len);
    else
        snprintf(buf, size, "uid:%lu", uid);
    free(line);
}

bool dlock_env_is_foreign(void)
{
    const char *uid = getenv("SUDO_UID");
    return getauxval(AT_SECURE) ||
           (uid && strcmp(uid, "0") != 0 && (getuid() == 0 || geteuid() == 0));
}

char *dlock_home_dir(void)
{
    size_t len;
    char *line = passwd_line(geteuid(), &len), *at = line, *home = NULL;
    for (int i = 0; at && i < 5; i++)
        at = (at = strchr(at, ':')) ? at + 1 : NULL;
    if (at && *at == '/')
        home = strndup(at, strcspn(at, ":\n"));
    free(line);
    return home;
}

void dlock_identity_begin(struct dlock_identity *w)
{
    w->since_ms = dlock_wall() / DLOCK_MSEC;
    w->since = dlock_now();
}

/* The caller's text for all to read: without secrets, which a cut could make hard to recognise. */
static void publish(char *dst, size_t size, const char *text)
{
    char *copy = text ? strdup(text) : NULL;
    if (!copy)
        return;
    dlock_hide_secrets(copy, false);
    dlock_clean_text(dst, size, copy, strlen(copy));
    explicit_bzero(copy, strlen(text));
    free(copy);
}

void dlock_identity_init(struct dlock_identity *w, const char *command, const char *note)
{
    char host[256] = "";
    memset(w, 0, sizeof(*w));
    if (gethostname(host, sizeof(host)) < 0)
        snprintf(host, sizeof(host), "unknown");
    host[sizeof(host) - 1] = '\0';
    dlock_clean_text(w->host, sizeof(w->host), host, strlen(host));
    /* Not $USER, which can be set to anything. */
    dlock_user_name(geteuid(), w->user, sizeof(w->user));
    publish(w->command, sizeof(w->command), command);
    publish(w->note, sizeof(w->note), note);
    w->pid = getpid();
    dlock_identity_begin(w);
}

const char *dlock_breaker(const struct dlock_identity *id, char buf[DLOCK_BREAKER_SIZE])
{
    snprintf(buf, DLOCK_BREAKER_SIZE, id->note[0] ? "%s@%s, note \"%s\"" : "%s@%s", id->user,
             id->host, id->note);
    return buf;
}

void dlock_broken(struct dlock_error *err, const struct dlock_spec *spec, const char *by,
                  size_t len)
{
    char text[DLOCK_BREAKER_SIZE];
    dlock_clean_text(text, sizeof(text), by, len);
    dlock_fail_at(err, DLOCK_ELOST, 0, spec->uri->where, "by %s", text);
}

bool dlock_same_hold(const struct dlock_info *a, const struct dlock_info *b)
{
    if (a->token[0] || b->token[0])
        return strcmp(a->token, b->token) == 0;
    if (a->fence > 0 && b->fence > 0 && a->fence != b->fence) /* each grant has a greater fence */
        return false;
    /* The process of a file's holder is unknown while it executes a program. */
    bool unknown = a->since_ms > 0 && (a->pid == 0 || b->pid == 0);
    return (a->pid == b->pid || unknown) && a->since_ms == b->since_ms &&
           strcmp(a->host, b->host) == 0;
}
