/* thread.c - the threads of the library. */
#include "util.h"

#include <signal.h>

int dlock_thread_start(pthread_t *thread, size_t stack, void *(*run)(void *), void *arg)
{
    pthread_attr_t attr;
    sigset_t all, old;
    int e = pthread_attr_init(&attr);
    if (e != 0)
        return e;
    if (stack > 0)
        pthread_attr_setstacksize(&attr, stack);
    sigfillset(&all);
    e = pthread_sigmask(SIG_SETMASK, &all, &old);
    if (e == 0) {
        e = pthread_create(thread, &attr, run, arg);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
    }
    pthread_attr_destroy(&attr);
    return e;
}
