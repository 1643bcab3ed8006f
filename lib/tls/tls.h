/*
 * tls.h - TLS for connections to Redis, in three parts.
 *
 * config.c reads the URI's parameters and their files; openssl.c has OpenSSL below it and so is a module,
 * loaded by the first; it works on memory only. io.c stands between the two and a socket, which stays
 * the connection's own (redis_conn*.c), with its time-outs and flags.
 *
 * Nothing of the caller's is encrypted before the handshake is complete, and the handshake is complete only
 * when the server's certificate has been verified.
 */
#ifndef DLOCK_RTLS_H
#define DLOCK_RTLS_H

#include "util.h"

#define TLS_ABI                                                                                    \
    1001 /* apart from DLOCK_BACKEND_ABI: a module of another kind is told by its number */
#define TLS_MAX_HANDSHAKE ((size_t)256 * 1024)

struct tls;     /* one connection; the module's */
struct tls_ctx; /* what all connections of a lock have in common; the module's */

/* A file in memory. */
struct tls_pem {
    const char *path; /* for messages; NULL: there is none. Not owned */
    char *text;
    size_t len;
};

struct tls_setup {
    struct tls_pem ca, cert, key; /* ca: none means the system's */
    bool insecure;                /* verify nothing */
};

/* Errors of ctx_new are complete; those of a connection lack where, which is the caller's to put in front. */
struct tls_table {
    unsigned abi;
    const char *build_id;

    /* 0, DLOCK_EUSAGE (a file is not what it should be), DLOCK_ENOMEM. setup can go afterwards. */
    int (*ctx_new)(struct tls_ctx **, const struct tls_setup *, struct dlock_error *);
    void (*ctx_free)(struct tls_ctx *);

    /* A new connection to the server of that name (or address), which is sent and verified. 0, DLOCK_EUSAGE, DLOCK_ENOMEM. */
    int (*start)(struct tls **, struct tls_ctx *, const char *name, struct dlock_error *);
    void (*end)(struct tls *);

    /* Bytes that came from the server. 0, DLOCK_ENOMEM, or DLOCK_EUNAVAIL: that is no TLS. */
    int (*feed)(struct tls *, const void *, size_t, struct dlock_error *);
    /* What is to be sent to the server, valid until the next call, and how much of it has been. */
    size_t (*wire)(struct tls *, const char **);
    void (*sent)(struct tls *, size_t);

    /* 1: complete and verified; 0: feed it; DLOCK_EUNAVAIL: no; DLOCK_EPERM: our certificate is refused. */
    int (*handshake)(struct tls *, struct dlock_error *);
    /* After the handshake: encrypt all of it (to wire). 0 or a negative code. */
    int (*encrypt)(struct tls *, const void *, size_t, struct dlock_error *);
    /* What has been decrypted, at most size bytes; 0: feed it; negative codes as of handshake. */
    int (*decrypt)(struct tls *, void *, size_t size, struct dlock_error *);
    /* Say (to wire) that nothing more comes. */
    void (*bye)(struct tls *);
};

#ifdef DLOCK_MODULE
#define TLS_SYMBOL dlock_module
#else
#define TLS_SYMBOL dlock_rtls
#endif
extern const struct tls_table TLS_SYMBOL;

/* How a lock's connections speak TLS. */
struct tls_config {
    const struct tls_table *table;
    struct tls_ctx *ctx;
    const char *sni; /* instead of the host's name; NULL: none. Not owned */
    bool insecure;
};

/*
 * config.c: from ?cacert= ?cert= ?key= ?sni= ?insecure=, which are marked as used. Loads the module and reads
 * the files, so it belongs into open(). spec->uri must outlive *out. 0, DLOCK_EUSAGE (a parameter, or a file's
 * contents), DLOCK_EPERM (a file cannot be read, others have access to the key), DLOCK_ENOBACKEND, DLOCK_ENOMEM.
 */
int tls_config_from_uri(const struct dlock_spec *, struct tls_config **out, struct dlock_error *);
/* Not while a connection uses it. NULL is fine. */
void tls_config_free(struct tls_config *);
/* True where nothing is verified: then err is filled with what EV_NOTICE says about that. */
bool tls_config_warns(const struct tls_config *, const char *where, struct dlock_error *err);

/* io.c. Nothing blocks, errors lack where, and negative codes are final: then nothing but tls_end is allowed. */

/* Begin on a socket that is connected to host. */
int tls_start(const struct tls_config *, struct tls **, const char *host, struct dlock_error *);
void tls_end(const struct tls_config *, struct tls **);
/* Go on with the handshake. 1: complete; 0: not yet. *got grows by the bytes that came. */
int tls_shake(const struct tls_config *, struct tls *, int fd, size_t *got, struct dlock_error *);
/*
 * Receive: how many bytes of plain text, at least 1; 0: nothing now. *got grows by the bytes that came from the
 * socket; beyond limit none is asked for any more.
 */
int tls_receive(const struct tls_config *, struct tls *, int fd, void *buf, size_t size,
                size_t *got, size_t limit, struct dlock_error *);
/*
 * Send what waits, as far as the socket takes it; true: something has left. What a broken socket does not take is
 * dropped: the server may have said why, so that is for the next receive to tell.
 */
bool tls_send(const struct tls_config *, struct tls *, int fd);
bool tls_has_output(const struct tls_config *, struct tls *);

#endif
