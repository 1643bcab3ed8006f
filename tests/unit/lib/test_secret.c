/* No text shows a secret: dlock_hide_secrets(), and messages that must have passed through it. */
#include "nested.h"
#include "unit.h"
#include "uri.h"
#include "util.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

static const struct {
    const char *text, *want;
} texts[] = {
    /* nothing to hide */
    {"", ""},
    {"a@b: c?d=e", "a@b: c?d=e"},
    {"redis://h:6379/0: 'a@b' is held", "redis://h:6379/0: 'a@b' is held"},
    {"(redis://h:6379), a@b", "(redis://h:6379), a@b"},
    {"redis://h:6379; redis://[::1]:6379. a@b", "redis://h:6379; redis://[::1]:6379. a@b"},
    {"zk://h1:2181,h2:2181/a:b a@b", "zk://h1:2181,h2:2181/a:b a@b"},
    {"postgres:///run/pg:5432/db a@b", "postgres:///run/pg:5432/db a@b"},
    {"\"etcd://\" a@b", "\"etcd://\" a@b"},
    {"https://ci/job/12?x=1#y by joe@h", "https://ci/job/12?x=1#y by joe@h"},
    {"http://[fe80::1%eth0]:80/ by joe@h", "http://[fe80::1%eth0]:80/ by joe@h"},
    {"h?password-file=/x&cert=y", "h?password-file=/x&cert=y"},
    {"://", "://"},
    {"redis://@h", "redis://@h"},
    /* user and password */
    {"redis://u:pw@h#n", "redis://***@h#n"},
    {"x 'redis://:p@h' y a@b", "x 'redis://**@h' y a@b"},
    {"redis://u@h redis://abcdef@h", "redis://*@h redis://***@h"},
    {"redlock://:pw@h1,:pw@h2", "redlock://***@h2"},
    {"redis://u:p/w?x#y@z@h/0", "redis://***@h/0"},
    {"x=\"jdbc:redis://:p'w\"@h\"", "x=\"jdbc:redis://***@h\""},
    {"redis://h#https://u:pw@x", "redis://***@x"},
    /* ... with a blank, or without its '@' */
    {"cannot run 'redis://u:my pw@h'", "cannot run 'redis://***@h'"},
    {"redis://:12 pw@h", "redis://***@h"},
    {"redis://:pw#n: no answer", "redis://*** no answer"},
    {"redis://u:1pw/0", "redis://***"},
    /* parameters */
    {"postgres://h/db?a=b&password=pw&c=d#n", "postgres://h/db?a=b&password=**&c=d#n"},
    {"h?sslPassWord=a#b#n x", "h?sslPassWord=***#n x"},
    {"h?client_secret_2=abcd&pwd=p&token= x", "h?client_secret_2=***&pwd=*&token= x"},
    {"redis://u:pw@h?password=a=b?c&d", "redis://***@h?password=***&d"},
    {"h?pass=abc&passfile=/x", "h?pass=***&passfile=/x"},
    {"h?token=http://u:p&w@h2 a@b", "h?token=*** a@b"},
    {"h?token=http://h2/x&y=a", "h?token=***&y=a"},
    {"h?token=abc&note=a@b", "h?token=***&note=a@b"},
    {"redis://h?auth=abc&x=1", "redis://h?auth=***&x=1"},
    {"redis://h?user=u;password=abc&x=1", "redis://h?user=u;password=***&x=1"},
    {"h?p%61ss=abc&p%61th=x", "h?p%61ss=***&p%61th=x"},
    {"https://s3/b/k?X-Amz-Date=1&X-Amz-Signature=abcd",
     "https://s3/b/k?X-Amz-Date=1&X-Amz-Signature=***"},
    {"https://x/y?sv=1&sig=ab%2Bc z", "https://x/y?sv=1&sig=*** z"},
    {"https://x/y?key=abc&keys=1", "https://x/y?key=***&keys=1"},
    /* what command lines have */
    {"curl -u joe:abcd h", "curl -u joe:*** h"},
    {"curl --user=joe:abcd -ujoe:abcd", "curl --user=joe:*** -ujoe:***"},
    {"docker -u 1000 x:y -u root", "docker -u 1000 x:y -u root"},
    {"-u https://x/y", "-u https://x/y"},
    {"PGPASSWORD=abcd psql --token=efgh", "PGPASSWORD=*** psql --token=***"},
    {"by x (sh -c \"sudo PASSWORD=***\"), since 2", "by x (sh -c \"sudo PASSWORD=***\"), since 2"},
    {"PASSWORD=***a\"), since", "PASSWORD=*** since"},
    {"password=abcd, 'db.secret=efgh' x", "password=*** 'db.secret=*** x"},
    {"author=bob tokens=3 passfile=/x", "author=bob tokens=3 passfile=/x"},
    {"jdbc:redis:u:pw@h#n", "jdbc:***@h#n"},
    {"redis:u:pw@h x", "redis:***@h x"},
    {"redis: u:pw@h", "redis: u:pw@h"},
    /* commands to CI systems */
    {"a ##vso[task.x]b ##[y] ###TeamCity[z", "a #?vso[task.x]b #?[y] ##?TeamCity[z"},
    {"## a[1] #[x] ##a-b[", "## a[1] #[x] ##a-b["},
    {"  ::set-output name=x::y", "  ?:set-output name=x::y"},
    {"::1 is a::b", "::1 is a::b"},
};

