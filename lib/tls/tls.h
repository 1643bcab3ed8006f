/*
 * tls.h - TLS for the connections of a networked store, in three parts.
 *
 * config.c reads the URI's parameters and their files. openssl.c is the only part that uses
 * OpenSSL; it works on memory only, and is a module that the core loads on first use. io.c connects
 * the two with a socket, which stays the connection's own, with its time-outs and flags.
 *
 * No byte of the caller's is encrypted before the handshake is complete, and the handshake is
 * complete only when the server's certificate has been verified.
 */
#ifndef DLOCK_TLS_H
#define DLOCK_TLS_H

#include "util.h"

#include <sys/types.h>
#include <time.h>

#define TLS_ABI 1002 /* far from DLOCK_BACKEND_ABI: the number tells the kind of a module */
#define TLS_MAX_HANDSHAKE ((size_t)256 * 1024)

struct tls;     /* one connection; the module's */
struct tls_ctx; /* shared by all connections of a lock; the module's */

/* A file in memory. */
struct tls_pem {
    const char *path; /* for messages; NULL: no file. Not owned */
    char *text;
    size_t len;
};

struct tls_setup {
    struct tls_pem ca, cert, key; /* no ca: the system's */
    bool insecure;                /* verify nothing */
};

/* Errors of a connection lack the server's name, which the caller adds; ctx_new's are complete. */
struct tls_table {
    unsigned abi;
    const char *build_id;

    /* 0, DLOCK_EUSAGE (a file has the wrong contents), DLOCK_ENOMEM. Keeps nothing of setup. */
    int (*ctx_new)(struct tls_ctx **, const struct tls_setup *, struct dlock_error *);
    void (*ctx_free)(struct tls_ctx *); /* its connections go on */

    /* A new connection. The server's name (or address) is sent and verified. 0, EUSAGE, ENOMEM. */
    int (*start)(struct tls **, struct tls_ctx *, const char *name, struct dlock_error *);
    void (*end)(struct tls *);

    /* Take bytes from the server. 0, DLOCK_ENOMEM, or DLOCK_EUNUSABLE: not TLS. */
    int (*feed)(struct tls *, const void *, size_t, struct dlock_error *);
    /* The bytes for the server, valid until the next call; sent: so many bytes were sent. */
    size_t (*wire)(struct tls *, const char **);
    void (*sent)(struct tls *, size_t);

    /*
     * 1: complete and verified; 0: feed more; DLOCK_EUNAVAIL: failed; DLOCK_EUNUSABLE: we refuse
     * the server's certificate; DLOCK_EPERM: the server refuses our certificate.
     */
    int (*handshake)(struct tls *, struct dlock_error *);
    /* After the handshake: encrypt all bytes (to wire). 0 or a negative code. */
    int (*encrypt)(struct tls *, const void *, size_t, struct dlock_error *);
    /* The number of decrypted bytes, at most size; 0: feed more; negative codes as of handshake. */
    int (*decrypt)(struct tls *, void *, size_t size, struct dlock_error *);
    /* Tell the server (to wire) that we send no more. */
    void (*bye)(struct tls *);
    /*
     * After the handshake: the version of TLS, a constant. *ends: when the server's certificate
     * ends, Unix s; 0: unknown.
     */
    const char *(*about)(struct tls *, int64_t *ends);
};

#ifdef DLOCK_MODULE
#define TLS_SYMBOL dlock_module
#else
#define TLS_SYMBOL dlock_tls
#endif
extern const struct tls_table TLS_SYMBOL;

/* ?cacert=, ?cert= or ?key=, and which file was read last. */
struct tls_file {
    const char *path; /* NULL: none. Not owned */
    ino_t ino;
    struct timespec changed;
};

/* How the connections of a lock speak TLS. */
struct tls_config {
    const struct tls_table *table;
    struct tls_ctx *ctx; /* of the files as they were read last */
    struct tls_file files[3];
    const char *sni; /* instead of the host's name; NULL: none. Not owned */
    bool insecure;
};

/*
 * config.c: from ?cacert= ?cert= ?key= ?sni= ?insecure=, which are marked as used. For open():
 * loads the module and reads the files. spec->uri must outlive *out. 0, DLOCK_EUSAGE (a parameter,
 * or the contents of a file), DLOCK_EPERM (a file cannot be read, or other users have access to the
 * key), DLOCK_ENOBACKEND, DLOCK_ENOMEM.
 */
int tls_config_from_uri(const struct dlock_spec *, struct tls_config **out, struct dlock_error *);
/* Not while a connection uses it. NULL is fine. */
void tls_config_free(struct tls_config *);
/* True: nothing is verified, and err has the warning for EV_NOTICE. */
bool tls_config_warns(const struct tls_config *, const char *where, struct dlock_error *err);

/* A connection. Nothing blocks; errors lack the server's name; an error leaves only tls_end. */

/*
 * config.c: begin, on a socket connected to host. Files that have changed are read again, which may
 * block. Returns as tls_table.start, and as tls_config_from_uri.
 */
int tls_start(struct tls_config *cfg, struct tls **out, const char *host, struct dlock_error *err);

/* *t becomes NULL, and may be. */
static inline void tls_end(const struct tls_config *cfg, struct tls **t)
{
    if (*t)
        cfg->table->end(*t);
    *t = NULL;
}

/* Are there bytes that tls_send could send? */
static inline bool tls_has_output(const struct tls_config *cfg, struct tls *t)
{
    const char *p;
    return cfg->table->wire(t, &p) > 0;
}

/* The socket of a connection. *got counts the bytes read; none are read while *got > limit. */
struct tls_socket {
    int fd;
    size_t *got, limit;
};

/* io.c: go on with the handshake. 1: complete; 0: not yet. */
int tls_shake(const struct tls_config *, struct tls *, const struct tls_socket *,
              struct dlock_error *);
/* The number of bytes of plain text, at least 1; 0: nothing now. */
int tls_receive(const struct tls_config *, struct tls *, const struct tls_socket *, void *buf,
                size_t size, struct dlock_error *);
/*
 * Send the waiting bytes, as far as the socket takes them; true: some were sent. Bytes that a
 * broken socket does not take are dropped: the server may have sent the reason before, so the next
 * tls_receive reports the error.
 */
bool tls_send(const struct tls_config *, struct tls *, int fd);

#endif
