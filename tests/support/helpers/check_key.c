/*
 * check_key DIR PORT KEY MS: a command for dlock that lasts MS and asks Redis a hundred times
 * whether KEY is still the lock under which it was started. If not, DIR/violations gets a line. A
 * grandchild in a session of its own, which ignores TERM, asks too; both keep DIR/witness locked
 * (flock). While dlock's keeper lives they end by themselves; once it is dead they stay, for dlock
 * to end them.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static void violation(const char *what)
{
    char line[256];
    int n = snprintf(line, sizeof line, "%d: %.200s\n", (int)getpid(), what);
    int fd = open("violations", O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 || write(fd, line, (size_t)n) != n)
        _exit(99);
    close(fd);
}

static int64_t now_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_BOOTTIME, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

static int dial(int port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) != 0) {
        violation("cannot ask");
        _exit(97);
    }
    return fd;
}

/* The value begins with the token; the reply is "$LEN\r\nVALUE\r\n", in one packet. */
static void ask(int fd, const char *key, const char *token)
{
    char buf[2048];
    int n = snprintf(buf, sizeof buf, "*2\r\n$3\r\nGET\r\n$%zu\r\n%s\r\n", strlen(key), key);
    if (write(fd, buf, (size_t)n) != n)
        return;
    ssize_t got = read(fd, buf, sizeof buf - 1);
    buf[got < 0 ? 0 : got] = '\0';
    const char *value = strstr(buf, "\r\n");
    if (buf[0] != '$' || !value || strncmp(value + 2, token, strlen(token)) != 0)
        violation(buf);
}

static pid_t parent_of(pid_t pid)
{
    char path[64], line[256];
    int parent = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "r");
    if (f && fgets(line, sizeof line, f) && strrchr(line, ')'))
        sscanf(strrchr(line, ')'), ") %*c %d", &parent);
    if (f)
        fclose(f);
    return parent;
}

int main(int argc, char **argv)
{
    pid_t keeper = parent_of(parent_of(getppid())); /* the witness is between it and the guard */
    const char *token = getenv("DLOCK_TOKEN");
    if (argc < 5 || chdir(argv[1]) != 0 || !token || strlen(token) < 32)
        return 98;
    long life = atol(argv[4]);
    int64_t until = now_ms() + life;
    int fd = open("witness", O_RDWR | O_CREAT, 0666);
    if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) != 0) {
        violation("overlap");
        return 97;
    }
    int over[2]; /* the end of the grandchild: background processes are not covered by the lock */
    if (pipe(over) != 0)
        return 99;
    bool child = fork() == 0;
    if (child) {
        setsid();
        signal(SIGTERM, SIG_IGN);
        if (fork() != 0)
            _exit(0);
    }
    fd = dial(atoi(argv[2]));
    while (now_ms() < until || (kill(keeper, 0) != 0 && now_ms() < until + 10000)) {
        ask(fd, argv[3], token);
        usleep((useconds_t)life * 10);
    }
    close(over[1]);
    if (!child && read(over[0], over, 1) != 0)
        return 99;
    return 0;
}
