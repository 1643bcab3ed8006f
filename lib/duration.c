/* duration.c - durations as people write them. By hand: strtod(3) knows locales, hex and "inf". */
#include "util.h"

#include <stdio.h>
#include <string.h>

/* Longer than any lock needs, and far enough from INT64_MAX that sums with a clock do not overflow. */
#define MAX_NS (INT64_C(36525) * 24 * 3600 * DLOCK_SEC)

static const struct {
    const char *name;
    int64_t ns;
} units[] = {
    {"", DLOCK_SEC},       {"ms", DLOCK_MSEC},      {"s", DLOCK_SEC},
    {"m", 60 * DLOCK_SEC}, {"h", 3600 * DLOCK_SEC}, {"d", 24 * 3600 * DLOCK_SEC},
};

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static const char *skip_digits(const char *p)
{
    while (is_digit(*p))
        p++;
    return p;
}

static int64_t find_unit(const char *name)
{
    for (size_t i = 0; i < DLOCK_LEN(units); i++)
        if (strcmp(units[i].name, name) == 0)
            return units[i].ns;
    return 0;
}

/* Whole digits [p, end) times unit; -1 when that is too long. */
static int64_t whole_part(const char *p, const char *end, int64_t unit)
{
    int64_t n = 0;

    for (; p < end; p++) {
        n = 10 * n + (*p - '0');
        if (n > MAX_NS / unit)
            return -1;
    }
    return n * unit;
}

int dlock_parse_duration(const char *text, int64_t *ns, struct dlock_error *err)
{
    /* Perhaps the LOCK, after an option without its value: it may hold a password. */
    const char *shown = strstr(text, "://") ? "(a URI)" : text;
    const char *dot = skip_digits(text), *frac = *dot == '.' ? dot + 1 : dot;
    const char *end = skip_digits(frac);
    int64_t unit = find_unit(end), value, scale;

    if (unit == 0 || (dot == text && end == frac))
        return dlock_fail(err, DLOCK_EUSAGE, 0,
                          "\"%.64s\" is not a duration: write 10, 0.5, 500ms, 1.5m, 2h or 1d",
                          shown);
    value = whole_part(text, dot, unit);
    /* Digits below a nanosecond are cut off. */
    for (scale = unit / 10; value >= 0 && frac < end; frac++, scale /= 10)
        value += (*frac - '0') * scale;
    if (value < 0 || value > MAX_NS)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "\"%.64s\" is too long: at most 100 years", shown);
    *ns = value;
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
    /* Rounded up: "at least 1.201 s" must not name a value that is still too small. */
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