TEST(hides_secrets_and_nothing_else)
{
    for (size_t i = 0; i < DLOCK_LEN(texts); i++) {
        char buf[200];
        strcpy(buf, texts[i].text);
        for (int twice = 0; twice < 2; twice++) {
            dlock_hide_secrets(buf, false);
            if (!CHECK_STR(buf, texts[i].want))
                printf("# ... from %s\n", texts[i].text);
        }
    }
}

/* The '@', or the name's '#', may be in the part that is missing. */
TEST(a_cut_text_hides_its_last_uri)
{
    static const struct {
        const char *text, *want;
    } cut[] = {
        {"x redis://u", "x redis://*"},
        {"x redis://user:p", "x redis://***"},
        {"redis://u:my p", "redis://***"},
        {"redis://h:1/0 y", "redis://h:1/0 y"},
        {"redis://h:1 x?password=a#b", "redis://h:1 x?password=***"},
    };
    for (size_t i = 0; i < DLOCK_LEN(cut); i++) {
        char buf[200];
        strcpy(buf, cut[i].text);
        dlock_hide_secrets(buf, true);
        CHECK_STR(buf, cut[i].want);
    }
}

/* Wherever the cut is, in the message or in the room for its text. */
TEST(long_messages_show_no_secret)
{
    for (int before = 0; before < 1200; before++)
        for (int kind = 0; kind < 3; kind++) {
            struct dlock_error err;
            char text[1300];
            snprintf(text, sizeof(text), "%*sredis://%sunter%s@h", before, "",
                     kind ? "user:h" : "h", kind > 1 ? " h" : "");
            dlock_fail(&err, DLOCK_EUSAGE, 0, "%s", text);
            if (strstr(err.msg, "://h") || strstr(err.msg, "://u"))
                CHECK_FAIL("%d: %s", before, err.msg + (before < 500 ? before : 0));
        }
}

TEST(a_record_shows_no_secret)
{
    struct dlock_identity w;
    char command[600] = "redis://", note[600];
    memset(command + 8, 'h', 400);
    strcpy(command + 408, "@x");
    snprintf(note, sizeof(note), "for redis://:my pw@h and x?password=%0300d#n", 7);
    dlock_identity_init(&w, command, note);
    CHECK_STR(w.command, "redis://***@x");
    CHECK_STR(w.note, "for redis://***@h and x?password=***#n");
    dlock_identity_init(&w, NULL, NULL);
    CHECK_STR(w.command, "");
}

/* ------------------------------------------------- all ways to write one --- */

#define MARK "hunter"

static const char *const prefixes[] = {
    "",   " ",  "\t",  "\"", "'",  "jdbc:",  "X=",    "jdbc=", "<",     "#", "@", "\xef\xbb\xbf",
    "x/", "./", "://", "re", "r:", "redis:", "file:", "a b ",  "--x=y:"};
static const char *const schemes[] = {"redis",   "rediss",   "redis+unix", "redis+sentinel",
                                      "redlock", "redlocks", "postgres",   "postgresql",
                                      "zk",      "file",     "etcd",       "fake"};
static const char *const users[] = {":%s@", "u:%s@", "%s@", "u:x@%s@", "u:x:%s@", "%s:x@"};
/* A blank or '#' only where '@' or '#NAME' of the whole still tell what it is. */
static const char *const passwords[] = {
    MARK,         "x@" MARK,   MARK "@x",   "x/" MARK,     MARK "/x",   "x?" MARK,  MARK "?x=y",
    "x&" MARK,    MARK "&x=y", "x," MARK,   MARK ",x",     "x:" MARK,   MARK ":x",  "6379" MARK,
    "6379/" MARK, "[" MARK,    MARK "]",    "\"" MARK "'", "'" MARK,    MARK "%zz", "%00" MARK,
    "%41" MARK,   MARK "://x", "x://" MARK, "x\n" MARK,    "\x01" MARK, "x#" MARK,  MARK "#x",
    "x y" MARK,   MARK " x",   "x\xff" MARK};
