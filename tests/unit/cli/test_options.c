/* The command line: what each form means, what is refused, and that argv keeps no password. */
#include "options.h"
#include "unit.h"
#include "util.h"

#include <limits.h>

#define ARGS_MAX 12

/* Words separated by '|' as a fresh argv, writable and NULL-terminated as main's is. */
struct args {
    int n;
    char *v[ARGS_MAX + 1];
};

static struct args split(const char *line)
{
    struct args a = {0};
    const char *end;

    for (; a.n < ARGS_MAX; line = end + 1) {
        end = strchrnul(line, '|');
        a.v[a.n++] = strndup(line, (size_t)(end - line));
        if (!*end)
            break;
    }
    return a;
}

static struct { /* the last one */
    struct args a;
    struct options o;
    struct dlock_error err;
    int rc;
} p;

static void parse_args(struct args a)
{
    options_done(&p.o);
    for (int i = 0; i < p.a.n; i++)
        free(p.a.v[i]);
    memset(&p, 0, sizeof(p));
    p.a = a;
    p.rc = options_parse(&p.o, a.n, p.a.v, &p.err);
}

static void parse(const char *line)
{
    parse_args(split(line));
}

/* dlock LOCK true; any character may be in lock. */
static void parse_lock(const char *lock)
{
    struct args a = split("dlock|LOCK|true");

    free(a.v[1]);
    a.v[1] = strdup(lock);
    parse_args(a);
}

static const char *join(char *const *v, char *buf, size_t size)
{
    size_t n = 0;

    buf[0] = '\0';
    for (int i = 0; v && v[i]; i++)
        n += (size_t)snprintf(buf + n, size - n, "%s%s", i ? "|" : "", v[i]);
    return buf;
}

static const struct {
    const char *line;
    enum cli_mode mode;
    const char *lock, *command;
    int fd;
} forms[] = {
    {"dlock|L|cmd", MODE_RUN, "L", "cmd", -1},
    {"dlock|L|--|cmd|--|x", MODE_RUN, "L", "cmd|--|x", -1},
    {"dlock|--|L|cmd", MODE_RUN, "L", "cmd", -1},
    {"dlock|--|-L|--|-x", MODE_RUN, "-L", "-x", -1},
    {"dlock|-|cmd", MODE_RUN, "-", "cmd", -1},
    {"dlock|L|cmd|-n|--help|-c||a b", MODE_RUN, "L", "cmd|-n|--help|-c||a b", -1},
    {"dlock|L|-", MODE_RUN, "L", "-", -1},
    {"dlock|L|--|-n|x", MODE_RUN, "L", "-n|x", -1},
    {"dlock|L|--|--help", MODE_RUN, "L", "--help", -1},
    {"dlock|9|--|-n", MODE_RUN, "9", "-n", -1},
    {"dlock|L|--|-c|x", MODE_RUN, "L", "-c|x", -1},
    {"dlock|L|--|--", MODE_RUN, "L", "--", -1},
    {"dlock|L|", MODE_RUN, "L", "", -1},
    {"dlock|L|-c|echo $HOME", MODE_RUN, "L", "/bin/sh|-c|echo $HOME", -1},
    {"dlock|L|--command|x", MODE_RUN, "L", "/bin/sh|-c|x", -1},
    {"dlock|L|-c|", MODE_RUN, "L", "/bin/sh|-c|", -1},
    {"dlock|L|-c|--", MODE_RUN, "L", "/bin/sh|-c|--", -1},
    {"dlock|9|cmd", MODE_RUN, "9", "cmd", -1},
    {"dlock|@n|cmd", MODE_RUN, "@n", "cmd", -1},
    /* A number and a command are flock(1)'s way to name a file "5". */
    {"dlock|-n|5|true", MODE_RUN, "5", "true", -1},
    {"dlock|5|./redis://h#n", MODE_RUN, "5", "./redis://h#n", -1},
    {"dlock|5x|redis://h#n", MODE_RUN, "5x", "redis://h#n", -1},
    {"dlock|9", MODE_FD, NULL, "", 9},
    {"dlock|-s|0", MODE_FD, NULL, "", 0},
    {"dlock|007", MODE_FD, NULL, "", 7},
    {"dlock|2147483647", MODE_FD, NULL, "", INT_MAX},
    {"dlock|-u|200", MODE_UNLOCK, "200", "", 200},
    {"dlock|--unlock|9", MODE_UNLOCK, "9", "", 9},
    {"dlock|--status|L", MODE_STATUS, "L", "", -1},
    {"dlock|--status|9", MODE_STATUS, "9", "", -1},
    {"dlock|--schema|postgres://h#n", MODE_SCHEMA, "postgres://h#n", "", -1},
    {"dlock|--status|--json|redis://h#n", MODE_STATUS, "redis://h#n", "", -1},
    {"dlock|--forget|L", MODE_FORGET, "L", "", -1},
    {"dlock|--yes|--forget|9", MODE_FORGET, "9", "", -1},
    {"dlock|--once|L|cmd", MODE_RUN, "L", "cmd", -1},
    {"dlock|--once=30d|L|cmd", MODE_RUN, "L", "cmd", -1},
    {"dlock|--once|redis://h#5d|5d", MODE_RUN, "redis://h#5d", "5d", -1},
    {"dlock|--held", MODE_HELD, NULL, "", -1},
    {"dlock|--held|--", MODE_HELD, NULL, "", -1},
    {"dlock|--held|9", MODE_HELD, "9", "", -1},
    {"dlock|--held|--|-x", MODE_HELD, "-x", "", -1},
    {"dlock|-h", MODE_HELP, NULL, "", -1},
    {"dlock|-n|--help|--no-such", MODE_HELP, NULL, "", -1},
    {"dlock|-V", MODE_VERSION, NULL, "", -1},
    {"dlock|--version|x|y", MODE_VERSION, NULL, "", -1},
    {"dlock|--print-options", MODE_PRINT_OPTIONS, NULL, "", -1},
    {"dlock|--print-names|x", MODE_PRINT_NAMES, NULL, "", -1},
};

