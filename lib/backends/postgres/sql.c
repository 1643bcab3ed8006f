/* sql.c - see sql.h. */
#include "sql.h"

#define SQL_TEXTS
#include "postgres_sql.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct pg_place *find(const struct pg_place *list, const char *name, size_t len)
{
    for (; list && list->name; list++)
        if (strncmp(list->name, name, len) == 0 && list->name[len] == '\0')
            return list;
    return NULL;
}

/* Write the statement with its places filled in. values: of the *n parameters, or NULL. */
static void put(FILE *f, const char *p, const struct pg_place *own, const struct pg_place *common,
                const char **values, int *n)
{
    while (*p) {
        bool quoted = p[0] == '\'' && p[1] == '{';
        const char *name = p + (quoted ? 2 : 1);
        size_t len = p[0] == '{' || quoted ? strspn(name, "abcdefghijklmnopqrstuvwxyz_") : 0;
        if (len == 0 || name[len] != '}' || (quoted && (name[len + 1] != '\'' || !values))) {
            fputc(*p++, f);
            continue;
        }
        const struct pg_place *place = find(own, name, len);
        if (!place)
            place = find(common, name, len);
        p = name + len + 1;
        if (!place) {
            fprintf(f, "{%.*s}", (int)len, name); /* the server refuses it */
        } else if (quoted && place->text) {
            int i = 0;
            while (i < *n && values[i] != place->text)
                i++;
            if (i == *n && i < PG_VALUES)
                values[(*n)++] = place->text;
            fprintf(f, "$%d", i + 1);
            p++;
        } else if (place->text) {
            fputs(place->text, f);
        } else {
            fprintf(f, quoted ? "'%" PRId64 "'" : "%" PRId64, place->number);
            p += quoted;
        }
    }
}

void sql_add(struct pg_message *m, const char *statement, const struct pg_place *own,
             const struct pg_place *common)
{
    if (m->n == 0)
        m->list[m->n++] = (struct pg_statement){.sql = strdup(sql_session_path)};
    struct pg_statement *s = &m->list[m->n++];
    const char *values[PG_VALUES];
    size_t size;
    *s = (struct pg_statement){.n = 0};
    FILE *f = open_memstream(&s->sql, &size);
    if (f)
        put(f, statement, own, common, values, &s->n);
    bool ok = f && fclose(f) == 0;
    for (int i = 0; i < s->n; i++)
        ok = (s->values[i] = strdup(values[i])) && ok;
    if (!ok) {
        free(s->sql);
        s->sql = NULL;
    }
}

void sql_send(struct pg_conn *c, int tag, struct pg_message *m)
{
    m->tag = tag;
    pg_conn_send_all(c, m);
}

char *sql_text(const char *comment, const char *const *statements, const struct pg_place *places)
{
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    if (!f)
        return NULL;
    if (comment)
        fprintf(f, *comment ? "/* %s */ %s" : "%s%s", comment, sql_session_local_path);
    for (const char *const *s = statements; *s; s++) {
        fputs(comment ? "; " : s > statements ? ";\n" : "", f);
        put(f, *s, NULL, places, NULL, NULL);
    }
    return fclose(f) == 0 ? text : (free(text), NULL);
}
