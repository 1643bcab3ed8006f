/* exit_code.c - a destructor in the process $EXIT_CODE_IN gives it an exit code of its own. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

__attribute__((destructor)) static void last_word(void)
{
    const char *in = getenv("EXIT_CODE_IN");
    if (in && strcmp(in, program_invocation_short_name) == 0)
        _exit(99);
}