static const char *const tails[] = {"h#n",
                                    "h:0#n",
                                    "h:x#n",
                                    "h1,h2#n",
                                    "[::1#n",
                                    "h/x y#n",
                                    "h/1/2#n",
                                    "#n",
                                    "h#%zz",
                                    "h#",
                                    "h?x#n",
                                    "h?x=1#n",
                                    "h?restart-grace=x#n",
                                    "h/d?mode=x#n",
                                    "h/a@b#n",
                                    "h:1/s#n",
                                    "/#n",
                                    "/s#n",
                                    "h h#n",
                                    "h,,h#n",
                                    "h/..#n"};

/* "redlock://h1,u@h2" may have a first host, or a user's name with a ','. */
static bool is_ambiguous(const char *scheme, const char *user, const char *password)
{
    return strncmp(scheme, "redlock", 7) == 0 && strchr(password, ',') &&
           (!strchr(user, ':') || strstr(user, "s:x") || strstr(user, "x@%"));
}

static void look(const char *text, const char *what, const char *shown)
{
    if (shown && strstr(shown, MARK))
        CHECK_FAIL("%s: %s: %s", text, what, shown);
}

/* What the library says of text, and what it shows of the handle. */
static void try(const char *text)
{
    struct dlock_options lo;
    dlock_options_init(&lo, sizeof lo);
    struct dlock_error err = {0};
    struct dlock_uri *u = NULL;
    dlock *lk = NULL;
    if (dlock_uri_parse(&u, text, &err) < 0) {
        look(text, "message", err.msg);
        return;
    }
    if (dlock_open_nested(&lk, &u, NULL, &lo, &err) < 0)
        look(text, "message", err.msg);
    else if (!dlock_is_local(lk))
        look(text, "where", dlock_where(lk));
    dlock_close(lk);
}

TEST(no_spelling_shows_a_password)
{
    char creds[100], text[300];
    for (size_t s = 0; s < DLOCK_LEN(schemes); s++)
        for (size_t u = 0; u < DLOCK_LEN(users); u++)
            for (size_t p = 0; p < DLOCK_LEN(passwords); p++)
                for (size_t t = 0; t < DLOCK_LEN(tails); t++) {
                    if (is_ambiguous(schemes[s], users[u], passwords[p]))
                        continue;
                    snprintf(creds, sizeof(creds), users[u], passwords[p]);
                    snprintf(text, sizeof(text), "%s://%s%s", schemes[s], creds, tails[t]);
                    try(text);
                }
    for (size_t x = 1; x < DLOCK_LEN(prefixes); x++)
        for (size_t u = 0; u < DLOCK_LEN(users); u++)
            for (size_t p = 0; p < DLOCK_LEN(passwords); p++) {
                struct dlock_error err = {0};
                char *uri = NULL;
                snprintf(creds, sizeof(creds), users[u], passwords[p]);
                snprintf(text, sizeof(text), "%sredis://%sh#n", prefixes[x], creds);
                try(text);
                if (dlock_default_uri(&uri, "n", text, &err) < 0)
                    look(text, "DLOCK_STORE", err.msg);
                free(uri);
                uri = NULL;
                if (dlock_default_uri(&uri, text, "/tmp", &err) < 0)
                    look(text, "@name", err.msg);
                free(uri);
            }
}

/* Secret parameters, of a store that knows them and of one that does not. */
TEST(no_parameter_shows_a_password)
{
    static const char *const keys[] = {"password", "sslpassword", "sentinel-password",
                                       "client_secret", "token"};
    static const char *const stores[] = {"redis://h", "postgres://u@h/d", "zk://u:" MARK "@h/a",
                                         "file:///d", "redlock://h,,h",   "X=redis://h",
                                         "redis:h"};
    char text[300];
    for (size_t s = 0; s < DLOCK_LEN(stores); s++)
        for (size_t k = 0; k < DLOCK_LEN(keys); k++)
            for (size_t p = 0; p < DLOCK_LEN(passwords); p++) {
                if (strpbrk(passwords[p], "&# \n")) /* they end a value */
                    continue;
                snprintf(text, sizeof(text), "%s?x=1&%s=%s#n", stores[s], keys[k], passwords[p]);
                try(text);
                snprintf(text, sizeof(text), "%s?%s=%s&%s=%s", stores[s], keys[k], passwords[p],
                         keys[k], passwords[p]);
                try(text);
            }
}

