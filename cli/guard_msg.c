/*
 * guard_msg.c - the socket between keeper and guard: one message at a time, with a descriptor or without,
 * and never blocking. The keeper's calls are here too.
 */
#include "guard_state.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

static int passed_fd(struct msghdr *msg)
{
    struct cmsghdr *c = CMSG_FIRSTHDR(msg);
    int fd = msg->msg_flags & MSG_CTRUNC ? GUARD_PASSED_LOST : -1;
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
        c->cmsg_len == CMSG_LEN(sizeof fd))
        memcpy(&fd, CMSG_DATA(c), sizeof fd);
    return fd;
}

/* 1, 0 (none now), -1 (EOF). */
int guard_receive(int fd, struct guard_msg *m, int *passed)
{
    union {
        struct cmsghdr align;
        char buf[CMSG_SPACE(sizeof(int))];
    } control;

    for (int tries = 0; tries < 8; tries++) {
        struct iovec iov = {.iov_base = m, .iov_len = sizeof *m};
        struct msghdr msg = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
        ssize_t n = recvmsg(fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (n == (ssize_t)sizeof *m) {
            *passed = passed_fd(&msg);
            return 1;
        }
        if (n == 0)
            return -1;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return 0;
        /*
         * ECONNRESET: the other end closed with messages of ours unread. It is reported once and
         * before what the other end had sent, a DETACH for instance: read on.
         */
    }
    return -1;
}

int guard_transmit(int fd, const struct guard_msg *m, int pass)
{
    union {
        struct cmsghdr align;
        char buf[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec iov = {.iov_base = (void *)m, .iov_len = sizeof *m};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    ssize_t n;

    if (pass >= 0) {
        memset(&control, 0, sizeof control);
        control.align.cmsg_level = SOL_SOCKET;
        control.align.cmsg_type = SCM_RIGHTS;
        control.align.cmsg_len = CMSG_LEN(sizeof pass);
        memcpy(CMSG_DATA(&control.align), &pass, sizeof pass);
        msg.msg_control = &control;
        msg.msg_controllen = sizeof control;
    }
    do
        n = sendmsg(fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : 0;
}

void guard_flush(struct guard_state *g)
{
    for (int i = 0; i < GUARD_OUT_COUNT && !g->keeper_gone; i++) {
        if (!(g->pending & 1U << i))
            continue;
        /* A keeper that is gone shows in guard_receive(), behind what it sent last. */
        if (guard_transmit(g->sock, &g->out[i], -1) == -EAGAIN)
            return;
        g->pending &= ~(1U << i);
    }
}

void guard_post(struct guard_state *g, int type, int arg)
{
    int i = type - GUARD_OUT_FIRST;

    g->out[i] = (struct guard_msg){.type = type, .arg = arg};
    if (g->lease_over)
        g->out[i].flags |= GUARD_TIMED_OUT;
    g->pending |= 1U << i;
    guard_flush(g);
}

int guard_send(const struct guard *g, const struct guard_msg *m, int pass)
{
    return guard_transmit(g->fd, m, pass);
}

int guard_recv(const struct guard *g, struct guard_msg *m)
{
    int fd;
    return guard_receive(g->fd, m, &fd); /* the guard passes none */
}
