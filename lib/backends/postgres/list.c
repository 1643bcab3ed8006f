/*
 * list.c - the locks of the store that are held or waited for, row by row. A lease table is read in
 * pages by name, of which libpq keeps one in memory.
 */
#include "postgres.h"

#include <stdio.h>
#include <string.h>

void pg_list_partial(struct pg_backend *be, const char *what)
{
    if (be->status.partial)
        return;
    be->status.partial = true;
    dlock_fail_at(&events_add(&be->events, EV_NOTICE)->error, DLOCK_EPERM, 0, pg_where(be), "%s",
                  what);
}

int pg_list_next(struct pg_backend *be, struct dlock_event *ev)
{
    PGresult *rows = be->status.rows;
    int n = PQntuples(rows);
    if (be->status.next < n) {
        be->protocol->read_entry(be, be->status.next++, &be->entry);
        *ev = (struct dlock_event){.type = EV_ENTRY, .entry = &be->entry};
        return 1;
    }
    bool more = !be->protocol->session && n == LIST_PAGE;
    if (more)
        snprintf(be->status.after, sizeof(be->status.after), "%s", pg_text(rows, n - 1, "name"));
    PQclear(rows);
    be->status.rows = NULL;
    if (more) {
        be->op_until = pg_now(be) + be->spec->connect_timeout;
        be->protocol->send_list(be);
        return 0;
    }
    pg_op_done(be);
    pg_conn_close(&be->conn);
    *ev = (struct dlock_event){.type = EV_DONE};
    return 1;
}
