/* held.c - see held.h. The list comes from the environment: nothing in the list is trusted. */
#include "held.h"

#include "proc.h"
#include "util.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DIGEST_LEN 16
/* Between the record's wall clock and /proc: rounded seconds, and steps of the clock. */
#define CLOCK_SLACK_MS 5000

/* Where the socket begins in an entry. */
#define AT_SOCKET (2 * (DIGEST_LEN + 1) + DLOCK_TOKEN_LEN + 1)

bool held_next(const char **list, struct held *e)
{
    while (*list && **list) {
        const char *s = *list + strspn(*list, " ");
        size_t len = strcspn(s, " ");
        char digest[DIGEST_LEN + 1], name[DIGEST_LEN + 1];
        int at = 0;
        *list = s + len;
        *e = (struct held){0};
        sscanf(s, "%16[0-9a-fA-F]:%16[0-9a-fA-F]:%32[0-9a-fA-F]:%n", digest, name, e->token, &at);
        if (at != AT_SOCKET || len <= AT_SOCKET || len > AT_SOCKET + NESTED_SOCKET_MAX)
            continue;
        e->digest = strtoull(digest, NULL, 16);
        e->name = strtoull(name, NULL, 16);
        memcpy(e->socket, s + AT_SOCKET, len - AT_SOCKET);
        return true;
    }
    return false;
}

bool held_above(const char *list, uint64_t digest, struct nested_outer *outer)
{
    struct held e, above;
    bool any = false;
    while (held_next(&list, &e) && strcmp(e.socket, outer->socket) != 0)
        if (e.digest == digest && (!outer->token[0] || strcmp(e.token, outer->token) == 0)) {
            above = e;
            any = true;
        }
    if (any) {
        memcpy(outer->token, above.token, sizeof(outer->token));
        memcpy(outer->socket, above.socket, sizeof(outer->socket));
    }
    return any;
}

static char *put(char *at, const struct held *e)
{
    return at + sprintf(at, "%016llx:%016llx:%s:%s ", (unsigned long long)e->digest,
                        (unsigned long long)e->name, e->token, e->socket);
}

/*
 * Does one of the new entries replace e? The new dlock may end before the dlock that it runs under,
 * which has the lock and its token: that entry, the first with this token, stays.
 */
static bool is_replaced(const char *list, const struct held *e, const struct held *added, int n)
{
    struct held first;
    while (n > 0 && added[n - 1].digest != e->digest)
        n--;
    if (n == 0)
        return false;
    while (held_next(&list, &first))
        if (first.digest == e->digest && strcmp(first.token, added[n - 1].token) == 0)
            return strcmp(first.socket, e->socket) != 0;
    return true;
}

const char *held_add(char buf[HELD_SIZE], const char *list, const struct held *added, int n)
{
    const char *rest = list;
    char *at = stpcpy(buf, HELD_NAME);
    struct held e;
    int others = 0;
    while (held_next(&rest, &e))
        others += !is_replaced(list, &e, added, n);
    for (rest = list; held_next(&rest, &e);)
        if (!is_replaced(list, &e, added, n) && others-- <= HELD_MAX - n)
            at = put(at, &e);
    for (int i = 0; i < n; i++)
        at = put(at, &added[i]);
    at[-1] = '\0'; /* the last blank; without entries the '=' */
    return buf;
}

static bool read_name(pid_t pid, char name[32])
{
    int fd = proc_open_task(pid, pid, "/comm");
    ssize_t n = fd >= 0 ? read(fd, name, 31) : 0;
    if (fd >= 0)
        close(fd);
    name[n > 0 ? n : 0] = '\0';
    return n > 0;
}

/* Did process pid run already when the holder was granted the lock? Else the pid was used again. */
static bool is_as_old(long pid, int64_t since_ms)
{
    struct proc_stat st;
    if (since_ms <= 0)
        return true;
    if (!proc_read_stat((pid_t)pid, &st))
        return false;
    int64_t booted_ms = (dlock_wall() - dlock_now()) / DLOCK_MSEC;
    return booted_ms + (int64_t)st.start * 1000 / sysconf(_SC_CLK_TCK) <= since_ms + CLOCK_SLACK_MS;
}

bool held_by_ancestor(const char *list, const struct dlock_info *info)
{
    char host[256] = "", name[32], ours[32];
    struct held e;
    int n = 0;
    for (; held_next(&list, &e); n++)
        if (info->token[0] && strcmp(e.token, info->token) == 0)
            return true;
    /* The list is complete: it names every dlock above. */
    if (info->token[0] && n > 0 && n < HELD_MAX)
        return false;
    if (info->pid <= 1 || info->server_pid || gethostname(host, sizeof(host) - 1) != 0)
        return false;
    if (info->host[0] && strcmp(info->host, host) != 0)
        return false;
    if (!proc_descends(getppid(), (pid_t)info->pid) || !is_as_old(info->pid, info->since_ms))
        return false;
    /* Two hosts can have the same name: is the ancestor with this pid a dlock at all? */
    return read_name((pid_t)info->pid, name) && read_name(getpid(), ours) &&
           strcmp(name, ours) == 0;
}
