/*
 * conn_io.c - what goes over a connection's socket: commands are queued and written, bytes are read; in the clear
 * or through TLS. Nothing here waits.
 */
#include "conn.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* ------------------------------------------------------------------- sending */

static bool out_reserve(struct redis_conn *c, size_t more)
{
    size_t size = c->out_size > 0 ? c->out_size : 4096;
    if (c->out_len + more <= c->out_size)
        return true;
    while (size < c->out_len + more)
        size *= 2;
    char *p = malloc(size);
    if (p == NULL)
        return false;
    if (c->out_len > 0)
        memcpy(p, c->out, c->out_len);
    if (c->out != NULL) {
        explicit_bzero(c->out,
                       c->out_size); /* AUTH went through here: realloc would leave a copy */
        free(c->out);
    }
    c->out = p;
    c->out_size = size;
    return true;
}

int redis_conn_send(struct redis_conn *c, int tag, int argc, const char **argv, const size_t *len)
{
    char *cmd = NULL;
    long long n = -1; /* hiredis 1.1: long long, int before */

    if (!redis_conn_is_open(c))
        return DLOCK_EUNAVAIL;
    if (c->ntags < REDIS_CONN_TAGS)
        n = redisFormatCommandArgv(&cmd, argc, argv, len);
    if (n < 0 || !out_reserve(c, (size_t)n)) {
        redisFreeCommand(cmd);
        return redis_conn_fail(c, DLOCK_ENOMEM, 0, "out of memory");
    }
    memcpy(c->out + c->out_len, cmd, (size_t)n);
    c->out_len += (size_t)n;
    if (tag == REDIS_CONN_AUTH)
        explicit_bzero(cmd, (size_t)n);
    redisFreeCommand(cmd);
    c->tags[c->ntags++] = (struct redis_conn_tag){.tag = tag};
    return 0;
}

/* The same through TLS. What is encrypted cannot be taken back: all of it is. */
static void flush_tls(struct redis_conn *c)
{
    struct dlock_error err;
    int rc = c->tls->table->encrypt(c->session, c->out, c->out_len, &err);
    if (c->out_len > 0)
        explicit_bzero(c->out, c->out_len);
    c->out_len = 0;
    if (rc != 0)
        redis_conn_fail(c, rc, 0, err.msg);
    else if (tls_send(c->tls, c->session, c->fd))
        c->written = true;
}

static bool has_output(const struct redis_conn *c)
{
    return c->out_len > 0 || (c->session != NULL && tls_has_output(c->tls, c->session));
}

void redis_conn_flush(struct redis_conn *c)
{
    if (c->state != RC_UP || !has_output(c))
        return;
    /* The lease counts from before the first byte could have left. */
    int64_t now = c->env->now(c->env->ctx);
    for (int i = 0; i < c->ntags; i++)
        if (c->tags[i].sent == 0)
            c->tags[i].sent = now;
    size_t done = 0;
    if (c->session != NULL) {
        flush_tls(c);
        return;
    }
    while (done < c->out_len) {
        ssize_t n = send(c->fd, c->out + done, c->out_len - done, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            break;
        if (n < 0) {
            /* Left for redis_conn_work: the server may have said why ("max number of clients"). */
            done = c->out_len;
            break;
        }
        done += (size_t)n;
        c->written = true;
    }
    memmove(c->out, c->out + done, c->out_len - done);
    explicit_bzero(c->out + c->out_len - done, done);
    c->out_len -= done;
}

bool redis_conn_waits(const struct redis_conn *c, int tag)
{
    for (int i = 0; i < c->ntags; i++)
        if (c->tags[i].tag == tag)
            return true;
    return false;
}

int redis_conn_interest(const struct redis_conn *c, struct pollfd *pfd, int64_t *wake_at)
{
    if (!redis_conn_is_open(c) || c->state == RC_WAITING) {
        if (c->state == RC_FAILED)
            *wake_at = 0;
        return 0;
    }
    pfd->fd = c->fd;
    pfd->events = c->state == RC_CONNECTING ? POLLOUT : POLLIN;
    if (c->state == RC_HANDSHAKE ? tls_has_output(c->tls, c->session)
                                 : c->state == RC_UP && has_output(c))
        pfd->events |= POLLOUT;
    pfd->revents = 0;
    if (redis_conn_is_connecting(c))
        *wake_at = dlock_min(*wake_at, c->next_at);
    return 1;
}

/* ----------------------------------------------------------------- receiving */

ssize_t redis_conn_receive(struct redis_conn *c, char *buf, size_t size)
{
    struct dlock_error err;
    ssize_t n;
    if (c->session != NULL) {
        n = tls_receive(c->tls, c->session, c->fd, buf, size, &c->fed, REDIS_CONN_MAX_REPLY, &err);
        if (n < 0)
            redis_conn_fail(c, (int)n, 0, err.msg);
        return n;
    }
    if (c->fed > REDIS_CONN_MAX_REPLY)
        return 0;
    do
        n = recv(c->fd, buf, size, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return 0;
    if (n < 0)
        return redis_conn_fail(c, DLOCK_EUNAVAIL, errno, "connection lost");
    if (n == 0)
        return redis_conn_fail(c, DLOCK_EUNAVAIL, 0, "the server closed the connection");
    c->fed += (size_t)n;
    return n;
}
