/*
 * openssl.c - TLS by OpenSSL, from memory to memory. See tls.h.
 *
 * The server's certificate must lead to a trusted root and be valid for the name (or address) of
 * the connection; TLS 1.2 at least. Sessions are not resumed, and renegotiation is refused. OpenSSL
 * never sees the socket: OpenSSL has no flag against SIGPIPE, and its time-outs are not ours.
 */
#include "tls.h"

#include <arpa/inet.h>
#include <limits.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifndef DLOCK_BUILD_ID
#define DLOCK_BUILD_ID DLOCK_VERSION
#endif

#define RECORD_ALERT 0x15
#define RECORD_HANDSHAKE 0x16

struct tls_ctx {
    SSL_CTX *ssl;
    bool has_cert;
};

struct tls {
    SSL *ssl;
    BIO *in, *out; /* ssl's */
    char name[256];
    bool fed;      /* bytes have come */
    bool asked;    /* the server has asked for our certificate */
    bool has_cert; /* we have one */
};

static const char *reason(void)
{
    const char *text = ERR_reason_error_string(ERR_peek_last_error());
    return text ? text : "unknown error";
}

static int no_memory(struct dlock_error *err)
{
    return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
}

/* ------------------------------------------------------------------ the files */

static BIO *bio_of(const struct tls_pem *pem)
{
    return pem->len > INT_MAX ? NULL : BIO_new_mem_buf(pem->text, (int)pem->len);
}

/*
 * Take each certificate of a file: a trusted one, or the first is ours, and the others lead from it
 * towards a root. Returns their number, or a negative code.
 */
static int each_cert(const struct tls_pem *pem, bool trusted, SSL_CTX *ssl, struct dlock_error *err)
{
    const char *what = trusted ? "cacert" : "cert";
    int n = 0;
    X509 *cert;
    BIO *bio = bio_of(pem);
    if (!bio)
        return no_memory(err);
    ERR_clear_error();
    while ((cert = PEM_read_bio_X509(bio, NULL, NULL, NULL))) {
        int good = trusted  ? X509_STORE_add_cert(SSL_CTX_get_cert_store(ssl), cert)
                   : n == 0 ? SSL_CTX_use_certificate(ssl, cert)
                            : (int)SSL_CTX_add1_chain_cert(ssl, cert);
        X509_free(cert);
        if (good != 1) {
            n = dlock_fail(err, DLOCK_EUSAGE, 0, "%s %s: certificate %d cannot be used: %s", what,
                           pem->path, n + 1, reason());
            goto out;
        }
        n++;
    }
    /* The error at the end of a good file is "no start line". */
    if (ERR_GET_REASON(ERR_peek_last_error()) != PEM_R_NO_START_LINE)
        n = dlock_fail(err, DLOCK_EUSAGE, 0, "%s %s: certificate %d cannot be read: %s", what,
                       pem->path, n + 1, reason());
    else if (n == 0)
        n = dlock_fail(err, DLOCK_EUSAGE, 0, "%s %s: the file has no certificate in PEM format",
                       what, pem->path);
out:
    ERR_clear_error();
    BIO_free(bio);
    return n;
}

/* Without this function OpenSSL would ask at the terminal. */
static int no_passphrase(char *buf, int size, int writing, void *asked)
{
    (void)buf;
    (void)size;
    (void)writing;
    *(bool *)asked = true;
    return -1;
}

static int use_key(SSL_CTX *ssl, const struct tls_setup *setup, struct dlock_error *err)
{
    bool encrypted = false;
    int rc = 0;
    BIO *bio = bio_of(&setup->key);
    if (!bio)
        return no_memory(err);
    ERR_clear_error();
    EVP_PKEY *key = PEM_read_bio_PrivateKey(bio, NULL, no_passphrase, &encrypted);
    if (encrypted)
        rc = dlock_fail(
            err, DLOCK_EUSAGE, 0,
            "key %s is protected by a passphrase, which dlock cannot ask for: store the key "
            "without a passphrase (openssl pkey), readable only by its user",
            setup->key.path);
    else if (!key)
        rc = dlock_fail(err, DLOCK_EUSAGE, 0, "key %s: the file has no private key in PEM format",
                        setup->key.path);
    else if (SSL_CTX_use_PrivateKey(ssl, key) != 1)
        rc = dlock_fail(err, DLOCK_EUSAGE, 0, "key %s does not match the certificate %s: %s",
                        setup->key.path, setup->cert.path, reason());
    ERR_clear_error();
    EVP_PKEY_free(key);
    BIO_free(bio);
    return rc;
}

