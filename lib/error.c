/* error.c - the table of failures, and the functions that fill struct dlock_error. */
#include "util.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct row {
    const char *name, *text;
    int exit;
    bool retryable;
};

static const struct row errors[] = {
#define E(c, exit_, retry_, text_) [-DLOCK_E##c] = {"DLOCK_E" #c, text_, exit_, retry_}
    [DLOCK_OK] = {"DLOCK_OK", "success", 0, false},
    E(USAGE, 64, false, "the request is not well-formed"),
    E(DATA, 65, false, "foreign data under the lock's name"),
    E(UNAVAIL, 69, true, "the store cannot be reached"),
    E(NOBACKEND, 69, false, "no backend for this kind of store"),
    E(UNUSABLE, 69, false, "the store was reached, but cannot be used"),
    E(OS, 71, false, "the operating system refused"),
    E(NOMEM, 71, true, "out of memory"),
    E(CREATE, 73, false, "the lock cannot be created"),
    E(BUSY, 75, true, "the lock is held by others"),
    E(PROTO, 76, false, "the store's answer is not its protocol"),
    E(PERM, 77, false, "authentication or permission refused"),
    E(LOST, 79, false, "the lock was lost"),
    E(CANCELED, 71, true, "interrupted by the caller"),
#undef E
};

static const struct row *row(int code)
{
    static const struct row unknown = {"DLOCK_E?", "unknown error", 71, false};
    return code <= 0 && code > -(int)DLOCK_LEN(errors) ? &errors[-code] : &unknown;
}

int dlock_error_exit(int code)
{
    return row(code)->exit;
}

const char *dlock_error_text(int code)
{
    return row(code)->text;
}

const char *dlock_error_name(int code)
{
    return row(code)->name;
}

bool dlock_error_retryable(int code)
{
    return row(code)->retryable;
}

/* Append s to the message, cleaned and cut to the room that is left. */
static void append(struct dlock_error *err, const char *s)
{
    size_t used = strlen(err->msg);
    dlock_clean_words(err->msg + used, sizeof(err->msg) - used, s, strlen(s));
    dlock_hide_secrets(err->msg + used, false);
}

int dlock_fail_site(struct dlock_error *err, int code, int sys, const struct dlock_site *at,
                    const char *fmt, ...)
{
    int saved = errno; /* callers often read errno afterwards */
    if (!err)
        return code;
    /* Not into err->msg, which may be an argument. */
    char text[2 * sizeof(err->msg)], cause[sizeof(text)];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (n < 0)
        text[0] = '\0';
    /* Hide secrets before the text is cut: the cut may take the '@' behind a secret. */
    dlock_clean_text(cause, sizeof(cause), text, strlen(text));
    dlock_hide_secrets(cause, n >= (int)sizeof(text));
    size_t len = strlen(cause);
    if (len > 2 && strcmp(cause + len - 2, ": ") == 0) /* a library gave no words for its failure */
        cause[len - 2] = '\0';
    *err = (struct dlock_error){.code = code, .sys = sys};
    if (at && at->where)
        append(err, at->where);
    if (at && at->address) {
        append(err, " (");
        append(err, at->address);
        append(err, ")");
    }
    if (at && at->where && cause[0])
        append(err, ": ");
    err->cause_at = (unsigned short)strlen(err->msg);
    append(err, cause);
    err->cause_len = (unsigned short)(strlen(err->msg) - err->cause_at);
    if (at && at->lock) {
        append(err, " (lock '");
        append(err, at->lock);
        append(err, "')");
    }
    errno = saved;
    return code;
}

void dlock_error_add_lock(struct dlock_error *err, const struct dlock_uri *uri)
{
    char quoted[264];
    snprintf(quoted, sizeof(quoted), "'%s'", uri->name);
    if (strstr(err->msg, quoted))
        return;
    if (err->cause_at == 0) {
        dlock_fail_lock(err, err->code, err->sys, uri, "%s", err->msg);
        return;
    }
    append(err, " (lock ");
    append(err, quoted);
    append(err, ")");
}

void dlock_error_cause(struct dlock_error *out, const struct dlock_error *err, const char *where)
{
    size_t n = strlen(where), between = err->cause_at - n;
    bool at_where = err->cause_at >= n && memcmp(err->msg, where, n) == 0;
    const char *rest = err->msg + (at_where ? n : 0), *cause = err->msg + err->cause_at;
    char text[sizeof(out->msg)];
    if (at_where && strncmp(rest, " (", 2) == 0 && between > strlen(" (): "))
        snprintf(text, sizeof(text), "%.*s: %.*s", (int)(between - strlen(" (): ")), rest + 2,
                 err->cause_len, cause);
    else if (at_where && (between == 0 || rest[0] == ' ' || (between == 2 && rest[0] == ':')))
        snprintf(text, sizeof(text), "%.*s", err->cause_len, cause);
    else /* another place, which stays in front of the cause */
        snprintf(text, sizeof(text), "%.*s", err->cause_at + err->cause_len, err->msg);
    dlock_fail(out, err->code, err->sys, "%s", text);
}
