/*
 * queue.c - the children of a lock's node, as Curator, kazoo and we read them: which node holds,
 * and what each waiter waits for; and the data of a node.
 *
 * The fence is the transaction number of a node's creation, and sequence numbers grow with it.
 * Mutually exclusive nodes are granted in the order of the sequence: a reader or a slot when each
 * lower writer is gone, so its fence is greater than the fences of all exclusive grants before; a
 * writer when all lower nodes are gone, so its fence is greater than all fences before. Readers and
 * slots may pass each other, not a writer.
 *
 * A node that may hold the lock by one look at the queue may do so until it is gone: lower nodes
 * can only go, and a later node changes nothing. So clients may look at different times.
 *
 * A child stands in line if its name ends in a sequence: "%010d" of a 32-bit counter, which stops
 * at 2^31 - 1. (We read negative numbers in order to refuse them.) In front of the sequence:
 * Curator's "_c_<uuid>-lock-" (locks), "__READ__" and "__WRIT__" (read/write locks); kazoo's
 * "<uuid>__lock__" and "<uuid>__rlock__"; our "_c_<uuid>-r-lock-" (a reader) and
 * "_c_<uuid>-sN-lock-" (one of N slots).
 */
#include "zookeeper.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Is the '-' at name[at] a sign? The text in front may end in '-', too ("lock-"). */
static bool sign_at(const char *name, size_t at)
{
    return name[at] == '-' && (at == 0 || name[at - 1] == '-' || name[at - 1] == '_');
}

