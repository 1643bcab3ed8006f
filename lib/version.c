/* version.c - which library this is. */
#include "dlock.h"

const char *dlock_version(void)
{
    return DLOCK_VERSION;
}

unsigned dlock_version_number(void)
{
    return DLOCK_VERSION_NUMBER;
}
