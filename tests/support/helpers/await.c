/* await FILE: returns when FILE exists. For commands that hold a lock until a test says so: a shell that asked with
   sleep would be fifty processes a second. */
#include <time.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    const struct timespec pause = {.tv_nsec = 5 * 1000 * 1000};
    if (argc != 2)
        return 64;
    while (access(argv[1], F_OK) != 0)
        nanosleep(&pause, NULL);
    return 0;
}
