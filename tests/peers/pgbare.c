/*
 * pgbare URL: what the bench compares with. The least that libpq can do for a lock around a
 * command: connect, pg_advisory_lock, `true`, pg_advisory_unlock. No lease, guard, fence or check.
 */
#include <libpq-fe.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/wait.h>

extern char **environ;

static int query(PGconn *c, const char *sql)
{
    PGresult *r = PQexec(c, sql);
    int ok = PQresultStatus(r) == PGRES_TUPLES_OK;
    if (!ok)
        fprintf(stderr, "pgbare: %s", PQerrorMessage(c));
    PQclear(r);
    return ok;
}

int main(int argc, char **argv)
{
    char *command[] = {"true", NULL};
    int status = 1;
    pid_t pid;
    PGconn *c = argc == 2 ? PQconnectdb(argv[1]) : NULL;
    if (PQstatus(c) != CONNECTION_OK || !query(c, "SELECT pg_catalog.pg_advisory_lock(42)"))
        return 1;
    if (posix_spawnp(&pid, command[0], NULL, NULL, command, environ) == 0)
        waitpid(pid, &status, 0);
    if (!query(c, "SELECT pg_catalog.pg_advisory_unlock(42)"))
        return 1;
    PQfinish(c);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
