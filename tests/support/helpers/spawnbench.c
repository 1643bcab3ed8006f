/*
 * spawnbench ROUNDS -- CMD... -- CMD... [--]: run each command in turn, ROUNDS times, interleaved, so that
 * whatever else the machine does hits all of them alike. Prints one line a command: median and 90th
 * percentile of its whole-process time in microseconds. A command that fails ends the run.
 */
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

extern char **environ;

#define CMDS_MAX 16

static int64_t now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static int64_t run(char **argv)
{
    pid_t pid;
    int status;
    int64_t start = now_ns();
    if (posix_spawnp(&pid, argv[0], NULL, NULL, argv, environ) != 0 ||
        waitpid(pid, &status, 0) != pid || status != 0) {
        fprintf(stderr, "spawnbench: '%s' failed\n", argv[0]);
        exit(1);
    }
    return now_ns() - start;
}

static int ascending(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

int main(int argc, char **argv)
{
    char **cmd[CMDS_MAX];
    int n = 0, rounds = argc > 1 ? atoi(argv[1]) : 0;
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--") != 0)
            continue;
        argv[i] = NULL;
        if (i + 1 < argc && n < CMDS_MAX)
            cmd[n++] = &argv[i + 1];
    }
    if (rounds < 1 || n == 0)
        return 64;
    int64_t *took = calloc((size_t)(rounds * n), sizeof *took);
    if (!took)
        return 71;
    for (int r = -3; r < rounds; r++) /* the first few only warm up */
        for (int c = 0; c < n; c++) {
            int64_t t = run(cmd[c]);
            if (r >= 0)
                took[c * rounds + r] = t;
        }
    for (int c = 0; c < n; c++) {
        qsort(took + c * rounds, (size_t)rounds, sizeof *took, ascending);
        printf("%lld %lld\n", (long long)took[c * rounds + rounds / 2] / 1000,
               (long long)took[c * rounds + rounds * 9 / 10] / 1000);
    }
    free(took);
    return 0;
}
