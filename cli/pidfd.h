/* pidfd.h - the numbers of two system calls, for C libraries before glibc 2.36. */
#ifndef CLI_PIDFD_H
#define CLI_PIDFD_H

#include <sys/syscall.h>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_send_signal
#define SYS_pidfd_send_signal 424
#endif

#endif
