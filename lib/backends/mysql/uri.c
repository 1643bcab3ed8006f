/* uri.c - what the URI says about a MySQL or MariaDB server. */
#include "mysql.h"

#include "util.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SUFFIX "_clients" /* of the second table */
#define NAME_MAX_BYTES 64 /* of a table; the server counts characters */
#define LOCK_NAME_MAX 255 /* of the column */
#define TTL_MAX (365 * 86400 * DLOCK_SEC)

static int usage(const struct my_backend *be, const char *key, const char *value, const char *want,
                 struct dlock_error *err)
{
    return dlock_fail_at(err, DLOCK_EUSAGE, 0, sql_where(&be->store), "%s=%.80s: expected %s", key,
                         value, want);
}

static int set_tls(struct my_backend *be, struct dlock_error *err)
{
    /* MySQL's names; libpq's and those of Rails. */
    static const struct {
        const char *name;
        enum my_tls tls;
    } modes[] = {{"disabled", MY_TLS_OFF},
                 {"disable", MY_TLS_OFF},
                 {"preferred", MY_TLS_PREFERRED},
                 {"prefer", MY_TLS_PREFERRED},
                 {"required", MY_TLS_REQUIRED},
                 {"require", MY_TLS_REQUIRED},
                 {"verify_ca", MY_TLS_VERIFIED},
                 {"verify-ca", MY_TLS_VERIFIED},
                 {"verify_identity", MY_TLS_VERIFIED},
                 {"verify-full", MY_TLS_VERIFIED}};
    struct dlock_uri *uri = be->store.spec->uri;
    struct my_settings *set = &be->settings;
    const char *mode = dlock_uri_param(uri, "ssl-mode");
    size_t i = 0;
    set->ca = dlock_uri_param(uri, "ssl-ca");
    set->ca_path = dlock_uri_param(uri, "ssl-capath");
    set->cert = dlock_uri_param(uri, "ssl-cert");
    set->key = dlock_uri_param(uri, "ssl-key");
    set->tls = set->ca || set->ca_path ? MY_TLS_VERIFIED : MY_TLS_PREFERRED;
    if (!mode)
        return 0;
    while (i < DLOCK_LEN(modes) && strcasecmp(mode, modes[i].name) != 0)
        i++;
    if (i == DLOCK_LEN(modes))
        return usage(be, "ssl-mode", mode, "disabled, preferred, required or verify_identity", err);
    if ((set->ca || set->ca_path) && modes[i].tls != MY_TLS_VERIFIED)
        return dlock_fail_at(err, DLOCK_EUSAGE, 0, sql_where(&be->store),
                             "ssl-mode=%s would not use ssl-ca=: write ssl-mode=verify_identity",
                             mode);
    set->tls = modes[i].tls;
    return 0;
}

/* Variables that load code, or name a file, must not come from a user with fewer rights. */
static int check_trust(const struct my_backend *be, struct dlock_error *err)
{
    static const char *const names[] = {"LIBMYSQL_PLUGINS", "MARIADB_PLUGIN_DIR",
                                        "LIBMYSQL_PLUGIN_DIR", "LIBMYSQL_ENABLE_CLEARTEXT_PLUGIN"};
    for (size_t i = 0; i < DLOCK_LEN(names) && dlock_env_is_foreign(); i++)
        if (getenv(names[i]))
            return dlock_fail_at(err, DLOCK_EPERM, 0, sql_where(&be->store),
                                 "%s was set by a user with fewer rights (sudo): unset it",
                                 names[i]);
    return 0;
}

static char *quote(const char *schema, const char *name, const char *suffix)
{
    char *out = NULL;
    return asprintf(&out, "`%s`.`%s%s`", schema, name, suffix) < 0 ? NULL : out;
}

