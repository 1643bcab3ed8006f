/*
 * login.c - see login.h.
 *
 * libmariadb takes "TLS is wanted" for "TLS is used". With SSL_ENFORCE and a server without TLS the
 * plugin caching_sha2_password sends the password in clear text; without SSL_ENFORCE it encrypts
 * the password with any key that the server sends (both measured with 3.3 and 3.4). So the first
 * try allows only plugins that send a scramble. Where the server wants another one, which
 * libmariadb refuses before it has sent anything, the second try allows caching_sha2_password, and
 * wants TLS only if the server has offered it. Without TLS that plugin can then use its cached
 * scramble, and nothing else: the key's file is empty.
 */
#include "login.h"

#include "mysql_sql.h"
#include "util.h"

#include <errmsg.h>
#include <mysqld_error.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCRAMBLES "mysql_native_password,client_ed25519,parsec"
#define CACHING "caching_sha2_password"
#define PLUGIN_REFUSED 5010 /* of MARIADB_OPT_RESTRICTED_AUTH: no header has a name for it */
#define OFFERS_TLS 2048     /* CLIENT_SSL, in the server's greeting */

static char *copy(const char *text, bool *ok)
{
    char *out = text ? strdup(text) : NULL;
    *ok = *ok && (out || !text);
    return out;
}

/* Numeric, but a name that the server's certificate must have. */
static void add_address(struct my_login *login, const struct dlock_spec *spec, int i, bool *ok)
{
    const struct dlock_host *host = &spec->uri->hosts[i];
    char text[NI_MAXHOST];
    bool by_name = login->set.tls == MY_TLS_VERIFIED;
    for (int k = 0; k < spec->npeers && login->n < MY_ADDRESSES; k++) {
        const struct dlock_peer *p = &spec->peers[k];
        if (p->host != i || getnameinfo((const struct sockaddr *)&p->addr, p->len, text,
                                        sizeof(text), NULL, 0, NI_NUMERICHOST) != 0)
            continue;
        login->at[login->n].port = host->port;
        login->at[login->n++].host = copy(by_name ? host->host : text, ok);
        if (by_name)
            return;
    }
}

bool my_login_init(struct my_login *login, const struct my_settings *set,
                   const struct dlock_spec *spec)
{
    bool ok = true;
    login->set = (struct my_settings){
        .user = copy(set->user, &ok),
        .database = copy(set->database, &ok),
        .socket = copy(set->socket, &ok),
        .tls = set->tls,
        .ca = copy(set->ca, &ok),
        .ca_path = copy(set->ca_path, &ok),
        .cert = copy(set->cert, &ok),
        .key = copy(set->key, &ok),
        .password = copy(set->given ? set->given : set->password, &ok),
    };
    if (set->socket)
        login->n = 1;
    for (int i = 0; !set->socket && i < spec->uri->nhosts; i++)
        add_address(login, spec, i, &ok);
    return ok;
}

void my_login_free(struct my_login *login)
{
    const char *const texts[] = {login->set.user, login->set.database, login->set.socket,
                                 login->set.ca,   login->set.ca_path,  login->set.cert,
                                 login->set.key};
    for (size_t i = 0; i < DLOCK_LEN(texts); i++)
        free((char *)texts[i]);
    for (int i = 0; i < MY_ADDRESSES; i++)
        free(login->at[i].host);
    dlock_wipe(login->set.password);
}

/* enforce: TLS. The caller closes the result, also after an error; NULL: no memory. */
static MYSQL *connect_to(const struct my_login *login, int i, unsigned seconds, const char *plugins,
                         bool enforce)
{
    const struct my_settings *set = &login->set;
    unsigned protocol = set->socket ? MYSQL_PROTOCOL_SOCKET : MYSQL_PROTOCOL_TCP, zero = 0;
    unsigned long packet = 4 << 20;
    my_bool verify = set->tls == MY_TLS_VERIFIED, yes = 1;
    MYSQL *my = mysql_init(NULL);
    if (!my)
        return NULL;
    mysql_options(my, MYSQL_OPT_PROTOCOL, &protocol);
    mysql_options(my, MYSQL_OPT_CONNECT_TIMEOUT, &seconds);
    mysql_options(my, MYSQL_OPT_LOCAL_INFILE, &zero);
    mysql_options(my, MYSQL_OPT_MAX_ALLOWED_PACKET, &packet);
    mysql_options(my, MYSQL_SET_CHARSET_NAME, "utf8mb4");
    mysql_options(my, MYSQL_SERVER_PUBLIC_KEY, "/dev/null");
    mysql_options(my, MYSQL_OPT_SSL_VERIFY_SERVER_CERT, &verify); /* 3.4 has another default */
    mysql_optionsv(my, MARIADB_OPT_RESTRICTED_AUTH, plugins);
    mysql_optionsv(my, MYSQL_OPT_CONNECT_ATTR_ADD, "program_name", "dlock");
    if (enforce) {
        mysql_options(my, MYSQL_OPT_SSL_ENFORCE, &yes);
        mysql_options(my, MYSQL_OPT_SSL_CA, set->ca);
        mysql_options(my, MYSQL_OPT_SSL_CAPATH, set->ca_path);
        mysql_options(my, MYSQL_OPT_SSL_CERT, set->cert);
        mysql_options(my, MYSQL_OPT_SSL_KEY, set->key);
    }
    (void)mysql_real_connect(my, set->socket ? NULL : login->at[i].host, set->user,
                             set->password ? set->password : "", set->database, login->at[i].port,
                             set->socket, CLIENT_REMEMBER_OPTIONS);
    mysql_options(my, MYSQL_SERVER_PUBLIC_KEY, NULL); /* libmariadb does not free it */
    return my;
}

