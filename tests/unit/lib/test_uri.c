/* The URI of a lock: the whole grammar in tables; no message and no "where" shows a password. */
#include "unit.h"
#include "uri.h"
#include "util.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

static struct dlock_uri *u; /* that was parsed last, or NULL */
static struct dlock_error err;

static int parse(const char *text)
{
    dlock_uri_free(u);
    u = NULL;
    err = (struct dlock_error){.code = 99};
    return dlock_uri_parse(&u, text, &err);
}

/* All members of a parsed URI as one line of text. */
static void dump(char *buf, size_t size)
{
    FILE *f = fmemopen(buf, size, "w");
    fprintf(f, "%s|", u->scheme);
    for (int i = 0; i < u->nhosts; i++)
        fprintf(f, "%s(%s:%s)%s:%u", i ? "," : "", u->hosts[i].user ? u->hosts[i].user : "-",
                u->hosts[i].password ? u->hosts[i].password : "-", u->hosts[i].host,
                u->hosts[i].port);
    fprintf(f, "|%s|", u->path);
    for (int i = 0; i < u->nparams; i++)
        fprintf(f, "%s%s=%s", i ? "&" : "", u->params[i].key, u->params[i].value);
    fprintf(f, "|%s%s|%s", u->name, u->bare ? " (bare)" : "", u->where);
    fclose(f);
}