TEST(forms_of_the_command_line)
{
    setenv("SHELL", "", 1);
    for (size_t i = 0; i < DLOCK_LEN(forms); i++) {
        parse(forms[i].line);
        char buf[500];

        if (p.rc != 0) {
            CHECK_FAIL("%s: %s", forms[i].line, p.err.msg);
        } else {
            bool ok = CHECK_INT(p.o.mode, forms[i].mode);
            ok &= CHECK_INT(p.o.fd, forms[i].fd);
            if (forms[i].mode != MODE_UNLOCK)
                ok &= CHECK_STR(p.o.lock, forms[i].lock);
            ok &= CHECK((p.o.shell_string != NULL) ==
                        (strncmp(forms[i].command, "/bin/sh|", 8) == 0));
            ok &= CHECK_STR(join(p.o.command, buf, sizeof(buf)), forms[i].command);
            if (!ok)
                printf("# ... from %s\n", forms[i].line);
        }
    }
}

/* The rest of the struct, as one line. */
static const char *show(const struct options *o, char *buf, size_t size)
{
    snprintf(buf, size, "%s%s%s%s%s%s%s%s E%d L%d w%lld t%lld g%lld c%lld l%d %s",
             o->lock_mode == DLOCK_MODE_SHARED ? "s" : "x", o->nonblock ? "n" : "",
             o->close_fd ? "o" : "", o->no_fork ? "F" : "", o->verbose ? "v" : "",
             o->quiet ? "q" : "", o->json ? "j" : "", o->retry ? "r" : "", o->conflict_code,
             o->lost_code, o->wait_ns == DLOCK_NEVER ? -1LL : (long long)(o->wait_ns / DLOCK_MSEC),
             (long long)(o->ttl_ns / DLOCK_MSEC),
             o->grace_ns < 0 ? -1LL : (long long)(o->grace_ns / DLOCK_MSEC),
             (long long)(o->connect_timeout_ns / DLOCK_MSEC), (int)o->on_lost,
             o->note ? o->note : "-");
    return buf;
}

