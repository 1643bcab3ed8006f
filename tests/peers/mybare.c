/*
 * mybare PORT: what the bench compares with. The least that libmariadb can do for a lock
 * around a command by dlock's own statements: connect, one UPDATE of the lock's row that takes it,
 * `true`, one UPDATE that gives it back, and a look after each. No lease, guard or queue.
 */
#include <mysql.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

extern char **environ;

static const char *const take[] = {
    "SET SESSION autocommit=1, sql_mode='', lock_wait_timeout=1, innodb_lock_wait_timeout=1",
    "SELECT COUNT(*), @@global.read_only = 0 INTO @ahead, @rw FROM dlock_locks_clients w "
    "FORCE INDEX (line) WHERE w.name = 'bare' AND w.epoch = ''",
    "UPDATE dlock_locks l FORCE INDEX (PRIMARY) SET l.version = l.version + 1, l.owner = 'me', "
    "l.fence = GREATEST(l.fence + 1, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))), "
    "l.expires = UTC_TIMESTAMP(6) + INTERVAL 30 SECOND "
    "WHERE l.name = 'bare' AND l.expires <= UTC_TIMESTAMP(6) AND @rw",
    "SELECT l.owner, l.fence, l.expires FROM dlock_locks l FORCE INDEX (PRIMARY) "
    "WHERE l.name = 'bare'",
    NULL};
static const char *const give[] = {
    "UPDATE dlock_locks l FORCE INDEX (PRIMARY) SET l.version = l.version + 1, l.owner = '', "
    "l.expires = '1970-01-01', l.freed = UTC_TIMESTAMP(6) "
    "WHERE l.name = 'bare' AND l.owner = 'me' AND l.expires > UTC_TIMESTAMP(6)",
    "SELECT COUNT(*) FROM dlock_locks_clients w FORCE INDEX (line) "
    "WHERE w.name = 'bare' AND w.epoch = ''",
    NULL};

static int run(MYSQL *my, const char *const *statements)
{
    for (; *statements; statements++) {
        if (mysql_query(my, *statements) != 0) {
            fprintf(stderr, "mybare: %s\n", mysql_error(my));
            return 0;
        }
        MYSQL_RES *res = mysql_store_result(my);
        if (res)
            mysql_free_result(res);
    }
    return 1;
}

int main(int argc, char **argv)
{
    char *command[] = {"true", NULL};
    unsigned protocol = MYSQL_PROTOCOL_TCP;
    my_bool no = 0;
    int status = 1;
    pid_t pid;
    MYSQL *my = mysql_init(NULL);
    mysql_options(my, MYSQL_OPT_PROTOCOL, &protocol);
    mysql_options(my, MYSQL_OPT_SSL_VERIFY_SERVER_CERT, &no);
    if (argc != 2 ||
        !mysql_real_connect(my, "127.0.0.1", "dl", "pw", "app", (unsigned)atoi(argv[1]), NULL, 0) ||
        !run(my, take))
        return 1;
    if (posix_spawnp(&pid, command[0], NULL, NULL, command, environ) == 0)
        waitpid(pid, &status, 0);
    if (!run(my, give))
        return 1;
    mysql_close(my);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
