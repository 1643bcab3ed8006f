/* lastword.c - at the end of the process $LASTWORD_IN the destructor of a library gives it an exit code of its own. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

__attribute__((destructor)) static void last_word(void)
{
    const char *in = getenv("LASTWORD_IN");
    if (in && strcmp(in, program_invocation_short_name) == 0)
        _exit(99);
}
