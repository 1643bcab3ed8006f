/* config.c - the TLS parameters of a URI, and the files that they name. See tls.h. */
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

/*
 * O_NONBLOCK: opening a FIFO would wait. Links are followed: certificates are often renewed by
 * replacing a link. A secret file has libpq's rule: a key of root's may be readable by a group, our
 * own key only by us.
 */
static int read_pem(struct tls_pem *pem, struct tls_file *file, const char *what, bool secret,
                    struct dlock_error *err)
{
    const char *path = file->path;
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
    else if (secret && st.st_uid != 0 && st.st_uid != geteuid())
        rc = dlock_fail(err, DLOCK_EPERM, 0, "key %s: belongs to another user", path);
    else if (secret &&
             st.st_mode & (st.st_uid == 0 ? S_IWGRP | S_IXGRP | S_IRWXO : S_IRWXG | S_IRWXO))
        rc = dlock_fail(err, DLOCK_EPERM, 0, "key %s: others have access to it (use chmod 600)",
                        path);
    else if (!(pem->text = malloc((size_t)st.st_size + 1)))
        rc = dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    while (rc == 0 && pem->len < (size_t)st.st_size) {
        ssize_t n = read(fd, pem->text + pem->len, (size_t)st.st_size - pem->len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            rc = dlock_fail(err, DLOCK_EPERM, errno, "%s %s: %s", what, path, strerror(errno));
        if (n <= 0)
            break;
        pem->len += (size_t)n;
    }
    if (fd >= 0)
        close(fd);
    if (rc == 0)
        *file = (struct tls_file){path, st.st_ino, st.st_ctim};
    return rc;
}

enum { CACERT, CERT, KEY, SNI, INSECURE, NPARAMS };
static const char *const names[NPARAMS] = {"cacert", "cert", "key", "sni", "insecure"};

/* value[]: NULL where the parameter is missing. */
static int take_params(const struct dlock_spec *spec, const char *value[NPARAMS],
                       struct dlock_error *err)
{
    for (int i = 0; i < NPARAMS; i++) {
        value[i] = dlock_uri_param(spec->uri, names[i]);
        if (value[i] && *value[i] == '\0')
            return dlock_fail(err, DLOCK_EUSAGE, 0,
                              "?%s= is empty: give it a value, or leave it out", names[i]);
    }
    const char *sni = value[SNI], *insecure = value[INSECURE];
    if (!value[CERT] != !value[KEY])
        return dlock_fail(err, DLOCK_EUSAGE, 0,
                          "?cert= and ?key= go together: the client's certificate and its key");
    if (insecure && strcmp(insecure, "0") != 0 && strcmp(insecure, "1") != 0)
        return dlock_fail(err, DLOCK_EUSAGE, 0,
                          "?insecure=%s: 1 (verify nothing) or 0 (the default)", insecure);
    /* A leading dot would match every name below it. */
    if (sni && (*sni == '.' || strspn(sni, NAME_CHARS) != strlen(sni)))
        return dlock_fail(err, DLOCK_EUSAGE, 0, "?sni=%s is not the name of a host", sni);
    return 0;
}

/* Read the files; the next connections use them. */
static int load(struct tls_config *cfg, struct dlock_error *err)
{
    struct tls_setup setup = {.insecure = cfg->insecure};
    struct tls_pem *pems[] = {&setup.ca, &setup.cert, &setup.key};
    struct tls_ctx *ctx = NULL;
    int rc = 0;
    for (size_t i = 0; i < DLOCK_LEN(pems) && rc == 0; i++)
        rc = read_pem(pems[i], &cfg->files[i], names[i], i == KEY, err);
    if (rc == 0)
        rc = cfg->table->ctx_new(&ctx, &setup, err);
    for (size_t i = 0; i < DLOCK_LEN(pems); i++) {
        if (pems[i]->text)
            explicit_bzero(pems[i]->text, pems[i]->len);
        free(pems[i]->text);
        if (rc != 0)
            cfg->files[i].ino = 0; /* so that the next connection reads them again */
    }
    if (rc == 0 && cfg->ctx)
        cfg->table->ctx_free(cfg->ctx);
    cfg->ctx = ctx ? ctx : cfg->ctx;
    return rc;
}

static bool has_changed(const struct tls_file *f)
{
    struct stat st;
    return f->path &&
           (stat(f->path, &st) != 0 || st.st_ino != f->ino ||
            st.st_ctim.tv_sec != f->changed.tv_sec || st.st_ctim.tv_nsec != f->changed.tv_nsec);
}

int tls_start(struct tls_config *cfg, struct tls **out, const char *host, struct dlock_error *err)
{
    bool changed = false;
    for (size_t i = 0; i < DLOCK_LEN(cfg->files); i++)
        changed = changed || has_changed(&cfg->files[i]);
    int rc = changed ? load(cfg, err) : 0;
    return rc == 0 ? cfg->table->start(out, cfg->ctx, cfg->sni ? cfg->sni : host, err) : rc;
}

int tls_config_from_uri(const struct dlock_spec *spec, struct tls_config **out,
                        struct dlock_error *err)
{
    const char *value[NPARAMS];
    struct dlock_error why;
    struct tls_config *cfg;
    int rc = take_params(spec, value, err);
    if (rc != 0)
        return rc;
    cfg = calloc(1, sizeof(*cfg));
    if (!cfg)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    for (size_t i = 0; i < DLOCK_LEN(cfg->files); i++)
        cfg->files[i].path = value[i];
    cfg->sni = value[SNI];
    cfg->insecure = value[INSECURE] && *value[INSECURE] == '1';
    cfg->table = spec->tls(spec->uri->scheme, &why);
    if (!cfg->table && err)
        *err = why;
    rc = cfg->table ? load(cfg, err) : why.code;
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
        "insecure=1: the server's certificate is not verified: anybody on the network path can "
        "read and change the data, the password included");
    return true;
}
