/* test_proc_locks.c - lines of /proc/locks. The source is included. */
#include "../../../lib/backends/file/proc_locks.c"

#include "unit.h"

/* XFS, NFS and FUSE have inodes of 64 bits; many disks have more than 256 majors and minors. */
TEST(reads_holders_waiters_leases_and_fcntl_locks)
{
    enum { FLOCK, FCNTL, LEASE, BIG };
    const struct proc_locks_file files[] = {
        [FLOCK] = {.dev = makedev(0xfe, 0), .ino = 10952787},
        [FCNTL] = {.dev = makedev(0xfe, 0), .ino = 10952787, .kind = PROC_LOCKS_FCNTL},
        [LEASE] = {.dev = makedev(0xfe, 0), .ino = 10952787, .kind = PROC_LOCKS_LEASE},
        [BIG] = {.dev = makedev(0x103, 0x12345), .ino = (ino_t)UINT64_C(0x300000007)},
    };
    static const char FREE[] = "", HELD[] = "held", SHARED[] = "shared", WAITS[] = "shared waiter";
    const struct {
        int file;
        const char *line, *is;
    } cases[] = {
        {FLOCK, "FLOCK  ADVISORY  WRITE 5192 fe:00:10952787 0 EOF", HELD},
        {FLOCK, " -> FLOCK  ADVISORY  READ 5192 fe:00:10952787 0 EOF", WAITS},
        {FLOCK, "POSIX  ADVISORY  WRITE 5192 fe:00:10952787 0 EOF", FREE},
        {FLOCK, "FLOCK  ADVISORY  WRITE 5192 fe:01:10952787 0 EOF", FREE},
        {BIG, "FLOCK  ADVISORY  WRITE 5192 103:12345:12884901895 0 EOF", HELD},
        {BIG, "FLOCK  ADVISORY  WRITE 5192 103:12345:7 0 EOF", FREE},
        {BIG, "FLOCK  ADVISORY  WRITE 5192 03:45:12884901895 0 EOF", FREE},
        /* Leases that let no other process open the file; BREAKING: asked to let others read. */
        {LEASE, "LEASE  ACTIVE    WRITE 5192 fe:00:10952787 0 EOF", HELD},
        {LEASE, "LEASE  BREAKING  READ 5192 fe:00:10952787 0 EOF", HELD},
        {LEASE, "LEASE  ACTIVE    READ 5192 fe:00:10952787 0 EOF", FREE},
        {LEASE, "FLOCK  ADVISORY  WRITE 5192 fe:00:10952787 0 EOF", FREE},
        {FCNTL, "OFDLCK ADVISORY  WRITE 5192 fe:00:10952787 0 EOF", HELD},
        {FCNTL, " -> POSIX  ADVISORY  READ 5192 fe:00:10952787 100 199", WAITS},
        {FCNTL, "POSIX  ADVISORY  READ 5192 fe:00:10952787 100 199", SHARED},
        {FCNTL, "FLOCK  ADVISORY  WRITE 5192 fe:00:10952787 0 EOF", FREE},
        {FCNTL, "LEASE  ACTIVE    WRITE 5192 fe:00:10952787 0 EOF", FREE},
    };
    struct proc_lock l;
    char line[128];
    for (size_t i = 0; i < DLOCK_LEN(cases); i++) {
        snprintf(line, sizeof(line), "1: %s\n", cases[i].line);
        bool found = parse_line(line, &files[cases[i].file], &l);
        CHECK_STR(!found                 ? FREE
                  : l.waiter && l.shared ? WAITS
                  : l.shared             ? SHARED
                                         : HELD,
                  cases[i].is);
        CHECK(!found || l.pid == 5192);
    }
    REQUIRE(parse_line("1: OFDLCK ADVISORY  WRITE -1 fe:00:10952787 0 EOF\n", &files[FCNTL], &l));
    CHECK_INT(l.pid, -1);
}

TEST(names_one_process_for_several_open_file_descriptions)
{
    struct proc_lock all[] = {{.pid = -1},
                              {.pid = 7},
                              {.pid = -1},
                              {.pid = -1, .waiter = true},
                              {.pid = 8, .waiter = true}};
    settle_pids(all, 3, 5);
    CHECK(all[0].pid == -1 && !all[0].unnamed); /* to be looked for */
    CHECK(all[1].pid == 7 && !all[1].unnamed);
    CHECK(all[2].pid == 0 && all[2].unnamed);
    CHECK(all[3].pid == 0 && all[3].unnamed);
    CHECK(all[4].pid == 8 && !all[4].unnamed);
}

/* As sorted by proc_locks_read_all(). */
TEST(picks_the_locks_of_one_file_holders_first)
{
    struct proc_lock at[] = {
        {.ino = 5, .pid = 1},
        {.ino = 7, .pid = 2, .shared = true},
        {.ino = 7, .pid = 3, .waiter = true},
        {.ino = 7, .pid = 4, .shared = true},
        {.ino = 7, .pid = 2, .waiter = true},
        {.ino = 9, .pid = 6},
    };
    struct proc_locks_all all = {.at = at, .n = DLOCK_LEN(at)};
    struct proc_lock out[8];
    REQUIRE(proc_locks_pick(&all, 7, out, 8) == 4);
    CHECK(out[0].pid == 2 && out[1].pid == 4 && !out[1].waiter);
    CHECK(out[2].pid == 3 && out[2].place == 1);
    CHECK(out[3].pid == 2 && out[3].place == 2);
    CHECK_INT(proc_locks_pick(&all, 7, out, 1), 1);
    CHECK_INT(proc_locks_pick(&all, 9, out, 8), 1);
    CHECK_INT(out[0].pid, 6);
    CHECK_INT(proc_locks_pick(&all, 6, out, 8), 0);
    CHECK_INT(proc_locks_pick(&all, 10, out, 8), 0);
    CHECK_INT(proc_locks_pick(&(struct proc_locks_all){0}, 7, out, 8), 0);
}

TEST(notes_a_carrier_once_for_each_lock_that_it_took)
{
    struct proc_lock at[] = {
        {.ino = 7, .pid = 2, .shared = true},
        {.ino = 7, .pid = 2, .waiter = true},
        {.ino = 7, .pid = 2, .shared = true},
        {.ino = 7, .pid = 3, .shared = true},
    };
    struct proc_locks_all all = {.at = at, .n = DLOCK_LEN(at)};
    const struct proc_lock taken = {.ino = 7, .pid = 2};
    note_carrier(&all, &taken, 50);
    note_carrier(&all, &taken, 51);
    note_carrier(&all, &taken, 52);
    CHECK_INT(at[0].carrier, 50);
    CHECK_INT(at[1].carrier, 0);
    CHECK_INT(at[2].carrier, 51);
    CHECK_INT(at[3].carrier, 0);
}

UNIT_MAIN
