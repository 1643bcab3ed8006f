/* slow_connect.c - connect() takes 50 ms, except in the first thread: a distant server. */
#include <dlfcn.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

int connect(int fd, const struct sockaddr *addr, socklen_t len);
int connect(int fd, const struct sockaddr *addr, socklen_t len)
{
    int (*next)(int, const struct sockaddr *, socklen_t);
    *(void **)&next = dlsym(RTLD_NEXT, "connect");
    if (gettid() != getpid() && addr->sa_family == AF_INET)
        poll(NULL, 0, 50);
    return next(fd, addr, len);
}
