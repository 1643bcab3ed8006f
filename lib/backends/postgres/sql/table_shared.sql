-- table_shared.sql - shared locks and slots in the lease table. See table/shared.c; places as in
-- table.sql.

-- statement schema
CREATE TABLE IF NOT EXISTS {holders} (
    name text COLLATE "C", token text, epoch text NOT NULL, slots int NOT NULL,
    place bigint NOT NULL, expires timestamptz NOT NULL, holder text NOT NULL,
    PRIMARY KEY (name, token))

-- statement free
-- The first look, since the lock is free most of the time: look costs a new server process ten
-- times as much. Finds a ticket if the lock is there for all: never used, free for longer than the
-- longest turn, or no waiter is in line (asked as by leave), and no waiting writer keeps a notice.
-- Finds no row otherwise, and look follows.
SELECT pg_backend_pid() AS pid, '{token}'::text AS token,
    (extract(epoch FROM clock_timestamp()) * 1000000.0)::bigint AS ticket
WHERE NOT EXISTS (
        SELECT 1 FROM {table} r WHERE r.name = '{name}'
            AND greatest(r.expires, r.freed) > clock_timestamp() - interval '3 seconds'
            AND (greatest(r.expires, r.freed) > clock_timestamp()
                OR CASE WHEN pg_try_advisory_lock({line_key})
                    THEN NOT pg_advisory_unlock({line_key}) ELSE true END))
    AND NOT EXISTS (
        SELECT 1 FROM {holders} c
        WHERE c.name = '{name}' AND c.epoch = '' AND c.expires > clock_timestamp())

-- statement look
-- {ticket}: ours, 0: none. {slots}: N, 0: shared. {look}: 1 to look at the line in any case.
-- '{kind}': ours, as in the line. '{orphan}': an orphaned token. '{table_name}': any role can stand
-- in the line, but only a role with access to the table can claim a different N.
--
-- h: the name's row; d: the rows of the second table; o: the rows of the living epoch; w: the
-- notices of writers before us; s: does the line decide anything? A lock that has been free for
-- longer than the longest turn is there for all, and a look takes the server milliseconds per 1000
-- connections; q: the line before us.
--
-- state: 0 free, 1 exclusive, 2 shared; free_ms: since the lock became free; barred_ms: the rest of
-- a writer's notice; other, other_kind: a different number of slots that is held, or waited for;
-- slot_free_ms: since the last slot came back.
/* {waiter} */ WITH
h AS MATERIALIZED (
    SELECT r.holder, r.fence, r.owner, r.expires, r.passed, r.freed,
        r.expires > clock_timestamp() AS held,
        r.owner LIKE 'shared:%' AS shared
    FROM {table} r WHERE r.name = '{name}'),
-- include ticket
d AS MATERIALIZED (
    SELECT c.token, c.epoch, c.slots, c.place, c.expires, c.expires > clock_timestamp() AS live
    FROM {holders} c WHERE c.name = '{name}'),
o AS MATERIALIZED (
    SELECT count(*) FILTER (WHERE d.live AND d.slots > 0) AS used,
        max(d.slots) FILTER (WHERE d.live AND d.slots > 0 AND d.slots <> {slots}) AS other,
        min(d.expires) FILTER (WHERE d.live AND d.slots > 0) AS ends,
        max(d.expires) FILTER (WHERE NOT d.live AND d.slots > 0) AS ended,
        count(*) FILTER (WHERE d.live AND d.token = '{orphan}') AS orphan
    FROM d JOIN h ON h.held AND h.owner = d.epoch),
w AS MATERIALIZED (
    SELECT max(d.expires) AS until FROM d CROSS JOIN m
    WHERE d.live AND d.epoch = '' AND d.place > m.passed AND d.place < m.ticket),