/* ---------------------------------------------------------------- the context */

static int note_request(SSL *ssl, void *unused)
{
    struct tls *t = SSL_get_app_data(ssl);
    (void)unused;
    t->asked = true;
    return 1;
}

static void ctx_free(struct tls_ctx *ctx)
{
    SSL_CTX_free(ctx->ssl);
    free(ctx);
}

static int ctx_new(struct tls_ctx **out, const struct tls_setup *setup, struct dlock_error *err)
{
    struct tls_ctx *ctx = calloc(1, sizeof(*ctx));
    int rc = 0;
    if (!ctx)
        return no_memory(err);
    ERR_clear_error();
    ctx->has_cert = setup->cert.path;
    SSL_CTX *ssl = ctx->ssl = SSL_CTX_new(TLS_client_method());
    if (!ssl) {
        rc = dlock_fail(err, DLOCK_EOS, 0, "OpenSSL cannot be set up: %s", reason());
        goto out;
    }
    /* The system's configuration may demand a later version. */
    if (SSL_CTX_get_min_proto_version(ssl) < TLS1_2_VERSION &&
        SSL_CTX_set_min_proto_version(ssl, TLS1_2_VERSION) != 1) {
        rc = dlock_fail(err, DLOCK_ENOBACKEND, 0, "OpenSSL has no TLS 1.2: %s", reason());
        goto out;
    }
    SSL_CTX_set_options(ssl, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_NO_TICKET);
    SSL_CTX_set_session_cache_mode(ssl, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_cert_cb(ssl, note_request, NULL);
    SSL_CTX_set_verify(ssl, setup->insecure ? SSL_VERIFY_NONE : SSL_VERIFY_PEER, NULL);
    /* Without any trusted root each certificate is refused, with a message. */
    if (!setup->ca.path)
        (void)SSL_CTX_set_default_verify_paths(ssl);
    else
        rc = each_cert(&setup->ca, true, ssl, err);
    if (rc >= 0 && setup->cert.path)
        rc = each_cert(&setup->cert, false, ssl, err);
    if (rc >= 0 && setup->key.path)
        rc = use_key(ssl, setup, err);
out:
    ERR_clear_error();
    if (rc >= 0)
        *out = ctx;
    else
        ctx_free(ctx);
    return rc < 0 ? rc : 0;
}

/* --------------------------------------------------------------- a connection */

static void end(struct tls *t)
{
    SSL_free(t->ssl); /* with its BIOs */
    free(t);
}

/* The name that the certificate must have. */
static bool set_name(struct tls *t)
{
    unsigned char addr[sizeof(struct in6_addr)];
    X509_VERIFY_PARAM *param = SSL_get0_param(t->ssl);
    if (inet_pton(AF_INET, t->name, addr) == 1 || inet_pton(AF_INET6, t->name, addr) == 1)
        return X509_VERIFY_PARAM_set1_ip_asc(param, t->name) == 1; /* an address is not sent */
    X509_VERIFY_PARAM_set_hostflags(param, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    return X509_VERIFY_PARAM_set1_host(param, t->name, 0) == 1 &&
           SSL_set_tlsext_host_name(t->ssl, t->name) == 1;
}

static int start(struct tls **out, struct tls_ctx *ctx, const char *name, struct dlock_error *err)
{
    struct tls *t = calloc(1, sizeof(*t));
    if (!t)
        return no_memory(err);
    /* The form in certificates: without the zone of an IPv6 address, without a final dot. */
    size_t n = name ? strcspn(name, "%") : 0;
    if (n > 1 && name[n - 1] == '.')
        n--;
    /* OpenSSL verifies no empty name; one with a leading dot matches every name below. */
    if (n == 0 || n >= sizeof(t->name) || name[0] == '.') {
        free(t);
        return dlock_fail(err, DLOCK_EUSAGE, 0,
                          "TLS needs the name of the server, and there is no valid one");
    }
    memcpy(t->name, name, n); /* t is zeroed */
    ERR_clear_error();
    t->has_cert = ctx->has_cert;
    t->ssl = SSL_new(ctx->ssl);
    t->in = BIO_new(BIO_s_mem());
    t->out = BIO_new(BIO_s_mem());
    if (!t->ssl || !t->in || !t->out) {
        BIO_free(t->in);
        BIO_free(t->out);
        end(t);
        return no_memory(err);
    }
    SSL_set_bio(t->ssl, t->in, t->out);
    SSL_set_app_data(t->ssl, t);
    SSL_set_connect_state(t->ssl);
    if (!set_name(t)) {
        ERR_clear_error();
        end(t);
        return no_memory(err);
    }
    *out = t;
    return 0;
}

static int feed(struct tls *t, const void *buf, size_t n, struct dlock_error *err)
{
    const unsigned char *first = buf;
    if (!t->fed && n > 0 && *first != RECORD_HANDSHAKE && *first != RECORD_ALERT)
        return dlock_fail(
            err, DLOCK_EUNUSABLE, 0,
            "the server does not speak TLS on this port (it answered something else)");
    t->fed = t->fed || n > 0;
    if (n > INT_MAX || (n > 0 && BIO_write(t->in, buf, (int)n) != (int)n))
        return no_memory(err);
    return 0;
}

static size_t wire(struct tls *t, const char **p)
{
    char *data = NULL;
    long n = BIO_get_mem_data(t->out, &data);
    *p = data;
    return n > 0 ? (size_t)n : 0;
}

static void sent(struct tls *t, size_t n)
{
    char scratch[4096];
    while (n > 0) {
        int got = BIO_read(t->out, scratch, n < sizeof(scratch) ? (int)n : (int)sizeof(scratch));
        if (got <= 0)
            return;
        n -= (size_t)got;
    }
}

/* --------------------------------------------------------------------- errors */

/* The alerts (RFC 8446, 6.2) that a server sends because of our certificate. */
static const struct {
    int alert;
    const char *text;
} cert_alerts[] = {
    {SSL_AD_BAD_CERTIFICATE, "bad certificate"},
    {SSL_AD_UNSUPPORTED_CERTIFICATE, "unsupported certificate"},
    {SSL_AD_CERTIFICATE_REVOKED, "certificate revoked"},
    {SSL_AD_CERTIFICATE_EXPIRED, "certificate expired"},
    {SSL_AD_CERTIFICATE_UNKNOWN, "certificate unknown"},
    {SSL_AD_UNKNOWN_CA, "unknown ca"},
    {SSL_AD_ACCESS_DENIED, "access denied"},
    {SSL_AD_CERTIFICATE_REQUIRED, "certificate required"},
};

/* The error of an OpenSSL call that returned rc; 0: none, it needs more bytes. */
static int explain(struct tls *t, int rc, struct dlock_error *err)
{
    const char *text = NULL;
    unsigned long code = ERR_peek_last_error();
    long verified = SSL_get_verify_result(t->ssl);
    int alert = ERR_GET_LIB(code) == ERR_LIB_SSL ? ERR_GET_REASON(code) - SSL_AD_REASON_OFFSET : -1;
    bool shaking = !SSL_is_init_finished(t->ssl);
    switch (SSL_get_error(t->ssl, rc)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
        return 0;
    case SSL_ERROR_ZERO_RETURN:
        return dlock_fail(err, DLOCK_EUNAVAIL, 0, "the server closed the connection");
    default:
        break;
    }
    for (size_t i = 0; i < DLOCK_LEN(cert_alerts); i++)
        if (alert == cert_alerts[i].alert)
            text = cert_alerts[i].text;
    /* TLS 1.2: also because a certificate is required */
    if (alert == SSL_AD_HANDSHAKE_FAILURE && t->asked && !t->has_cert)
        text = "certificate required";
    const char *why = X509_verify_cert_error_string(verified);
    if (shaking && verified != X509_V_OK && SSL_get_verify_mode(t->ssl) != SSL_VERIFY_NONE) {
        if (verified == X509_V_ERR_HOSTNAME_MISMATCH || verified == X509_V_ERR_IP_ADDRESS_MISMATCH)
            rc = dlock_fail(err, DLOCK_EUNUSABLE, 0,
                            "the server's certificate is refused: it is not valid for %s (%s)",
                            t->name, why);
        else
            rc =
                dlock_fail(err, DLOCK_EUNUSABLE, 0, "the server's certificate is refused: %s", why);
    } else if (text) {
        rc = dlock_fail(err, DLOCK_EPERM, 0,
                        t->has_cert
                            ? "the server refuses our certificate (%s): check ?cert= and ?key="
                            : "the server requires our certificate (%s): write " URI_PARAM(
                                  "?cert=FILE&key=FILE"),
                        text);
    } else {
        rc = dlock_fail(err, DLOCK_EUNAVAIL, 0, "TLS%s failed: %s", shaking ? " handshake" : "",
                        reason());
    }
    ERR_clear_error();
    return rc;
}

/* -------------------------------------------------------------------- talking */

static int handshake(struct tls *t, struct dlock_error *err)
{
    ERR_clear_error();
    int rc = SSL_do_handshake(t->ssl);
    if (rc != 1)
        return explain(t, rc, err);
    /* OpenSSL has checked this, unless its configuration allows ciphers without certificates. */
    X509 *cert = SSL_get_peer_certificate(t->ssl);
    X509_free(cert);
    if (SSL_get_verify_mode(t->ssl) != SSL_VERIFY_NONE &&
        (!cert || SSL_get_verify_result(t->ssl) != X509_V_OK))
        return dlock_fail(err, DLOCK_EUNUSABLE, 0, "the server sent no certificate");
    return 1;
}

static int encrypt_all(struct tls *t, const void *buf, size_t n, struct dlock_error *err)
{
    ERR_clear_error();
    if (n == 0)
        return 0;
    int rc = n > INT_MAX ? -1 : SSL_write(t->ssl, buf, (int)n);
    if (rc > 0)
        return 0; /* all of it: SSL_write() writes a part only with SSL_MODE_ENABLE_PARTIAL_WRITE */
    rc = explain(t, rc, err);
    return rc != 0 ? rc
                   : dlock_fail(err, DLOCK_EUNAVAIL, 0,
                                "TLS failed: the server attempted a renegotiation");
}

static int decrypt_some(struct tls *t, void *buf, size_t size, struct dlock_error *err)
{
    ERR_clear_error();
    int rc = SSL_read(t->ssl, buf, size < INT_MAX ? (int)size : INT_MAX);
    return rc > 0 ? rc : explain(t, rc, err);
}

static void bye(struct tls *t)
{
    ERR_clear_error();
    (void)SSL_shutdown(t->ssl);
    ERR_clear_error();
}

static const char *about(struct tls *t, int64_t *ends)
{
    X509 *cert = SSL_get_peer_certificate(t->ssl);
    struct tm tm;
    *ends = cert && ASN1_TIME_to_tm(X509_get0_notAfter(cert), &tm) == 1 ? timegm(&tm) : 0;
    X509_free(cert);
    ERR_clear_error();
    return SSL_get_version(t->ssl);
}

const struct tls_table TLS_SYMBOL = {
    .abi = TLS_ABI,
    .build_id = DLOCK_BUILD_ID,
    .ctx_new = ctx_new,
    .ctx_free = ctx_free,
    .start = start,
    .end = end,
    .feed = feed,
    .wire = wire,
    .sent = sent,
    .handshake = handshake,
    .encrypt = encrypt_all,
    .decrypt = decrypt_some,
    .bye = bye,
    .about = about,
};