/* ------------------------------------------------------------ from files */

static char dir[] = "/tmp/dlock-unit.XXXXXX", file[64], by_link[64];
static struct dlock_error err;

static void make_files(void)
{
    REQUIRE(mkdtemp(dir));
    snprintf(file, sizeof(file), "%s/file", dir);
    snprintf(by_link, sizeof(by_link), "%s/link", dir);
    int fd = open(file, O_WRONLY | O_CREAT, 0600);
    REQUIRE_INT(write(fd, "secret\nnot this", 15), 15);
    close(fd);
}

static void remove_files(void)
{
    unlink(by_link);
    unlink(file);
    rmdir(dir);
    memcpy(dir + sizeof(dir) - 7, "XXXXXX", 6);
}

#define FILE_TEST(test) TEST_WITHIN(make_files(), remove_files(), test)

/* why: NULL: the secret is read; else a part of the message. */
static void reads(const char *path, const char *why)
{
    char *secret = NULL;
    err.msg[0] = '\0';
    CHECK_INT(dlock_read_secret(&secret, path, &err), why ? DLOCK_EPERM : 0);
    if (why)
        CHECK_HAS(err.msg, why);
    else if (CHECK(secret))
        CHECK_STR(secret, "secret");
    free(secret);
}

FILE_TEST(a_secret_is_closed_to_others_but_for_reading_by_the_group)
{
    static const struct {
        mode_t mode;
        const char *why;
    } modes[] = {
        {0600, NULL},
        {0400, NULL},
        {0640, NULL},
        {0440, NULL},
        {0644, "others have access to it (mode 0644): use chmod 600, or 640 for its group"},
        {0604, "others have access to it (mode 0604)"},
        {0602, "others have access to it (mode 0602)"},
        {0601, "others have access to it (mode 0601)"},
        {0660, "its group, or a user in its ACL, can write to it (mode 0660): use chmod go-w"},
        {0620, "its group, or a user in its ACL, can write to it (mode 0620)"},
    };
    for (size_t i = 0; i < DLOCK_LEN(modes); i++) {
        CHECK_INT(chmod(file, modes[i].mode), 0);
        reads(file, modes[i].why);
    }
    if (geteuid() != 0)
        return;
    chmod(file, 0440);
    CHECK_INT(chown(file, 54321, 54321), 0);
    reads(file, "belongs to user 54321: it must belong to root or to user 0");
}

/* A file of 0600 gets an ACL with another user. False: no ACLs in this file system. */
static bool let_in(unsigned rights)
{
    const struct {
        uint32_t version;
        struct {
            uint16_t tag, perm;
            uint32_t id;
        } e[5];
    } acl = {2,
             {{0x01, 6, UINT32_MAX},
              {0x02, (uint16_t)rights, 54321},
              {0x04, 0, UINT32_MAX},
              {0x10, (uint16_t)rights, UINT32_MAX},
              {0x20, 0, UINT32_MAX}}};
    int rc = setxattr(file, "system.posix_acl_access", &acl, sizeof(acl), 0);
    CHECK(rc == 0 || errno == ENOTSUP);
    return rc == 0;
}

FILE_TEST(an_acl_may_let_a_user_read_a_secret_but_not_write_to_it)
{
    if (!let_in(4))
        return;
    reads(file, NULL);
    CHECK(let_in(6));
    reads(file, "can write to it (mode 0660)");
}

FILE_TEST(follows_the_links_of_root_and_of_this_user_to_a_secret)
{
    CHECK_INT(symlink("file", by_link), 0);
    reads(by_link, NULL);
    unlink(by_link);
    CHECK_INT(symlink(file, by_link), 0);
    reads(by_link, NULL);
    CHECK_INT(chmod(file, 0644), 0);
    reads(by_link, "others have access");
    unlink(by_link);
    CHECK_INT(symlink("link", by_link), 0);
    reads(by_link, strerror(ELOOP));
    unlink(by_link);
    CHECK_INT(symlink("none", by_link), 0);
    reads(by_link, strerror(ENOENT));
    unlink(by_link);
    CHECK_INT(symlink("/dev", by_link), 0);
    reads(by_link, "not a regular file");
    if (geteuid() != 0)
        return;
    CHECK_INT(chmod(file, 0600), 0);
    unlink(by_link);
    CHECK_INT(symlink("file", by_link), 0);
    CHECK_INT(lchown(by_link, 54321, 54321), 0);
    reads(by_link, "a link of user 54321: only those of root and of user 0 are followed");
}

UNIT_MAIN