static const struct {
    const char *line, *want;
} settings[] = {
    {"dlock|L|c", "x E75 L79 w-1 t30000 g-1 c5000 l0 -"},
    {"dlock|-x|L|c", "x E75 L79 w-1 t30000 g-1 c5000 l0 -"},
    {"dlock|--retry|L|c", "xr E75 L79 w-1 t30000 g-1 c5000 l0 -"},
    {"dlock|--retry|-w|1|L|c", "xr E75 L79 w1000 t30000 g-1 c5000 l0 -"},
    {"dlock|-s|L|c", "s E75 L79 w-1 t30000 g-1 c5000 l0 -"},
    {"dlock|-s|-x|L|c", "x E75 L79 w-1 t30000 g-1 c5000 l0 -"},
    {"dlock|-s|-e|L|c", "x E75 L79 w-1 t30000 g-1 c5000 l0 -"},
    {"dlock|--exclusive|--shared|L|c", "s E75 L79 w-1 t30000 g-1 c5000 l0 -"},
    {"dlock|-n|L|c", "xn E75 L79 w0 t30000 g-1 c5000 l0 -"},
    {"dlock|--nb|L|c", "xn E75 L79 w0 t30000 g-1 c5000 l0 -"},
    {"dlock|--nonblock|L|c", "xn E75 L79 w0 t30000 g-1 c5000 l0 -"},
    {"dlock|--nonb|L|c", "xn E75 L79 w0 t30000 g-1 c5000 l0 -"},
    {"dlock|-w|1.5|L|c", "x E75 L79 w1500 t30000 g-1 c5000 l0 -"},
    {"dlock|-w2m|L|c", "x E75 L79 w120000 t30000 g-1 c5000 l0 -"},
    {"dlock|--wait=3|L|c", "x E75 L79 w3000 t30000 g-1 c5000 l0 -"},
    {"dlock|--timeout|3|L|c", "x E75 L79 w3000 t30000 g-1 c5000 l0 -"},
    {"dlock|-w|0|L|c", "xn E75 L79 w0 t30000 g-1 c5000 l0 -"},
    {"dlock|-n|-w|9|L|c", "xn E75 L79 w0 t30000 g-1 c5000 l0 -"},
    {"dlock|-w|9|-n|L|c", "xn E75 L79 w0 t30000 g-1 c5000 l0 -"},
    {"dlock|-w|0|-w|9|L|c", "x E75 L79 w9000 t30000 g-1 c5000 l0 -"},
    {"dlock|-E|0|L|c", "x E0 L79 w-1 t30000 g-1 c5000 l0 -"},
    {"dlock|-E255|--lost-exit-code|9|L|c", "x E255 L9 w-1 t30000 g-1 c5000 l0 -"},
    {"dlock|--conflict-exit-code=007|L|c", "x E7 L79 w-1 t30000 g-1 c5000 l0 -"},
    {"dlock|-o|L|c", "xo E75 L79 w-1 t30000 g-1 c5000 l0 -"},
    {"dlock|--no-fork|L|c", "xF E75 L79 w-1 t30000 g-1 c5000 l0 -"},
    {"dlock|-snovq|L|c", "snoq E75 L79 w0 t30000 g-1 c5000 l0 -"},
    {"dlock|--ttl|30|L|c", "x E75 L79 w-1 t30000 g-1 c5000 l0 -"},
    {"dlock|--ttl=2s|--grace=0|L|c", "x E75 L79 w-1 t2000 g0 c5000 l0 -"},
    {"dlock|--grace|100ms|--connect-timeout|1|L|c", "x E75 L79 w-1 t30000 g100 c1000 l0 -"},
    {"dlock|--on-lost|kill|L|c", "x E75 L79 w-1 t30000 g-1 c5000 l1 -"},
    {"dlock|--on-lost|term|L|c", "x E75 L79 w-1 t30000 g-1 c5000 l0 -"},
    {"dlock|--on-lost=warn|L|c", "x E75 L79 w-1 t30000 g-1 c5000 l2 -"},
    {"dlock|--note|a b|L|c", "x E75 L79 w-1 t30000 g-1 c5000 l0 a b"},
    {"dlock|--note=|L|c", "x E75 L79 w-1 t30000 g-1 c5000 l0 "},
    {"dlock|--json|--status|L", "xj E75 L79 w-1 t30000 g-1 c5000 l0 -"},
};

TEST(settings)
{
    for (size_t i = 0; i < DLOCK_LEN(settings); i++) {
        parse(settings[i].line);
        char buf[300];

        if (p.rc != 0)
            CHECK_FAIL("%s: %s", settings[i].line, p.err.msg);
        else if (!CHECK_STR(show(&p.o, buf, sizeof(buf)), settings[i].want))
            printf("# ... from %s\n", settings[i].line);
    }
}

static const struct {
    const char *line;
    int64_t once_ms, min_hold_ms;
    int skip;
    const char *success; /* all codes */
} records[] = {
    {"dlock|L|c", 0, 0, 0, "0"},
    {"dlock|--once|L|c", 30 * INT64_C(86400000), 0, 0, "0"},
    {"dlock|--onc|L|c", 30 * INT64_C(86400000), 0, 0, "0"},
    {"dlock|--once=90m|L|c", 5400000, 0, 0, "0"},
    {"dlock|--once=1h|--once|L|c", 30 * INT64_C(86400000), 0, 0, "0"},
    {"dlock|--once|--once=250ms|L|c", 250, 0, 0, "0"},
    {"dlock|--min-hold|1.5|L|c", 0, 1500, 0, "0"},
    {"dlock|--min-hold=5m|-s|L|c", 0, 300000, 0, "0"},
    {"dlock|--min-hold=5m|--slots|3|L|c", 0, 300000, 0, "0"},
    {"dlock|-o|--once|-n|--min-hold=5m|L|c", 30 * INT64_C(86400000), 300000, 0, "0"},
    {"dlock|--skip-exit-code|255|--once|L|c", 30 * INT64_C(86400000), 0, 255, "0"},
    {"dlock|--success-codes|0,24|--once|L|c", 30 * INT64_C(86400000), 0, 0, "0 24"},
    {"dlock|--success-codes=255,00,7|--once|L|c", 30 * INT64_C(86400000), 0, 0, "0 7 255"},
    {"dlock|--success-codes=3|--success-codes=24|--once|L|c", 30 * INT64_C(86400000), 0, 0, "24"},
};