s AS MATERIALIZED (
    SELECT EXISTS (
        SELECT 1 FROM h
        WHERE greatest(h.expires, h.freed) > clock_timestamp() - interval '3 seconds'
            AND ({look} = 1 OR h.shared
                OR h.expires <= clock_timestamp() + interval '3 seconds')) AS looks),
q AS MATERIALIZED (
    SELECT count(DISTINCT a.place) AS ahead,
        count(DISTINCT a.place) FILTER (WHERE a.kind = '') AS writers,
        count(DISTINCT a.place) FILTER (WHERE a.kind LIKE 'n%') AS slots,
        max(a.kind) FILTER (WHERE a.kind LIKE 'n%' AND a.kind <> '{kind}'
            AND has_table_privilege(a.usesysid, to_regclass('{table_name}')::oid, 'UPDATE'))
            AS other
    FROM (
        SELECT a.usesysid, a.application_name AS place, substr(a.application_name, 40) AS kind
-- include before
            AND (SELECT s.looks FROM s)) a)
SELECT pg_backend_pid() AS pid, '{token}'::text AS token, {grace_left} AS grace_ms,
    CASE WHEN h.held IS NOT TRUE THEN 0 WHEN h.shared THEN 2 ELSE 1 END AS state,
    h.owner, h.holder, h.fence,
    CASE WHEN h.held THEN (extract(epoch FROM h.expires - clock_timestamp()) * 1000.0)::bigint END
        AS left_ms,
    CASE WHEN h.held THEN 0 ELSE coalesce((extract(epoch FROM clock_timestamp()
        - greatest(h.expires, h.freed, timestamptz '2000-01-01')) * 1000.0)::bigint, 3600000) END
        AS free_ms,
    CASE WHEN h.owner COLLATE "C" < concat('shared:',
            lpad(((extract(epoch FROM clock_timestamp()) * 1000000.0)::bigint - 2800000)::text,
                16, '0')) THEN 0 ELSE 1 END AS young,
    o.orphan, m.ticket, coalesce((extract(epoch FROM w.until - clock_timestamp())
        * 1000.0)::bigint + 1, 0) AS barred_ms,
    o.used, o.other,
    (extract(epoch FROM o.ends - clock_timestamp()) * 1000.0)::bigint AS slot_left_ms,
    coalesce((extract(epoch FROM clock_timestamp() - greatest(o.ended, h.freed)) * 1000.0)::bigint,
        3600000) AS slot_free_ms,
    CASE WHEN s.looks THEN q.ahead END AS ahead, q.writers, q.slots, q.other AS other_kind
FROM m CROSS JOIN o CROSS JOIN w CROSS JOIN s CROSS JOIN q LEFT JOIN h ON true

-- statement lock
-- Locks the name's row; the first holder makes it.
INSERT INTO {table} AS l (name, fence, owner, expires, holder)
VALUES ('{name}', (extract(epoch FROM clock_timestamp()) * 1000000.0)::bigint, '', '-infinity', '')
ON CONFLICT (name) DO UPDATE SET freed = l.freed

-- statement grant
-- {slots}: N, 0: shared. {passed}: all tickets up to this are passed; 0: none.
--
-- e: the living epoch, or our new epoch; d: the held slots; g: our grant; p: the rows of older
-- epochs go, and expired rows.
/* {waiter} */ WITH
e AS MATERIALIZED (
    SELECT CASE WHEN h.expires > clock_timestamp() THEN h.owner ELSE concat('shared:',
            lpad((extract(epoch FROM clock_timestamp()) * 1000000.0)::bigint::text, 16, '0'), ':',
                '{token}'::text) END AS epoch,
        h.fence, coalesce(h.passed, 0) AS passed, h.expires
    FROM {table} h WHERE h.name = '{name}'
        AND (h.expires <= clock_timestamp() OR h.owner LIKE 'shared:%')),
d AS MATERIALIZED (
    SELECT c.slots, c.place FROM {holders} c JOIN e ON c.epoch = e.epoch
    WHERE c.name = '{name}' AND c.slots > 0 AND c.expires > clock_timestamp()),
