/*
 * guard.c - the guard's messages: what the guard does by any that come over its socket, and what
 * the keeper takes from its end. The guard's source is included, with the steps that make, end or
 * watch processes replaced: no process is started and no signal is sent.
 *
 * The input: messages of one byte with its bits (see next()), a type, a byte with the number of
 * bytes that follow, and these; the rest of a message is zero.
 */
#include "fuzz.h"

#include "proc.h"
#include "process_tree.h"
#include "spawn.h"

#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static jmp_buf exited;

static int no_signal(pid_t pid, int sig)
{
    (void)pid;
    FUZZ_HOLDS(sig > 0);
    return 0;
}
/* The command's environment says what it was granted. */
static pid_t start_none(const struct spawn *s)
{
    static char buf[HELD_SIZE];
    const struct spawn_grant *g = &s->grant;
    FUZZ_HOLDS(g->nheld >= 0 && g->nheld <= DLOCK_SET_MAX);
    FUZZ_HOLDS(strnlen(g->token, sizeof(g->token)) < sizeof(g->token));
    FUZZ_HOLDS(strlen(held_add(buf, NULL, g->held, g->nheld)) < sizeof(buf));
    return 4194305; /* above all pids */
}

#define kill(pid, sig) no_signal(pid, sig)
#define getpgid(pid) (-1)
#define waitpid(pid, status, how) (*(status) = 0, (pid_t)-1)
#define timer_settime(timer, how, when, old) (void)(when)
#define timerfd_settime(fd, how, when, old) (void)(when)
#define process_tree_kill(refused) ((refused) != NULL ? -1 : 1)
#define process_tree_term(until) ((until) == 0 ? -1 : 1)
#define process_tree_living() ((pid_t)0)
#define sched_setscheduler(pid, how, param) ((param) == NULL)
#define setpriority(which, who, value) (void)(value)
#define clone(main, stack, flags, arg) ((void)(main), (void)(stack), (void)(arg), (pid_t)-1)
#define proc_read_signals(pid, signals) ((void)(signals), false)
#define spawn_command(child, spawn, fd) (*(fd) = -1, start_none(spawn))
#define spawn_ahead(child, spawn) (0)
#define spawn_drop(child) ((child)->pid = 0)
#define fds_let_go(keep, n) FUZZ_HOLDS(((keep)[(n)-1], (n) > 0))
#define memory_let_go() (void)0
#define setsid() (void)0
#define chdir(dir) (0)
#define fork() (-1)
#define _exit(code) longjmp(exited, 1)
#pragma GCC diagnostic ignored "-Wunused-value"
#include "../../cli/guard.c"

/* Bits: 1 passes a descriptor, 2 cuts the message, 4 gives it endless times, 8 late ones. */
static size_t next(struct fuzz *f, struct guard_msg *m, bool *pass)
{
    unsigned bits = fuzz_byte(f);
    int type = (int)fuzz_byte(f) - '0';
    size_t n = fuzz_byte(f);
    fuzz_fill(f, m, n < sizeof(*m) ? n : sizeof(*m));
    m->type = type == G_DETACH || type > G_UNFIT ? m->type : type;
    /* The keeper ends its texts, and its times are from the lease. */
    m->term_at &= INT64_MAX;
    m->kill_at &= INT64_MAX;
    m->hard_at &= INT64_MAX;
    m->signal.at &= INT64_MAX;
    m->raw_minus_boot = dlock_max(-DLOCK_RAW_NEVER, dlock_min(m->raw_minus_boot, DLOCK_RAW_NEVER));
    m->token[DLOCK_TOKEN_LEN] = m->held.token[DLOCK_TOKEN_LEN] = '\0';
    m->held.socket[NESTED_SOCKET_MAX] = '\0';
    if (bits & 4)
        m->term_at = m->kill_at = m->hard_at = DLOCK_NEVER;
    if (bits & 12)
        m->raw_minus_boot = DLOCK_RAW_NEVER;
    *pass = bits & 1;
    return bits & 2 ? n % sizeof(*m) : sizeof(*m);
}

/* Until the guard exits. */
static void talk(struct guard_state *g, struct guard *keeper, struct fuzz *f)
{
    struct guard_msg m;
    bool pass;
    if (setjmp(exited) != 0)
        return;
    for (int i = 0; i < 40 && f->n > 0; i++) {
        size_t n = next(f, &m, &pass);
        if (n > 0)
            fds_send(keeper->fd, &m, n, pass ? keeper->fd : -1);
        turn(g);
        set_wake(g);
        while (guard_recv(keeper, &m) == 1)
            FUZZ_HOLDS(m.type >= G_KILLED && m.type <= G_UNFIT);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct guard_state g;
    static const struct sigstate sig;
    static const struct guard_config cfg = {.sig = &sig, .name = "n"};
    int ends[2];
    FUZZ_HOLDS(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    g = (struct guard_state){.sigfd = -1, .timerfd = -1};
    describe(&g, &cfg, ends[1]);
    talk(&g, &(struct guard){.fd = ends[0]}, &(struct fuzz){data, size});
    for (int i = 0; i < g.nlock_fds; i++)
        close(g.lock_fds[i]);
    close(ends[0]);
    close(ends[1]);
    return 0;
}
