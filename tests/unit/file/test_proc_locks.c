/* test_proc_locks.c - lines of /proc/locks. The source is included. */
#include "../../../lib/backends/file/proc_locks.c"

#include "unit.h"

TEST(reads_holders_and_waiters)
{
    const struct proc_locks_file lf = {.dev = makedev(0xfe, 0), .ino = 10952787};
    struct proc_lock l;

    REQUIRE(parse_line("1: FLOCK  ADVISORY  WRITE 5192 fe:00:10952787 0 EOF\n", &lf, &l));
    CHECK_INT(l.pid, 5192);
    CHECK(!l.waiter && !l.shared);
    REQUIRE(parse_line("1:  -> FLOCK  ADVISORY  READ 5194 fe:00:10952787 0 EOF\n", &lf, &l));
    CHECK_INT(l.pid, 5194);
    CHECK(l.waiter && l.shared);
    CHECK(!parse_line("1: POSIX  ADVISORY  WRITE 5192 fe:00:10952787 0 EOF\n", &lf, &l));
    CHECK(!parse_line("1: FLOCK  ADVISORY  WRITE 5192 fe:01:10952787 0 EOF\n", &lf, &l));
}

TEST(inode_and_device_numbers_have_64_bits)
{
    /* XFS, NFS and FUSE have such inodes; more than 256 majors and minors come with many disks. */
    const struct proc_locks_file lf = {.dev = makedev(0x103, 0x12345),
                                       .ino = (ino_t)UINT64_C(0x300000007)};
    struct proc_lock l;

    CHECK(parse_line("1: FLOCK  ADVISORY  WRITE 5192 103:12345:12884901895 0 EOF\n", &lf, &l));
    CHECK(!parse_line("1: FLOCK  ADVISORY  WRITE 5192 103:12345:7 0 EOF\n", &lf, &l));
    CHECK(!parse_line("1: FLOCK  ADVISORY  WRITE 5192 03:45:12884901895 0 EOF\n", &lf, &l));
}

TEST(reads_leases_that_keep_others_out)
{
    const struct proc_locks_file lf = {
        .dev = makedev(0xfe, 0), .ino = 10952787, .kind = PROC_LOCKS_LEASE};
    struct proc_lock l;

    REQUIRE(parse_line("1: LEASE  ACTIVE    WRITE 5192 fe:00:10952787 0 EOF\n", &lf, &l));
    CHECK_INT(l.pid, 5192);
    /* Asked to let others read: until it does, they cannot open the file. */
    REQUIRE(parse_line("1: LEASE  BREAKING  READ 5192 fe:00:10952787 0 EOF\n", &lf, &l));
    CHECK(!l.shared);
    CHECK(!parse_line("1: LEASE  ACTIVE    READ 5192 fe:00:10952787 0 EOF\n", &lf, &l));
    CHECK(!parse_line("1: FLOCK  ADVISORY  WRITE 5192 fe:00:10952787 0 EOF\n", &lf, &l));
}

TEST(reads_fcntl_locks)
{
    const struct proc_locks_file lf = {
        .dev = makedev(0xfe, 0), .ino = 10952787, .kind = PROC_LOCKS_FCNTL};
    struct proc_lock l;

    REQUIRE(parse_line("1: OFDLCK ADVISORY  WRITE -1 fe:00:10952787 0 EOF\n", &lf, &l));
    CHECK_INT(l.pid, -1);
    CHECK(!l.waiter && !l.shared);
    REQUIRE(parse_line("2:  -> POSIX  ADVISORY  READ 5192 fe:00:10952787 100 199\n", &lf, &l));
    CHECK_INT(l.pid, 5192);
    CHECK(l.waiter && l.shared);
    CHECK(!parse_line("1: FLOCK  ADVISORY  WRITE 5192 fe:00:10952787 0 EOF\n", &lf, &l));
    CHECK(!parse_line("1: LEASE  ACTIVE    WRITE 5192 fe:00:10952787 0 EOF\n", &lf, &l));
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

UNIT_MAIN
