/* test_nested.c - an inner dlock against an outer keeper that may not hold the lock. */
#include "nested.h"
#include "unit.h"
#include "util.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

/* The outer keeper, and the inner dlock's handle. */
static struct fixture {
    char file[40];
    struct nested_outer outer;
    char *key;
    int listen;
    dlock *lk;
} f;

static void set_up(const char *text, bool fcntl_lock)
{
    struct dlock_options o;
    struct sockaddr_un a;
    struct dlock_uri *uri = NULL;
    struct stat st;
    dlock_options_init(&o, sizeof o);
    o.fcntl = fcntl_lock;
    strcpy(f.file, "/tmp/test_nested.XXXXXX");
    int fd = mkstemp(f.file);
    CHECK(fd >= 0 && fstat(fd, &st) == 0);
    close(fd);
    CHECK_INT(dlock_uri_parse(&uri, text ? text : f.file, NULL), 0);
    f.key = text ? nested_key(uri) : nested_file_key(&st, fcntl_lock);
    f.outer = (struct nested_outer){.token = "0123456789abcdef0123456789abcdef", .key = f.key};
    CHECK_INT(nested_new_name(f.outer.socket), 0);
    f.listen = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    socklen_t len = nested_address(&a, f.outer.socket);
    CHECK(bind(f.listen, (struct sockaddr *)&a, len) == 0 && listen(f.listen, 5) == 0);
    CHECK_INT(dlock_open_nested(&f.lk, &uri, &f.outer, &o, NULL), 0);
}

static void tear_down(void)
{
    dlock_close(f.lk);
    close(f.listen);
    unlink(f.file);
    free(f.key);
}

static int open_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;
    while (d && readdir(d))
        n++;
    closedir(d);
    return n;
}

