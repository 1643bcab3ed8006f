/*
 * nested.c - the messages between a keeper and a dlock under its lock, and DLOCK_HELD. The first
 * byte says which: 'q' requests to a keeper, 'r' replies of a keeper of a lease, 'f' of a file's
 * lock, any other byte the variable. Our process is both ends.
 */
#include "fuzz.h"

#include "held.h"
#include "inner.h"
#include "spawn.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#define KEY "a key\nof the lock"
#define TOKEN "0123456789abcdef0123456789abcdef"

static char file[200], file_key[80];
static int file_fd;
static dlock *lk;

static void clean_up(void)
{
    dlock_close(lk);
    unlink(file);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    const char *tmp = getenv("TMPDIR");
    struct dlock_options o;
    struct stat st;
    (void)argc;
    (void)argv;
    snprintf(file, sizeof(file), "%s/fuzz.XXXXXX", tmp ? tmp : "/tmp");
    file_fd = mkstemp(file);
    dlock_options_init(&o, sizeof(o));
    FUZZ_HOLDS(file_fd >= 0 && dlock_open(&lk, file, &o, NULL) == 0);
    atexit(clean_up);
    FUZZ_HOLDS(dlock_acquire(lk, NULL) == 0 && fstat(file_fd, &st) == 0);
    char *key = nested_file_key(&st, false);
    FUZZ_HOLDS(key);
    snprintf(file_key, sizeof(file_key), "%s", key);
    free(key);
    return 0;
}

static int reach(const char *name)
{
    struct sockaddr_un a;
    socklen_t len = nested_address(&a, name);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    FUZZ_HOLDS(fd >= 0 && connect(fd, (struct sockaddr *)&a, len) == 0);
    return fd;
}

/* A request: bits for what is put right in it, its length, the bytes. */
static size_t make_request(struct fuzz *f, struct nested_request *q)
{
    unsigned right = fuzz_byte(f);
    size_t len = fuzz_byte(f) * (right & 1 ? 64 : 1), head = offsetof(struct nested_request, key);
    len = len < sizeof(*q) ? len : sizeof(*q);
    memset(q, 0, sizeof(*q));
    fuzz_fill(f, q, len);
    if (right & 2)
        q->version = NESTED_VERSION;
    if (right & 4)
        memcpy(q->token, dlock_token(lk), DLOCK_TOKEN_LEN + 1);
    if (right & 8) {
        strcpy(q->key, KEY);
        len = head + strlen(KEY);
    } else if (right & 16) {
        q->mode = NESTED_QUERY;
        nested_digests(q->key, nested_digest(KEY), nested_digest(dlock_name(lk)));
        len = head + strlen(q->key);
    }
    return len;
}

static void ask_keeper(struct fuzz *f)
{
    struct nested_request q;
    struct nested_reply r;
    int fds[16], n = 0;
    struct inner *in = inner_open(NULL, &(struct inner_lock){lk, KEY}, 1);
    FUZZ_HOLDS(in);
    while (f->n > 0 && n < (int)DLOCK_LEN(fds)) {
        size_t len = make_request(f, &q);
        fds[n] = reach(inner_socket(in));
        FUZZ_HOLDS(fds_send(fds[n++], &q, len, -1) == 0);
        inner_turn(in);
        FUZZ_HOLDS(inner_count(in) >= 0 && inner_count(in) <= n);
    }
    inner_extended(in);
    inner_lost(in, "why");
    for (int i = 0; i < n; i++) {
        if (recv(fds[i], &r, sizeof(r), MSG_DONTWAIT) == (ssize_t)sizeof(r))
            FUZZ_HOLDS(r.type >= NESTED_HELD && r.type <= NESTED_FULL);
        close(fds[i]);
    }
    inner_settle(in);
    inner_close(in);
}

/* The keeper's socket and the dlock under it. */
struct keeper {
    struct nested_outer outer;
    struct dlock_uri uri;
    struct dlock_spec spec;
    int listen, fd;
};

