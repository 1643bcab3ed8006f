/* compose.c - see sql.h: statements with their places "{name}" filled in. */
#include "sql.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What becomes of a text in a quoted place: itself; a parameter; a literal in hex. */
enum quoted { AS_TEXT, AS_PARAMETER, AS_HEX };

static const struct sql_place *find(const struct sql_place *list, const char *name, size_t len)
{
    for (; list && list->name; list++)
        if (strncmp(list->name, name, len) == 0 && list->name[len] == '\0')
            return list;
    return NULL;
}

static void put_parameter(FILE *f, const char *text, const char **values, int *n)
{
    int i = 0;
    while (i < *n && values[i] != text)
        i++;
    if (i == *n && i < SQL_VALUES)
        values[(*n)++] = text;
    fprintf(f, "$%d", i + 1);
}

static void put_hex(FILE *f, const char *text)
{
    fputs("x'", f);
    for (; *text; text++)
        fprintf(f, "%02x", (unsigned)(unsigned char)*text);
    fputc('\'', f);
}

/* Write the statement with its places filled in. values: of the *n parameters. */
static void put(FILE *f, const char *p, const struct sql_place *own, const struct sql_place *common,
                enum quoted as, const char **values, int *n)
{
    while (*p) {
        bool quoted = p[0] == '\'' && p[1] == '{';
        const char *name = p + (quoted ? 2 : 1);
        size_t len = p[0] == '{' || quoted ? strspn(name, "abcdefghijklmnopqrstuvwxyz_") : 0;
        if (len == 0 || name[len] != '}' || (quoted && (name[len + 1] != '\'' || as == AS_TEXT))) {
            fputc(*p++, f);
            continue;
        }
        const struct sql_place *place = find(own, name, len);
        if (!place)
            place = find(common, name, len);
        p = name + len + 1;
        if (!place) {
            fprintf(f, "{%.*s}", (int)len, name); /* the server refuses it */
        } else if (quoted && place->text) {
            if (as == AS_HEX)
                put_hex(f, place->text);
            else
                put_parameter(f, place->text, values, n);
            p++;
        } else if (place->text) {
            fputs(place->text, f);
        } else {
            fprintf(f, quoted ? "'%" PRId64 "'" : "%" PRId64, place->number);
            p += quoted;
        }
    }
}

void sql_add(struct sql_message *m, const char *statement, const struct sql_place *own,
             const struct sql_place *common, bool hex)
{
    struct sql_statement *s = &m->list[m->n++];
    const char *values[SQL_VALUES];
    size_t size;
    *s = (struct sql_statement){.n = 0};
    FILE *f = open_memstream(&s->sql, &size);
    if (f)
        put(f, statement, own, common, hex ? AS_HEX : AS_PARAMETER, values, &s->n);
    bool ok = f && fclose(f) == 0;
    for (int i = 0; i < s->n; i++)
        ok = (s->values[i] = strdup(values[i])) && ok;
    if (!ok) {
        free(s->sql);
        s->sql = NULL;
    }
}

bool sql_message_whole(const struct sql_message *m)
{
    int i = 0;
    while (i < m->n && m->list[i].sql)
        i++;
    return i == m->n;
}

void sql_message_free(struct sql_message *m)
{
    for (int i = 0; i < m->n; i++) {
        free(m->list[i].sql);
        for (int v = 0; v < m->list[i].n; v++)
            free(m->list[i].values[v]);
    }
    m->n = 0;
}

char *sql_compose(const char *first, const char *between, const char *const *statements, size_t n,
                  const struct sql_place *places)
{
    char *text = NULL;
    size_t size;
    bool any = false;
    FILE *f = open_memstream(&text, &size);
    if (!f)
        return NULL;
    fputs(first, f);
    for (size_t i = 0; i < n; i++) {
        if (!statements[i])
            continue;
        fputs(any ? between : "", f);
        put(f, statements[i], NULL, places, AS_TEXT, NULL, NULL);
        any = true;
    }
    return fclose(f) == 0 ? text : (free(text), NULL);
}
