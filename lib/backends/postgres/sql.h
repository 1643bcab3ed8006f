/*
 * sql.h - words of our SQL.
 *
 * The server looks up every bare name in the search_path, operators and types as well, and takes the best match for the
 * operands: "numeric * int" in pg_catalog is worse than one of that type in public, where other roles may create
 * operators. That code would run with the rights of our role. So each operator, function, type and relation is written
 * with its schema, and what cannot be (IN, LIKE, BETWEEN, NULLIF, CASE x WHEN, IS DISTINCT FROM) is not used;
 * `make lint` holds that.
 *
 * A qualified operator binds tighter than a comparison, whatever it is: parenthesise.
 */
#ifndef DLOCK_PG_SQL_H
#define DLOCK_PG_SQL_H

#define EQ " OPERATOR(pg_catalog.=) "
#define NE " OPERATOR(pg_catalog.<>) "
#define LT " OPERATOR(pg_catalog.<) "
#define LE " OPERATOR(pg_catalog.<=) "
#define GT " OPERATOR(pg_catalog.>) "
#define GE " OPERATOR(pg_catalog.>=) "
#define PLUS " OPERATOR(pg_catalog.+) "
#define MINUS " OPERATOR(pg_catalog.-) "
#define TIMES " OPERATOR(pg_catalog.*) "
#define DIVIDED_BY " OPERATOR(pg_catalog./) "
#define MATCHES " OPERATOR(pg_catalog.~~) " /* LIKE */

#define BIGINT "::pg_catalog.int8"
#define INT "::pg_catalog.int4"
#define TEXT "::pg_catalog.text"
#define INTERVAL "::pg_catalog.interval"

/* The server's clock; unlike now(), not that of the transaction's start. */
#define NOW "pg_catalog.clock_timestamp()"
/* Behind "(EXTRACT(epoch FROM ...)": as a number. */
#define MILLISECONDS TIMES "1000)" BIGINT
#define MICROSECONDS TIMES "1000000)" BIGINT

/*
 * A commit that is on disk when it is answered, even where the role has synchronous_commit = off: a crash must not
 * undo a grant, a renewal or a release, nor hand out the same log position again.
 */
#define DURABLE                                                                                    \
    "pg_catalog.set_config('synchronous_commit', CASE WHEN "                                       \
    "pg_catalog.current_setting('synchronous_commit')" EQ "'off' THEN 'local' ELSE "               \
    "pg_catalog.current_setting('synchronous_commit') END, true)"

/* Of pg_catalog.pg_locks l: advisory locks in this database. */
#define ADVISORY_HERE                                                                              \
    "l.locktype" EQ "'advisory' AND l.database" EQ                                                 \
    "(SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname" EQ                               \
    "pg_catalog.current_database())"

#endif
