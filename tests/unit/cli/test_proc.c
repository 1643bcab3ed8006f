/*
 * test_proc.c - the kernel's numbers have 64 bits, those of a 32-bit dlock's machine too. The
 * source is included.
 */
#include "../../../cli/proc.c"

#include "unit.h"

static int file_of(const char *text)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0 ||
        write(ends[1], text, strlen(text)) != (ssize_t)strlen(text) || close(ends[1]) != 0)
        abort();
    return ends[0];
}

static bool parse(const char *text, struct proc_stat *st)
{
    return parse_stat(file_of(text), st);
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

TEST(a_process_of_64_bits_has_memory)
{
    struct proc_stat st;
    REQUIRE(parse(STAT("1", "4294967296", "140733193388032"), &st));
    CHECK(st.mapped);
    REQUIRE(parse(STAT("1", "3221225472", "140736414613496"), &st));
    CHECK(st.mapped);
    REQUIRE(parse(STAT("1", "0", "0"), &st));
    CHECK(!st.mapped);
}

static bool parse_status(const char *text, struct proc_signals *s)
{
    return parse_signals(file_of(text), s);
}

#define STATUS(state, more)                                                                        \
    "Name:\tSigCgt: 0\nState:\t" state "\nTgid:\t7\n" more                                         \
    "SigQ:\t1/95848\nSigPnd:\t0000000000000001\nShdPnd:\t0000000000004000\n"                       \
    "SigBlk:\t0000000000010000\nSigIgn:\t8000000000000002\nSigCgt:\t00000001800004ec\nCapInh:\t0\n"

TEST(tells_what_a_process_does_with_its_signals)
{
    struct proc_signals s;
    REQUIRE(parse_status(STATUS("S (sleeping)", "VmSize:\t   9 kB\nCoreDumping:\t0\n"), &s));
    CHECK(s.living);
    CHECK(s.pending == 0x4001 && s.blocked == 0x10000);
    CHECK(s.ignored == UINT64_C(0x8000000000000002) && s.caught == 0x1800004ec);
    REQUIRE(parse_status(STATUS("T (stopped)", "VmSize:\t   9 kB\n"), &s));
    CHECK(s.living);
    CHECK(!parse_status("Name:\tx\nState:\tS (sleeping)\nVmSize:\t   9 kB\n", &s));
    CHECK(!parse_status("", &s));
    CHECK(!parse_signals(-1, &s));
}

TEST(a_process_that_is_dying_is_not_living)
{
    struct proc_signals s;
    REQUIRE(parse_status(STATUS("Z (zombie)", ""), &s));
    CHECK(!s.living);
    REQUIRE(parse_status(STATUS("R (running)", ""), &s)); /* it has given its memory back */
    CHECK(!s.living);
    REQUIRE(parse_status(STATUS("D (disk sleep)", "VmSize:\t   9 kB\nCoreDumping:\t1\n"), &s));
    CHECK(!s.living);
    REQUIRE(parse_status(STATUS("t (tracing stop)", "VmSize:\t   9 kB\n"), &s));
    CHECK(!s.living);
}

static struct proc_signals call(const char *text)
{
    struct proc_signals s;
    parse_call(file_of(text), &s);
    return s;
}

TEST(tells_a_wait_for_signals_from_other_waits)
{
    char sigwait[64];
    snprintf(sigwait, sizeof sigwait, "%d 0x7ffd 0x0 0x0 0x8 0x7ffd 0x7f\n",
             (int)SYS_rt_sigtimedwait);
    CHECK(call(sigwait).waits && call(sigwait).asleep);
    CHECK(call("35 0x7ffd 0x0\n").asleep && !call("35 0x7ffd 0x0\n").waits);
    CHECK(!call("running\n").asleep && !call("").asleep);
    CHECK(!call("-1 0x7ffd 0x7f\n").asleep);
}

UNIT_MAIN
