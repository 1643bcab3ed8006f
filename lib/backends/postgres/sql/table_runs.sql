-- table_runs.sql - the run records of --once in the lease table. See table/runs.c; the places are
-- those of table.sql.
--
-- '{host}', '{user}', '{command}', '{note}', {client_pid}: our identity. {once}: --once, in ms: how
-- long a success counts, and how long our record is kept. {begins}: 1, or 0 before the run begins.

-- statement schema
CREATE TABLE IF NOT EXISTS {runs} (
    name text COLLATE "C" PRIMARY KEY, state text NOT NULL, status int, fence bigint NOT NULL,
    owner text NOT NULL, host text NOT NULL, pid bigint NOT NULL, username text NOT NULL,
    command text NOT NULL, note text NOT NULL, began timestamptz NOT NULL, ended timestamptz,
    expires timestamptz NOT NULL, UNIQUE (expires, name))

-- fragment valid
-- Did a dlock write the row r? Only then send the row: no size and no character can do harm.
((r.state = 'running' AND r.ended IS NULL)
    OR (r.state IN ('failed', 'succeeded') AND isfinite(r.ended))) IS TRUE
AND coalesce(r.status, 0) BETWEEN 0 AND 255 AND r.fence >= 0 AND r.pid >= 0
    AND r.owner ~ '^[0-9a-f]{32}$'
AND isfinite(r.began) AND r.began > 'epoch' AND isfinite(r.expires)
AND octet_length(r.host) < 256 AND octet_length(r.username) < 64
AND octet_length(r.command) < 256 AND octet_length(r.note) < 256
AND concat(r.host, r.username, r.command, r.note) COLLATE "C" !~ '[[:cntrl:]]'

-- fragment record
-- run_...: what a hold has, too.
r.state, r.status, r.fence AS run_fence, r.owner, r.host, r.pid AS run_pid, r.username, r.command,
r.note, (extract(epoch FROM r.began) * 1000.0)::bigint AS run_began_ms,
(extract(epoch FROM r.ended) * 1000.0)::bigint AS run_ended_ms,
(extract(epoch FROM clock_timestamp() - coalesce(r.ended, r.began)) * 1000.0)::bigint AS age_ms,
(extract(epoch FROM r.expires - coalesce(r.ended, r.began)) * 1000.0)::bigint AS kept_ms

-- statement begin
-- Behind a granted try (g), or a renewal. k: the present record; s: the outcome: 0 we run, 1 we
-- run, since the success lies in the future (run_record.h), 2 done, 3 a foreign row; u: an unused
-- lock goes back; n: the new record.
WITH
g AS MATERIALIZED (
    SELECT l.fence, clock_timestamp() AS began FROM {table} l WHERE l.name = '{name}'
        AND l.owner IN ('{token}', concat('break:', '{token}'::text))
        AND l.expires > clock_timestamp()),
k AS MATERIALIZED (
    SELECT
-- include valid
        AS valid, CASE
            WHEN r.state <> 'succeeded' THEN 0
            WHEN r.ended > clock_timestamp() + interval '1000 s' THEN 1
            WHEN r.ended > clock_timestamp() - '{once}'::float8 * interval '1 ms' THEN 2
            ELSE 0 END AS done
    FROM {runs} r WHERE r.name = '{name}' AND EXISTS (SELECT 1 FROM g)),
s AS MATERIALIZED (
    SELECT g.fence, g.began, CASE WHEN NOT k.valid THEN 3 ELSE coalesce(k.done, 0) END AS outcome
    FROM g LEFT JOIN k ON true),
u AS (
    UPDATE {table} l SET expires = '-infinity', owner = '', freed = clock_timestamp()
    FROM s WHERE s.outcome > 1 AND l.name = '{name}'
        AND l.owner IN ('{token}', concat('break:', '{token}'::text))
    RETURNING coalesce(l.passed, 0) AS passed, true AS whole, 0 AS used, 0 AS stays,
        pg_backend_pid() AS me, l.fence),