TEST(values_of_once_and_min_hold)
{
    for (size_t i = 0; i < DLOCK_LEN(records); i++) {
        parse(records[i].line);
        char codes[1200] = "";
        size_t n = 0;

        if (p.rc != 0) {
            CHECK_FAIL("%s: %s", records[i].line, p.err.msg);
        } else {
            for (int c = -300; c < 600; c++)
                if (options_success(&p.o, c))
                    n += (size_t)snprintf(codes + n, sizeof(codes) - n, "%s%d", n ? " " : "", c);
            bool ok = CHECK_INT(p.o.once_ns / DLOCK_MSEC, records[i].once_ms);
            ok &= CHECK_INT(p.o.min_hold_ns / DLOCK_MSEC, records[i].min_hold_ms);
            ok &= CHECK_INT(p.o.skip_code, records[i].skip);
            ok &= CHECK_STR(codes, records[i].success);
            ok &= CHECK_INT(options_need_guard(&p.o), p.o.once_ns || p.o.min_hold_ns);
            if (!ok)
                printf("# ... from %s\n", records[i].line);
        }
    }
}

static const struct {
    const char *line, *want;
} refused[] = {
    {"dlock", "no lock"},
    {"dlock|--", "no lock"},
    {"dlock||c", "empty"},
    {"dlock|L", "no command"},
    {"dlock|L|--", "no command"},
    {"dlock|9x", "no command"},
    {"dlock|--json|L", "--json needs --status"},
    {"dlock|--json|redis://:hunter@h#n", "--json needs --status"},
    {"dlock|-9", "-9"},
    {"dlock|99999999999", "\"99999999999\""},
    {"dlock|2147483648", "\"2147483648\""},
    {"dlock|L|-c", "-c needs exactly one"},
    {"dlock|L|-c|a|b", "-c needs exactly one"},
    {"dlock|L|--command", "--command needs exactly one"},
    {"dlock|-c|x|L", "-c goes after"},
    {"dlock|L|-cx", "write -c and its string as two words"},
    {"dlock|L|--command=x", "write -c and its string as two words"},
    {"dlock|L|-n|cmd", "options go before LOCK: \"-n\" is behind it (for a command of that name: "},
    {"dlock|L|-n", "options go before LOCK: \"-n\""},
    {"dlock|L|-w5|cmd", "options go before LOCK: \"-w5\""},
    {"dlock|L|--ttl|5|cmd", "options go before LOCK: \"--ttl\""},
    {"dlock|L|--note=redis://:hunter@h|cmd", "options go before LOCK: \"--note\""},
    {"dlock|L|--note|redis://:hunter@h|cmd", "options go before LOCK: \"--note\""},
    {"dlock|--zzz|redis://:hunter@h#n|cmd", "unknown option --zzz (see"},
    {"dlock|--tll|3|redis://:hunter@h#n|cmd", "unknown option --tll; did you mean --ttl?"},
    {"dlock|--mni-hold=3|L|cmd", "unknown option --mni-hold; did you mean --min-hold?"},
    {"dlock|redis://:hunter@h#n|-n|cmd", "options go before LOCK"},
    {"dlock|L|--help", "options go before LOCK"},
    {"dlock|9|-n", "options go before LOCK"},
    {"dlock|L|--status", "options go before LOCK: \"--status\""},
    {"dlock|--status|L|--json", "options go before LOCK: \"--json\" is behind it"},
    {"dlock|--status|L|-c|x", "options go before LOCK: \"-c\" is behind it"},
    {"dlock|-u|9|-n", "options go before LOCK"},
    {"dlock|--command|x|L", "-c goes after"},
    {"dlock|-u", "no lock"},
    {"dlock|-u|L", "-u needs the number"},
    {"dlock|-u|9|c", "-u takes one"},
    {"dlock|-u|-1", "unknown option -1"},
    {"dlock|-u||", "empty"},
    {"dlock|-u|99999999999", "99999999999"},
    {"dlock|--status", "no lock"},
    {"dlock|--status|L|c", "--status takes"},
    {"dlock|--status|-u|9", "--status and -u"},
    {"dlock|-u|--status|9", "--status and -u"},
    {"dlock|-u|--schema|9", "--schema and -u"},
    {"dlock|--schema|--status|9", "--schema and --status"},
    {"dlock|--schema|L|c", "--schema takes"},
    {"dlock|--held|L|c", "--held takes"},
    {"dlock|--held|L|-v", "options go before LOCK"},
    {"dlock|--held|", "the lock's name is empty"},
    {"dlock|--held|--status", "--held and --status"},
    {"dlock|-u|--held|9", "--held and -u"},
    {"dlock|--held|--also|L", "--also needs a command"},
    {"dlock|-o|-F|L|c", "-o and -F"},
    {"dlock|-Z|L|c", "unknown option -Z"},
    {"dlock|--nonblock|-nZ|L|c", "unknown option -Z"},
    {"dlock|-nsZ|L|c", "unknown option -Z"},
    {"dlock|-\a|L|c", "unknown option -"},
    {"dlock|--\x1b[31mred|L|c", "unknown option --"},
    {"dlock|--zzz=hunter|L|c", "unknown option --zzz "},
    {"dlock|--no|L|c", "--no is ambiguous"},
    {"dlock|--co=5|L|c", "--co is ambiguous"},
    {"dlock|--nb=5|L|c", "--nb takes no value"},
    {"dlock|-w", "option -w needs a value: DUR"},
    {"dlock|-nw", "option -w needs a value"},
    {"dlock|--ttl", "option --ttl needs a value"},
    {"dlock|--note", "option --note needs a value"},
    {"dlock|-w||L|c", "option -w: \"\""},
    {"dlock|-w|-1|L|c", "\"-1\""},
    {"dlock|-w|L|c", "\"L\""},
    {"dlock|--timeout|x|L|c", "option --timeout: \"x\""},
    {"dlock|--ttl|1e3|L|c", "option --ttl: \"1e3\""},
    {"dlock|--ttl|99999999d|L|c", "too long"},
    {"dlock|--ttl|0|L|c", "option --ttl: \"0\" is not a ttl of at least 1 s"},
    {"dlock|--ttl|999ms|L|c", "at least 1 s"},
    {"dlock|--ttl|0.5|9", "at least 1 s"},
    {"dlock|--retry|-n|L|c", "--retry waits for the store, and -n does not wait"},
    {"dlock|-w|0|--retry|L|c", "--retry waits for the store, and -w 0 does not wait"},
    {"dlock|--max-run|0|L|c", "option --max-run: \"0\" is not greater than zero"},
    {"dlock|--max-run||L|c", "option --max-run"},
    {"dlock|--max-run|1|-F|L|c", "-F and --max-run cannot be used together"},
    {"dlock|--max-run|1|9", "--max-run needs a command"},
    {"dlock|--max-run|1|-u|9", "--max-run needs a command"},
    {"dlock|--max-run|1|--status|L", "--max-run needs a command"},
    {"dlock|--grace|-1|L|c", "option --grace: \"-1\""},
    {"dlock|--connect-timeout|0|L|c", "--connect-timeout: \"0\" is not greater than zero"},
    {"dlock|--on-lost|die|L|c", "kill, term or warn"},
    {"dlock|--on-lost||L|c", "kill, term or warn"},
    {"dlock|--on-lost|KILL|L|c", "kill, term or warn"},
    {"dlock|-E||L|c", "0 to 255"},
    {"dlock|-E|256|L|c", "\"256\""},
    {"dlock|-E|-1|L|c", "0 to 255"},
    {"dlock|-E|+1|L|c", "0 to 255"},
    {"dlock|-E| 1|L|c", "0 to 255"},
    {"dlock|-E|1x|L|c", "0 to 255"},
    {"dlock|-E|99999999999999999999|L|c", "0 to 255"},
    {"dlock|--lost-exit-code|256|L|c", "--lost-exit-code"},
    {"dlock|redis://:hunter@h#n", "no command"},
    {"dlock|-u|redis://:hunter@h#n", "-u needs"},
    {"dlock|--status|redis://:hunter@h#n|c", "--status takes"},
    {"dlock|-n|5|redis://:hunter@h#n|c",
     "\"5\" is in the place of LOCK: write a time to wait as -w 5"},
    {"dlock|-n|5|\"redis://:hunter@h#n\"|c", "as -w 5"},
    {"dlock|-n|5|redis:h|c", "as -w 5"},
    {"dlock|1.5m|redis://:hunter@h#n|c", "as -w 1.5m"},
    {"dlock|\"redis://:hunter@h#n\"", "no command"},
    {"dlock|--once|30d|redis://:hunter@h#n|c",
     "\"30d\" is in the place of LOCK: write the time of --once as --once=30d"},
    {"dlock|--once|-n|5|@n|c", "write the time of --once as --once=5"},
    {"dlock|--once|1h|/dir#n|c", "as --once=1h"},
    {"dlock|--once=0|L|c", "option --once: \"0\" is not greater than zero"},
    {"dlock|--once=|L|c", "option --once: \"\""},
    {"dlock|--once=redis://:hunter@h|L|c", "option --once"},
    {"dlock|--once|-s|L|c", "-s and --once cannot be used together"},
    {"dlock|--once|--slots|2|L|c", "--slots and --once cannot be used together"},
    {"dlock|--once|-F|L|c", "-F and --once cannot be used together"},
    {"dlock|--min-hold|5|-F|L|c", "-F and --min-hold cannot be used together"},
    {"dlock|--once|9", "--once needs a command: dlock --once LOCK COMMAND"},
    {"dlock|--min-hold|5|9", "--min-hold needs a command: dlock --min-hold DUR LOCK COMMAND"},
    {"dlock|--once|-u|9", "--once needs a command"},
    {"dlock|--once|--status|L", "--once needs a command"},
    {"dlock|--once|--forget|L", "--once needs a command"},
    {"dlock|--min-hold|0|L|c", "option --min-hold: \"0\" is not greater than zero"},
    {"dlock|--min-hold", "option --min-hold needs a value: DUR"},
    {"dlock|--success-codes|0|L|c", "--success-codes needs --once"},
    {"dlock|--skip-exit-code|0|L|c", "--skip-exit-code needs --once"},
    {"dlock|--once|--skip-exit-code|256|L|c", "0 to 255"},
    {"dlock|--once|--skip-exit-code||L|c", "0 to 255"},
    {"dlock|--once|--success-codes||L|c", "\"\" is not a list of exit codes as 0,24"},
    {"dlock|--once|--success-codes|,|L|c", "is not a list"},
    {"dlock|--once|--success-codes|0,,1|L|c", "is not a list"},
    {"dlock|--once|--success-codes|0 24|L|c", "is not a list"},
    {"dlock|--once|--success-codes|0,256|L|c", "is not a list"},
    {"dlock|--once|--success-codes|-1|L|c", "is not a list"},
    {"dlock|--once|--success-codes|0000|L|c", "is not a list"},
    {"dlock|--yes|L|c", "--yes needs --forget: dlock --forget --yes LOCK"},
    {"dlock|--forget", "no lock"},
    {"dlock|--forget|L|c", "--forget takes a lock and no command"},
    {"dlock|--forget|redis://:hunter@h#n|c", "--forget takes"},
    {"dlock|--forget|--json|L", "--json and --forget cannot be used together"},
    {"dlock|--forget|-F|L", "-F and --forget cannot be used together"},
    {"dlock|-F|--held", "-F and --held cannot be used together"},
    {"dlock|--forget|--status|L", "--forget and --status"},
    {"dlock|--forget|--events|3|L", "--events needs a command"},
    {"dlock|--forget|--also|L|L", "--also needs a command"},
    {"dlock|--on|L|c", "--on is ambiguous"},
    {"dlock|-w|redis://:hunter@h#n|c", "option -w needs a time, such as 10s, and not \"(a URI)\""},
    {"dlock|--ttl|redis://:hunter@h#n|c", "option --ttl needs a time"},
    {"dlock|--lost-exit-code|redis://:hunter@h#n|c", "option --lost-exit-code: \"(a URI)\""},
    {"dlock|-E|jdbc:redis://:hunter@h#n|c", "option -E: \"(a URI)\""},
    {"dlock|-nw5redis://:hunter@h#n|c", "option -w needs a time"},
    {"dlock|--on-lost|x?password=hunter&y|L|c", "option --on-lost: \"x?password=***&y\""},
    {"dlock|--redis://:hunter@h#n|c", "unknown option --redis://***@h#n"},
    {"dlock|--redis://a#hunter=b@h#n|c", "unknown option --redis://***@h#n"},
    {"dlock|--redis://hunter#b=c@h|c", "unknown option --redis://***@h"},
    {"dlock|--redis://hunter#x&token=y@h|c", "unknown option --redis://***@h"},
    {"dlock|--redis://:hunter aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa@h#n|c",
     "unknown option --redis://xxxx"},
};