static void note_error(struct my_login *login, unsigned error, const char *text)
{
    login->error = error;
    dlock_clean_words(login->text, sizeof(login->text), text, strcspn(text, "\n"));
}

/* The settings of the session. A person may interrupt each (KILL QUERY). */
static void settle(MYSQL *my)
{
    const char *const statements[] = {my_table_session, my_table_isolation};
    for (size_t i = 0; i < DLOCK_LEN(statements) && mysql_errno(my) == 0; i++)
        for (int tries = 0; tries < MY_REPEATS; tries++)
            if (mysql_query(my, statements[i]) == 0 || mysql_errno(my) != ER_QUERY_INTERRUPTED)
                break;
}

/* Log in at an address, in two steps; NULL, with the error. */
static MYSQL *at_address(struct my_login *login, int i, unsigned seconds)
{
    enum my_tls tls = login->set.tls;
    /* A verified server may have the password; on a Unix socket nobody listens. */
    bool one_step = tls == MY_TLS_VERIFIED || login->set.socket;
    bool enforce = tls != MY_TLS_OFF && !login->set.socket;
    MYSQL *my =
        connect_to(login, i, seconds, one_step ? SCRAMBLES "," CACHING : SCRAMBLES, enforce);
    if (my && mysql_errno(my) == PLUGIN_REFUSED && !one_step) {
        bool offers = my->server_capabilities & OFFERS_TLS;
        mysql_close(my);
        my = connect_to(login, i, seconds, SCRAMBLES "," CACHING, enforce && offers);
    }
    if (my && mysql_errno(my) == 0)
        settle(my);
    unsigned error = my ? mysql_errno(my) : CR_OUT_OF_MEMORY;
    if (error == PLUGIN_REFUSED)
        note_error(login, error, "the server asks for the password in a form that is not safe");
    else if (error == CR_UNKNOWN_ERROR)
        note_error(login, error,
                   "the server asks for the password itself, and the connection has no TLS");
    else if (error != 0)
        note_error(login, error, my ? mysql_error(my) : "out of memory");
    else if (tls == MY_TLS_REQUIRED && !login->set.socket && !mysql_get_ssl_cipher(my))
        note_error(login, CR_SSL_CONNECTION_ERROR, "the server does not offer TLS");
    else
        return my;
    if (my)
        mysql_close(my);
    return NULL;
}

static bool takes_writes(MYSQL *my)
{
    MYSQL_RES *res = mysql_query(my, my_table_takes_writes) == 0 ? mysql_store_result(my) : NULL;
    MYSQL_ROW row = res ? mysql_fetch_row(res) : NULL;
    bool yes = row && row[0] && strcmp(row[0], "1") == 0;
    if (res)
        mysql_free_result(res);
    return yes;
}

MYSQL *my_login(struct my_login *login)
{
    MYSQL *spare = NULL; /* takes no writes, and is better than none: its answers say so */
    note_error(login, CR_CONN_HOST_ERROR, "no address known");
    for (int i = 0; i < login->n; i++) {
        unsigned seconds = login->seconds / (unsigned)(login->n - i);
        MYSQL *my = at_address(login, i, seconds > 0 ? seconds : 1);
        if (my && login->n > 1 && !takes_writes(my)) {
            if (spare)
                mysql_close(spare);
            spare = my;
            continue;
        }
        if (my && spare)
            mysql_close(spare);
        if (my)
            return my;
        /* A refusal holds for all servers. */
        if (my_code(login->error) != DLOCK_EUNAVAIL)
            break;
    }
    return spare;
}

int my_code(unsigned error)
{
    switch (error) {
    case ER_ACCESS_DENIED_ERROR:
    case ER_ACCESS_DENIED_NO_PASSWORD_ERROR:
    case ER_DBACCESS_DENIED_ERROR:
    case ER_TABLEACCESS_DENIED_ERROR:
    case ER_COLUMNACCESS_DENIED_ERROR:
    case ER_SPECIFIC_ACCESS_DENIED_ERROR:
    case ER_HOST_NOT_PRIVILEGED:
    case ER_MUST_CHANGE_PASSWORD:
    case ER_MUST_CHANGE_PASSWORD_LOGIN:
    case CR_UNKNOWN_ERROR: /* of the log-in: the password would have been sent */
    case PLUGIN_REFUSED:
        return DLOCK_EPERM;
    case ER_BAD_DB_ERROR:
    case ER_NOT_SUPPORTED_AUTH_MODE:
    case ER_NO_DB_ERROR:
    case ER_PARSE_ERROR:
    case ER_BAD_FIELD_ERROR:
    case ER_KEY_DOES_NOT_EXISTS:
    case ER_VIEW_INVALID:
    case CR_VERSION_ERROR:
    case CR_SSL_CONNECTION_ERROR:
    case CR_AUTH_PLUGIN_CANNOT_LOAD:
        return DLOCK_EUNUSABLE;
    case CR_OUT_OF_MEMORY:
        return DLOCK_ENOMEM;
    default:
        return DLOCK_EUNAVAIL;
    }
}

bool my_is_transient(unsigned error)
{
    return error == ER_CON_COUNT_ERROR || error == ER_TOO_MANY_USER_CONNECTIONS ||
           error == ER_USER_LIMIT_REACHED || error == ER_SERVER_SHUTDOWN ||
           error == ER_QUERY_INTERRUPTED || error == ER_OUT_OF_RESOURCES;
}
