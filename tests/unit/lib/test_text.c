/* Text for a terminal: no control characters, valid UTF-8, cut between characters. */
#include "unit.h"
#include "util.h"

static char buf[128];

TEST(a_long_sentence_ends_behind_a_word)
{
    static const struct {
        const char *in, *want;
        size_t size;
    } rows[] = {
        {"ERR one two three", "ERR one two three", 18},
        {"ERR one two three", "ERR one two ...", 17},
        {"ERR one two three", "ERR one ...", 15},
        {"ERR gr\xc3\xb6\xc3\x9f x y", "ERR ...", 12},
        {"ERR gr\xff\xff\xff x", "ERR gr??? x", 12},
        {"one_word_only", "one_wor", 8},
        {"a b", "a", 2},
    };
    for (size_t i = 0; i < DLOCK_LEN(rows); i++) {
        dlock_clean_words(buf, rows[i].size, rows[i].in, strlen(rows[i].in));
        CHECK_STR(buf, rows[i].want);
    }
}

TEST(clean_text)
{
    static const struct {
        const char *in, *out;
        size_t size;
    } rows[] = {
        {"plain", "plain", 100},
        {"a\tb\nc\x01\x7f", "a?b?c??", 100},
        {"äöü€😀", "äöü€😀", 100},
        {"\xc2\x9b", "?", 100}, /* CSI in one byte */
        {"\xc2\xa0", "\xc2\xa0", 100},
        {"\xff\xc3", "??", 100},
        {"\xc0\xaf", "??", 100},           /* '/' in two bytes */
        {"\xed\xa0\x80", "???", 100},      /* a surrogate */
        {"\xf4\x90\x80\x80", "????", 100}, /* beyond Unicode */
        {"\xe2\x82", "??", 100},
        {"äöü", "äö", 6},
        {"äöü", "ä", 4},
        {"abc", "ab", 3},
        {"abc", "", 1},
    };
    for (size_t i = 0; i < DLOCK_LEN(rows); i++) {
        memset(buf, '#', sizeof(buf));
        dlock_clean_text(buf, rows[i].size, rows[i].in, strlen(rows[i].in));
        CHECK_STR(buf, rows[i].out);
    }
    dlock_clean_text(buf, sizeof(buf), "a\0b", 3);
    CHECK_STR(buf, "a?b");
    buf[0] = '#';
    dlock_clean_text(buf, 0, "a", 1);
    CHECK_INT(buf[0], '#');
}

UNIT_MAIN