/* "NAME" or "DATABASE.NAME". */
static int set_table(struct my_backend *be, struct dlock_error *err)
{
    struct table_state *table = &be->store.table;
    const char *text = dlock_uri_param(be->store.spec->uri, "table");
    const char *dot = text ? strchr(text, '.') : NULL, *name = dot ? dot + 1 : text;
    const char *schema = be->settings.database;
    char *given = dot ? strndup(text, (size_t)(dot - text)) : NULL;
    if (dot && !given)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    schema = given ? given : schema;
    name = name ? name : "dlock_locks";
    bool good = *schema && *name && strlen(schema) <= NAME_MAX_BYTES &&
                strlen(name) + strlen(SUFFIX) <= NAME_MAX_BYTES && !strpbrk(schema, "`.\r\n") &&
                !strpbrk(name, "`.\r\n");
    if (good) {
        snprintf(be->schema_name, sizeof(be->schema_name), "%s", schema);
        snprintf(be->table_name, sizeof(be->table_name), "%s", name);
        snprintf(be->holders_name, sizeof(be->holders_name), "%s" SUFFIX, name);
        table->name = quote(schema, name, "");
        table->holders = quote(schema, name, SUFFIX);
        table->runs = quote(schema, name, "");
        if (asprintf(&table->schema, "`%s`", schema) < 0)
            table->schema = NULL;
    }
    free(given);
    if (!good)
        return usage(be, "table", text ? text : name,
                     "NAME or DATABASE.NAME, with at most 56 characters in a name", err);
    return table->name && table->holders && table->runs && table->schema
               ? 0
               : dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
}

static int set_options(struct my_backend *be, struct dlock_error *err)
{
    struct dlock_uri *uri = be->store.spec->uri;
    const char *mode = dlock_uri_param(uri, "mode"), *grace = dlock_uri_param(uri, "restart-grace");
    if (mode && strcmp(mode, "lease") != 0)
        return usage(be, "mode", mode, "lease", err);
    if (strlen(uri->name) > LOCK_NAME_MAX) /* the server would cut it */
        return dlock_fail_at(err, DLOCK_EUSAGE, 0, sql_where(&be->store),
                             "the lock's name has %zu bytes: %d at most", strlen(uri->name),
                             LOCK_NAME_MAX);
    if (be->store.spec->ttl > TTL_MAX)
        return dlock_fail_at(err, DLOCK_EUSAGE, 0, sql_where(&be->store),
                             "the ttl is too long: a year at most");
    return grace ? dlock_parse_duration(grace, &be->store.restart_grace, err) : 0;
}

int my_settings_init(struct my_backend *be, struct dlock_error *err)
{
    struct dlock_uri *uri = be->store.spec->uri;
    struct my_settings *set = &be->settings;
    const struct dlock_host *h = uri->nhosts > 0 ? &uri->hosts[0] : NULL;
    static const char *const known[] = {"ssl-mode", "ssl-ca",        "ssl-capath", "ssl-cert",
                                        "ssl-key",  "password-file", "user",       "password",
                                        "socket",   "table",         "mode",       "restart-grace"};
    for (size_t i = 0; i < DLOCK_LEN(known); i++) {
        (void)dlock_uri_param(uri, known[i]);
        dlock_uri_known(uri, known[i]);
    }
    int rc = my_foreign_params(uri, err);
    if (rc != 0 || (rc = set_tls(be, err)) != 0 || (rc = check_trust(be, err)) != 0)
        return rc;
    set->user = dlock_uri_param(uri, "user");
    if (!set->user && h)
        set->user = h->user;
    set->given = dlock_uri_param(uri, "password");
    set->given = h && h->password ? h->password : set->given;
    set->password_file = dlock_uri_param(uri, "password-file");
    if (!set->given && !set->password_file)
        set->given = getenv("MYSQL_PWD");
    set->socket = dlock_uri_param(uri, "socket");
    set->database = uri->path[0] == '/' ? uri->path + 1 : "";
    if (!*set->database)
        return dlock_fail_at(err, DLOCK_EUSAGE, 0, sql_where(&be->store),
                             "no database: write its name behind the host, "
                             "mysql://HOST/DATABASE#NAME");
    if (set->socket && (*set->socket != '/' || (h && *h->host)))
        return usage(be, "socket", set->socket, "a path, and no host behind the '//'", err);
    if (!set->socket && (!h || !*h->host))
        return dlock_fail_at(err, DLOCK_EUSAGE, 0, sql_where(&be->store),
                             "no host: write mysql://HOST/DATABASE, or socket=PATH");
    rc = set_options(be, err);
    return rc == 0 ? set_table(be, err) : rc;
}

void my_settings_done(struct my_backend *be)
{
    dlock_wipe(be->settings.password);
}
