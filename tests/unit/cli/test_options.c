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

/* words: behind "dlock". */
static void parse(const char *words)
{
    char line[300];
    snprintf(line, sizeof(line), "dlock%s%s", *words ? "|" : "", words);
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
    {"L|cmd", MODE_RUN, "L", "cmd", -1},
    {"L|--|cmd|--|x", MODE_RUN, "L", "cmd|--|x", -1},
    {"--|L|cmd", MODE_RUN, "L", "cmd", -1},
    {"--|-L|--|-x", MODE_RUN, "-L", "-x", -1},
    {"-|cmd", MODE_RUN, "-", "cmd", -1},
    {"L|cmd|-n|--help|-c||a b", MODE_RUN, "L", "cmd|-n|--help|-c||a b", -1},
    {"L|-", MODE_RUN, "L", "-", -1},
    {"L|--|-n|x", MODE_RUN, "L", "-n|x", -1},
    {"L|--|--help", MODE_RUN, "L", "--help", -1},
    {"9|--|-n", MODE_RUN, "9", "-n", -1},
    {"L|--|-c|x", MODE_RUN, "L", "-c|x", -1},
    {"L|--|--", MODE_RUN, "L", "--", -1},
    {"L|", MODE_RUN, "L", "", -1},
    {"L|-c|echo $HOME", MODE_RUN, "L", "/bin/sh|-c|echo $HOME", -1},
    {"L|--command|x", MODE_RUN, "L", "/bin/sh|-c|x", -1},
    {"L|-c|", MODE_RUN, "L", "/bin/sh|-c|", -1},
    {"L|-c|--", MODE_RUN, "L", "/bin/sh|-c|--", -1},
    {"9|cmd", MODE_RUN, "9", "cmd", -1},
    {"@n|cmd", MODE_RUN, "@n", "cmd", -1},
    /* A number and a command are flock(1)'s way to name a file "5". */
    {"-n|5|true", MODE_RUN, "5", "true", -1},
    {"5|./redis://h#n", MODE_RUN, "5", "./redis://h#n", -1},
    {"5x|redis://h#n", MODE_RUN, "5x", "redis://h#n", -1},
    {"9", MODE_FD, NULL, "", 9},
    {"-s|0", MODE_FD, NULL, "", 0},
    {"007", MODE_FD, NULL, "", 7},
    {"2147483647", MODE_FD, NULL, "", INT_MAX},
    {"-u|200", MODE_UNLOCK, "200", "", 200},
    {"--unlock|9", MODE_UNLOCK, "9", "", 9},
    {"--status|L", MODE_STATUS, "L", "", -1},
    {"--status|9", MODE_STATUS, "9", "", -1},
    {"--schema|postgres://h#n", MODE_SCHEMA, "postgres://h#n", "", -1},
    {"--status|--json|redis://h#n", MODE_STATUS, "redis://h#n", "", -1},
    {"--forget|L", MODE_FORGET, "L", "", -1},
    {"--yes|--forget|9", MODE_FORGET, "9", "", -1},
    {"--once|L|cmd", MODE_RUN, "L", "cmd", -1},
    {"--once=30d|L|cmd", MODE_RUN, "L", "cmd", -1},
    {"--once|redis://h#5d|5d", MODE_RUN, "redis://h#5d", "5d", -1},
    {"--held", MODE_HELD, NULL, "", -1},
    {"--held|--", MODE_HELD, NULL, "", -1},
    {"--held|9", MODE_HELD, "9", "", -1},
    {"--held|--|-x", MODE_HELD, "-x", "", -1},
    {"-h", MODE_HELP, NULL, "", -1},
    {"-n|--help|--no-such", MODE_HELP, NULL, "", -1},
    {"-V", MODE_VERSION, NULL, "", -1},
    {"--version|x|y", MODE_VERSION, NULL, "", -1},
    {"--print-options", MODE_PRINT_OPTIONS, NULL, "", -1},
    {"--print-names|x", MODE_PRINT_NAMES, NULL, "", -1},
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

/* The rest of the struct, as one line; G: with a guard. Values at their defaults are left out. */
static const char *show(const struct options *o, char *buf, size_t size)
{
    int n = snprintf(
        buf, size, "%s%s%s%s%s%s%s%s E%d L%d w%lld t%lld g%lld c%lld l%d %s",
        o->lock_mode == DLOCK_MODE_SHARED ? "s" : "x", o->nonblock ? "n" : "",
        o->close_fd ? "o" : "", o->no_fork ? "F" : "", o->verbose ? "v" : "", o->quiet ? "q" : "",
        o->json ? "j" : "", o->retry ? "r" : "", o->conflict_code, o->lost_code,
        o->wait_ns == DLOCK_NEVER ? -1LL : (long long)(o->wait_ns / DLOCK_MSEC),
        (long long)(o->ttl_ns / DLOCK_MSEC),
        o->grace_ns < 0 ? -1LL : (long long)(o->grace_ns / DLOCK_MSEC),
        (long long)(o->connect_timeout_ns / DLOCK_MSEC), (int)o->on_lost, o->note ? o->note : "-");
    FILE *f = fmemopen(buf + n, size - (size_t)n, "w");
    if (o->once_ns)
        fprintf(f, " once %lld", (long long)(o->once_ns / DLOCK_MSEC));
    if (o->min_hold_ns)
        fprintf(f, " hold %lld", (long long)(o->min_hold_ns / DLOCK_MSEC));
    if (o->skip_code)
        fprintf(f, " skip %d", o->skip_code);
    for (int c = -300; c < 600; c++)
        if (options_success(o, c) != (c == 0))
            fprintf(f, c == 0 ? " not0" : " ok%d", c);
    fputs(options_need_guard(o) ? " G" : "", f);
    fclose(f);
    return buf;
}

static const struct {
    const char *want;
    const char *lines[9]; /* each has the same settings */
} settings[] = {
    {"x E75 L79 w-1 t30000 g-1 c5000 l0 -",
     {"L|c", "-x|L|c", "-s|-x|L|c", "-s|-e|L|c", "--ttl|30|L|c", "--on-lost|term|L|c"}},
    {"xr E75 L79 w-1 t30000 g-1 c5000 l0 -", {"--retry|L|c"}},
    {"xr E75 L79 w1000 t30000 g-1 c5000 l0 -", {"--retry|-w|1|L|c"}},
    {"s E75 L79 w-1 t30000 g-1 c5000 l0 -", {"-s|L|c", "--exclusive|--shared|L|c"}},
    {"xn E75 L79 w0 t30000 g-1 c5000 l0 -",
     {"-n|L|c", "--nb|L|c", "--nonblock|L|c", "--nonb|L|c", "-w|0|L|c", "-n|-w|9|L|c",
      "-w|9|-n|L|c"}},
    {"x E75 L79 w1500 t30000 g-1 c5000 l0 -", {"-w|1.5|L|c"}},
    {"x E75 L79 w120000 t30000 g-1 c5000 l0 -", {"-w2m|L|c"}},
    {"x E75 L79 w3000 t30000 g-1 c5000 l0 -", {"--wait=3|L|c", "--timeout|3|L|c"}},
    {"x E75 L79 w9000 t30000 g-1 c5000 l0 -", {"-w|0|-w|9|L|c"}},
    {"x E0 L79 w-1 t30000 g-1 c5000 l0 -", {"-E|0|L|c"}},
    {"x E255 L9 w-1 t30000 g-1 c5000 l0 -", {"-E255|--lost-exit-code|9|L|c"}},
    {"x E7 L79 w-1 t30000 g-1 c5000 l0 -", {"--conflict-exit-code=007|L|c"}},
    {"xo E75 L79 w-1 t30000 g-1 c5000 l0 - G", {"-o|L|c"}},
    {"xF E75 L79 w-1 t30000 g-1 c5000 l0 -", {"--no-fork|L|c"}},
    {"snoq E75 L79 w0 t30000 g-1 c5000 l0 - G", {"-snovq|L|c"}},
    {"x E75 L79 w-1 t2000 g0 c5000 l0 -", {"--ttl=2s|--grace=0|L|c"}},
    {"x E75 L79 w-1 t30000 g100 c1000 l0 -", {"--grace|100ms|--connect-timeout|1|L|c"}},
    {"x E75 L79 w-1 t30000 g-1 c5000 l1 -", {"--on-lost|kill|L|c"}},
    {"x E75 L79 w-1 t30000 g-1 c5000 l2 -", {"--on-lost=warn|L|c"}},
    {"x E75 L79 w-1 t30000 g-1 c5000 l0 a b", {"--note|a b|L|c"}},
    {"x E75 L79 w-1 t30000 g-1 c5000 l0 ", {"--note=|L|c"}},
    {"xj E75 L79 w-1 t30000 g-1 c5000 l0 -", {"--json|--status|L"}},
    {"x E75 L79 w-1 t30000 g-1 c1000 l0 -",
     {"--connect-timeout|1|--status|L", "--connect-timeout|1|--forget|L"}},
    {"x E12 L79 w-1 t30000 g-1 c5000 l0 -", {"-E|12|--forget|L"}},
    /* flock(1) takes all its options in all its forms. */
    {"snoq E3 L79 w0 t30000 g-1 c5000 l0 - G", {"-snovqE|3|9", "-snovqE|3|-u|9"}},
    {"xF E75 L79 w1000 t30000 g-1 c5000 l0 -", {"-xFw|1|9", "-eFw|1|-u|9"}},
    {"x E75 L79 w-1 t30000 g-1 c5000 l0 - once 2592000000 G",
     {"--once|L|c", "--onc|L|c", "--once=1h|--once|L|c"}},
    {"x E75 L79 w-1 t30000 g-1 c5000 l0 - once 5400000 G", {"--once=90m|L|c"}},
    {"x E75 L79 w-1 t30000 g-1 c5000 l0 - once 250 G", {"--once|--once=250ms|L|c"}},
    {"x E75 L79 w-1 t30000 g-1 c5000 l0 - hold 1500 G", {"--min-hold|1.5|L|c"}},
    {"s E75 L79 w-1 t30000 g-1 c5000 l0 - hold 300000 G", {"--min-hold=5m|-s|L|c"}},
    {"xo E75 L79 w-1 t30000 g-1 c5000 l0 - hold 300000 G", {"--min-hold=5m|--slots|3|L|c"}},
    {"xno E75 L79 w0 t30000 g-1 c5000 l0 - once 2592000000 hold 300000 G",
     {"-o|--once|-n|--min-hold=5m|L|c"}},
    {"x E75 L79 w-1 t30000 g-1 c5000 l0 - once 2592000000 skip 255 G",
     {"--skip-exit-code|255|--once|L|c"}},
    {"x E75 L79 w-1 t30000 g-1 c5000 l0 - once 2592000000 ok24 G",
     {"--success-codes|0,24|--once|L|c"}},
    {"x E75 L79 w-1 t30000 g-1 c5000 l0 - once 2592000000 ok7 ok255 G",
     {"--success-codes=255,00,7|--once|L|c"}},
    {"x E75 L79 w-1 t30000 g-1 c5000 l0 - once 2592000000 not0 ok24 G",
     {"--success-codes=3|--success-codes=24|--once|L|c"}},
};

TEST(settings)
{
    for (size_t i = 0; i < DLOCK_LEN(settings); i++)
        for (const char *const *line = settings[i].lines; *line; line++) {
            parse(*line);
            char buf[300];
            if (p.rc != 0)
                CHECK_FAIL("%s: %s", *line, p.err.msg);
            else if (!CHECK_STR(show(&p.o, buf, sizeof(buf)), settings[i].want))
                printf("# ... from %s\n", *line);
        }
}

static const struct {
    const char *want;
    const char *lines[9]; /* each is refused by these words */
} refused[] = {
    {"no lock", {"", "--", "-u", "--status", "--forget"}},
    {"empty", {"|c", "-u||"}},
    {"no command", {"L", "L|--", "9x", "redis://:hunter@h#n", "\"redis://:hunter@h#n\""}},
    {"--json is not for a command, but for --status",
     {"--json|L", "--json|redis://:hunter@h#n", "--json|L|c", "--json|redis://:hunter@h#n|c",
      "--once|--json|L|c", "--json"}},
    {"--json is not for a descriptor, but for --status", {"--json|9"}},
    {"--json is not for --forget, but for --status", {"--forget|--json|L"}},
    {"--json is not for", {"--schema|--json|L", "--held|--json", "-u|--json|9"}},
    {"-9", {"-9"}},
    {"\"99999999999\"", {"99999999999"}},
    {"\"2147483648\"", {"2147483648"}},
    {"-c needs exactly one", {"L|-c", "L|-c|a|b"}},
    {"--command needs exactly one", {"L|--command"}},
    {"-c goes after", {"-c|x|L", "--command|x|L"}},
    {"write -c and its string as two words", {"L|-cx", "L|--command=x"}},
    {"options go before LOCK: \"-n\" is behind it (for a command of that name: ", {"L|-n|cmd"}},
    {"options go before LOCK: \"-n\"", {"L|-n"}},
    {"options go before LOCK: \"-w5\"", {"L|-w5|cmd"}},
    {"options go before LOCK: \"--ttl\"", {"L|--ttl|5|cmd"}},
    {"options go before LOCK: \"--note\"",
     {"L|--note=redis://:hunter@h|cmd", "L|--note|redis://:hunter@h|cmd"}},
    {"unknown option --zzz (see", {"--zzz|redis://:hunter@h#n|cmd"}},
    {"unknown option --tll; did you mean --ttl?", {"--tll|3|redis://:hunter@h#n|cmd"}},
    {"unknown option --mni-hold; did you mean --min-hold?", {"--mni-hold=3|L|cmd"}},
    {"options go before LOCK",
     {"redis://:hunter@h#n|-n|cmd", "L|--help", "9|-n", "-u|9|-n", "--held|L|-v"}},
    {"options go before LOCK: \"--status\"", {"L|--status"}},
    {"options go before LOCK: \"--json\" is behind it", {"--status|L|--json"}},
    {"options go before LOCK: \"-c\" is behind it", {"--status|L|-c|x"}},
    {"-u needs the number", {"-u|L"}},
    {"-u takes one", {"-u|9|c"}},
    {"unknown option -1", {"-u|-1"}},
    {"99999999999", {"-u|99999999999"}},
    {"--status takes", {"--status|L|c", "--status|redis://:hunter@h#n|c"}},
    {"--status and -u", {"--status|-u|9", "-u|--status|9"}},
    {"--schema and -u", {"-u|--schema|9"}},
    {"--schema and --status", {"--schema|--status|9"}},
    {"--schema takes", {"--schema|L|c"}},
    {"--held takes", {"--held|L|c"}},
    {"the lock's name is empty", {"--held|"}},
    {"--held and --status", {"--held|--status"}},
    {"--held and -u", {"-u|--held|9"}},
    {"--also-shared is not for --status, but for a command",
     {"--status|--also-shared|L|L", "--status|--also-shared|redis://:hunter@h#n|L"}},
    {"--also is not for --held", {"--held|--also|L"}},
    {"--also is not for --forget", {"--forget|--also|L|L"}},
    {"-o and -F", {"-o|-F|L|c"}},
    {"unknown option -Z", {"-Z|L|c", "--nonblock|-nZ|L|c", "-nsZ|L|c"}},
    {"unknown option -", {"-\a|L|c"}},
    {"unknown option --", {"--\x1b[31mred|L|c"}},
    {"unknown option --zzz ", {"--zzz=hunter|L|c"}},
    {"--no is ambiguous", {"--no|L|c"}},
    {"--co is ambiguous", {"--co=5|L|c"}},
    {"--nb takes no value", {"--nb=5|L|c"}},
    {"option -w needs a value: DUR", {"-w"}},
    {"option -w needs a value", {"-nw"}},
    {"option --ttl needs a value", {"--ttl"}},
    {"option --note needs a value", {"--note"}},
    {"option -w: \"\"", {"-w||L|c"}},
    {"\"-1\"", {"-w|-1|L|c"}},
    {"\"L\"", {"-w|L|c"}},
    {"option --timeout: \"x\"", {"--timeout|x|L|c"}},
    {"option --ttl: \"1e3\"", {"--ttl|1e3|L|c"}},
    {"too long", {"--ttl|99999999d|L|c"}},
    {"option --ttl: \"0\" is not a ttl of at least 1 s", {"--ttl|0|L|c"}},
    {"at least 1 s", {"--ttl|999ms|L|c", "--ttl|0.5|9"}},
    {"--retry waits for the store, and -n does not wait", {"--retry|-n|L|c"}},
    {"--retry waits for the store, and -w 0 does not wait", {"-w|0|--retry|L|c"}},
    {"option --max-run: \"0\" is not greater than zero", {"--max-run|0|L|c"}},
    {"option --max-run", {"--max-run||L|c"}},
    {"-F and --max-run cannot be used together", {"--max-run|1|-F|L|c"}},
    {"--max-run is not for", {"--max-run|1|9", "--max-run|1|-u|9", "--max-run|1|--status|L"}},
    {"option --grace: \"-1\"", {"--grace|-1|L|c"}},
    {"--connect-timeout: \"0\" is not greater than zero", {"--connect-timeout|0|L|c"}},
    {"kill, term or warn", {"--on-lost|die|L|c", "--on-lost||L|c", "--on-lost|KILL|L|c"}},
    {"0 to 255",
     {"-E||L|c", "-E|-1|L|c", "-E|+1|L|c", "-E| 1|L|c", "-E|1x|L|c", "-E|99999999999999999999|L|c",
      "--once|--skip-exit-code|256|L|c", "--once|--skip-exit-code||L|c"}},
    {"\"256\"", {"-E|256|L|c"}},
    {"--lost-exit-code", {"--lost-exit-code|256|L|c"}},
    {"-u needs", {"-u|redis://:hunter@h#n"}},
    {"\"5\" is in the place of LOCK: write a time to wait as -w 5", {"-n|5|redis://:hunter@h#n|c"}},
    {"as -w 5", {"-n|5|\"redis://:hunter@h#n\"|c", "-n|5|redis:h|c"}},
    {"as -w 1.5m", {"1.5m|redis://:hunter@h#n|c"}},
    {"\"30d\" is in the place of LOCK: write the time of --once as --once=30d",
     {"--once|30d|redis://:hunter@h#n|c"}},
    {"write the time of --once as --once=5", {"--once|-n|5|@n|c"}},
    {"as --once=1h", {"--once|1h|/dir#n|c"}},
    {"option --once: \"0\" is not greater than zero", {"--once=0|L|c"}},
    {"option --once: \"\"", {"--once=|L|c"}},
    {"option --once", {"--once=redis://:hunter@h|L|c"}},
    {"-s and --once cannot be used together", {"--once|-s|L|c"}},
    {"--slots and --once cannot be used together", {"--once|--slots|2|L|c"}},
    {"-F and --once cannot be used together", {"--once|-F|L|c"}},
    {"-F and --min-hold cannot be used together", {"--min-hold|5|-F|L|c"}},
    {"--once is not for a descriptor, but for a command", {"--once|9"}},
    {"--min-hold is not for a descriptor, but for a command", {"--min-hold|5|9"}},
    {"--once is not for", {"--once|-u|9", "--once|--status|L", "--once|--forget|L"}},
    {"--slots is not for a descriptor, but for a command", {"--slots|2|9"}},
    {"--slots needs a process that keeps the slot: not -F", {"--slots|2|-F|L|c"}},
    {"option --min-hold: \"0\" is not greater than zero", {"--min-hold|0|L|c"}},
    {"option --min-hold needs a value: DUR", {"--min-hold"}},
    {"--success-codes needs --once", {"--success-codes|0|L|c"}},
    {"--skip-exit-code needs --once", {"--skip-exit-code|0|L|c"}},
    {"\"\" is not a list of exit codes as 0,24", {"--once|--success-codes||L|c"}},
    {"is not a list",
     {"--once|--success-codes|,|L|c", "--once|--success-codes|0,,1|L|c",
      "--once|--success-codes|0 24|L|c", "--once|--success-codes|0,256|L|c",
      "--once|--success-codes|-1|L|c", "--once|--success-codes|0000|L|c"}},
    {"--yes is not for a command, but for --forget", {"--yes|L|c", "--yes|L"}},
    {"--yes is not for --status, but for --forget", {"--yes|--status|L"}},
    {"--forget takes a lock and no command", {"--forget|L|c"}},
    {"--forget takes", {"--forget|redis://:hunter@h#n|c"}},
    {"-F is not for --forget, but for a command or a descriptor or -u",
     {"--forget|-F|L", "--forget|--no-fork|L"}},
    {"-F is not for", {"-F|--held", "--status|-F|L", "--schema|-F|L"}},
    {"-x is not for --status", {"--status|-e|L", "--status|-x|9"}},
    {"-s is not for --forget", {"--forget|--shared|L"}},
    {"-n is not for --status", {"-n|--status|L"}},
    {"-w is not for --forget", {"--forget|-w|5|L"}},
    {"-o is not for --held", {"--held|-o"}},
    {"-E is not for --status", {"--status|-E|1|L"}},
    {"--fcntl is not for --forget", {"--forget|--fcntl|L"}},
    {"--connect-timeout is not for --schema", {"--schema|--connect-timeout|5|L"}},
    {"--ttl is not for a descriptor, but for a command", {"--ttl|5|9"}},
    {"--note is not for -u", {"--note|x|-u|9"}},
    {"--success-codes is not for --status", {"--status|--success-codes|0|L"}},
    {"--retry is not for --status", {"--status|--retry|L"}},
    {"--forget and --status", {"--forget|--status|L"}},
    {"--events is not for --forget", {"--forget|--events|3|L"}},
    {"--on is ambiguous", {"--on|L|c"}},
    {"option -w needs a time, such as 10s, and not \"(a URI)\"", {"-w|redis://:hunter@h#n|c"}},
    {"option --ttl needs a time", {"--ttl|redis://:hunter@h#n|c"}},
    {"option --lost-exit-code: \"(a URI)\"", {"--lost-exit-code|redis://:hunter@h#n|c"}},
    {"option -E: \"(a URI)\"", {"-E|jdbc:redis://:hunter@h#n|c"}},
    {"option -w needs a time", {"-nw5redis://:hunter@h#n|c"}},
    {"option --on-lost: \"x?password=***&y\"", {"--on-lost|x?password=hunter&y|L|c"}},
    {"unknown option --redis://***@h#n", {"--redis://:hunter@h#n|c", "--redis://a#hunter=b@h#n|c"}},
    {"unknown option --redis://***@h",
     {"--redis://hunter#b=c@h|c", "--redis://hunter#x&token=y@h|c"}},
    {"unknown option --redis://xxxx",
     {"--redis://:hunter aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa@h#n|c"}},
};

static bool has_control(const char *text)
{
    while (*text && (unsigned char)*text >= ' ' && *text != 0x7f)
        text++;
    return *text != '\0';
}

TEST(refusals)
{
    for (size_t i = 0; i < DLOCK_LEN(refused); i++)
        for (const char *const *line = refused[i].lines; *line; line++) {
            parse(*line);
            if (p.rc != DLOCK_EUSAGE)
                CHECK_FAIL("%s was accepted", *line);
            else if (!CHECK_HAS(p.err.msg, refused[i].want))
                printf("# ... from %s\n", *line);
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
        "-w|%s|L|c",    "-nw%s|L|c", "-E|%s|L|c", "--on-lost|%s|L|c",
        "--ttl=%s|L|c", "--%s|L|c",  "%s|-c",     "--status|%s|c"};
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
    {"10", "1m30s", "by cron", "L|c", "x E75 L79 w90000 t10000 g-1 c5000 l0 by cron"},
    {"", "", "", "L|c", "x E75 L79 w-1 t30000 g-1 c5000 l0 -"},
    {"", "0", "", "L|c", "xn E75 L79 w0 t30000 g-1 c5000 l0 -"},
    {"", "5", "", "9", "x E75 L79 w5000 t30000 g-1 c5000 l0 -"},
    /* The command line wins. */
    {"10", "5", "a", "--ttl|20|--wait=7|--note|b|L|c", "x E75 L79 w7000 t20000 g-1 c5000 l0 b"},
    {"10", "5", "a", "-w|0|--note=|L|c", "xn E75 L79 w0 t10000 g-1 c5000 l0 "},
    {"", "5", "", "-n|L|c", "xn E75 L79 w0 t30000 g-1 c5000 l0 -"},
    {"", "0", "", "-w|5|L|c", "x E75 L79 w5000 t30000 g-1 c5000 l0 -"},
    {"x", "x", "", "--ttl|20|-n|L|c", "xn E75 L79 w0 t20000 g-1 c5000 l0 -"},
    /* A bad value is named, where a lock is taken. */
    {"x", "", "", "L|c", "DLOCK_TTL: \"x\" is not a duration: write "},
    {"0.5", "", "", "L|c", "DLOCK_TTL: \"0.5\" is not a ttl of at least 1 s"},
    {"", "-1", "", "L|c", "DLOCK_TIMEOUT: \"-1\" is not a duration"},
    {"", " ", "", "9", "DLOCK_TIMEOUT: \" \" is not a duration"},
    {"", "redis://:hunter@h#n", "", "L|c", "DLOCK_TIMEOUT needs a time"},
    {"", "0", "", "--retry|L|c",
     "--retry waits for the store, and DLOCK_TIMEOUT=0 does not wait: use -w with a time"},
    {"", "5", "", "--retry|-w|0|L|c", "--retry waits for the store, and -w 0 does not wait"},
    {"x", "x", "x", "--status|L", "x E75 L79 w-1 t30000 g-1 c5000 l0 -"},
    {"x", "x", "x", "--schema|L", "x E75 L79 w-1 t30000 g-1 c5000 l0 -"},
    {"x", "x", "x", "-u|9", "x E75 L79 w-1 t30000 g-1 c5000 l0 -"},
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

TEST(a_variable_is_the_default_of_events)
{
    static const struct {
        const char *variable, *line, *want; /* want: NULL: none */
    } rows[] = {
        {"/log", "L|c", "/log"},         {"7", "L|c", "7"},     {"", "L|c", NULL},
        {"/log", "--events|8|L|c", "8"}, {"/log", "9", "/log"}, /* a descriptor: none */
        {"-x", "--status|L", NULL},
    };
    for (size_t i = 0; i < DLOCK_LEN(rows); i++) {
        setenv("DLOCK_EVENTS", rows[i].variable, 1);
        parse(rows[i].line);
        REQUIRE_INT(p.rc, 0);
        if (rows[i].want)
            CHECK_STR(p.o.events, rows[i].want);
        else
            CHECK_NULL(p.o.events);
    }
    setenv("DLOCK_EVENTS", "-x", 1);
    parse("L|c");
    CHECK_INT(p.rc, DLOCK_EUSAGE);
    CHECK_HAS(p.err.msg, "DLOCK_EVENTS: \"-x\" is not a descriptor or a file");
    unsetenv("DLOCK_EVENTS");
}

TEST(runs_the_users_shell)
{
    for (int set = 0; set < 2; set++) {
        char buf[100];
        unsetenv("SHELL");
        if (set)
            setenv("SHELL", "/bin/zsh", 1);
        parse("L|-c|x y");
        REQUIRE_INT(p.rc, 0);
        CHECK_STR(join(p.o.command, buf, sizeof(buf)), set ? "/bin/zsh|-c|x y" : "/bin/sh|-c|x y");
        CHECK_STR(p.o.shell_string, "x y");
    }
    unsetenv("SHELL");
}

/* A note with a secret in it has none from the beginning. */
TEST(a_note_keeps_no_secret)
{
    parse("--note=http://h/1 for redis://:hunter@h#n by joe@h|--|L|c");
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

/* getopt knows the name, and whether it has a value. */
static void is_understood(const char *name, const char *value)
{
    char words[64];
    snprintf(words, sizeof(words), "%s", name);
    parse(words);
    CHECK(!strstr(p.err.msg, "unknown") && !strstr(p.err.msg, "ambiguous"));
    if (*value && strncmp(value, "[=", 2) != 0) {
        snprintf(words, sizeof(words), "option %s needs a value: %s", name, value);
        CHECK_HAS(p.err.msg, words);
    }
}

/* tests/system/cli/options.bats compares the table with the usage. */
TEST(each_name_of_the_table_is_understood)
{
    char *table = NULL, *save, *line;
    size_t size;
    FILE *out = open_memstream(&table, &size);
    options_print_table(out);
    fclose(out);
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
    free(table);
}

UNIT_MAIN