static bool has_control(const char *text)
{
    while (*text && (unsigned char)*text >= ' ' && *text != 0x7f)
        text++;
    return *text != '\0';
}

TEST(refusals)
{
    for (size_t i = 0; i < DLOCK_LEN(refused); i++) {
        parse(refused[i].line);

        if (p.rc != DLOCK_EUSAGE)
            CHECK_FAIL("%s was accepted", refused[i].line);
        else if (!CHECK_HAS(p.err.msg, refused[i].want))
            printf("# ... from %s\n", refused[i].line);
        CHECK(!has_control(p.err.msg));
        CHECK_NULL(strstr(p.err.msg, "hunter"));
        for (int k = 0; k < p.a.n; k++)
            if (strstr(p.a.v[k], "hunter") && p.a.v[k][0] != '-')
                CHECK_FAIL("left in argv: %s", p.a.v[k]);
    }
}

/* Wherever a URI stands by mistake. */
TEST(no_refusal_shows_a_password)
{
    static const char *const places[] = {
        "dlock|-w|%s|L|c",    "dlock|-nw%s|L|c", "dlock|-E|%s|L|c", "dlock|--on-lost|%s|L|c",
        "dlock|--ttl=%s|L|c", "dlock|--%s|L|c",  "dlock|%s|-c",     "dlock|--status|%s|c"};
    static const char *const uris[] = {
        "redis://:hunter@h#x",        "redis://hunter@h",
        "redis://u:my hunter@h#x",    "redis://u:hunter my@h",
        "redis://u:#/?@hunter%@h",    "\"redis://u:hunter\"@h#x\"",
        "jdbc:redis://u:hunter@h",    "postgres://h/db?x=y&password=hunter#x",
        "redis://h#redis://:hunter@x"};
    char line[200];

    for (size_t i = 0; i < DLOCK_LEN(places); i++)
        for (size_t k = 0; k < DLOCK_LEN(uris); k++) {
            snprintf(line, sizeof(line), places[i], uris[k]);
            parse(line);
            if (p.rc != DLOCK_EUSAGE || strstr(p.err.msg, "hunter"))
                CHECK_FAIL("%s: %d, %s", line, p.rc, p.err.msg);
        }
}

