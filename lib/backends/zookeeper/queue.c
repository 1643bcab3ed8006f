/*
 * queue.c - the children of a lock's node, as Curator, kazoo and we read them.
 *
 * A child stands in line if its name ends in a sequence: "%010d" of a 32-bit counter, which stops at 2^31 - 1. (We read
 * negative ones, to refuse them.) In front of the sequence: Curator's "_c_<uuid>-lock-" (locks), "__READ__" and "__WRIT__"
 * (read/write locks); kazoo's "<uuid>__lock__" and "<uuid>__rlock__".
 */
#include "zookeeper.h"

#include <stdlib.h>
#include <string.h>

static bool digits(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (s[i] < '0' || s[i] > '9')
            return false;
    return true;
}

/* Is the '-' at name[at] a sign? The text in front of a sequence may end in '-', too ("lock-"). */
static bool sign_at(const char *name, size_t at)
{
    return name[at] == '-' && (at == 0 || name[at - 1] == '-' || name[at - 1] == '_');
}

bool zk_sequence(const char *name, int64_t *seq)
{
    size_t len = strlen(name);
    if (len < 10)
        return false;
    const char *end = name + len - 10;
    if (digits(end, 10)) {
        *seq = strtoll(end, NULL, 10);
        if (len > 10 && sign_at(name, len - 11) && *seq >= 1000000000)
            *seq = -*seq;
        return true;
    }
    if (digits(end + 1, 9) && sign_at(name, len - 10)) {
        *seq = strtoll(end, NULL, 10);
        return true;
    }
    return false;
}

static int in_line(const void *a, const void *b)
{
    const struct zk_child *x = a, *y = b;
    if (x->seq != y->seq)
        return x->seq < y->seq ? -1 : 1;
    return strcmp(x->name, y->name);
}

struct zk_child *zk_line(char *const *names, int nnames, int *n)
{
    struct zk_child *line = calloc((size_t)nnames + 1, sizeof(*line));
    *n = 0;
    if (!line)
        return NULL;
    for (int i = 0; i < nnames; i++) {
        struct zk_child *c = &line[*n];
        if (!zk_sequence(names[i], &c->seq))
            continue;
        c->name = names[i];
        c->reader = strstr(names[i], "__rlock__") || strstr(names[i], "__READ__");
        ++*n;
    }
    qsort(line, (size_t)*n, sizeof(*line), in_line);
    return line;
}

enum zk_word zk_read_word(const char *data, int len)
{
    static const char key[] = " state=";
    const size_t size = sizeof(key) - 1;
    struct dlock_info info;
    if (!data || len <= 0 || !dlock_identity_parse(data, (size_t)len, &info))
        return WORD_HELD;
    const char *end = data + len, *word = memmem(data, (size_t)len, key, size);
    if (!word)
        return WORD_HELD;
    word += size;
    size_t left = (size_t)(end - word);
    const char *space = memchr(word, ' ', left);
    size_t n = space ? (size_t)(space - word) : left;
    if (n == 5 && memcmp(word, "waits", n) == 0)
        return WORD_WAITS;
    return n == 4 && memcmp(word, "next", n) == 0 ? WORD_NEXT : WORD_HELD;
}

void zk_read_info(const char *name, bool waiter, const char *data, int len, const struct Stat *stat,
                  struct dlock_info *info)
{
    *info = (struct dlock_info){.left_ns = -1, .waited_ms = -1, .waiter = waiter};
    info->foreign = !data || !dlock_identity_parse(data, (size_t)len, info);
    if (info->foreign) {
        const char *program = strncmp(name, "_c_", 3) == 0 ? "Curator"
                              : strstr(name, "lock__")     ? "kazoo"
                                                           : "another program";
        dlock_clean_text(info->command, sizeof(info->command), program, strlen(program));
        /* Curator keeps the bytes of an address there, kazoo what the program chose. */
        if (data && len > 0 && !memchr(data, '\0', (size_t)len))
            dlock_clean_text(info->note, sizeof(info->note), data, (size_t)len);
        info->since_ms = stat->ctime;
    }
    /*
     * A node tells when its client came, not when it got the lock. A holder of ours whose record is still that of a
     * waiter tells the grant with its next heartbeat.
     */
    if (!waiter && info->waited_ms < 0)
        info->since_ms = 0;
    if (!waiter && stat->czxid > 0)
        info->fence = (uint64_t)stat->czxid;
}