static const struct {
    const char *text, *want;
} good[] = {
    /* paths, byte for byte */
    {"x", "file||x||x (bare)|x"},
    {"./x", "file||./x||./x (bare)|./x"},
    {"/run/lock/x.lock", "file||/run/lock/x.lock||/run/lock/x.lock (bare)|/run/lock/x.lock"},
    {"./#x", "file||./#x||./#x (bare)|./#x"},
    {"./a#b?c%41", "file||./a#b?c%41||./a#b?c%41 (bare)|./a#b?c%41"},
    {"9", "file||9||9 (bare)|9"},
    {"a:b", "file||a:b||a:b (bare)|a:b"},
    {"x=y", "file||x=y||x=y (bare)|x=y"},
    {"u@h", "file||u@h||u@h (bare)|u@h"},
    {"./$LOCK", "file||./$LOCK||./$LOCK (bare)|./$LOCK"},
    {"redis/x", "file||redis/x||redis/x (bare)|redis/x"},
    {"redis", "file||redis||redis (bare)|redis"},
    {"./redis:h", "file||./redis:h||./redis:h (bare)|./redis:h"},
    {"redis-1:h", "file||redis-1:h||redis-1:h (bare)|redis-1:h"},
    {"fake:h", "file||fake:h||fake:h (bare)|fake:h"},
    {"./ redis://h", "file||./ redis://h||./ redis://h (bare)|./ redis://h"},
    {"dir/redis://h", "file||dir/redis://h||dir/redis://h (bare)|dir/redis://h"},
    {" x", "file|| x|| x (bare)| x"},
    {"\"x\"", "file||\"x\"||\"x\" (bare)|\"x\""},
    {"./redis://h#n", "file||./redis://h#n||./redis://h#n (bare)|./redis://h#n"},
    {"a\xff\n", "file||a\xff\n||a\xff\n (bare)|a\xff\n"},
    /* file */
    {"file:///a/b", "file||/a/b||/a/b (bare)|/a/b"},
    {"FILE:///a", "file||/a||/a (bare)|/a"},
    {"file://localhost/a", "file||/a||/a (bare)|/a"},
    {"file:///a%23b%20c", "file||/a#b c||/a#b c (bare)|/a#b c"},
    {"file:///a/", "file||/a/||/a/ (bare)|/a/"},
    {"file:///a@b", "file||/a@b||/a@b (bare)|/a@b"},
    {"file:///dir#n", "file||/dir||n|/dir"},
    {"file:///dir/#n", "file||/dir||n|/dir"},
    {"file:///#n", "file||/||n|/"},
    {"file:///d?x=1#n", "file||/d|x=1|n|/d"},
    {"file:///d#a%2Fb", "file||/d||a/b|/d"},
    {"file:///d%23e#a%23b", "file||/d#e||a#b|/d#e"},
    /* redis */
    {"redis://h#n", "redis|(-:-)h:6379|/0||n|redis://h:6379/0"},
    {"rediss://h:1/#n", "rediss|(-:-)h:1|/0||n|rediss://h:1/0"},
    {"redis://h:65535/15#n", "redis|(-:-)h:65535|/15||n|redis://h:65535/15"},
    {"redis://h/007#n", "redis|(-:-)h:6379|/7||n|redis://h:6379/7"},
    {"redis://h/2147483647#n", "redis|(-:-)h:6379|/2147483647||n|redis://h:6379/2147483647"},
    {"redis:///0#n", "redis|(-:-)127.0.0.1:6379|/0||n|redis://127.0.0.1:6379/0"},
    {"redis://#n", "redis|(-:-)127.0.0.1:6379|/0||n|redis://127.0.0.1:6379/0"},
    {"redis://:pw@#n", "redis|(-:pw)127.0.0.1:6379|/0||n|redis://127.0.0.1:6379/0"},
    {"redis://u:p@h#n", "redis|(u:p)h:6379|/0||n|redis://h:6379/0"},
    {"redis://:p@h#n", "redis|(-:p)h:6379|/0||n|redis://h:6379/0"},
    {"redis://u@h#n", "redis|(u:-)h:6379|/0||n|redis://h:6379/0"},
    {"redis://u:@h#n", "redis|(u:-)h:6379|/0||n|redis://h:6379/0"},
    {"redis://:@h#n", "redis|(-:-)h:6379|/0||n|redis://h:6379/0"},
    {"redis://u:a:b@h#n", "redis|(u:a:b)h:6379|/0||n|redis://h:6379/0"},
    {"redis://u:a@b@h#n", "redis|(u:a@b)h:6379|/0||n|redis://h:6379/0"},
    {"redis://u:a,b@h#n", "redis|(u:a,b)h:6379|/0||n|redis://h:6379/0"},
    {"redis://u:a b@h#n", "redis|(u:a b)h:6379|/0||n|redis://h:6379/0"},
    {"redis://%75%3a:%40%2f%23%3F%ff@h#n", "redis|(u::@/#?\xff)h:6379|/0||n|redis://h:6379/0"},
    {"redis://[::1]#n", "redis|(-:-)::1:6379|/0||n|redis://[::1]:6379/0"},
    {"redis://u:p@[2001:db8::1]:99/3#n",
     "redis|(u:p)2001:db8::1:99|/3||n|redis://[2001:db8::1]:99/3"},
    {"redis://[fe80::1%25eth0]:9#n", "redis|(-:-)fe80::1%eth0:9|/0||n|redis://[fe80::1%eth0]:9/0"},
    {"redis://a-b.c_d.#n", "redis|(-:-)a-b.c_d.:6379|/0||n|redis://a-b.c_d.:6379/0"},
    {"redis://h/1?a=b&c=%26%3d&d&e=#n", "redis|(-:-)h:6379|/1|a=b&c=&=&d=&e=|n|redis://h:6379/1"},
    {"redis://h?a=b=c#n", "redis|(-:-)h:6379|/0|a=b=c|n|redis://h:6379/0"},
    {"redis://h?#n", "redis|(-:-)h:6379|/0||n|redis://h:6379/0"},
    {"redis://h?password-file=/a@b/c#n",
     "redis|(-:-)h:6379|/0|password-file=/a@b/c|n|redis://h:6379/0"},
    {"valkey://u:p@h/1#n", "redis|(u:p)h:6379|/1||n|redis://h:6379/1"},
    {"Valkeys://h:1#n", "rediss|(-:-)h:1|/0||n|rediss://h:1/0"},
    {"redis://h/1?a=b%3Fc#n%3Fd%3fe", "redis|(-:-)h:6379|/1|a=b?c|n?d?e|redis://h:6379/1"},
    {"redis+unix:///a%3Fb?db=1#n", "redis+unix||/a?b|db=1|n|redis+unix:///a?b"},
    {"redis+unix:///run/r.sock?db=1#n", "redis+unix||/run/r.sock|db=1|n|redis+unix:///run/r.sock"},
    {"redis+unix://u:p@/r#n", "redis+unix|(u:p):0|/r||n|redis+unix:///r"},
    {"redis+unix:///run/a%40b#n", "redis+unix||/run/a@b||n|redis+unix:///run/a%40b"},
    {"redis+unix:///a%20b#n", "redis+unix||/a b||n|redis+unix:///a b"},
    {"redis+sentinel://s1,s2:7/svc#n",
     "redis+sentinel|(-:-)s1:26379,(-:-)s2:7|/svc/0||n|redis+sentinel://s1:26379,s2:7/svc/0"},
    {"redis+sentinel://u:p%2Cq@s1,s2/svc/3?sentinel-user=x#n",
     "redis+sentinel|(u:p,q)s1:26379,(-:-)s2:26379|/svc/3|sentinel-user=x|n|"
     "redis+sentinel://s1:26379,s2:26379/svc/3"},
    {"redis+sentinel://h1:1,[::1]:2/s%40b/0#n@m",
     "redis+sentinel|(-:-)h1:1,(-:-)::1:2|/s@b/0||n@m|redis+sentinel://h1:1,[::1]:2/s%40b/0"},
    {"redlock://h1,h2:7,[::1]/2#n",
     "redlock|(-:-)h1:6379,(-:-)h2:7,(-:-)::1:6379|/2||n|redlock://h1:6379,h2:7,[::1]:6379/2"},
    {"redlock://:p@h1,h2#n", "redlock|(-:p)h1:6379,(-:p)h2:6379|/0||n|redlock://h1:6379,h2:6379/0"},
    {"redlock://u:p@h1,h2,:q@h3#n",
     "redlock|(u:p)h1:6379,(-:-)h2:6379,(-:q)h3:6379|/0||n|redlock://h1:6379,h2:6379,h3:6379/0"},
    {"redlock://h1,:q@h2#n", "redlock|(-:-)h1:6379,(-:q)h2:6379|/0||n|redlock://h1:6379,h2:6379/0"},
    {"redlock://@h1:1,:q@h2#n", "redlock|(-:-)h1:1,(-:q)h2:6379|/0||n|redlock://h1:1,h2:6379/0"},
    {"redlocks://h:1,h:2#n", "redlocks|(-:-)h:1,(-:-)h:2|/0||n|redlocks://h:1,h:2/0"},
    /* postgres: libpq checks the rest */
    {"postgres://u@h1,h2/db?application_name=x#n",
     "postgres|(u:-)h1:5432,(-:-)h2:5432|/db|application_name=x|n|postgres://h1:5432,h2:5432/db"},
    {"postgresql:///?service=x#n", "postgresql||/|service=x|n|postgresql:///"},
    {"postgres://#n", "postgres||||n|postgres://"},
    {"postgres://u:p@/db#n", "postgres|(u:p):5432|/db||n|postgres:///db"},
    {"postgres://h:/db#n", "postgres|(-:-)h:5432|/db||n|postgres://h:5432/db"},
    {"postgres://h1:1,h1:1/db/x#n",
     "postgres|(-:-)h1:1,(-:-)h1:1|/db/x||n|postgres://h1:1,h1:1/db/x"},
    {"postgres://%2Frun%2Fpg/db#n", "postgres|(-:-)/run/pg:5432|/db||n|postgres:///run/pg:5432/db"},
    {"postgresql+psycopg2://u:p@h/db?a=1#n",
     "postgresql|(u:p)h:5432|/db|a=1|n|postgresql://h:5432/db"},
    {"PostgreSQL+pg8000+x://h#n", "postgresql|(-:-)h:5432|||n|postgresql://h:5432"},
    /* mysql, and the schemes of Rails and SQLAlchemy */
    {"mysql://u:p@h1,h2:7/db?a=1#n",
     "mysql|(u:p)h1:3306,(-:-)h2:7|/db|a=1|n|mysql://h1:3306,h2:7/db"},
    {"mariadb://h/db#n", "mysql|(-:-)h:3306|/db||n|mysql://h:3306/db"},
    {"mysql2://u@h/db#n", "mysql|(u:-)h:3306|/db||n|mysql://h:3306/db"},
    {"Trilogy://h/db#n", "mysql|(-:-)h:3306|/db||n|mysql://h:3306/db"},
    {"mysql+pymysql://h/db#n", "mysql|(-:-)h:3306|/db||n|mysql://h:3306/db"},
    {"mariadb+mariadbconnector://h/db#n", "mysql|(-:-)h:3306|/db||n|mysql://h:3306/db"},
    {"mysql:///db?socket=/s#n", "mysql||/db|socket=/s|n|mysql:///db"},
    {"mysql://[::1]/db#n", "mysql|(-:-)::1:3306|/db||n|mysql://[::1]:3306/db"},
    /* zookeeper */
    {"zk://h#n", "zk|(-:-)h:2181|||n|zk://h:2181"},
    {"zk://h/#n", "zk|(-:-)h:2181|||n|zk://h:2181"},
    {"zk://u:p@h1,h2:7,h3/a/b/#n",
     "zk|(u:p)h1:2181,(-:-)h2:7,(-:-)h3:2181|/a/b||n|zk://h1:2181,h2:7,h3:2181/a/b"},
    {"zookeeper://h/a.b#n", "zookeeper|(-:-)h:2181|/a.b||n|zookeeper://h:2181/a.b"},
    /* the store for tests */
    {"fake://#n", "fake||||n|fake://"},
    {"fake://a,b/any/thing?x=1#n",
     "fake|(-:-)a:6379,(-:-)b:6379|/any/thing|x=1|n|fake://a:6379,b:6379/any/thing"},
    /* names */
    {"redis://h#a b", "redis|(-:-)h:6379|/0||a b|redis://h:6379/0"},
    {"redis://h#a%20%23%25/b@c%3Fd&e", "redis|(-:-)h:6379|/0||a #%/b@c?d&e|redis://h:6379/0"},
    {"redis://h#gr\xc3\xb6\xc3\x9f"
     "e",
     "redis|(-:-)h:6379|/0||gr\xc3\xb6\xc3\x9f"
     "e|redis://h:6379/0"},
    {"redis://h#%C3%B6", "redis|(-:-)h:6379|/0||\xc3\xb6|redis://h:6379/0"},
};