-- include calls
, n AS (
    INSERT INTO {runs} AS o (name, state, status, fence, owner, host, pid, username, command, note,
        began, ended, expires)
    SELECT '{name}'::text, 'running', NULL, s.fence, '{token}'::text, '{host}'::text, {client_pid},
        '{user}'::text, '{command}'::text, '{note}'::text, s.began, NULL,
        s.began + '{once}'::float8 * interval '1 ms'
    FROM s WHERE s.outcome < 2 AND {begins} = 1
    ON CONFLICT (name) DO UPDATE SET state = excluded.state, status = excluded.status,
        fence = excluded.fence, owner = excluded.owner, host = excluded.host, pid = excluded.pid,
        username = excluded.username, command = excluded.command, note = excluded.note,
        began = excluded.began, ended = excluded.ended,
        expires = excluded.expires)
SELECT pg_backend_pid() AS pid, '{token}'::text AS token, s.fence, s.outcome,
    (extract(epoch FROM s.began) * 1000.0)::bigint AS began_ms,
    (SELECT count(*) FROM c),
-- include record
FROM s LEFT JOIN {runs} r ON s.outcome IN (1, 2) AND r.name = '{name}'

-- statement end
-- '{state}', {status} (-1: unknown): the end of the run. {began}: its begin, in ms. A record that a
-- person has removed is made anew; the record of another run stays.
WITH
-- include give_back
, n AS (
    INSERT INTO {runs} AS o (name, state, status, fence, owner, host, pid, username, command, note,
        began, ended, expires)
    SELECT '{name}'::text, '{state}'::text, CASE WHEN {status} >= 0 THEN {status} END, u.fence,
        '{token}'::text,
        '{host}'::text, {client_pid}, '{user}'::text, '{command}'::text, '{note}'::text,
        timestamptz 'epoch' + '{began}'::float8 * interval '1 ms', i.ended,
            i.ended + '{once}'::float8 * interval '1 ms'
    FROM u CROSS JOIN (SELECT clock_timestamp() AS ended OFFSET 0) i
    ON CONFLICT (name) DO UPDATE SET state = excluded.state, status = excluded.status,
        ended = excluded.ended,
        expires = excluded.expires
    WHERE o.owner = '{token}' RETURNING 1)
SELECT (SELECT count(*) FROM u) AS released, o.holder, '{token}'::text AS token,
    (SELECT count(*) FROM c) AS called, (SELECT count(*) FROM n) AS written,
    (SELECT count(*) FROM {runs} e WHERE e.name = '{name}' AND e.owner = '{token}'
        AND e.state <> 'running') AS ended
FROM (SELECT 1) x
LEFT JOIN {table} o ON o.name = '{name}' AND o.owner <> '{token}' AND o.expires > clock_timestamp()

-- statement sweep
-- Expired records, and the rows of their locks, since no run may ever come again under a name with
-- a date. statement_timestamp() can be looked up in an index. Rows in use are left, without a wait.
WITH d AS (
    DELETE FROM {runs} r WHERE r.name = ANY (
        SELECT e.name FROM {runs} e WHERE e.expires < statement_timestamp()
        ORDER BY e.expires LIMIT 20 FOR UPDATE SKIP LOCKED)
    RETURNING r.name)
DELETE FROM {table} l WHERE l.name = ANY (
    SELECT t.name FROM {table} t WHERE t.name = ANY (SELECT d.name FROM d)
        AND t.expires <= clock_timestamp()
        AND t.fence < (extract(epoch FROM clock_timestamp()) * 1000000.0)::bigint - 604800000000
    FOR UPDATE SKIP LOCKED)

-- statement status
-- v: a row is there; only a valid record is sent.
SELECT v.valid,
-- include record
FROM (
    SELECT
-- include valid
        AS valid FROM {runs} r WHERE r.name = '{name}') v
LEFT JOIN {runs} r ON v.valid AND r.name = '{name}'

-- statement forget
-- '{token}': of the record. A run that has begun since the look at its hold stays.
WITH d AS (
    DELETE FROM {runs} r WHERE r.name = '{name}' AND r.owner = '{token}'
        AND NOT (r.state = 'running' AND EXISTS (
            SELECT 1 FROM {table} l WHERE l.name = '{name}'
                AND l.owner IN ('{token}', concat('break:', '{token}'::text))
                AND l.expires > clock_timestamp()))
    RETURNING 1)
SELECT count(*) AS forgotten FROM d
