/* text.c - text that is safe to show on a terminal. */
#include "util.h"

#include <string.h>

/* Bytes in the UTF-8 sequence at s, 0: not valid. */
static size_t utf8_len(const unsigned char *s, size_t len)
{
    /* The least code point of each length: a lower one has a shorter encoding. */
    static const unsigned least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t n = s[0] < 0x80 ? 1 : s[0] >> 5 == 6 ? 2 : s[0] >> 4 == 14 ? 3 : s[0] >> 3 == 30 ? 4 : 0;
    unsigned c;
    if (n <= 1)
        return n;
    if (n > len)
        return 0;
    c = s[0] & (0x7fU >> n);
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 0;
        c = c << 6 | (s[i] & 0x3f);
    }
    return c < least[n] || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff) ? 0 : n;
}

size_t dlock_text_char(const char *s, size_t len, bool *good)
{
    const unsigned char *u = (const unsigned char *)s;
    size_t n = utf8_len(u, len);
    bool c0 = n == 1 && (u[0] < 0x20 || u[0] == 0x7f);
    bool c1 = n == 2 && u[0] == 0xc2 && u[1] < 0xa0; /* terminals obey C1 controls too */
    *good = n > 0 && !c0 && !c1;
    return n > 0 ? n : 1;
}

void dlock_clean_text(char *dst, size_t size, const char *src, size_t len)
{
    size_t used = 0;
    if (size == 0)
        return;
    while (len > 0) {
        bool good;
        size_t n = dlock_text_char(src, len, &good), out = good ? n : 1;
        if (used + out >= size)
            break;
        if (good)
            memcpy(dst + used, src, n);
        else
            dst[used] = '?';
        used += out;
        src += n;
        len -= n;
    }
    dst[used] = '\0';
}

void dlock_clean_words(char *dst, size_t size, const char *src, size_t len)
{
    static const char dots[] = " ...";
    dlock_clean_text(dst, size, src, len);
    if (len < size || size <= sizeof(dots) || strlen(dst) + sizeof(dots) <= size)
        return;
    char *cut = memrchr(dst + 1, ' ', size - sizeof(dots));
    if (cut)
        memcpy(cut, dots, sizeof(dots));
}
