/* clock [FILE]: CLOCK_BOOTTIME in ns, to FILE (whole at once: it appears complete) or to standard output. */
#include <stdio.h>
#include <time.h>

int main(int argc, char **argv)
{
    struct timespec ts;
    char tmp[4096];
    clock_gettime(CLOCK_BOOTTIME, &ts);
    long long now = (long long)ts.tv_sec * 1000000000 + ts.tv_nsec;
    if (argc < 2)
        return printf("%lld\n", now) < 0;
    snprintf(tmp, sizeof tmp, "%s.new", argv[1]);
    FILE *f = fopen(tmp, "w");
    if (!f || fprintf(f, "%lld\n", now) < 0 || fclose(f) != 0)
        return 1;
    return rename(tmp, argv[1]) != 0;
}
