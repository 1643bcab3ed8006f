-- session.sql - statements in front of others, in the same transaction.

-- statement path
-- Begins every message of the extended protocol. Foreign roles may have put functions and operators
-- into the search path of our role, and the server takes the best match for the operands:
-- "numeric * int" of PostgreSQL is worse than an operator for just these types. All further
-- statements find only PostgreSQL's own. Temporary tables come last.
--
-- And the commit is on disk when it is answered, even where the role has synchronous_commit = off:
-- a crash must not undo a grant, a renewal or a release. And the server sends its warnings: one may
-- be that the commit is not on the standby. One statement does it all, since each statement costs a
-- new server process 0.2 ms.
SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true),
    pg_catalog.set_config('client_min_messages', 'warning', true),
    pg_catalog.set_config('synchronous_commit', pg_catalog.replace(
        pg_catalog.current_setting('synchronous_commit'), 'off', 'local'), true)

-- statement local_path
-- The same in the simple protocol, where several statements of one message are a transaction block.
SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL client_min_messages = warning

-- statement not_durable
-- Nothing waits for the commit.
SELECT set_config('synchronous_commit', 'off', true)