TEST(good_uris)
{
    for (size_t i = 0; i < DLOCK_LEN(good); i++) {
        char buf[2000];
        if (parse(good[i].text) != 0) {
            CHECK_FAIL("%s: %s", good[i].text, err.msg);
            continue;
        }
        dump(buf, sizeof(buf));
        if (!CHECK_STR(buf, good[i].want))
            printf("# ... from %s\n", good[i].text);
        CHECK_INT(err.code, 99);
        /* Messages hide all text between "://" and the last '@'. */
        snprintf(buf, sizeof(buf), "%s", u->where);
        dlock_hide_secrets(buf, false);
        CHECK_STR(buf, u->where);
    }
}

TEST(raw_is_the_store_as_given)
{
    REQUIRE_INT(parse("Postgres://u:p%40@h/db?a=1%23x#name"), 0);
    CHECK_STR(u->raw, "Postgres://u:p%40@h/db?a=1%23x");
}

static const struct {
    const char *text, *want; /* want: in the message */
} bad[] = {
    {"", "empty"},
    {"#nightly", "./#..."},
    {"#", "./#..."},
    {"@name", "./@..."},
    /* what would be a local file, and is a mistyped URI */
    {"redis:h#n",
     "no \"//\" after \"redis:\": write redis://... (for a file of that name: ./redis:...)"},
    {"Redis:", "no \"//\" after \"Redis:\""},
    {"redis+unix:/s", "write redis+unix://..."},
    {"redis+tls:h", "write redis+tls://..."},
    {"zk:h1,h2#n", "write zk://..."},
    {"postgresql+psycopg2:h", "write postgresql+psycopg2://..."},
    {"file:/x", "write file://..."},
    /* a URI without its scheme */
    {"db1#nightly", "LOCK has a '#' but no scheme: write redis://db1#nightly, or ./db1#nightly for "
                    "a file of that name"},
    {"cache1:6379#n", "write redis://cache1:6379#n"},
    {"db1:5432#n", "write postgres://db1:5432#n"},
    {"z1:2181#n", "write zk://z1:2181#n"},
    {"postgres#x", "write postgres://postgres#x"},
    {"file#x", "write redis://file#x"},
    {"cache1:6379", "LOCK has a port but no scheme: write redis://cache1:6379#NAME, or"},
    {"h:1", "write redis://h:1#NAME"},
    {"user@db1#x", "write a URI, such as postgres://HOST/DATABASE#NAME, or ./... for"},
    {"db1:hunter2#x", "such as postgres://HOST/DATABASE#NAME, or ./... for"},
    {"user:hunter2@db1#x", "write a URI, such as postgres://HOST/DATABASE#NAME, or ./... for"},
    {"host=db1 password=hunter2#x", "such as postgres://HOST/DATABASE#NAME, or ./... for"},
    {"$REDIS_URL#n", "LOCK begins with '$', which the shell did not expand: put it in double "
                     "quotes, or write ./$REDIS_URL#n for"},
    {"$LOCK", "'$'"},
    /* parameters behind the name */
    {"redis://h#r?ttl=5s", "\"r\": a '?' after the '#': parameters stand before it"},
    {"postgres://u:hunter2@h/d#m?password=hunter2", "\"m\": a '?' after the '#'"},
    {"file:///d#n?", "write a '?' in the name as %3F"},
    {"zk://h#?x", "bad lock URI: a '?' after the '#'"},
    {"etcd:h#n",
     "begins with \"etcd:\", a store unknown to dlock (for a file of that name: ./etcd:...)"},
    {"s3:x", "\"s3:\""},
    {"https:/x", "\"https:\""},
    {"mongodb+srv:x", "\"mongodb+srv:\""},
    {" redis://h#n", "LOCK begins with a blank: remove it (for a file of that name: ./...)"},
    {"\tdir/redis://h#n", "a blank"},
    {"\"redis://h\"#n", "LOCK begins with a quotation mark: remove it"},
    {"'dir/redis://h'", "a quotation mark"},
    {"jdbc:redis://h#n",
     "LOCK has \"jdbc:\" before \"redis://\": remove it (for a file of that name: ./jdbc:...)"},
    {"URL=redis://h#n", "something before \"redis://\""},
    {"\xef\xbb\xbfredis://h#n", "something before \"redis://\""},
    {"hunter:hunter://h#n", "something before \"://\""},
    {"1x://h#n", "something before \"://\""},
    {"://h#n", "no scheme"},
    {"etcd://h#n",
     "\"etcd://\"; known: file, redis, rediss, valkey, valkeys, redis+unix, redis+sentinel, "
     "redlock, redlocks, postgres, postgresql, mysql, mariadb, zk, zookeeper (a file: ./...)"},
    {"reids://h#n", "\"reids://\"; did you mean redis://?"},
    {"Rediss1://h#n", "did you mean rediss://?"},
    {"postgre://h#n", "did you mean postgres://?"},
    {"lk://h#n", "did you mean zk://?"},
    {"fakes://h#n", "\"fakes://\"; known: file,"},
    {"x+y-z.9://h#n", "\"x+y-z.9://\""},
    {"mysql+://h/db#n", "unknown store \"mysql+://\""},
    {"mysq://h/db#n", "did you mean mysql://?"},
    {"mysql:h", "write mysql://..."},
    {"trilogy:h", "write trilogy://..."},
    {"db1:3306#n", "write mysql://db1:3306#n"},
    {"jdbc:mysql://h/db#n", "LOCK has \"jdbc:\" before \"mysql://\": remove it"},
    {"mysql://,h/db#n", "a host is missing"},
    {"mysql://u:a/b@h/db#n", "as %2F"},
    {"redis+psycopg2://h#n", "unknown store \"redis+psycopg2://\"; known:"},
    {"postgresql+://h/db#n", "unknown store \"postgresql+://\""},
    {"redis+ssl://h#n", "\"redis+ssl://\"; write rediss:// (a file"},
    {"redis+tls://h#n", "; write rediss://"},
    {"redis-sentinel://h#n", "; write redis+sentinel://S1,S2,S3/SERVICE"},
    {"rediss+sentinel://h/s#n", "no TLS yet"},
    {"redis-socket:///s#n", "; write redis+unix:///SOCKET"},
    {"unix:///s#n", "; write redis+unix:///SOCKET"},
    {"postgis://h/db#n", "; write postgres://"},
    {"redis://h?a=1?b=2#n", "a second '?', before \"b\": use & here"},
    {"redis://h?a?b=2#n", "before \"b\""},
    {"redis://h?a=1&b=2?c#n", "before \"c\""},
    {"postgres://h/db?sslmode=require?mode=lease#n", "before \"mode\": use & here"},
    {"redis://h?a=1?#n", "a second '?': use & here"},
    {"redis://h??#n", "a second '?'"},
    {"redis://h?a=1?b c=1#n", "a second '?': use & here"},
    /* file */
    {"file://", "absolute path"},
    {"file://host/x", "\"host\""},
    {"file://u:p@/x", "no host"},
    {"file://./x", "\".\""},
    {"file:///a%00b", "%25"},
    {"file:///d#", "empty"},
    {"file:///d#a%00", "name"},
    /* redis */
    {"redis://h", "#NAME"},
    {"redis://h/0?a=b", "#NAME"},
    {"redis://h#", "empty"},
    {"redis://h:0#n", "\"0\""},
    {"redis://h:65536#n", "\"65536\""},
    {"redis://h:99999999999999999999#n", "\"99999999999999999999\""},
    {"redis://h:#n", "port"},
    {"redis://h:80a#n", "port"},
    {"redis://:6379#n", "port without a host"},
    {"redis://h1,h2#n", "\"h1,h2\""},
    {"rediss://h1,h2/0#n", "one host"},
    {"redis://h/x#n", "\"/x\""},
    {"redis://h/1/2#n", "\"/1/2\""},
    {"redis://h/2147483648#n", "\"/2147483648\""},
    {"redis://h/99999999999999999999999999#n", "number"},
    {"redis://::1#n", "brackets"},
    {"redis://[::1#n", "']'"},
    {"redis://[]#n", "IPv6"},
    {"redis://[h]#n", "\"[h]\""},
    {"redis://[::1%25]#n", "IPv6"},
    {"redis://[::1]x#n", ":PORT"},
    {"redis://[::1]:#n", "port"},
    {"redis://[::1]:0#n", "port"},
    {"redis://a b#n", "URI: a blank in the host: remove it (in a password, write %20)"},
    {"redis://h\xc3\xb6st#n", "host name"},
    {"redis://a%2fb#n", "host name"},
    {"redis://h%zz#n", "hexadecimal"},
    {"redis://h%4#n", "hexadecimal"},
    {"redis://h%#n", "hexadecimal"},
    {"redis://h%00#n", "hexadecimal"},
    {"redis://u%00:p@h#n", "user name"},
    {"redis://u:p%00@h#n", "password"},
    {"redis://h?a=1&a=2#n", "\"a\""},
    {"redis://h?a=1&b=2&a#n", "twice"},
    {"redis://h?a=%00#n", "\"a\""},
    {"redis://h?=1#n", "key=value"},
    {"redis://h?a=1&&b=2#n", "key=value"},
    {"redis://h?a=1&#n", "key=value"},
    {"redis://h?a%20b=1#n", "key=value"},
    {"redis://h#a%0ab", "control"},
    {"redis://h#a\x7f", "control"},
    {"redis://h#a%C2%9B", "control"},
    {"redis://h#\xff", "UTF-8"},
    {"redis://h#%C3", "UTF-8"},
    {"redis://h#a%", "hexadecimal"},
    {"redis+unix://#n", "path"},
    {"redis+unix:///#n", "path"},
    {"redis+unix://h/r#n", "\"h\""},
    {"redis+sentinel://s1#n", "SERVICE"},
    {"redis+sentinel://s1/#n", "SERVICE"},
    {"redis+sentinel:///svc#n", "host is missing"},
    {"redis+sentinel://s1/svc/x#n", "database"},
    {"redis+sentinel://s1/a%2fb#n", "SERVICE"},
    {"redis+sentinel://s1,u:p@s2/svc#n", "first host"},
    {"redlock://#n", "host is missing"},
    {"redlock://u:p@#n", "host is missing"},
    {"redlock://h1,#n", "','"},
    {"redlock://,h1#n", "','"},
    {"redlock://h1,,h2#n", "','"},
    {"redlock://h1,h2,H1#n", "\"H1:6379\" is named twice"},
    {"redlock://h1,h2:6379,h2#n", "twice"},
    {"redlock://u:12,34@h#n", "%2C"},
    {"redlock://u:12,x,3:4@h#n", "%2C"},
    {"jdbc:redis:h#n", "begins with \"jdbc:\""},
    /* a password, a name or the end of a variable that is not encoded */
    {"redis://:a/b@h:6379/0#n", "URI: a '@' after the first '/': write a '/' in a password as %2F"},
    {"redis://:12/34@h#n", "'/' in a password as %2F, or the '@' as %40"},
    {"redis://u:12/34@h#n", "as %2F"},
    {"redis://u:a:b/c@h#n", "as %2F"},
    {"rediss://u:a,b/c@h#n", "as %2F"},
    {"redlock://u:a/b@h1,h2#n", "as %2F"},
    {"postgres://u:a/b@h/db#n", "as %2F"},
    {"zk://u/v:w@h/x#n", "as %2F"},
    {"redis://h:x/0#a@b", "URI: the port after the host is not a number"},
    {"redis://h:x?y#a@b", "URI: the port after the host is not a number"},
    {"redis://u:a?b@h/0#n", "a '@' after the first '?': write a '?' in a password as %3F"},
    {"redis://u:12?b@h/0#n", "as %3F"},
    {"redis://u:a/b?c=d@h#n", "not a number"},
    {"redis://h:x?password-file=/a@b#n", "the port after the host is not a number"},
    {"redis://u:a#b@h/0", "a '@' after the first '#': write a '#' in a password as %23"},
    {"redis://u:a#b@h#n", "URI: a second '#': in a password or a lock's name, write it as %23"},
    {"redis://h/0#deploy-fix#12", "a second '#'"},
    {"redis://localhost#a#b", "a second '#'"},
    {"zk://h/chroot#fix#12", "a second '#'"},
    {"postgres://h/db#fix#12", "a second '#'"},
    {"file:///d#fix#12", "a second '#'"},
    {"redis://h:6379\r#n",
     "URI: a carriage return (at the end of a variable?): remove it, or write "
     "%0D"},
    {"redis://h/0\n#n", "a newline (at the end of a variable?)"},
    {"redis://u:\tp@h/0",
     "a control character (at the end of a variable?): remove it, or write %09"},
    {"zk://h/a\x7f#n", "a control character (at the end of a variable?): remove it, or write %7F"},
    {"file:///a\n", "a newline"},
    {"redis://h:6379 #n", "URI: a blank (at the end of a variable?): remove it, or write %20"},
    {"zk://h/a #n", "a blank (at the end"},
    {"redis:// h:6379#n", "a blank in the host"},
    {"redis://h: 6379#n", "a blank in the host"},
    {"postgres://a@b@h/db#n", "%40"},
    {"postgres://h:70000/db#n", "port"},
    {"postgres://,h/db#n", "\",h\": a host is missing"},
    {"postgres://h,:1/db#n", "URI: a host is missing"},
    {"postgres://h/a%00#n", "path"},
    {"postgres://h/db", "#NAME"},
    {"zk:///a#n", "host is missing"},
    {"zk://h//a#n", "\"//a\""},
    {"zk://h/a//b#n", "empty part"},
    {"zk://h/a/../b#n", "\"/a/../b\""},
    {"zk://h/.#n", "\".\""},
    {"zk://h/a%0a#n", "control"},
    {"zk://h,h#n", "twice"},
};

