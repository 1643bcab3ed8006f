/* test_slots.c - byte locks of slots, with foreign steps between two steps. Includes the source. */
#include "backends/file/flock_wait.h"

static int hooked(int fd, short type, int64_t start, int64_t len);
#define ofd_try hooked
#include "../../../lib/backends/file/slots.c"
#undef ofd_try

#include "unit.h"

#include <stdlib.h>

static void (*before_lock)(void); /* once, before the next try to lock */

static int hooked(int fd, short type, int64_t start, int64_t len)
{
    void (*step)(void) = before_lock;
    before_lock = NULL;
    if (step)
        step();
    return ofd_try(fd, type, start, len);
}

static char path[64];
static int other_fd;
static unsigned other_sees;

static int open_file(void)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        abort();
    return fd;
}

static void make_file(void)
{
    snprintf(path, sizeof(path), "/tmp/dlock-test-slots.XXXXXX");
    int fd = mkstemp(path);
    if (fd < 0)
        abort();
    close(fd);
}

static void other_registers(void)
{
    if (slots_register(other_fd, 3, &other_sees) != 0)
        abort();
}

TEST(of_two_numbers_at_the_same_time_one_is_refused)
{
    unsigned sees;
    make_file();
    int fd = open_file();
    other_fd = open_file();
    before_lock = other_registers; /* this one has looked, and seen none */
    CHECK_INT(slots_register(fd, 2, &sees), 0);
    CHECK_INT(other_sees, 0);
    CHECK_INT(sees, 3);
    /* Each sees the other now, and the refused one leaves nothing behind. */
    slots_drop(fd);
    CHECK_INT(slots_register(fd, 3, &sees), 0);
    CHECK_INT(sees, 0);
    close(fd);
    close(other_fd);
    unlink(path);
}

TEST(a_wrong_number_takes_no_lock_while_a_right_one_is_in_use)
{
    unsigned sees;
    make_file();
    int fd = open_file();
    other_fd = open_file();
    other_registers();
    before_lock = abort;
    CHECK_INT(slots_register(fd, 1000, &sees), 0);
    CHECK_INT(sees, 3);
    CHECK_INT(slots_register(fd, 1, &sees), 0);
    CHECK_INT(sees, 3);
    before_lock = NULL;
    close(fd);
    close(other_fd);
    unlink(path);
}

TEST(lists_all_holders_and_waiters_with_their_pids)
{
    struct slot_user all[2100];
    unsigned number, sees;
    int fds[40], slot = -1;
    make_file();
    for (int i = 0; i < 40; i++) {
        fds[i] = open_file();
        CHECK_INT(slots_register(fds[i], 30, &sees), 0);
        if (i < 30)
            REQUIRE_INT(slots_take(fds[i], 30, 4194304 - i, &slot), 0);
        else
            slots_show_waiter(fds[i], 7 * (50 - i));
        if (i < 30)
            CHECK_INT(slot, i);
    }
    CHECK_INT(slots_take(fds[39], 30, 1, &slot), EWOULDBLOCK);
    int fd = open_file();
    REQUIRE_INT(slots_list(fd, all, 2100, &number), 40);
    CHECK_INT(number, 30);
    for (int i = 0; i < 30; i++)
        CHECK(!all[i].waiter && all[i].slot == i && all[i].pid == 4194304 - i);
    for (int i = 30; i < 40; i++)
        CHECK(all[i].waiter && all[i].pid == 7 * (i - 19));
    CHECK_INT(slots_list(fd, all, 5, &number), 5);
    for (int i = 0; i < 40; i++)
        close(fds[i]);
    CHECK_INT(slots_list(fd, all, 2100, &number), 0);
    CHECK_INT(number, 0);
    close(fd);
    unlink(path);
}

/* The kernel reports a close just before it frees the locks. */
TEST(each_close_of_the_file_is_followed_by_four_tries)
{
    static const int after_ms[] = {0, 1, 5, 20};
    struct slot_wait w;
    int64_t at = DLOCK_SEC;
    make_file();
    int fd = open_file();
    slot_wait_start(&w, fd, at);
    for (int round = 0; round < 3; round++, at += 100 * DLOCK_MSEC) {
        if (round > 0)
            close(open_file());
        for (int i = 0; i < 4; i++) {
            int64_t due = at + after_ms[i] * DLOCK_MSEC, wake_at = DLOCK_NEVER;
            CHECK(i == 0 || !slot_wait_due(&w, due - 1));
            CHECK(slot_wait_due(&w, due));
            CHECK(!slot_wait_due(&w, due));
            slot_wait_interest(&w, NULL, 0, &wake_at);
            CHECK_INT(wake_at, i < 3 ? at + after_ms[i + 1] * DLOCK_MSEC : due + DLOCK_SEC);
        }
    }
    slot_wait_end(&w);
    close(fd);
    unlink(path);
}

UNIT_MAIN
