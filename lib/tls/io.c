/* io.c - TLS on a connection's socket. See tls.h. */
#include "tls.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

bool tls_send(const struct tls_config *cfg, struct tls *t, int fd)
{
    bool left = false;
    const char *p;
    size_t len;
    while ((len = cfg->table->wire(t, &p)) > 0) {
        ssize_t n = send(fd, p, len, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && dlock_may_send_later(errno))
            break;
        left = left || n > 0;
        cfg->table->sent(t, n < 0 ? len : (size_t)n);
    }
    return left;
}

/* One read from the socket. 1: bytes came; 0: none now. */
static int take_wire(const struct tls_config *cfg, struct tls *t, const struct tls_socket *from,
                     const char *when, struct dlock_error *err)
{
    char buf[16384];
    ssize_t n;
    do
        n = recv(from->fd, buf, sizeof(buf), MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return 0;
    if (n == 0)
        return dlock_fail(err, DLOCK_EUNAVAIL, 0, "the server closed the connection%s", when);
    if (n < 0)
        return dlock_fail(err, DLOCK_EUNAVAIL, errno, "connection lost%s: %s", when,
                          strerror(errno));
    *from->got += (size_t)n;
    int rc = cfg->table->feed(t, buf, (size_t)n, err);
    return rc == 0 ? 1 : rc;
}

int tls_shake(const struct tls_config *cfg, struct tls *t, const struct tls_socket *from,
              struct dlock_error *err)
{
    for (;;) {
        int rc = cfg->table->handshake(t, err);
        (void)tls_send(cfg, t, from->fd); /* also after a failure: the server logs our alert */
        if (rc != 0)
            return rc;
        if (*from->got > from->limit)
            return dlock_fail(err, DLOCK_EUNAVAIL, 0, "the TLS handshake exceeded 256 KiB");
        rc = take_wire(cfg, t, from, " during the TLS handshake (does it speak TLS on this port?)",
                       err);
        if (rc <= 0)
            return rc;
    }
}

int tls_receive(const struct tls_config *cfg, struct tls *t, const struct tls_socket *from,
                void *buf, size_t size, struct dlock_error *err)
{
    for (;;) {
        int n = cfg->table->decrypt(t, buf, size, err);
        if (n != 0)
            return n;
        if (*from->got > from->limit)
            return 0;
        n = take_wire(cfg, t, from, "", err);
        if (n <= 0)
            return n;
    }
}