TEST(bad_uris)
{
    for (size_t i = 0; i < DLOCK_LEN(bad); i++) {
        struct dlock_uri *kept = (struct dlock_uri *)&bad;
        if (parse(bad[i].text) != DLOCK_EUSAGE) {
            CHECK_FAIL("%s was accepted", bad[i].text);
            continue;
        }
        CHECK_INT(err.code, DLOCK_EUSAGE);
        char clean[sizeof(err.msg)];
        dlock_clean_text(clean, sizeof(clean), err.msg, strlen(err.msg));
        if (!CHECK_HAS(err.msg, bad[i].want) || !CHECK_STR(err.msg, clean) ||
            !CHECK(strlen(err.msg) <= 200))
            printf("# ... from %s\n", bad[i].text);
        CHECK_INT(dlock_uri_parse(&kept, bad[i].text, NULL), DLOCK_EUSAGE);
        CHECK(kept == (struct dlock_uri *)&bad);
    }
}

/* In each, "hunter" is the password or a part of it. See test_secret.c for more spellings. */
TEST(no_message_shows_a_password)
{
    static const char *const secret[] = {
        "redis://u:hunter@h",
        "redis://:hunter#n",
        "redis://u:hunter#2@h/0",
        "redis://u:hunter#2@h/0#n",
        "redis://u:hunter/2@h/0#n",
        "redis://u:2/hunter@h/0#n",
        "redis://hunter 2/3@h#n",
        "redis://u:hunter 2#n",
        "redis://u:hunter\r#n",
        "redis://u:x#hunter@h/0",
        "redis://u:hunter@h?password=hunter&password=hunter#n",
        "redlock://u:hunter@h1,h2:x#n",
        "redlock://h1:x,u:hunter@h2#n",
        "redlock://u:hunter@h,h#n",
        "redis://u:hunter:2#n",
        "redis://u:hunter,2/0#n",
        "redis+unix://u:hunter/s#n",
        "file://u:hunter/x#n",
        "redis://u:hunter@h#\x01",
        "redis+sentinel://u:hunter@s1/svc/x#n",
        "redis://u:hunter@h?x y=hunter#n",
        "\"redis://:hunter@h#n\"",
        "jdbc:redis:u:hunter@h#n",
        "jdbc:redis:u:hunter@h",
        "jdbc:postgresql:u:hunter@h/db#n",
        "jdbc:mysql:u:hunter@h/db#n",
        "mysql2:u:hunter@h/db#n",
        "mysql://u:hunter@h:x/db#n",
        "redlock://u:12,hunter@h#n",
        "redis://h?password=a?hunter=1#n",
        "redis://h?password=hunter?x=1#n",
        "redis://h?passwd=a&hunter?x=1#n",
        "redis://h?token=a&x?hunter=1#n",
        "redis://h?a=b?hunter@h#n",
        "redis://h?password=a&hunter=%zz#n",
        "redis://h?password=a&hunter&hunter#n",
        "redis://h?hunter=%zz@h#n",
        "@jdbc:redis://:hunter@h",
    };
    for (size_t i = 0; i < DLOCK_LEN(secret); i++) {
        if (parse(secret[i]) == 0)
            CHECK_FAIL("%s was accepted", secret[i]);
        if (strstr(err.msg, "hunter"))
            CHECK_FAIL("%s: %s", secret[i], err.msg);
    }
}