static void send_reply(int to, const struct nested_reply *r, const int *fds, int n)
{
    union {
        struct cmsghdr align;
        char buf[CMSG_SPACE(4 * sizeof(int))];
    } control = {.align = {.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
    struct iovec iov = {.iov_base = (void *)r, .iov_len = sizeof(*r)};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    control.align.cmsg_len = CMSG_LEN((size_t)n * sizeof(int));
    if (n > 0) {
        memcpy(CMSG_DATA(&control.align), fds, (size_t)n * sizeof(int));
        msg.msg_control = &control;
        msg.msg_controllen = CMSG_SPACE((size_t)n * sizeof(int));
    }
    CHECK(sendmsg(to, &msg, 0) == (ssize_t)sizeof(*r));
}

static const struct dlock_report *next_report(void)
{
    const struct dlock_report *r = NULL;
    for (int i = 0; i < 20 && !r; i++)
        r = dlock_process(f.lk, NULL, 0);
    return r;
}

/* The inner dlock asks, and gets this reply with these descriptors. Returns the connection. */
static int answer(const struct nested_reply *r, const int *fds, int nfds)
{
    struct nested_request q;
    CHECK_INT(dlock_start_acquire(f.lk, NULL), 0);
    CHECK(next_report() == NULL);
    int c = accept4(f.listen, NULL, NULL, SOCK_CLOEXEC);
    CHECK(c >= 0 && recv(c, &q, sizeof(q), 0) > 0);
    send_reply(c, r, fds, nfds);
    return c;
}

/*
 * The inner dlock asks, and gets these replies, the first with these descriptors. True: it holds
 * the lock; else it would ask the store.
 */
static bool holds_after(const struct nested_reply *r, int nreplies, const int *fds, int nfds)
{
    int c = answer(r, fds, nfds);
    const struct dlock_report *got = next_report();
    for (int i = 1; i < nreplies && got; i++) {
        send_reply(c, r + i, NULL, 0);
        got = next_report();
    }
    CHECK(got && got->type != DLOCK_REPORT_NONE);
    bool held = got && (got->type == DLOCK_REPORT_ACQUIRED || got->type == DLOCK_REPORT_EXTENDED);
    if (got && got->type == DLOCK_REPORT_FAILED && r->type == NESTED_HELD)
        CHECK(nested_unreachable(&got->error));
    CHECK_INT(dlock_start_release(f.lk, 0, NULL), 0);
    while ((got = next_report()) && got->type != DLOCK_REPORT_RELEASED)
        ;
    close(c);
    return held;
}

TEST(a_file_is_held_only_by_its_own_descriptor_with_the_lock)
{
    for (int ofd = 0; ofd < 2; ofd++) {
        struct nested_reply r = {.type = NESTED_HELD, .left = DLOCK_NEVER};
        struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        char other[] = "/tmp/test_nested.XXXXXX";
        set_up(NULL, ofd);
        r.hold = (struct nested_hold){
            .ttl = DLOCK_NEVER, .end_at = DLOCK_NEVER, .raw_minus_boot = DLOCK_RAW_NEVER};
        int held = open(f.file, O_RDWR | O_CLOEXEC), foreign = mkstemp(other),
            unlocked = open(f.file, O_RDWR | O_CLOEXEC);
        CHECK((ofd ? fcntl(held, F_OFD_SETLK, &all) : flock(held, LOCK_EX)) == 0);
        int before = open_fds();
        CHECK(holds_after(&r, 1, &held, 1));
        CHECK(!holds_after(&r, 1, NULL, 0));
        CHECK(!holds_after(&r, 1, &foreign, 1));
        CHECK(!holds_after(&r, 1, &unlocked, 1));
        CHECK(holds_after(&r, 1, &held, 1));
        CHECK_INT(open_fds(), before);
        close(held);
        close(foreign);
        close(unlocked);
        unlink(other);
        tear_down();
    }
}

static struct nested_reply lease_reply(void)
{
    struct dlock_clocks now = dlock_clocks_read(&dlock_env_system);
    return (struct nested_reply){.type = NESTED_HELD,
                                 .left = DLOCK_NEVER,
                                 .hold = {.from = now.boot - 1,
                                          .ttl = 30 * DLOCK_SEC,
                                          .raw_minus_boot = now.raw - now.boot,
                                          .end_at = now.boot + 20 * DLOCK_SEC,
                                          .fence = 7}};
}

TEST(replies_with_numbers_that_cannot_be_true_are_refused)
{
    static const struct {
        size_t at; /* in struct nested_hold */
        int64_t value;
        bool narrow; /* of 32 bits */
    } bad[] = {
        {offsetof(struct nested_hold, from), -1, false},
        {offsetof(struct nested_hold, from), INT64_MIN, false},
        {offsetof(struct nested_hold, from), INT64_MAX, false},
        {offsetof(struct nested_hold, ttl), 0, false},
        {offsetof(struct nested_hold, ttl), INT64_MIN, false},
        {offsetof(struct nested_hold, ttl), INT64_MAX - 1, false},
        {offsetof(struct nested_hold, raw_minus_boot), INT64_MIN, false},
        {offsetof(struct nested_hold, raw_minus_boot), INT64_MAX, false},
        {offsetof(struct nested_hold, end_at), INT64_MIN, false},
        {offsetof(struct nested_hold, fence), -1, false},
        {offsetof(struct nested_hold, mode), 3, true},
        {offsetof(struct nested_hold, mode), -1, true},
        {offsetof(struct nested_hold, slots), DLOCK_SLOTS_MAX + 1, true},
        {offsetof(struct nested_hold, slot), -1, true},
        {offsetof(struct nested_hold, slot), DLOCK_SLOTS_MAX + 1, true},
    };
    struct nested_reply good, r[2];
    set_up("redis://127.0.0.1:1#n", false);
    r[0] = r[1] = good = lease_reply();
    r[1].hold.from++;
    CHECK(holds_after(r, 2, NULL, 0));
    for (size_t i = 0; i < DLOCK_LEN(bad); i++)
        for (int second = 0; second < 2; second++) {
            r[0] = r[1] = good;
            r[1].hold.from++;
            memcpy((char *)&r[second].hold + bad[i].at,
                   bad[i].narrow ? (const void *)&(int32_t){(int32_t)bad[i].value} : &bad[i].value,
                   bad[i].narrow ? sizeof(int32_t) : sizeof(int64_t));
            if (!CHECK(!holds_after(r, second + 1, NULL, 0)))
                printf("# bad[%zu], reply %d\n", i, second);
        }
    tear_down();
}

TEST(descriptors_that_belong_to_no_reply_are_closed)
{
    struct nested_reply r = {.type = NESTED_HELD, .left = DLOCK_NEVER};
    set_up(NULL, false);
    r.hold = (struct nested_hold){
        .ttl = DLOCK_NEVER, .end_at = DLOCK_NEVER, .raw_minus_boot = DLOCK_RAW_NEVER};
    int fd = open(f.file, O_RDWR | O_CLOEXEC), before = open_fds();
    CHECK(flock(fd, LOCK_EX) == 0);
    CHECK(holds_after(&r, 1, (int[]){fd, fd}, 2));
    CHECK_INT(open_fds(), before);
    r.type = NESTED_FULL;
    holds_after(&r, 1, (int[]){fd, fd}, 2);
    CHECK_INT(open_fds(), before);
    close(fd);
    tear_down();
}

static bool has_ended(int fd)
{
    return recv(fd, &(char){0}, 1, MSG_DONTWAIT) == 0;
}

/* session: the socket whose end frees the lock in the store, and the server's end. */
TEST(a_copy_of_the_session_fd_keeps_the_connection_and_the_outer_session)
{
    int session[2];
    set_up("postgres://127.0.0.1:1#n", false);
    struct nested_reply r = lease_reply();
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, session) == 0);
    int c = answer(&r, session, 1);
    close(session[0]);
    const struct dlock_report *got = next_report();
    CHECK(got && got->type == DLOCK_REPORT_ACQUIRED);
    int copy = fcntl(dlock_session_fd(f.lk), F_DUPFD_CLOEXEC, 0);
    CHECK(copy >= 0 && fcntl(dlock_session_fd(f.lk), F_GETFD) & FD_CLOEXEC);
    dlock_close(f.lk);
    f.lk = NULL;
    CHECK(!has_ended(session[1]) && !has_ended(c));
    close(copy);
    CHECK(has_ended(session[1]) && has_ended(c));
    close(session[1]);
    close(c);
    tear_down();
}

/* Without a copy for the guard the lock could end before the inner tree. */
TEST(an_inner_dlock_without_room_for_a_copy_of_the_session_fails)
{
    struct nested_reply r = lease_reply();
    struct rlimit limit;
    /* No room for the descriptor; for one end of the socket that keeps the copies; for both. */
    for (unsigned room = 0; room <= 2; room++) {
        set_up("postgres://127.0.0.1:1#n", false);
        int c = answer(&r, &(int){STDERR_FILENO}, 1), lowest = dup(STDERR_FILENO);
        close(lowest);
        CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
        setrlimit(RLIMIT_NOFILE, &(struct rlimit){(rlim_t)lowest + room, limit.rlim_max});
        const struct dlock_report *got = next_report();
        setrlimit(RLIMIT_NOFILE, &limit);
        CHECK(got && got->type == DLOCK_REPORT_FAILED && got->error.sys == EMFILE);
        close(c);
        tear_down();
    }
}

UNIT_MAIN
