/*
 * replay.c - main() for a target without libFuzzer, included before the target: each argument is a
 * file, or a folder of files, with the bytes of an input. Prints how many there were; none is an
 * error.
 */
#include "fuzz.h"

#include <dirent.h>

/* A target may have no beginning. */
__attribute__((weak)) int LLVMFuzzerInitialize(int *argc, char ***argv);

static void play_file(const char *path)
{
    FILE *f = fopen(path, "re");
    static uint8_t all[1 << 20];
    if (!f) {
        perror(path);
        exit(1);
    }
    size_t n = fread(all, 1, sizeof(all), f);
    fclose(f);
    fprintf(stderr, "%s\n", path); /* the last one has crashed */
    char *exact = malloc(n ? n : 1);
    FUZZ_HOLDS(exact);
    memcpy(exact, all, n);
    LLVMFuzzerTestOneInput((const uint8_t *)exact, n);
    free(exact);
}

static int play(const char *path)
{
    DIR *d = opendir(path);
    struct dirent *e;
    char file[4096];
    int n = 0;
    if (!d) {
        play_file(path);
        return 1;
    }
    while ((e = readdir(d))) {
        if (e->d_name[0] == '.')
            continue;
        snprintf(file, sizeof(file), "%s/%s", path, e->d_name);
        play_file(file);
        n++;
    }
    closedir(d);
    return n;
}

int main(int argc, char **argv)
{
    int n = 0;
    if (LLVMFuzzerInitialize)
        LLVMFuzzerInitialize(&argc, &argv);
    for (int i = 1; i < argc; i++)
        n += play(argv[i]);
    printf("%d\n", n);
    return n > 0 ? 0 : 1;
}