static int parse_long(const char *head, const char *unit, int times, const char *tail)
{
    size_t n = strlen(unit);
    char *text = malloc(strlen(head) + n * (size_t)times + strlen(tail) + 1),
         *p = stpcpy(text, head);
    int r;
    for (int i = 0; i < times; i++)
        p = stpcpy(p, unit);
    strcpy(p, tail);
    r = parse(text);
    free(text);
    return r;
}

TEST(lengths)
{
    CHECK_INT(parse_long("redis://h#", "n", 255, ""), 0);
    CHECK_INT(parse_long("redis://h#", "n", 256, ""), DLOCK_EUSAGE);
    CHECK_INT(parse_long("redis://h#", "%6e", 255, ""), 0);
    CHECK_INT(parse_long("redis://h#", "%C3%B6", 127, "n"), 0);
    CHECK_INT(parse_long("redis://h#", "%C3%B6", 128, ""), DLOCK_EUSAGE);
    CHECK_INT(parse_long("file:///d#", "n", 250, ""), 0);
    CHECK_INT(parse_long("file:///d#", "n", 251, ""), DLOCK_EUSAGE);
    CHECK_INT(parse_long("file:///d#", "/", 83, "n"), 0);
    CHECK_INT(parse_long("file:///d#", "/", 83, "nn"), DLOCK_EUSAGE);
    CHECK_INT(parse_long("file:///d#", "%25", 83, "nn"), DLOCK_EUSAGE);
    CHECK_INT(parse_long("redis+unix:///", "s", 106, "#n"), 0);
    CHECK_INT(parse_long("redis+unix:///", "s", 107, "#n"), DLOCK_EUSAGE);
    CHECK_INT(parse_long("redis://u:", "p", 100000, "@h#n"), 0);
    CHECK_INT(parse_long("", "x", 100000, ""), 0);
    CHECK_INT(parse_long("", "x", 100000, "://h#n"), DLOCK_EUSAGE);
    CHECK_INT(parse_long("redis://h?a=", "x", 100000, "&a#n"), DLOCK_EUSAGE);
}