static const struct {
    const char *ttl, *timeout, *note; /* "" is as unset */
    const char *line, *want;          /* the settings, or what the refusal says */
} variables[] = {
    {"10", "1m30s", "by cron", "dlock|L|c", "x E75 L79 w90000 t10000 g-1 c5000 l0 by cron"},
    {"", "", "", "dlock|L|c", "x E75 L79 w-1 t30000 g-1 c5000 l0 -"},
    {"", "0", "", "dlock|L|c", "xn E75 L79 w0 t30000 g-1 c5000 l0 -"},
    {"", "5", "", "dlock|9", "x E75 L79 w5000 t30000 g-1 c5000 l0 -"},
    /* The command line wins. */
    {"10", "5", "a", "dlock|--ttl|20|--wait=7|--note|b|L|c",
     "x E75 L79 w7000 t20000 g-1 c5000 l0 b"},
    {"10", "5", "a", "dlock|-w|0|--note=|L|c", "xn E75 L79 w0 t10000 g-1 c5000 l0 "},
    {"", "5", "", "dlock|-n|L|c", "xn E75 L79 w0 t30000 g-1 c5000 l0 -"},
    {"", "0", "", "dlock|-w|5|L|c", "x E75 L79 w5000 t30000 g-1 c5000 l0 -"},
    {"x", "x", "", "dlock|--ttl|20|-n|L|c", "xn E75 L79 w0 t20000 g-1 c5000 l0 -"},
    /* A bad value is named, where a lock is taken. */
    {"x", "", "", "dlock|L|c", "DLOCK_TTL: \"x\" is not a duration: write "},
    {"0.5", "", "", "dlock|L|c", "DLOCK_TTL: \"0.5\" is not a ttl of at least 1 s"},
    {"", "-1", "", "dlock|L|c", "DLOCK_TIMEOUT: \"-1\" is not a duration"},
    {"", " ", "", "dlock|9", "DLOCK_TIMEOUT: \" \" is not a duration"},
    {"", "redis://:hunter@h#n", "", "dlock|L|c", "DLOCK_TIMEOUT needs a time"},
    {"", "0", "", "dlock|--retry|L|c",
     "--retry waits for the store, and DLOCK_TIMEOUT=0 does not wait: use -w with a time"},
    {"", "5", "", "dlock|--retry|-w|0|L|c", "--retry waits for the store, and -w 0 does not wait"},
    {"x", "x", "x", "dlock|--status|L", "x E75 L79 w-1 t30000 g-1 c5000 l0 -"},
    {"x", "x", "x", "dlock|--schema|L", "x E75 L79 w-1 t30000 g-1 c5000 l0 -"},
    {"x", "x", "x", "dlock|-u|9", "x E75 L79 w-1 t30000 g-1 c5000 l0 -"},
};

