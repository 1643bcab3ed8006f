/*
 * list.c - the locks of the store that are held or waited for, row by row. A lease table is read in
 * pages by name, of which libpq keeps one in memory.
 */
#include "store.h"

#include <stdio.h>
#include <string.h>

void sql_list_partial(struct sql_store *be, const char *what)
{
    if (be->status.partial)
        return;
    be->status.partial = true;
    dlock_fail_at(&events_add(&be->events, EV_NOTICE)->error, DLOCK_EPERM, 0, sql_where(be), "%s",
                  what);
}

int sql_list_next(struct sql_store *be, struct dlock_event *ev)
{
    struct sql_rows *rows = be->status.rows;
    int n = rows->n;
    if (be->status.next < n) {
        be->protocol->read_entry(be, be->status.next++, &be->entry);
        *ev = (struct dlock_event){.type = EV_ENTRY, .entry = &be->entry};
        return 1;
    }
    bool more = !be->protocol->session && n == LIST_PAGE;
    if (more)
        snprintf(be->status.after, sizeof(be->status.after), "%s", sql_text(rows, n - 1, "name"));
    sql_rows_free(rows);
    be->status.rows = NULL;
    if (more) {
        be->op_until = sql_now(be) + be->spec->connect_timeout;
        be->protocol->send_list(be);
        return 0;
    }
    sql_op_done(be);
    sql_close(be);
    *ev = (struct dlock_event){.type = EV_DONE};
    return 1;
}