/* Whatever a user has written. */
TEST(no_message_is_longer_than_200_bytes)
{
    static const char *const parts[] = {
        "",    "x",          "redis://", "zk://h/", "file:", "etcd://", "a:1",  "#", "?",
        "/..", "redis://h#", "$X",       "://",     " ://",  "%",       "?a=1", "@", "?x="};
    for (size_t i = 0; i < DLOCK_LEN(parts); i++)
        for (size_t k = 0; k < DLOCK_LEN(parts); k++)
            for (size_t l = 0; l < 3; l++)
                if (parse_long(parts[i], (const char *[]){"y", "?", "\xc3\xb6"}[l], 300,
                               parts[k]) != 0 &&
                    !CHECK(strlen(err.msg) <= 200))
                    printf("# %s\n", err.msg);
}

TEST(unused_params_are_refused)
{
    REQUIRE_INT(parse("redis://h?one=1&two=2&three#n"), 0);
    CHECK_STR(dlock_uri_param(u, "one"), "1");
    CHECK_NULL(dlock_uri_param(u, "on"));
    CHECK_NULL(dlock_uri_param(u, "ONE"));
    CHECK_INT(dlock_uri_check_params(u, &err), DLOCK_EUSAGE);
    CHECK_HAS(err.msg, "\"two\"");
    CHECK_NULL(strstr(err.msg, "2"));
    CHECK_STR(dlock_uri_param(u, "two"), "2");
    CHECK_INT(dlock_uri_check_params(u, NULL), DLOCK_EUSAGE);
    CHECK_STR(dlock_uri_param(u, "three"), "");
    CHECK_INT(dlock_uri_check_params(u, NULL), 0);
    dlock_uri_free(NULL);
}

TEST(unknown_params_name_the_nearest_known_ones)
{
    static const struct {
        const char *key, *want; /* NULL: no name */
    } rows[] = {
        {"password_file", "did you mean password-file?"},
        {"passwordFile", "did you mean password-file?"},
        {"pasword-fil", "did you mean password-file?"},
        {"caert", "did you mean cacert, cert?"},
        {"pool_szie", "did you mean pool_size?"},
        {"bd", "did you mean db?"},
        {"sslverify", NULL},
        {"x", NULL},
        {"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", NULL},
    };
    static const char *const own[] = {"password-file", "cacert", "cert", "db"};
    static const char *const ignored[] = {"pool_size", NULL};
    static const struct dlock_foreign rules[] = {{NULL, 0, NULL, NULL}};
    for (size_t i = 0; i < DLOCK_LEN(rows); i++) {
        char text[128], quoted[80];
        snprintf(text, sizeof(text), "redis://h?%s=hunter#n", rows[i].key);
        REQUIRE_INT(parse(text), 0);
        CHECK_INT(dlock_uri_foreign(u, ignored, rules, &err), 0);
        for (size_t k = 0; k < DLOCK_LEN(own); k++)
            CHECK_NULL(dlock_uri_param(u, own[k]));
        CHECK_INT(dlock_uri_check_params(u, &err), DLOCK_EUSAGE);
        snprintf(quoted, sizeof(quoted), "unknown parameter \"%s\"", rows[i].key);
        CHECK_HAS(err.msg, quoted);
        if (rows[i].want)
            CHECK_HAS(err.msg, rows[i].want);
        else
            CHECK_NULL(strstr(err.msg, "did you mean"));
        CHECK_NULL(strstr(err.msg, "hunter"));
    }
}

/* The rest of a password with a '&' in it looks like a parameter. */
TEST(an_unknown_param_after_a_secret_is_not_shown)
{
    REQUIRE_INT(parse("redis://h?password=a&hunter&b=1#n"), 0);
    CHECK_STR(dlock_uri_param(u, "password"), "a");
    CHECK_INT(dlock_uri_check_params(u, &err), DLOCK_EUSAGE);
    CHECK_NULL(strstr(err.msg, "hunter"));
    CHECK_HAS(err.msg, "%26");
}

TEST(another_programs_param_after_a_secret_is_not_shown)
{
    static const struct dlock_foreign rules[] = {{"ssl_ca", FOREIGN_RENAMED, "cacert", NULL},
                                                 {"ssl*", FOREIGN_REFUSED, "write this", NULL},
                                                 {NULL, 0, NULL, NULL}};
    static const char *const none[] = {NULL};
    static const struct {
        const char *text, *said;
    } rows[] = {{"redis://h?password=a&sslhunter#n", "write this"},
                {"redis://h?sslhunter=a@b#n", "write this"},
                {"redis://h?password=a&cacert=x&SSL-CA=y#n", "cacert= is given twice"}};
    for (size_t i = 0; i < DLOCK_LEN(rows); i++) {
        REQUIRE_INT(parse(rows[i].text), 0);
        CHECK_INT(dlock_uri_foreign(u, none, rules, &err), DLOCK_EUSAGE);
        CHECK_HAS(err.msg, rows[i].said);
        CHECK_NULL(strstr(err.msg, "hunter"));
        CHECK_NULL(strstr(err.msg, "SSL-CA"));
    }
}

