/* scripted.h - a server on a loopback port that says what a test tells it to, without a thread. */
#ifndef SCRIPTED_H
#define SCRIPTED_H

#include "backend.h"

#include <arpa/inet.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SECS(n) (dlock_now() + DLOCK_SEC * (n))

struct server {
    int lfd, cfd;
    int accepted; /* connections so far */
    struct dlock_peer peer;
    char got[65536]; /* what the client has sent */
    size_t len;
    size_t seen; /* as far as a test has answered it */
};

__attribute__((unused)) static bool server_open(struct server *s)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(in);
    memset(s, 0, sizeof(*s));
    s->cfd = -1;
    s->lfd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s->lfd < 0 || bind(s->lfd, (struct sockaddr *)&in, sizeof(in)) != 0 ||
        listen(s->lfd, 4) != 0 || getsockname(s->lfd, (struct sockaddr *)&in, &len) != 0)
        return false;
    memcpy(&s->peer.addr, &in, sizeof(in));
    s->peer.len = sizeof(in);
    return true;
}

__attribute__((unused)) static void server_step(struct server *s)
{
    if (s->cfd < 0) {
        s->cfd = accept4(s->lfd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (s->cfd < 0)
            return;
        s->accepted++;
    }
    ssize_t n = recv(s->cfd, s->got + s->len, sizeof(s->got) - 1 - s->len, MSG_DONTWAIT);
    if (n > 0) {
        s->len += (size_t)n;
    } else if (n == 0) { /* the client has hung up: the next connection */
        close(s->cfd);
        s->cfd = -1;
    }
}

__attribute__((unused)) static void server_say(struct server *s, const char *text, size_t len)
{
    (void)!send(s->cfd, text, len, MSG_NOSIGNAL);
}

__attribute__((unused)) static void server_close(struct server *s)
{
    if (s->cfd >= 0)
        close(s->cfd);
    close(s->lfd);
}

#endif
