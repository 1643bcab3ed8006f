/*
 * show_inherited.c - a command that shows what it was given, for comparison with a run without
 * dlock.
 *
 *     show_inherited fds|signals|limits|misc      show_inherited args ARG...
 */
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static FILE *out;

/* Number, target and flags of every descriptor but our own. */
static void show_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    for (int fd = 0; dir && fd < 1024; fd++) {
        char name[64], target[4096];
        if (fd == dirfd(dir) || fd == fileno(out) || fcntl(fd, F_GETFD) < 0)
            continue;
        snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(name, target, sizeof target - 1);
        target[n > 0 ? n : 0] = '\0';
        fprintf(out, "%d %s fl=%o fd=%d\n", fd, target, (unsigned)fcntl(fd, F_GETFL),
                fcntl(fd, F_GETFD));
    }
    if (dir)
        closedir(dir);
}

static void show_status(const char *const *keys)
{
    char line[512];
    FILE *f = fopen("/proc/self/status", "re");
    while (f && fgets(line, sizeof line, f))
        for (const char *const *k = keys; *k; k++)
            if (strncmp(line, *k, strlen(*k)) == 0)
                fputs(line, out);
    if (f)
        fclose(f);
}

static void show_limits(void)
{
    for (int r = 0; r < RLIM_NLIMITS; r++) {
        struct rlimit l;
        if (getrlimit((__rlimit_resource_t)r, &l) == 0)
            fprintf(out, "limit %d %lld %lld\n", r, (long long)l.rlim_cur, (long long)l.rlim_max);
    }
}

static void show_misc(void)
{
    static const char *const keys[] = {"Umask", "Uid",        "Gid",      "Groups",
                                       "Cap",   "NoNewPrivs", "Seccomp:", NULL};
    char cwd[4096];
    show_status(keys);
    fprintf(out, "cwd %s\nnice %d\ndumpable %d\nslack %d\n", getcwd(cwd, sizeof cwd),
            getpriority(PRIO_PROCESS, 0), prctl(PR_GET_DUMPABLE), prctl(PR_GET_TIMERSLACK));
    int reaper = -1;
    prctl(PR_GET_CHILD_SUBREAPER, &reaper);
    fprintf(out, "subreaper %d\n", reaper);
}

int main(int argc, char **argv)
{
    static const char *const signals[] = {"SigBlk", "SigIgn", "SigCgt", "SigPnd", "ShdPnd", NULL};
    const char *what = argc > 1 ? argv[1] : "", *to = getenv("STATE_TO");
    out = to ? fopen(to, "we") : stdout;
    if (!out)
        return 98;
    if (strcmp(what, "fds") == 0)
        show_fds();
    else if (strcmp(what, "signals") == 0)
        show_status(signals);
    else if (strcmp(what, "limits") == 0)
        show_limits();
    else if (strcmp(what, "misc") == 0)
        show_misc();
    else if (strcmp(what, "args") == 0)
        for (int i = 2; i < argc; i++)
            fprintf(out, "[%s]\n", argv[i]);
    else
        return 64;
    return fclose(out) == 0 ? 0 : 98;
}