TEST(params_of_other_programs)
{
    static const char *const ignored[] = {"pool_size", "clientName", NULL};
    static const struct dlock_foreign rules[] = {
        {"data_base", FOREIGN_RENAMED, "db", NULL},
        {"verify", FOREIGN_AS_OURS, "always verified", "true 1"},
        {"ssl_ca", FOREIGN_RENAMED, "cacert", NULL},
        {"ssl*", FOREIGN_REFUSED, "write this", NULL},
        {NULL, 0, NULL, NULL},
    };
    static const struct {
        const char *query, *ignored, *refused; /* refused: in the message, NULL: it is not */
    } rows[] = {
        {"pool_size=1", "pool_size", NULL},
        {"poolSize=1&CLIENT-NAME=x&pool_size_=", "poolSize, CLIENT-NAME, pool_size_", NULL},
        {"pool_sizes=1", "", NULL},
        {"verify=TRUE", "", NULL},
        {"verify=1", "", NULL},
        {"verify=hunter", "", "\"verify\": always verified"},
        {"verify", "", "\"verify\": always verified"},
        {"database=1", "", NULL},
        {"database=1&db=1", "", "database= and db= are the same"},
        {"database=1&data_base=1", "", "data_base= and db= are the same"},
        {"ssl_ca=x", "", NULL},
        {"ssl_cafile=hunter", "", "\"ssl_cafile\": write this"},
        {"ssl=hunter", "", "\"ssl\": write this"},
    };
    for (size_t i = 0; i < DLOCK_LEN(rows); i++) {
        char text[128], names[64] = "";
        snprintf(text, sizeof(text), "redis://h?%s#n", rows[i].query);
        REQUIRE_INT(parse(text), 0);
        if (!CHECK_INT(dlock_uri_foreign(u, ignored, rules, &err),
                       rows[i].refused ? DLOCK_EUSAGE : 0))
            printf("# ... from %s: %s\n", text, err.msg);
        if (rows[i].refused)
            CHECK_HAS(err.msg, rows[i].refused);
        CHECK_NULL(strstr(err.msg, "hunter"));
        CHECK_INT(dlock_uri_ignored(u, names, sizeof(names)), *rows[i].ignored != '\0');
        CHECK_STR(names, rows[i].ignored);
    }
}

TEST(renamed_params_are_read_by_our_name)
{
    static const char *const ignored[] = {"pool", NULL};
    static const struct dlock_foreign rules[] = {{"database", FOREIGN_RENAMED, "db", NULL},
                                                 {NULL, 0, NULL, NULL}};
    char names[6];
    REQUIRE_INT(parse("redis://h?database=7&pool=1#n"), 0);
    REQUIRE_INT(dlock_uri_foreign(u, ignored, rules, NULL), 0);
    CHECK_INT(dlock_uri_check_params(u, NULL), DLOCK_EUSAGE); /* not read yet */
    CHECK_STR(dlock_uri_param(u, "db"), "7");
    CHECK_INT(dlock_uri_check_params(u, NULL), 0);
    CHECK(dlock_uri_ignored(u, NULL, 0));
    CHECK(dlock_uri_ignored(u, names, 3));
    CHECK_STR(names, "po");
}

TEST(tells_a_database_that_is_given_from_the_default)
{
    static const struct {
        const char *text;
        bool has;
    } rows[] = {{"redis://h#n", false},
                {"redis://h/#n", false},
                {"redis://h/0#n", true},
                {"redis+sentinel://h/s#n", false},
                {"redis+sentinel://h/s/#n", false},
                {"redis+sentinel://h/s/0#n", true}};
    for (size_t i = 0; i < DLOCK_LEN(rows); i++) {
        REQUIRE_INT(parse(rows[i].text), 0);
        CHECK_INT(u->has_db, rows[i].has);
    }
}

TEST(scheme_len_needs_a_scheme_and_slashes)
{
    CHECK_INT(dlock_uri_scheme_len("redis://"), 5);
    CHECK_INT(dlock_uri_scheme_len("redis+unix:///x"), 10);
    CHECK_INT(dlock_uri_scheme_len("redis:/x"), 0);
    CHECK_INT(dlock_uri_scheme_len("a_b://"), 0);
    CHECK_INT(dlock_uri_scheme_len("+a://"), 0);
    CHECK_INT(dlock_uri_scheme_len("\xc3\xa4://"), 0);
    CHECK_INT(dlock_uri_scheme_len("://"), 0);
    CHECK_INT(dlock_uri_scheme_len(""), 0);
}

/* Every good URI with any single byte replaced or cut off there: accepted or refused, no crash. */
TEST(mutations)
{
    static const char bytes[] = "\x01%@:/?#&=[],+ \xff"
                                "0a";
    for (size_t i = 0; i < DLOCK_LEN(good); i++) {
        size_t len = strlen(good[i].text);
        for (size_t k = 0; k < len; k++) {
            for (const char *b = bytes;; b++) {
                char *text = strdup(good[i].text);
                text[k] = *b;
                char *exact = strdup(text);
                int r = parse(exact);
                CHECK(r == 0 || r == DLOCK_EUSAGE);
                CHECK((r == 0) == (u != NULL));
                free(exact);
                free(text);
                if (!*b)
                    break;
            }
        }
    }
}

/* ------------------------------------------------------------ @name --- */

static char *out; /* the URI that was made last, or NULL */

static int make_uri(const char *name, const char *store)
{
    free(out);
    out = NULL;
    return dlock_default_uri(&out, name, store, &err);
}

TEST(a_given_store_is_used)
{
    static const struct {
        const char *name, *store, *want;
    } rows[] = {
        {"n", "redis://u:p@h/1?a=b", "redis://u:p@h/1?a=b#n"},
        {"a%20b", "zk://h", "zk://h#a%20b"},
        {"a b/c", "zk://h", "zk://h#a b/c"},
        {"n", "/var/lock", "file:///var/lock#n"},
        {"n", "/a?b%c", "file:///a%3Fb%25c#n"},
        {"n", "file:///d", "file:///d#n"},
    };
    for (size_t i = 0; i < DLOCK_LEN(rows); i++) {
        CHECK_INT(make_uri(rows[i].name, rows[i].store), 0);
        CHECK_STR(out, rows[i].want);
    }
}

TEST(a_bad_store_or_name_is_refused)
{
    static const char *const stores[] = {"redis://:hunter@h#n", "relative", "redis:hunter", "#",
                                         ":hunter@h"};
    for (size_t i = 0; i < DLOCK_LEN(stores); i++) {
        err.msg[0] = '\0';
        CHECK_INT(make_uri("n", stores[i]), DLOCK_EUSAGE);
        CHECK_HAS(err.msg, "DLOCK_STORE");
        CHECK_NULL(strstr(err.msg, "hunter"));
    }
    CHECK_INT(make_uri("", "zk://h"), DLOCK_EUSAGE);
    CHECK_INT(make_uri("a#b", "zk://h"), DLOCK_EUSAGE);
    CHECK_HAS(err.msg, "%23");
    CHECK_NULL(out);
}