TEST(variables_are_defaults)
{
    for (size_t i = 0; i < DLOCK_LEN(variables); i++) {
        setenv("DLOCK_TTL", variables[i].ttl, 1);
        setenv("DLOCK_TIMEOUT", variables[i].timeout, 1);
        setenv("DLOCK_NOTE", variables[i].note, 1);
        parse(variables[i].line);
        char buf[sizeof(p.err.msg)];
        if (p.rc != 0)
            snprintf(buf, sizeof(buf), "%s", p.err.msg);
        else
            show(&p.o, buf, sizeof(buf));
        if (!CHECK(strncmp(buf, variables[i].want, strlen(variables[i].want)) == 0))
            printf("# ... from row %zu, %s: %s\n", i, variables[i].line, buf);
        CHECK_STR(getenv("DLOCK_TIMEOUT"), variables[i].timeout);
    }
    unsetenv("DLOCK_TTL");
    unsetenv("DLOCK_TIMEOUT");
    unsetenv("DLOCK_NOTE");
}

TEST(runs_the_users_shell)
{
    for (int set = 0; set < 2; set++) {
        char buf[100];

        unsetenv("SHELL");
        if (set)
            setenv("SHELL", "/bin/zsh", 1);
        parse("dlock|L|-c|x y");
        REQUIRE_INT(p.rc, 0);
        CHECK_STR(join(p.o.command, buf, sizeof(buf)), set ? "/bin/zsh|-c|x y" : "/bin/sh|-c|x y");
        CHECK_STR(p.o.shell_string, "x y");
    }
    unsetenv("SHELL");
}

