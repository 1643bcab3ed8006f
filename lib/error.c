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
#define E(name_, exit_, retryable_, text_)                                                         \
    [-DLOCK_E##name_ -                                                                             \
        1] = {.name = "DLOCK_E" #name_, .text = text_, .exit = exit_, .retryable = retryable_}
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

/* The row of a code, or -1: DLOCK_OK and anything that is not a code. */
static int row(int code)
{
    return code < 0 && code >= -(int)DLOCK_LEN(errors) ? -code - 1 : -1;
}

int dlock_error_exit(int code)
{
    int i = row(code);
    if (i >= 0)
        return errors[i].exit;
    return code == DLOCK_OK ? 0 : errors[-DLOCK_EOS - 1].exit;
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
        size_t len = strlen(clean);
        if (len > 2 && strcmp(clean + len - 2, ": ") == 0) /* whoever gave the cause had no words */
            len -= 2;
        dlock_clean_text(err->msg, sizeof(err->msg), clean, len);
    }
    errno = saved;
    return code;
}