/* As root below sudo; without root the rights of the user's environment are enough. */
TEST(root_below_sudo_takes_no_file_from_the_environment)
{
    static const char *const refused[] = {
        "postgres://h/db?sslkey=x:y",
        "postgres://h/db?a=b&ssl_key=/x",
        "postgres://h/db?sslRootCert=/x",
        "postgres://h/db?passfile=/x",
        "postgres://?service=x",
        "postgres://db1/db?hostaddr=10.0.0.1",
        "postgres://h/db?gssdelegation=1",
        "postgres://h/db?sslkeylogfile=/x",
        "redis://h?password-file=/x",
        "rediss://h?key=/x&cert=/y",
        "rediss://h?ssl_ca_certs=/x",
        "zk://h?password_file=/x",
        "mysql://h/db?ssl-ca=/x",
        "mysql://h/db?ssl-key=/x",
        "redis://h?a_name_that_is_much_longer_than_any_name_that_is_known=1",
    };
    static const char *const taken[] = {"redis://u:p@h/1?restart-grace=3s", "zk://h?layout=x",
                                        "postgres://u@h/db?key=1&sslmode=require", "/var/lock"};
    if (geteuid() != 0)
        SKIP("needs root");
    for (int uid = 0; uid < 2; uid++) {
        setenv("SUDO_UID", uid ? "1000" : "0", 1);
        for (size_t i = 0; i < DLOCK_LEN(refused); i++) {
            if (!CHECK_INT(make_uri("n", refused[i]), uid ? DLOCK_EPERM : 0))
                printf("# %s\n", refused[i]);
            if (uid)
                CHECK_HAS(err.msg, "/etc/dlock/store");
        }
        for (size_t i = 0; i < DLOCK_LEN(taken); i++) {
            CHECK_INT(make_uri("n", taken[i]), 0);
        }
    }
    unsetenv("SUDO_UID");
}

TEST(a_file_names_the_store)
{
    static const struct {
        const char *text, *want;
    } rows[] = {
        {"redis://u:p@h/1\n", "redis://u:p@h/1#n"}, {"# ours\n\n \t zk://h \t\r\n#x", "zk://h#n"},
        {"/var/lock", "file:///var/lock#n"},        {"", "names no store"},
        {"#redis://h\n", "names no store"},         {"redis://h\nredis://h2\n", "one line"},
        {"redis://:hunter@h#n\n", "has a '#'"},     {"relative", "neither a URI"},
        {"# ours\nrequire \n", "set DLOCK_STORE"},  {"require\nzk://h", "one line"},
    };
    char path[] = "/tmp/dlock-store-XXXXXX";
    int fd = mkstemp(path);
    REQUIRE(fd >= 0);
    setenv("DLOCK_STORE_FILE", path, 1);
    for (size_t i = 0; i < DLOCK_LEN(rows); i++) {
        REQUIRE_INT(ftruncate(fd, 0), 0);
        REQUIRE(pwrite(fd, rows[i].text, strlen(rows[i].text), 0) >= 0);
        int rc = make_uri("n", i % 2 ? "" : NULL);
        if (rc == 0) {
            CHECK_STR(out, rows[i].want);
        } else {
            CHECK_INT(rc, DLOCK_EUSAGE);
            CHECK_HAS(err.msg, rows[i].want);
            CHECK_HAS(err.msg, path);
            CHECK_NULL(strstr(err.msg, "hunter"));
        }
    }
    /* $DLOCK_STORE wins. */
    CHECK_INT(make_uri("n", "zk://first"), 0);
    CHECK_STR(out, "zk://first#n");
    CHECK_INT(fchmod(fd, 0620), 0);
    CHECK_INT(make_uri("n", NULL), DLOCK_EPERM);
    CHECK_HAS(err.msg, "go-w");
    REQUIRE_INT(fchmod(fd, 0644), 0);
    CHECK_INT(ftruncate(fd, 5000), 0);
    CHECK_INT(make_uri("n", NULL), DLOCK_EPERM);
    CHECK_HAS(err.msg, "4 KiB");
    REQUIRE_INT(ftruncate(fd, 0), 0);
    if (geteuid() == 0 && fchown(fd, 1, 1) == 0) {
        CHECK_INT(make_uri("n", NULL), DLOCK_EPERM);
        CHECK_HAS(err.msg, "belongs to user 1");
    }
    /* A file that the variable names but that is missing, and links without an end. */
    unlink(path);
    CHECK_INT(make_uri("n", NULL), DLOCK_EPERM);
    CHECK_HAS(err.msg, "No such file");
    REQUIRE_INT(symlink(path, path), 0);
    CHECK_INT(make_uri("n", NULL), DLOCK_EPERM);
    CHECK_INT(err.sys, ELOOP);
    unlink(path);
    setenv("DLOCK_STORE_FILE", "relative", 1);
    CHECK_INT(make_uri("n", NULL), DLOCK_EUSAGE);
    CHECK_NULL(out);
    unsetenv("DLOCK_STORE_FILE");
    close(fd);
}

TEST(without_a_store_it_is_a_file_of_the_machine)
{
    char first[100];
    struct stat st;
    char tail[40];
    setenv("DLOCK_STORE_FILE", "", 1); /* not /etc/dlock/store of this machine */
    if (make_uri("n", NULL) < 0)
        SKIP("no directory for @name on this machine");
    setenv("TMPDIR", "/nowhere", 1);
    setenv("XDG_RUNTIME_DIR", "/nowhere", 1);
    snprintf(first, sizeof(first), "%s", out);
    REQUIRE_INT(make_uri("n", ""), 0);
    CHECK_STR(out, first);
    REQUIRE_INT(parse(out), 0);
    snprintf(tail, sizeof(tail), "/dlock-%lu", (unsigned long)geteuid());
    CHECK_HAS(u->path, tail);
    CHECK_STR(u->name, "n");
    CHECK(!u->bare);
    CHECK_INT(lstat(u->path, &st), 0);
    CHECK(S_ISDIR(st.st_mode));
    CHECK_INT(st.st_uid, geteuid());
    CHECK_INT(st.st_mode & 077, 0);
}

UNIT_MAIN