/* A note with a secret in it has none from the beginning. */
TEST(a_note_keeps_no_secret)
{
    parse("dlock|--note=http://h/1 for redis://:hunter@h#n by joe@h|--|L|c");

    REQUIRE_INT(p.rc, 0);
    CHECK_STR(p.o.note, "http://h/1 for redis://xxxxxxx@h#n by joe@h");
    CHECK_STR(p.a.v[1], "--note=http://h/1 for redis://xxxxxxx@h#n by joe@h");
}

/* ps(1) shows no secret afterwards; our copy is complete. */
TEST(argv_keeps_no_secret)
{
    static const struct {
        const char *lock, *left;
    } rows[] = {
        {"./a@b#c", "./a@b#c"},
        {"@n", "@n"},
        {"redis://h/0#n", "redis://h/0#n"},
        {"redis://h/0#a@b", "redis://h/0#a@b"},
        {"redis://u:pw@h/0#n", "redis://xxxx@h/0#n"},
        {"redis://:p#w@h/0#n", "redis://xxxx@h/0#n"},
        {"redis://u:p@w@h#n@m", "redis://xxxxx@h#n@m"},
        {"redis://u:pw@h", "redis://xxxx@h"},
        {"redis://@h#n", "redis://@h#n"},
        {"redlock://:p@h1,:q@h2#n", "redlock://xxxxxxxx@h2#n"},
        {"postgres:///?service=x#n", "postgres:///?service=x#n"},
        {"postgres:///db?a=b&password=pw&c=d#n", "postgres:///db?a=b&password=xx&c=d#n"},
        {"postgres:///db?sslPassWord=pw#n", "postgres:///db?sslPassWord=xx#n"},
        {"postgres:///db?password=p=w?&x=1", "postgres:///db?password=xxxx&x=1"},
        {"x://h?client_secret_2=abc&secretx&a=secret#n",
         "x://h?client_secret_2=xxx&secretx&a=secret#n"},
        {"redis://h?password=#n", "redis://h?password=#n"},
        {"redis://h?#password=x", "redis://h?#password=x"},
        {"redis://h#redis://:pw@x", "redis://h#redis://xxx@x"},
        {"redis://u:pw#n", "redis://xxxx#n"},
        {"\"redis://:p w@h\"", "\"redis://xxxx@h\""},
        {"jdbc:redis://:pw@h#n", "jdbc:redis://xxx@h#n"},
    };

    for (size_t i = 0; i < DLOCK_LEN(rows); i++) {
        parse_lock(rows[i].lock);

        REQUIRE_INT(p.rc, 0);
        CHECK_STR(p.o.lock, rows[i].lock);
        CHECK_STR(p.a.v[1], rows[i].left);
    }
}

TEST(long_locks)
{
    char lock[4098] = "";

    for (size_t len = 4096; len <= 4097; len++) {
        memset(lock, 'l', len);
        parse_lock(lock);
        CHECK_INT(p.rc, len == 4096 ? 0 : DLOCK_EUSAGE);
    }
}

static char *capture(void (*print)(FILE *))
{
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);

    print(f);
    fclose(f);
    return text;
}

/* getopt knows the name, and whether it has a value. */
static void is_understood(const char *name, const char *value)
{
    char words[64];

    snprintf(words, sizeof(words), "dlock|%s", name);
    parse(words);
    CHECK(!strstr(p.err.msg, "unknown") && !strstr(p.err.msg, "ambiguous"));
    if (*value && strncmp(value, "[=", 2) != 0) {
        snprintf(words, sizeof(words), "option %s needs a value: %s", name, value);
        CHECK_HAS(p.err.msg, words);
    }
}

/* Every name of the table is understood; system/cli/options.bats compares it with the usage. */
TEST(the_table_and_the_usage)
{
    char *table = capture(options_print_table), *usage = capture(options_usage), *save, *line;

    for (line = strtok_r(table, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char *f[4];
        int n = 0;

        for (char *at = line; n < 4 && at;)
            f[n++] = strsep(&at, "\t");
        REQUIRE_INT(n, 4);
        CHECK(*f[3]);
        for (int col = 0; col < 2; col++)
            for (char *at = f[col]; at && *at;)
                is_understood(strsep(&at, ","), f[2]);
        CHECK_NULL(strstr(f[1], "print-options"));
    }
    for (char *at = usage; *at; at += strcspn(at, "\n"), at += *at == '\n')
        if (strcspn(at, "\n") > 80)
            CHECK_FAIL("too wide: %.110s", at);
    CHECK_NULL(strstr(usage, "print-options"));
    free(table);
    free(usage);
}

UNIT_MAIN
