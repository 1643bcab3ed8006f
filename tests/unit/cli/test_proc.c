/* test_proc.c - the kernel's numbers have 64 bits, those of a 32-bit dlock's machine too. The source is included. */
#include "../../../cli/proc.c"

#include "unit.h"

static bool parse(const char *text, struct proc_stat *st)
{
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) != 0 ||
        write(ends[1], text, strlen(text)) != (ssize_t)strlen(text) || close(ends[1]) != 0)
        abort();
    return parse_stat(ends[0], st);
}

/* A process of 64 bits: proc(5) fields 22 (starttime), 23 (vsize) and 51 (env_end). */
#define STAT(start, vsize, env_end)                                                                \
    "4194303 (a) b (c) S 77 1 1 0 -1 4194560 99 0 0 0 1 2 0 0 20 0 3 0 " start " " vsize           \
    " 215 18446744073709551615 1 1 1 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0 1 2 3 4 5 6 " env_end " 0\n"

TEST(start_times_beyond_32_bits_name_one_process)
{
    struct proc_stat st, later;

    REQUIRE(parse(STAT("68719476737", "5672960", "140736414613496"), &st));
    REQUIRE(parse(STAT("137438953473", "5672960", "140736414613496"), &later));
    CHECK_INT(st.pid, 4194303);
    CHECK_INT(st.ppid, 77);
    CHECK_INT(st.threads, 3);
    CHECK_INT(st.state, 'S');
    CHECK(st.start == UINT64_C(68719476737));
    CHECK(st.start != later.start);
}

TEST(a_process_of_64_bits_has_memory_and_an_environment)
{
    struct proc_stat st;

    REQUIRE(parse(STAT("1", "4294967296", "140733193388032"), &st));
    CHECK(st.mapped);
    CHECK(st.environment);
    REQUIRE(parse(STAT("1", "3221225472", "140736414613496"), &st));
    CHECK(st.mapped);
    CHECK(st.environment);
    REQUIRE(parse(STAT("1", "0", "0"), &st));
    CHECK(!st.mapped);
    CHECK(!st.environment);
}

UNIT_MAIN