g AS MATERIALIZED (
    SELECT e.epoch, e.fence, clock_timestamp() + '{ttl}'::float8 * interval '1 ms' AS until, (
        SELECT min(i) FROM generate_series(1, {slots}) i
        WHERE NOT EXISTS (SELECT 1 FROM d WHERE d.place = i)) AS slot
    FROM e WHERE {grace_left} <= 0
        AND NOT EXISTS (
            SELECT 1 FROM {holders} c WHERE c.name = '{name}' AND c.expires > clock_timestamp()
                AND c.epoch = '' AND c.place > e.passed AND c.place < {ticket})
        AND ({slots} = 0 OR ((SELECT count(*) FROM d) < {slots}
            AND NOT EXISTS (SELECT 1 FROM d WHERE d.slots <> {slots})))),
u AS (
    UPDATE {table} l SET owner = g.epoch, expires = greatest(l.expires, g.until),
        holder = concat('{holder}'::text, CASE WHEN {slots} > 0
            THEN concat(' slots=', {slots}, ' slot=', g.slot) END),
        passed = CASE WHEN {passed} > 0 THEN greatest(l.passed, {passed}) ELSE l.passed END
    FROM g WHERE l.name = '{name}'),
p AS (
    DELETE FROM {holders} c WHERE c.name = '{name}' AND EXISTS (SELECT 1 FROM g)
        AND (c.expires <= clock_timestamp()
            OR (c.epoch <> '' AND c.epoch <> (SELECT g.epoch FROM g)))),
i AS (
    INSERT INTO {holders} (name, token, epoch, slots, place, expires, holder)
    SELECT '{name}'::text, '{token}'::text, g.epoch, {slots}, coalesce(g.slot, 0), g.until,
        '{holder}'::text FROM g)
