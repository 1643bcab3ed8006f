/*
 * terminal.h - the controlling terminal. A full-screen program that dlock ends leaves it in raw
 * mode, and a shell does not mend that for a job that exits with a code, as dlock does.
 */
#ifndef CLI_TERMINAL_H
#define CLI_TERMINAL_H

#include <stdbool.h>
#include <sys/types.h>
#include <termios.h>

/* All zero at first: the modes are compared with their padding. */
struct terminal {
    int fd;               /* CLOEXEC; -1: there is no terminal */
    bool ours;            /* modes are known, and the command's to change */
    pid_t group, session; /* of dlock */
    struct termios modes; /* at the start of dlock */
};

/* Open the controlling terminal and note its modes. False: there is none. */
bool terminal_open(struct terminal *);
/*
 * Give the terminal its first modes again if its foreground group is ours. True: they were others.
 * May wait for a terminal that does not print (Ctrl-S), so only without a lock.
 */
bool terminal_restore(const struct terminal *, pid_t foreground);

#endif
