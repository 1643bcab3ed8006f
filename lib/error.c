/* error.c - the table of failures and the one function that fills struct dlock_error. */
#include "util.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *text;
    int exit;
    bool retryable;
} errors[] = {
#define X(n, code, retry, words)                                                                   \
    [DLOCK_IX_##n] = {.name = "DLOCK_E" #n, .text = words, .exit = code, .retryable = retry},
    DLOCK_ERRORS(X)
#undef X
};

/* The row of a code, or -1: DLOCK_OK and anything that is not a code. */
static int row(int code)
{
    return code < 0 && code >= -DLOCK_ERROR_COUNT ? -code - 1 : -1;
}

int dlock_error_exit(int code)
{
    int i = row(code);
    if (i >= 0)
        return errors[i].exit;
    return code == DLOCK_OK ? 0 : errors[DLOCK_IX_OS].exit;
}

const char *dlock_error_text(int code)
{
    int i = row(code);
    if (i >= 0)
        return errors[i].text;
    return code == DLOCK_OK ? "success" : "unknown error";
}

const char *dlock_error_name(int code)
{
    int i = row(code);
    if (i >= 0)
        return errors[i].name;
    return code == DLOCK_OK ? "DLOCK_OK" : "DLOCK_E?";
}

bool dlock_error_retryable(int code)
{
    int i = row(code);
    return i >= 0 && errors[i].retryable;
}

int dlock_fail(struct dlock_error *err, int code, int sys, const char *fmt, ...)
{
    /* Callers often read errno after this call. */
    int saved = errno;

    if (err) {
        /* Into another buffer: an argument may be err->msg itself. */
        char text[2 * sizeof(err->msg)], clean[sizeof(text)];
        va_list ap;

        va_start(ap, fmt);
        int n = vsnprintf(text, sizeof(text), fmt, ap);
        va_end(ap);
        if (n < 0)
            text[0] = '\0';
        err->code = code;
        err->sys = sys;
        /* Secrets are looked for before the text gets its length: the cut may take the '@' that shows them. */
        dlock_clean_text(clean, sizeof(clean), text, strlen(text));
        dlock_hide_secrets(clean, n >= (int)sizeof(text));
        dlock_clean_text(err->msg, sizeof(err->msg), clean, strlen(clean));
    }
    errno = saved;
    return code;
}
