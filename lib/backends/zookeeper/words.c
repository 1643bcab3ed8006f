/* words.c - see words.h. */
#include "words.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

void zk_words_end(struct zk_words *w)
{
    if (w->fd >= 0)
        close(w->fd);
    w->fd = -1;
}

void zk_words_ask(struct zk_words *w, const struct dlock_peer *peer, const char *word,
                  int64_t until)
{
    *w = (struct zk_words){.word = word, .until = until};
    w->fd = socket(peer->addr.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (w->fd < 0 || (connect(w->fd, (const struct sockaddr *)&peer->addr, peer->len) != 0 &&
                      errno != EINPROGRESS))
        w->error = errno;
}

short zk_words_events(const struct zk_words *w)
{
    return w->sent ? POLLIN : POLLOUT;
}

/* The connection is made, or refused, when the word can be sent. */
static bool send_word(struct zk_words *w)
{
    ssize_t n = send(w->fd, w->word, strlen(w->word), MSG_NOSIGNAL);
    if (n >= 0)
        w->sent = true;
    else if (errno != EAGAIN && errno != EINTR && errno != ENOTCONN)
        w->error = errno;
    return w->sent;
}

bool zk_words_over(struct zk_words *w, int64_t now)
{
    while (w->error == 0 && (w->sent || send_word(w))) {
        size_t room = sizeof(w->text) - 1 - w->len;
        ssize_t n = room > 0 ? recv(w->fd, w->text + w->len, room, 0) : 0;
        if (n == 0) /* the server hangs up behind its answer */
            return true;
        if (n > 0)
            w->len += (size_t)n;
        else if (errno == EAGAIN)
            break;
        else if (errno != EINTR)
            w->error = errno;
    }
    if (w->error == 0 && now >= w->until)
        w->error = ETIMEDOUT;
    return w->error != 0;
}
