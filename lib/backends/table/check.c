/*
 * check.c - --check: what a run would meet on this server. The questions are SELECTs of catalogues
 * and settings; nothing is locked or written. The lease table is then looked at by the statements
 * that also precede each run.
 */
#include "store.h"

static void clock_of(struct sql_store *be, const struct sql_rows *rows)
{
    int64_t off = sql_ms(rows, 0, "clock_ms") - dlock_wall() / DLOCK_MSEC;
    int64_t by = off < 0 ? -off : off;
    char text[32];
    if (by > FINDING_CLOCKS_APART / DLOCK_MSEC)
        finding_warn(
            &be->found,
            "clock: the server is %s %s this machine, so times are shown wrong; set the clocks",
            dlock_format_duration(by * DLOCK_MSEC, text, sizeof(text)),
            off > 0 ? "ahead of" : "behind");
    else
        finding_ok(&be->found, "clock: as this machine's");
}

static void refusal(struct sql_store *be, const char *subject, const struct sql_reply *r)
{
    struct dlock_error err;
    int code = sql_error(be, r, &err);
    finding_fail(&be->found, code, "%s: %.200s", subject,
                 r->text[0] ? r->text : "unexpected answer");
}

static void finish(struct sql_store *be)
{
    sql_close(be);
    sql_op_done(be);
    be->found.ended = true;
}

void sql_check_begin(struct sql_store *be)
{
    findings_drop(&be->found);
    be->check_second = false;
    be->protocol->send_check(be, true);
}

static void first_answered(struct sql_store *be, const struct sql_reply *r)
{
    bool understood = r->fault == SQL_OK && r->rows && r->rows->n > 0 &&
                      sql_has(r->rows, "pid clock_ms level text");
    be->driver->check(be, understood ? r->rows : NULL);
    if (!understood) {
        refusal(be, "right", r);
        finish(be);
        return;
    }
    clock_of(be, r->rows);
    for (int i = 0; i < r->rows->n; i++) {
        int64_t level = sql_number(r->rows, i, "level");
        findings_add(&be->found,
                     level == 0   ? DLOCK_FINDING_OK
                     : level == 1 ? DLOCK_FINDING_WARNING
                                  : DLOCK_FINDING_FAILURE,
                     level > 2   ? DLOCK_EUNUSABLE
                     : level > 1 ? DLOCK_EPERM
                                 : 0,
                     "%s", sql_text(r->rows, i, "text"));
    }
    be->check_second = true;
    if (!be->protocol->send_check(be, false))
        finish(be);
}

void sql_check_answered(struct sql_store *be, const struct sql_reply *r)
{
    if (!be->check_second) {
        first_answered(be, r);
        return;
    }
    if (r->fault == SQL_OK)
        finding_ok(&be->found, "table: as --schema prints it");
    else if (r->fault != SQL_NO_TABLE) /* missing: told already */
        refusal(be, "table", r);
    finish(be);
}