static void start_keeper(struct keeper *k, bool local)
{
    struct sockaddr_un a;
    k->outer = (struct nested_outer){.token = TOKEN, .key = local ? file_key : KEY};
    FUZZ_HOLDS(nested_new_name(k->outer.socket) == 0);
    k->listen = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    socklen_t len = nested_address(&a, k->outer.socket);
    FUZZ_HOLDS(bind(k->listen, (struct sockaddr *)&a, len) == 0 && listen(k->listen, 4) == 0);
    k->spec = (struct dlock_spec){.env = &fuzz_env,
                                  .uri = &k->uri,
                                  .connect_timeout = DLOCK_SEC,
                                  .least_ttl = DLOCK_SEC,
                                  .outer = &k->outer};
}

/* A reply: bits, and how many of its bytes are given. Returns what is sent of it. */
static size_t make_reply(struct fuzz *f, struct nested_reply *r, bool *pass)
{
    unsigned how = fuzz_byte(f), given = fuzz_byte(f);
    memset(r, 0, sizeof(*r));
    fuzz_fill(f, r, given < sizeof(*r) ? given : sizeof(*r));
    *pass = how & 1;
    if (how & 2)
        memset(r->text, 'x', sizeof(r->text));
    if (how & 4)
        r->hold.ttl = DLOCK_NEVER;
    return how & 8 ? given : sizeof(*r);
}

static void check_event(const struct dlock_event *ev)
{
    if (ev->type == EV_GRANTED)
        FUZZ_HOLDS(ev->from >= 0 && ev->from <= FUZZ_NOW && ev->ttl > 0 && ev->slot >= 0);
    if (ev->type == EV_FAILED || ev->type == EV_LOST)
        FUZZ_HOLDS(strnlen(ev->error.msg, sizeof(ev->error.msg)) < sizeof(ev->error.msg));
}

static void answer_inner(struct fuzz *f, bool local)
{
    const struct dlock_backend *table = local ? &dlock_nested_local : &dlock_nested_lease;
    static char empty[] = "", lock[] = "redis://h/0";
    struct keeper k = {.uri = {.scheme = empty, .name = empty, .where = lock}};
    struct nested_reply r;
    struct dlock_event ev;
    struct dlock_be *be;
    bool pass;
    start_keeper(&k, local);
    k.spec.mode = (enum dlock_mode)(fuzz_byte(f) % 3);
    k.spec.slots = k.spec.mode == DLOCK_MODE_SLOTS ? 3 : 0;
    FUZZ_HOLDS(table->open(&be, &k.spec, NULL) == 0);
    table->acquire(be, true);
    k.fd = accept4(k.listen, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    for (int i = 0; i < 16 && k.fd >= 0 && f->n > 0; i++) {
        size_t n = make_reply(f, &r, &pass);
        if (n > 0)
            fds_send(k.fd, &r, n, pass ? dlock_fd(lk) : -1);
        while (table->process(be, NULL, 0, &ev))
            check_event(&ev);
    }
    if (k.fd >= 0)
        close(k.fd);
    while (table->process(be, NULL, 0, &ev))
        check_event(&ev);
    table->release(be, DLOCK_NEVER);
    table->close(be);
    close(k.listen);
}

static void read_held(struct fuzz *f)
{
    static char buf[HELD_SIZE];
    struct held e, ours = {.digest = 1, .name = 2, .token = TOKEN, .socket = "-"};
    struct nested_outer outer = {.key = KEY};
    char *list = fuzz_copy(f->p, f->n);
    const char *rest = list;
    while (held_next(&rest, &e))
        FUZZ_HOLDS(strnlen(e.token, sizeof(e.token)) <= DLOCK_TOKEN_LEN && e.socket[0] &&
                   strnlen(e.socket, sizeof(e.socket)) <= NESTED_SOCKET_MAX);
    held_above(list, 1, &outer);
    FUZZ_HOLDS(strlen(held_add(buf, list, &ours, 1)) < sizeof(buf));
    free(list);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz f = {data, size};
    switch (fuzz_byte(&f)) {
    case 'q':
        ask_keeper(&f);
        break;
    case 'r':
        answer_inner(&f, false);
        break;
    case 'f':
        answer_inner(&f, true);
        break;
    default:
        read_held(&f);
    }
    return 0;
}
