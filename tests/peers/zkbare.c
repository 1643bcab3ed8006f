/*
 * zkbare HOST:PORT: what the bench compares with. The least that libzookeeper can do for a lock
 * around a command: a session, one ephemeral sequential node, `true`, the end of the session. No
 * queue, no lease, no guard.
 */
#define THREADED
#include <spawn.h>
#include <stdio.h>
#include <sys/wait.h>
#include <zookeeper/zookeeper.h>

extern char **environ;

static void quiet(const char *line)
{
    (void)line;
}

int main(int argc, char **argv)
{
    char *command[] = {"true", NULL}, path[128];
    int status = 1;
    pid_t pid;
    zhandle_t *zh =
        argc == 2 ? zookeeper_init2(argv[1], NULL, 30000, NULL, NULL, ZOO_NO_LOG_CLIENTENV, quiet)
                  : NULL;
    /* Waits for the connection itself. */
    int rc = zh ? zoo_create(zh, "/bare-", "", 0, &ZOO_OPEN_ACL_UNSAFE,
                             ZOO_EPHEMERAL | ZOO_SEQUENCE, path, sizeof path)
                : ZSYSTEMERROR;
    if (rc != ZOK) {
        fprintf(stderr, "zkbare: %s\n", zerror(rc));
        return 1;
    }
    if (posix_spawnp(&pid, command[0], NULL, NULL, command, environ) == 0)
        waitpid(pid, &status, 0);
    zookeeper_close(zh);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
