/* login.h - log in to a server of MySQL's protocol; the password never leaves unencrypted. */
#ifndef DLOCK_MYSQL_LOGIN_H
#define DLOCK_MYSQL_LOGIN_H

#include "backend.h"

#include <mysql.h>

#define MY_ADDRESSES 16
#define MY_REPEATS 20 /* of a statement that was interrupted, or rolled back */

enum my_tls { MY_TLS_OFF, MY_TLS_PREFERRED, MY_TLS_REQUIRED, MY_TLS_VERIFIED };

/* From the URI. */
struct my_settings {
    const char *user, *database;
    const char *socket; /* a path; NULL: TCP */
    enum my_tls tls;
    const char *ca, *ca_path, *cert, *key; /* files, PEM; or NULL */
    const char *given;                     /* the password of the URI or of the variable */
    const char *password_file;             /* read for each connection; NULL: none */
    char *password;                        /* what the file had, owned */
};

/* What the thread of a connection needs; it outlives the caller's own. */
struct my_login {
    struct my_settings set; /* its texts are owned; no file */
    struct my_address {
        char *host; /* numeric, or to be verified, a name */
        unsigned port;
    } at[MY_ADDRESSES];
    int n;
    unsigned seconds; /* for all addresses */
    /* The outcome. */
    unsigned error; /* of libmariadb or the server; 0: logged in */
    char text[256];
};

/* A copy of the settings for these addresses. False: no memory. _free() is due in any case. */
bool my_login_init(struct my_login *, const struct my_settings *, const struct dlock_spec *);
void my_login_free(struct my_login *);
/* Try each address in turn; blocks. A connection, or NULL with error and text. */
MYSQL *my_login(struct my_login *);

/* DLOCK_E* of an error of libmariadb or the server. */
int my_code(unsigned error);
/* Try again, even at the first contact: the server starts, ends, or has no free connection. */
bool my_is_transient(unsigned error);

#endif