bool zk_sequence(const char *name, int64_t *seq)
{
    static const char digits[] = "0123456789";
    size_t len = strlen(name);
    if (len < 10)
        return false;
    const char *end = name + len - 10;
    if (strspn(end, digits) == 10) {
        *seq = strtoll(end, NULL, 10);
        if (len > 10 && sign_at(name, len - 11) && *seq >= 1000000000)
            *seq = -*seq;
        return true;
    }
    if (strspn(end + 1, digits) == 9 && sign_at(name, len - 10)) {
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

/* A node of an unknown kind counts as exclusive. *slots: of DLOCK_MODE_SLOTS. */
static enum dlock_mode read_kind(const char *name, unsigned *slots)
{
    static const char form[] = "_c_01234567-0123-0123-0123-0123456789ab-";
    const size_t size = sizeof(form) - 1;
    *slots = 0;
    if (strstr(name, "__rlock__") || strstr(name, "__READ__"))
        return DLOCK_MODE_SHARED;
    if (strncmp(name, form, 3) != 0 || strnlen(name, size) < size || name[size - 1] != '-')
        return DLOCK_MODE_EXCLUSIVE;
    const char *kind = name + size;
    if (strncmp(kind, "r-lock-", 7) == 0)
        return DLOCK_MODE_SHARED;
    if (kind[0] != 's' || kind[1] < '1' || kind[1] > '9')
        return DLOCK_MODE_EXCLUSIVE;
    char *end;
    unsigned long n = strtoul(kind + 1, &end, 10);
    if (n > DLOCK_SLOTS_MAX || strncmp(end, "-lock-", 6) != 0)
        return DLOCK_MODE_EXCLUSIVE;
    *slots = (unsigned)n;
    return DLOCK_MODE_SLOTS;
}

/*
 * Which nodes may hold, and each waiter's place. A slot also waits for slots of a different number
 * in front: these see a different number in front of them, and give up.
 */
static void set_places(struct zk_child *line, int n)
{
    bool writer = false, mixed = false;
    unsigned slots = 0, taken = 0;
    int waiting = 0;
    for (int i = 0; i < n; i++) {
        struct zk_child *c = &line[i];
        bool holds = c->mode == DLOCK_MODE_EXCLUSIVE ? i == 0 : !writer;
        if (c->mode == DLOCK_MODE_SLOTS) {
            slots = slots > 0 ? slots : c->slots;
            mixed = mixed || slots != c->slots;
            holds = holds && !mixed && taken < slots;
            taken++;
        }
        writer = writer || c->mode == DLOCK_MODE_EXCLUSIVE;
        c->place = holds ? 0 : ++waiting;
    }
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
        c->mode = read_kind(names[i], &c->slots);
        ++*n;
    }
    qsort(line, (size_t)*n, sizeof(*line), in_line);
    set_places(line, *n);
    return line;
}

static struct zk_wait wait_for_node(const struct zk_child *line, int node)
{
    int place = line[node].place;
    enum zk_rank rank = place == 0 ? RANK_NEXT : place == 1 ? RANK_SECOND : RANK_BEHIND;
    return (struct zk_wait){.what = WAIT_NODE, .node = node, .rank = rank};
}

struct zk_wait zk_wait_of(const struct zk_child *line, int at)
{
    const struct zk_child *c = &line[at], *first = line;
    unsigned between = 0;
    int before = -1;
    if (c->place == 0)
        return (struct zk_wait){.what = WAIT_NONE, .rank = RANK_NEXT};
    if (c->mode == DLOCK_MODE_EXCLUSIVE)
        return wait_for_node(line, at - 1);
    /* The bar: the nearest node in front that keeps ours out, however many slots are free. */
    int bar = at - 1;
    while (bar >= 0 && line[bar].mode != DLOCK_MODE_EXCLUSIVE &&
           !(c->mode == DLOCK_MODE_SLOTS && line[bar].mode == DLOCK_MODE_SLOTS &&
             line[bar].slots != c->slots))
        bar--;
    if (c->mode == DLOCK_MODE_SHARED)
        return wait_for_node(line, bar);
    while (first->mode != DLOCK_MODE_SLOTS)
        first++;
    if (first->slots != c->slots)
        return (struct zk_wait){.what = WAIT_IN_VAIN, .slots = first->slots};
    for (int i = bar + 1; i < at; i++) {
        if (line[i].mode != DLOCK_MODE_SLOTS)
            continue;
        between++;
        before = i;
    }
    /*
     * The slots that will be granted together when a writer in front goes wait for that writer. Of
     * the slots behind these, the first waits for the holders; each of the rest for the grant of
     * the slot in front. So a release wakes one waiter, and its grant the next.
     */
    if (bar >= 0 && between < c->slots)
        return wait_for_node(line, bar);
    if (bar < 0 && between == c->slots)
        return (struct zk_wait){.what = WAIT_SLOT, .rank = RANK_NEXT};
    struct zk_wait w = wait_for_node(line, before);
    /* As many waiters as there are slots may be granted soon after one another. */
    if (bar < 0 && between < 2 * c->slots && w.rank == RANK_BEHIND)
        w.rank = RANK_SECOND;
    return w;
}

/* The value of a key (" key=") in a node's data, *n bytes. NULL: none, or not dlock's data. */
static const char *find_value(const char *data, int len, const char *key, size_t *n)
{
    struct dlock_info info;
    if (!data || len <= 0 || !dlock_identity_parse(data, (size_t)len, &info))
        return NULL;
    const char *value = memmem(data, (size_t)len, key, strlen(key));
    if (!value)
        return NULL;
    value += strlen(key);
    size_t left = (size_t)(data + len - value);
    const char *space = memchr(value, ' ', left);
    *n = space ? (size_t)(space - value) : left;
    return value;
}

enum zk_word zk_read_word(const char *data, int len)
{
    size_t n;
    const char *word = find_value(data, len, " state=", &n);
    if (!word)
        return WORD_HELD;
    if (n == 5 && memcmp(word, "waits", n) == 0)
        return WORD_WAITS;
    return n == 4 && memcmp(word, "next", n) == 0 ? WORD_NEXT : WORD_HELD;
}

#define MARK_KEY " break="

/* " break=TIME:BREAKER", with blanks and '%' as %20 and %25. */
size_t zk_format_mark(const struct zk_mark *mark, char text[ZK_MARK_MAX])
{
    char *p = text + sprintf(text, MARK_KEY "%lld:", (long long)mark->at_ms);
    for (const char *c = mark->by; *c; c++) {
        if (*c == ' ' || *c == '%')
            p += sprintf(p, "%%%02X", (unsigned char)*c);
        else
            *p++ = *c;
    }
    *p = '\0';
    return (size_t)(p - text);
}

void zk_set_data(struct zk_backend *be, enum dlock_record as, enum zk_word word)
{
    static const char *const words[] = {"waits", "next", "held"};
    char *record = be->node.data.text, mark[ZK_MARK_MAX];
    size_t size = sizeof(be->node.data.text);
    int n = dlock_identity_format(be->spec->identity, as, record, size);
    if (n < 0)
        n = snprintf(record, size, "dlock1");
    n += snprintf(record + n, size - (size_t)n, ZK_MARKS " state=%s", words[word]);
    if (be->node.mark.by[0]) {
        zk_format_mark(&be->node.mark, mark);
        snprintf(record + n, size - (size_t)n, "%s", mark);
    }
    be->node.data.kind = as;
    be->node.data.edition++;
}

bool zk_read_mark(const char *data, int len, struct zk_mark *mark)
{
    char text[DLOCK_BREAKER_SIZE];
    size_t n, used = 0;
    const char *value = find_value(data, len, MARK_KEY, &n);
    if (!value)
        return false;
    const char *end = value + n, *by = memchr(value, ':', n);
    if (!by || !dlock_read_number(value, (size_t)(by - value), &mark->at_ms))
        mark->at_ms = 0;
    for (by = by ? by + 1 : value; by < end && used < sizeof(text); used++) {
        int c = dlock_percent(by, end);
        text[used] = (char)(c >= 0 ? c : *by);
        by += c >= 0 ? 3 : 1;
    }
    dlock_clean_text(mark->by, sizeof(mark->by), text, used);
    if (!mark->by[0])
        strcpy(mark->by, "?"); /* a foreign client has written the mark */
    return true;
}

bool zk_takes_marks(const char *data, int len)
{
    struct dlock_info info;
    return data && len > 0 && dlock_identity_parse(data, (size_t)len, &info) &&
           memmem(data, (size_t)len, ZK_MARKS " ", sizeof(ZK_MARKS));
}

void zk_read_info(const char *name, bool waiter, const char *data, int len, const struct Stat *stat,
                  struct dlock_info *info)
{
    *info = (struct dlock_info){.left_ns = -1, .waited_ms = -1, .waiter = waiter};
    info->mode = read_kind(name, &info->slots);
    info->foreign = !data || !dlock_identity_parse(data, (size_t)len, info);
    if (info->foreign) {
        const char *program = strncmp(name, "_c_", 3) == 0 ? "Curator"
                              : strstr(name, "lock__")     ? "kazoo"
                                                           : "another program";
        dlock_clean_text(info->command, sizeof(info->command), program, strlen(program));
        /* Curator's data is the bytes of an address, kazoo's a text of the program. */
        if (data && len > 0 && !memchr(data, '\0', (size_t)len))
            dlock_clean_text(info->note, sizeof(info->note), data, (size_t)len);
        info->since_ms = stat->ctime;
    } else {
        /* The token of our node is the GUID in its name, in all layouts. */
        int n = 0;
        for (const char *c = strncmp(name, "_c_", 3) == 0 ? name + 3 : name;
             n < DLOCK_TOKEN_LEN && (dlock_hex(*c) >= 0 || *c == '-'); c++)
            if (*c != '-')
                info->token[n++] = *c;
        info->token[n < DLOCK_TOKEN_LEN ? 0 : n] = '\0';
        struct zk_mark mark;
        info->broken = !waiter && zk_read_mark(data, len, &mark);
        if (info->broken) {
            memcpy(info->broken_by, mark.by, sizeof(info->broken_by));
            info->broken_ms = mark.at_ms;
        }
    }
    /*
     * A node tells when its client came, not when the client got the lock. A dlock holder with a
     * waiter's record in its node tells of the grant with its next heartbeat.
     */
    if (!waiter && info->waited_ms < 0)
        info->since_ms = 0;
    if (!waiter && stat->czxid > 0)
        info->fence = (uint64_t)stat->czxid;
}
