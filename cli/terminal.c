/* terminal.c - see terminal.h. */
#include "terminal.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

bool terminal_open(struct terminal *t)
{
    t->fd = open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC);
    t->group = getpgrp();
    t->session = getsid(0);
    /*
     * In the background the modes are those with which a shell reads its next line. In front of a
     * pipe (`dlock ... | less`) they are the business of a program that dlock does not end.
     */
    t->ours = t->fd >= 0 && tcgetpgrp(t->fd) == t->group && isatty(STDOUT_FILENO) &&
              tcgetattr(t->fd, &t->modes) == 0;
    return t->fd >= 0;
}

bool terminal_restore(const struct terminal *t, pid_t foreground)
{
    struct termios now = {0};
    return t->ours && foreground == t->group && tcgetattr(t->fd, &now) == 0 &&
           memcmp(&now, &t->modes, sizeof(now)) != 0 && tcsetattr(t->fd, TCSADRAIN, &t->modes) == 0;
}
