/*
 * config.c - the TLS parameters of a URI, and the files that they name. See tls.h.
 */
#include "tls.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A system's whole CA bundle has a quarter of a megabyte. */
#define PEM_MAX ((size_t)8 * 1024 * 1024)
#define NAME_CHARS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._:"

/* The rule of libpq: a key of root's may be readable by a group, our own key only by us. */
static int check_key(const struct stat *st, const char *path, struct dlock_error *err)
{
    mode_t others = S_IRWXG | S_IRWXO;
    if (st->st_uid != 0 && st->st_uid != geteuid())
        return dlock_fail(err, DLOCK_EPERM, 0, "key %s: belongs to another user", path);
    if (st->st_uid == 0)
        others = S_IWGRP | S_IXGRP | S_IRWXO;
    if (st->st_mode & others)
        return dlock_fail(err, DLOCK_EPERM, 0, "key %s: others have access to it (use chmod 600)",
                          path);
    return 0;
}

static int read_all(struct tls_pem *pem, int fd, size_t size, const char *what,
                    struct dlock_error *err)
{
    pem->text = malloc(size + 1);
    if (!pem->text)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    while (pem->len < size) {
        ssize_t n = read(fd, pem->text + pem->len, size - pem->len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return dlock_fail(err, DLOCK_EPERM, errno, "%s %s: %s", what, pem->path,
                              strerror(errno));
        if (n == 0)
            break;
        pem->len += (size_t)n;
    }
    return 0;
}

/* O_NONBLOCK: opening a FIFO would wait. Links are followed: certificates are often renewed by replacing a link. */
static int read_pem(struct tls_pem *pem, const char *what, const char *path, bool secret,
                    struct dlock_error *err)
{
    struct stat st;
    int rc = 0;

    if (!path)
        return 0;
    pem->path = path;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 || fstat(fd, &st) != 0)
        rc = dlock_fail(err, DLOCK_EPERM, errno, "%s %s: %s", what, path, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        rc = dlock_fail(err, DLOCK_EPERM, 0, "%s %s: not a regular file", what, path);
    else if ((size_t)st.st_size > PEM_MAX)
        rc = dlock_fail(err, DLOCK_EUSAGE, 0, "%s %s: larger than 8 MiB", what, path);
    else if (secret)
        rc = check_key(&st, path, err);
    if (rc == 0)
        rc = read_all(pem, fd, (size_t)st.st_size, what, err);
    if (fd >= 0)
        close(fd);
    return rc;
}

static void drop_pem(struct tls_pem *pem)
{
    if (pem->text)
        explicit_bzero(pem->text, pem->len);
    free(pem->text);
    pem->text = NULL;
}

/* A parameter that must not be empty; absent: NULL. */
static int param(const struct dlock_spec *spec, const char *key, const char **value,
                 struct dlock_error *err)
{
    *value = dlock_uri_param(spec->uri, key);
    if (*value && **value == '\0')
        return dlock_fail(err, DLOCK_EUSAGE, 0, "?%s= is empty: give it a value, or leave it out",
                          key);
    return 0;
}

struct named {
    const char *cacert, *cert, *key, *sni, *insecure;
};

static int take_params(const struct dlock_spec *spec, struct named *p, struct dlock_error *err)
{
    int rc;
    if ((rc = param(spec, "cacert", &p->cacert, err)) != 0 ||
        (rc = param(spec, "cert", &p->cert, err)) != 0 ||
        (rc = param(spec, "key", &p->key, err)) != 0 ||
        (rc = param(spec, "sni", &p->sni, err)) != 0 ||
        (rc = param(spec, "insecure", &p->insecure, err)) != 0)
        return rc;
    if (!p->cert != !p->key)
        return dlock_fail(err, DLOCK_EUSAGE, 0,
                          "?cert= and ?key= go together: the client's certificate and its key");
    if (p->insecure && strcmp(p->insecure, "0") != 0 && strcmp(p->insecure, "1") != 0)
        return dlock_fail(err, DLOCK_EUSAGE, 0,
                          "?insecure=%s: 1 (verify nothing) or 0 (the default)", p->insecure);
    /* A leading dot would match every name below it. */
    if (p->sni && (*p->sni == '.' || strspn(p->sni, NAME_CHARS) != strlen(p->sni)))
        return dlock_fail(err, DLOCK_EUSAGE, 0, "?sni=%s is not the name of a host", p->sni);
    return 0;
}

int tls_config_from_uri(const struct dlock_spec *spec, struct tls_config **out,
                        struct dlock_error *err)
{
    struct tls_setup setup = {0};
    struct named p = {0};
    struct dlock_error why;
    struct tls_config *cfg;
    int rc = take_params(spec, &p, err);
    if (rc != 0)
        return rc;
    cfg = calloc(1, sizeof(*cfg));
    if (!cfg)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    cfg->sni = p.sni;
    cfg->insecure = setup.insecure = p.insecure && *p.insecure == '1';
    cfg->table = spec->tls(spec->uri->scheme, &why);
    if (!cfg->table) {
        rc = why.code;
        if (err)
            *err = why;
        goto out;
    }
    if ((rc = read_pem(&setup.ca, "cacert", p.cacert, false, err)) != 0 ||
        (rc = read_pem(&setup.cert, "cert", p.cert, false, err)) != 0 ||
        (rc = read_pem(&setup.key, "key", p.key, true, err)) != 0)
        goto out;
    rc = cfg->table->ctx_new(&cfg->ctx, &setup, err);
out:
    drop_pem(&setup.ca);
    drop_pem(&setup.cert);
    drop_pem(&setup.key);
    if (rc == 0)
        *out = cfg;
    else
        tls_config_free(cfg);
    return rc;
}

void tls_config_free(struct tls_config *cfg)
{
    if (cfg && cfg->ctx)
        cfg->table->ctx_free(cfg->ctx);
    free(cfg);
}

bool tls_config_warns(const struct tls_config *cfg, const char *where, struct dlock_error *err)
{
    if (!cfg || !cfg->insecure)
        return false;
    dlock_fail_at(
        err, DLOCK_EPERM, 0, where,
        "insecure=1: the server's certificate is not verified: anybody on the network path can read and change the data, the password included");
    return true;
}
