/*
 * launch.c - run a program with a chosen signal state, which a shell cannot set up.
 *
 *     launch [-d] [-i SIG] [-b SIG] [-n] [-s] [--] PROGRAM [ARG...]
 *   -d  all dispositions default and nothing blocked (a shell's background jobs ignore INT and QUIT)
 *   -n  before other processes, where we may: what is timed is dlock, not the machine's load
 *   -i  ignore SIG   -b  block SIG   -s  a new session: no controlling terminal
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    sigset_t set;
    int c;
    sigemptyset(&set);
    while ((c = getopt(argc, argv, "+di:b:ns")) != -1) {
        switch (c) {
        case 'd':
            for (int s = 1; s < NSIG; s++)
                signal(s, SIG_DFL);
            sigprocmask(SIG_SETMASK, &set, NULL);
            break;
        case 'i':
            signal(atoi(optarg), SIG_IGN);
            break;
        case 'b':
            sigaddset(&set, atoi(optarg));
            break;
        case 'n':
            setpriority(PRIO_PROCESS, 0, -10);
            break;
        case 's':
            /* The test knows the parent, so the parent must be the one that runs on. */
            if (setsid() < 0 && getsid(0) != getpid()) {
                perror("launch: setsid");
                return 98;
            }
            break;
        default:
            return 64;
        }
    }
    sigprocmask(SIG_BLOCK, &set, NULL);
    execvp(argv[optind], argv + optind);
    perror(argv[optind]);
    return 127;
}