SELECT g.fence, g.slot, g.epoch, pg_backend_pid() AS pid, '{token}'::text AS token,
    CASE WHEN g.fence IS NOT NULL AND pg_backend_pid() = {pid_in_line}
        THEN concat(set_config('application_name', '{session}', false),
            pg_advisory_unlock({line_key} # {pid_in_line})) END
FROM (SELECT 1) x LEFT JOIN g ON true

-- statement renew
-- Both the name's row and our own must still be ours. A mark (see mark) is in front of our token.
WITH u AS (
    UPDATE {holders} c SET expires = n.until
    FROM (SELECT clock_timestamp() + '{ttl}'::float8 * interval '1 ms' AS until OFFSET 0) n
    WHERE c.name = '{name}' AND c.token IN ('{token}', concat('break:', '{token}'::text))
        AND c.epoch = '{epoch}' AND c.expires > clock_timestamp()
        AND EXISTS (SELECT 1 FROM {table} l
            WHERE l.name = '{name}' AND l.owner = '{epoch}' AND l.expires > clock_timestamp())
    RETURNING c.expires, CASE WHEN c.token <> '{token}' THEN c.holder END AS mark),
v AS (
    UPDATE {table} l SET expires = greatest(l.expires, u.expires) FROM u WHERE l.name = '{name}'
    RETURNING 1)
SELECT (SELECT count(*) FROM v) AS renewed, coalesce((SELECT u.mark FROM u), o.holder) AS holder,
    '{token}'::text AS token
FROM (SELECT 1) x
LEFT JOIN {table} o ON o.name = '{name}' AND o.owner <> '{epoch}' AND o.expires > clock_timestamp()

-- fragment others
-- z: our row; k: the remaining holders.
k AS (
    SELECT count(*) AS n, count(*) FILTER (WHERE c.slots > 0) AS used, max(c.expires) AS until,
        (array_agg(concat(c.holder, CASE WHEN c.slots > 0
            THEN concat(' slots=', c.slots, ' slot=', c.place) END)
            ORDER BY c.expires DESC))[1] AS holder
    FROM {holders} c JOIN z ON c.epoch = z.epoch
    WHERE c.name = '{name}' AND c.token NOT IN ('{token}', concat('break:', '{token}'::text))
        AND c.expires > clock_timestamp()),

-- fragment name_freed
-- y: the name's row, without z.
y AS (
    UPDATE {table} l SET expires = CASE k.n WHEN 0 THEN timestamptz '-infinity' ELSE k.until END,
        owner = CASE k.n WHEN 0 THEN '' ELSE l.owner END, holder = coalesce(k.holder, l.holder),
        freed = CASE WHEN k.n = 0 OR z.slots > 0 THEN clock_timestamp() ELSE l.freed END
    FROM z CROSS JOIN k WHERE l.name = '{name}' AND l.owner = z.epoch

-- fragment given_back
-- y: the name's row. Without waiters (see leave in table.sql) no look at all sessions.
u AS (
    SELECT y.passed, y.whole, y.used, y.stays, 0 AS me, NULL::bigint AS fence
    FROM y WHERE (y.whole OR y.slots > 0) AND CASE WHEN pg_try_advisory_lock({line_key})
        THEN NOT pg_advisory_unlock({line_key}) ELSE true END),
-- include calls
SELECT (SELECT count(*) FROM y WHERE y.live) AS released, o.holder, '{token}'::text AS token,
    (SELECT count(*) FROM c) AS called
FROM (SELECT 1) x
LEFT JOIN {table} o ON o.name = '{name}' AND o.owner NOT LIKE 'shared:%'
    AND o.expires > clock_timestamp()

-- statement release
WITH
z AS (
    DELETE FROM {holders} c
    WHERE c.name = '{name}' AND c.token IN ('{token}', concat('break:', '{token}'::text))
    RETURNING c.epoch, c.slots, c.expires > clock_timestamp() AS live),
-- include others
-- include name_freed
    RETURNING coalesce(l.passed, 0) AS passed, k.n = 0 AS whole, k.used, z.slots, z.live,
        0 AS stays),
-- include given_back

-- statement leave
-- The release of a client that has not waited; as leave in table.sql. A row in any case, behind
-- lock_row; 0: release tells why.
WITH
z AS (
    DELETE FROM {holders} c
    WHERE c.name = '{name}' AND c.token IN ('{token}', concat('break:', '{token}'::text))
        AND c.expires > clock_timestamp()
    RETURNING c.epoch, c.slots),
-- include others
-- include name_freed
    RETURNING k.n = 0 OR z.slots > 0 AS calls)
SELECT (y.calls IS NOT NULL)::int AS released, NULL AS holder, '{token}'::text AS token,
    CASE WHEN y.calls IS NOT TRUE THEN 0
        WHEN pg_try_advisory_lock({line_key}) THEN (NOT pg_advisory_unlock({line_key}))::int
        ELSE 1 END AS called
FROM (SELECT 1) x LEFT JOIN y ON true

-- statement call
-- Behind leave.
WITH u AS (
    SELECT coalesce(l.passed, 0) AS passed, l.expires <= clock_timestamp() AS whole, (
            SELECT count(*) FROM {holders} c WHERE c.name = '{name}' AND c.epoch = l.owner
                AND c.slots > 0 AND c.expires > clock_timestamp()) AS used,
        0 AS stays, 0 AS me, NULL::bigint AS fence
    FROM {table} l WHERE l.name = '{name}'),
-- include calls
SELECT count(*) FROM c

-- statement stay
-- --min-hold: our row stays for {stays}, under a new token, like the row of a crashed holder;
-- whole, used: without our row. A marked hold (see mark) ends at once.
WITH
z AS (
    UPDATE {holders} c SET token = concat('over:', c.token),
        expires = least(c.expires, clock_timestamp()
            + CASE c.token WHEN '{token}' THEN '{stays}'::float8 ELSE 0 END * interval '1 ms')
    WHERE c.name = '{name}' AND c.token IN ('{token}', concat('break:', '{token}'::text))
    RETURNING c.epoch, c.slots, c.expires, c.expires > clock_timestamp() AS live),
-- include others
y AS (
    UPDATE {table} l SET expires = greatest(k.until, z.expires)
    FROM z CROSS JOIN k WHERE l.name = '{name}' AND l.owner = z.epoch
    RETURNING coalesce(l.passed, 0) AS passed, k.n = 0 AS whole, k.used, z.slots, z.live,
        (extract(epoch FROM z.expires - clock_timestamp()) * 1000.0)::bigint + 1 AS stays),
-- include given_back

-- statement mark
-- Break the hold '{token}' of a reader or a slot; as mark in table.sql.
WITH u AS (
    UPDATE {holders} h SET token = concat('break:', h.token), holder = concat(h.holder, ' broken=',
        (extract(epoch FROM clock_timestamp()) * 1000.0)::bigint, ' by=',
        replace(replace('{breaker}'::text, '%', '%25'), ' ', '%20'))
    FROM {table} l
    WHERE h.name = '{name}' AND h.token = '{token}' AND h.expires > clock_timestamp()
        AND l.name = h.name AND l.owner = h.epoch AND l.expires > clock_timestamp()
    RETURNING 1)
SELECT (SELECT count(*) FROM u) + (
    SELECT count(*) FROM {holders} c JOIN {table} o ON o.name = c.name AND o.owner = c.epoch
    WHERE c.name = '{name}' AND c.token = concat('break:', '{token}'::text)
        AND c.expires > clock_timestamp() AND o.expires > clock_timestamp()) AS marked

-- statement sweep
DELETE FROM {holders} d WHERE d.token = ANY (
    SELECT t.token FROM {holders} t WHERE t.expires < clock_timestamp() - interval '7 days'
    LIMIT 20 FOR UPDATE SKIP LOCKED)

-- statement status
(SELECT 0 AS what, c.holder, t.fence,
        (extract(epoch FROM c.expires - clock_timestamp()) * 1000.0)::bigint AS left_ms,
        ''::text AS usename, 0 AS pid, CASE c.slots WHEN 0 THEN 's' ELSE concat('n', c.slots) END
        AS kind, c.place AS slot, c.token AS owner
    FROM {table} t JOIN {holders} c ON c.name = t.name AND c.epoch = t.owner
    WHERE t.name = '{name}' AND t.expires > clock_timestamp() AND c.expires > clock_timestamp()
    ORDER BY c.slots, c.place, c.token)
UNION ALL
-- The name's row alone: an exclusive holder has come since the look at that row, or the rows of the
-- readers were removed.
SELECT 0, t.holder, t.fence, (extract(epoch FROM t.expires - clock_timestamp()) * 1000.0)::bigint,
    '', 0, CASE WHEN t.owner LIKE 'shared:%' THEN 's' ELSE '' END, 0, t.owner
FROM {table} t WHERE t.name = '{name}' AND t.expires > clock_timestamp() AND NOT EXISTS (
    SELECT 1 FROM {holders} c WHERE c.name = t.name AND c.epoch = t.owner
        AND c.expires > clock_timestamp())
UNION ALL
-- include waiters

-- statement notice
-- Of a waiting writer: behind not_durable, since the notice is written again soon after a crash of
-- the server. {life}: how long a notice lives.
INSERT INTO {holders} AS n (name, token, epoch, slots, place, expires, holder)
VALUES ('{name}', '{token}', '', 0, {ticket},
    clock_timestamp() + '{life}'::float8 * interval '1 ms', '')
ON CONFLICT (name, token) DO UPDATE SET place = excluded.place, expires = excluded.expires
    WHERE n.epoch = ''

-- statement withdraw
DELETE FROM {holders} c WHERE c.name = '{name}' AND c.token = '{token}' AND c.epoch = ''
