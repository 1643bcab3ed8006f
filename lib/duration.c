/*
 * duration.c - numbers, and durations as people write them. By hand: strtod(3) knows locales, hex
 * and "inf".
 */
#include "util.h"

#include <stdio.h>
#include <string.h>

/* More than any lock needs, and far enough from INT64_MAX: sums with a clock do not overflow. */
#define MAX_NS (INT64_C(36525) * 24 * 3600 * DLOCK_SEC)

/* As in sleep(1), systemd and Go, and as words. "M" is a month to some, so a minute is only "m". */
static const struct {
    int64_t ns;
    const char *names[6];
} units[] = {
    {24 * 3600 * DLOCK_SEC, {"d", "day", "days"}},
    {3600 * DLOCK_SEC, {"h", "hr", "hrs", "hour", "hours"}},
    {60 * DLOCK_SEC, {"m", "min", "mins", "minute", "minutes"}},
    {DLOCK_SEC, {"s", "sec", "secs", "second", "seconds"}},
    {DLOCK_MSEC, {"ms", "msec", "msecs"}},
};

bool dlock_read_number(const char *s, size_t len, int64_t *out)
{
    int64_t n = 0;
    for (size_t i = 0; i < len; i++) {
        if (s[i] < '0' || s[i] > '9' || n > (INT64_MAX - (s[i] - '0')) / 10)
            return false;
        n = 10 * n + (s[i] - '0');
    }
    *out = n;
    return len > 0;
}

static const char *skip_digits(const char *p)
{
    return p + strspn(p, "0123456789");
}

/* A number and its unit, as in "1h30m". */
struct part {
    const char *end;
    int64_t unit; /* 0: none was written */
    int64_t ns;   /* -1: too long */
    bool fraction;
};

/* False: no number, or an unknown unit. */
static bool read_part(const char *p, struct part *part)
{
    const char *dot = skip_digits(p), *frac = *dot == '.' ? dot + 1 : dot;
    const char *name = skip_digits(frac);
    size_t len = strspn(name, "abcdefghijklmnopqrstuvwxyz");
    part->end = name + len;
    part->unit = 0;
    part->fraction = frac > dot;
    for (size_t i = 0; i < DLOCK_LEN(units) && len > 0; i++)
        for (size_t k = 0; k < DLOCK_LEN(units[i].names) && units[i].names[k]; k++)
            if (strlen(units[i].names[k]) == len && memcmp(units[i].names[k], name, len) == 0)
                part->unit = units[i].ns;
    if ((len > 0 && part->unit == 0) || (dot == p && name == frac))
        return false;
    const int64_t unit = len > 0 ? part->unit : DLOCK_SEC;
    part->ns = 0;
    if (dot > p && !dlock_read_number(p, (size_t)(dot - p), &part->ns))
        part->ns = MAX_NS;
    part->ns = part->ns > MAX_NS / unit ? -1 : part->ns * unit;
    /* Digits below a nanosecond are cut off. */
    for (int64_t scale = unit / 10; part->ns >= 0 && frac < name; frac++, scale /= 10)
        part->ns += (*frac - '0') * scale;
    return true;
}

int dlock_parse_duration(const char *text, int64_t *ns, struct dlock_error *err)
{
    /* Perhaps the LOCK, after an option without its value, with a password. */
    const char *shown = strstr(text, "://") ? "(a URI)" : text;
    int64_t above = DLOCK_NEVER, sum = 0; /* -1: too long */
    struct part part = {.end = text};
    do {
        bool alone = part.end == text, good = read_part(part.end, &part);
        bool last = good && *part.end == '\0';
        /*
         * Each part has a smaller unit than the part before, and only the last part may have a
         * fraction: "30m1h" and "1.5h30m" are rather a slip, and "1h30" is ambiguous.
         */
        if (!good || (part.unit == 0 && !(alone && last)) || part.unit >= above ||
            (part.fraction && !last))
            return dlock_fail(
                err, DLOCK_EUSAGE, 0,
                "\"%.64s\" is not a duration: write 10, 0.5, 500ms, 1.5m, 10min, 1h30m or 1d",
                shown);
        above = part.unit;
        /* Both are at most MAX_NS and the fraction of a day. */
        if (sum >= 0)
            sum = part.ns < 0 || sum + part.ns > MAX_NS ? -1 : sum + part.ns;
    } while (*part.end);
    if (sum < 0)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "\"%.64s\" is too long: at most 100 years", shown);
    *ns = sum;
    return 0;
}

/* n / 1000 with its unit, without needless zeros. */
static void put_thousandths(char *buf, size_t size, int64_t n, const char *unit)
{
    char text[40];
    int len = snprintf(text, sizeof(text), "%lld.%03d", (long long)(n / 1000), (int)(n % 1000));
    while (len > 0 && text[len - 1] == '0')
        len--;
    if (len > 0 && text[len - 1] == '.')
        len--;
    snprintf(buf, size, "%.*s %s", len, text, unit);
}

const char *dlock_format_duration(int64_t ns, char *buf, size_t size)
{
    /* Rounded up: "at least 1.201 s" must not name a value still too small. */
    if (ns == DLOCK_NEVER)
        snprintf(buf, size, "no limit");
    else if (ns <= 0)
        snprintf(buf, size, "0 s");
    else if (ns < DLOCK_MSEC)
        put_thousandths(buf, size, (ns + 999) / 1000, "ms");
    else if (ns <= DLOCK_SEC - DLOCK_MSEC)
        snprintf(buf, size, "%lld ms", (long long)((ns + DLOCK_MSEC - 1) / DLOCK_MSEC));
    else
        put_thousandths(buf, size, ns / DLOCK_MSEC + (ns % DLOCK_MSEC != 0), "s");
    return buf;
}
