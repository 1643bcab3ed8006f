/*
 * words.h - the four-letter words: what a server says of itself, in plain text, over a connection
 * without a session. A server answers only the words that its 4lw.commands.whitelist has.
 */
#ifndef DLOCK_ZK_WORDS_H
#define DLOCK_ZK_WORDS_H

#include "backend.h"

#define ZK_WORDS_MAX 4096

struct zk_words {
    int fd; /* -1: nothing is asked */
    const char *word;
    bool sent;
    int64_t until;
    int error; /* an errno; 0: the answer, perhaps empty, is in text */
    size_t len;
    char text[ZK_WORDS_MAX];
};

/* Ask a server for a word, which lives on, until that time. w->fd must be -1. */
void zk_words_ask(struct zk_words *w, const struct dlock_peer *, const char *word, int64_t until);
/* Go on. True: the answer is there, or there is none. */
bool zk_words_over(struct zk_words *w, int64_t now);
/* What to poll for while fd is not -1. */
short zk_words_events(const struct zk_words *w);
void zk_words_end(struct zk_words *w);

#endif
