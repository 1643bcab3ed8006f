-- table.sql - the lease table: exclusive locks, and statements for all kinds. See table.c.
--
-- A place in braces stands for
--   a value    '{name}' of the lock, '{token}' of the hold, '{holder}' its record; {ttl}, {stays},
--              {grace}: in ms
--   SQL        {table}, {holders}, {runs}: schema and table, quoted; {app}: "dlock:" and 16 hex
--              digits for the lock; '{session}': application_name, but in line; {channel}: of
--              NOTIFY, less the pid; {waiter}: a record in a comment
-- To run a statement in psql, fill in text. Every message begins with path of session.sql.
--
-- application_name of a waiter in line: {app}, a colon, the ticket of 16 digits, and the kind:
-- nothing (exclusive), "s" (shared) or "n3" (a slot of 3). So the name is above "{app}:" and below
-- "{app};", compared by codes. A foreign role may set any name: a kind is parsed only in the right
-- form. The view pg_stat_activity takes long to plan, so the function below the view is read.

-- statement alive
-- A network that is cut within a message leaves the row locked, and all renewals waiting, until the
-- server takes the client for dead: by default after two hours. Behind a pooler the session is not
-- ours to set. {pid}: of the session of our connection.
SELECT set_config('tcp_keepalives_idle', '{idle}', false),
    set_config('tcp_keepalives_interval', '{interval}', false),
    set_config('tcp_keepalives_count', '{count}', false)
WHERE pg_backend_pid() = {pid}

-- statement stand_in_line
-- {line_key}: shared by the sessions in line, to their end, so that leave and take can ask for
-- waiters without a look at all sessions. They hold the key for a moment, hence the second try. A
-- waiter without the key waits on: its next poll is the call. {fresh}: 1 for the first place of a
-- session.
--
-- Two further keys are made of {line_key}, for hand_on: of its own pid each waiter has one alone,
-- until its grant; and a waiter that joins later than its ticket says (it connects anew, or was
-- slow) shares one of the time (see calls), to the end of its session.
SELECT set_config('application_name', '{app}:{ticket}{kind}', false),
    pg_try_advisory_lock_shared({line_key})
        OR (pg_sleep(0.01) IS NOT NULL AND pg_try_advisory_lock_shared({line_key})),
    CASE WHEN {fresh} = 1 THEN pg_try_advisory_lock({line_key} # {pid}) END,
    CASE WHEN n.now - '{ticket}'::bigint > 100000
        THEN pg_try_advisory_lock_shared({line_key} # (n.now >> 22 << 32))
            OR (pg_sleep(0.01) IS NOT NULL
                AND pg_try_advisory_lock_shared({line_key} # (n.now >> 22 << 32))) END
FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000.0)::bigint AS now OFFSET 0) n
WHERE pg_backend_pid() = {pid}

-- statement listen
LISTEN "{channel}{pid}"

-- statement await_settings
-- Before await. A role's statement_timeout is meant for queries. While the statement runs, the
-- server notices a dead client only with the third setting.
SELECT set_config('lock_timeout', '{chunk}', true), set_config('statement_timeout', '0', true),
    CASE WHEN current_setting('server_version_num')::int >= 140000 AND version() LIKE '%linux%'
        THEN set_config('client_connection_check_interval', '1s', true) END

-- statement await
-- Each NOTIFY wakes all sessions of the database that LISTEN, so a waiter far behind does not
-- LISTEN yet. It waits until the waiter eight places before it, {awaited} (a pid), gives up the key
-- of its own pid; at most three times {chunk}, in ms. A chunk is shorter than the default of
-- deadlock_timeout, and the block catches the end of a chunk, else an error in the server's log.
/* {waiter} */ DO $dlock$BEGIN
    FOR i IN 1..3 LOOP
        BEGIN
            PERFORM pg_advisory_xact_lock_shared({line_key} # {awaited});
            RETURN;
        EXCEPTION WHEN lock_not_available THEN NULL;
        END;
    END LOOP;
END$dlock$

-- statement awaited
-- Behind await: has the waiter left, and does the lock stay held so that a try would not look at
-- the line?
/* {waiter} */ SELECT pg_try_advisory_xact_lock_shared({line_key} # {awaited}) AS gone, EXISTS (
    SELECT 1 FROM {table} r
    WHERE r.name = '{name}' AND r.expires > clock_timestamp() + interval '3 seconds') AS held

-- statement next_in_line
-- Behind listen: is the next waiter before us, {before}, still in line? Then no release can have
-- missed us.
/* {waiter} */ SELECT NOT pg_try_advisory_xact_lock_shared({line_key} # {before}) AS in_line

-- statement grace
-- Before a try, with a grace: a promoted standby may lack the newest rows. The row of the empty
-- name remembers the timeline and the time when that was first seen. A try that sees a new timeline
-- writes both, and is refused; so are all tries for the length of the grace from then on. On
-- timeline 1 no server was ever promoted. Finds the rest of the grace, in ms.
WITH k AS MATERIALIZED (
    SELECT w.timeline, CASE w.timeline WHEN '00000001' THEN 'epoch'::timestamptz
        ELSE (SELECT m.expires FROM {table} m WHERE m.name = '' AND m.owner = w.timeline)
        END AS seen
    FROM (SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) AS timeline OFFSET 0) w),
n AS (
    INSERT INTO {table} AS l (name, fence, owner, expires, holder)
    SELECT '', 0, k.timeline, clock_timestamp(), '' FROM k WHERE k.seen IS NULL
    ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, expires = excluded.expires
        WHERE l.owner <> excluded.owner)
SELECT set_config('dlock.grace', ceil(extract(epoch FROM
    coalesce(k.seen, clock_timestamp()) + '{grace}'::float8 * interval '1 ms' - clock_timestamp())
        * 1000.0)::bigint::text, true)
FROM k

-- statement take
-- The first try, since the lock is free most of the time: try costs a new server process four times
-- as much. Takes a lock that is free for all: never used, free for longer than the longest turn, or
-- no waiter is in line (asked as by leave). Finds no row otherwise, without a write, and try
-- follows.
INSERT INTO {table} AS l (name, fence, owner, expires, holder)
SELECT '{name}'::text, (extract(epoch FROM clock_timestamp()) * 1000000.0)::bigint, '{token}'::text,
    clock_timestamp() + interval '{ttl} ms', '{holder}'::text
WHERE NOT EXISTS (
    SELECT 1 FROM {table} r WHERE r.name = '{name}'
        AND greatest(r.expires, r.freed) > clock_timestamp() - interval '3 seconds'
        AND (greatest(r.expires, r.freed) > clock_timestamp()
            OR CASE WHEN pg_try_advisory_lock({line_key})
                THEN NOT pg_advisory_unlock({line_key}) ELSE true END))
ON CONFLICT (name) DO UPDATE SET fence = greatest(l.fence + 1, excluded.fence),
    owner = excluded.owner, expires = excluded.expires, holder = excluded.holder
WHERE l.expires <= clock_timestamp()
RETURNING l.fence, pg_backend_pid() AS pid, '{token}'::text AS token

-- fragment ticket
-- m: our ticket from now on, by the row h.
m AS MATERIALIZED (
    SELECT p.passed, CASE WHEN {ticket} > p.passed THEN {ticket}
        ELSE greatest((extract(epoch FROM clock_timestamp()) * 1000000.0)::bigint,
            p.passed + 1) END AS ticket
    FROM (SELECT coalesce((SELECT h.passed FROM h), 0) AS passed OFFSET 0) p),

-- fragment before
-- The sessions in line before our ticket.
FROM pg_stat_get_activity(NULL) a
WHERE a.datid = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
    AND a.application_name COLLATE "C" > concat('{app}:',
        lpad((SELECT m.passed FROM m)::text, 16, '0'), '~')
    AND a.application_name COLLATE "C" < concat('{app}:',
        lpad((SELECT m.ticket FROM m)::text, 16, '0'))

-- statement try
-- {grace_left}: 0, or the result of grace, current_setting('dlock.grace')::bigint. {ticket}: ours,
-- 0: none. {pid_in_line}: of a session in line, which leaves the line when the lock is granted; 0:
-- none. {look}: 1 to look at the line in any case, to tell our place. {called}: the fence of the
-- hold whose release called us as the first in line, 0: none.
--
-- h: the row as we see it; t: the number before us (NULL: not looked), the pids of the eighth
-- waiter before us (NULL: none) and of the next, and our turn. The turn is decided in the row, too,
-- but as with a held lock, the row is not touched before the turn. A look at the line takes the
-- server milliseconds per 1000 connections, and is left out where the line decides nothing: when
-- the lock has been free for longer than the longest turn, and is there for all; when the lock
-- stays held for longer, until our next try or call; and where a release has looked for us: no
-- client has had the lock since, and no other waiter was before us.
--
-- turn_ms: from now on, or of a held lock, from the expiry on. fence_before: of the row; NULL: no
-- row.
/* {waiter} */ WITH
h AS MATERIALIZED (
    SELECT r.holder, r.fence, r.owner, r.expires, r.passed, greatest(r.expires, r.freed) AS since
    FROM {table} r WHERE r.name = '{name}'),
-- include ticket
t AS MATERIALIZED (
    SELECT w.line[1] AS ahead, w.line[2] AS awaited, w.line[3] AS before,
        make_interval(secs => coalesce(w.line[1], 0)::float8 * float8 '2.8'
            / (coalesce(w.line[1], 0)::float8 + float8 '2.5')) AS turn
    FROM (
        SELECT CASE WHEN EXISTS (
            SELECT 1 FROM h CROSS JOIN m WHERE h.fence = {called} AND m.ticket = {ticket}
                AND h.expires <= clock_timestamp())
        THEN ARRAY[bigint '0'] WHEN EXISTS (
            SELECT 1 FROM h WHERE h.since > clock_timestamp() - interval '3 seconds'
                AND ({look} = 1 OR h.expires < clock_timestamp() + interval '3 seconds'))
        THEN (
            SELECT ARRAY[count(DISTINCT a.application_name),
                (array_agg(a.pid ORDER BY a.application_name COLLATE "C" DESC))[8],
                (array_agg(a.pid ORDER BY a.application_name COLLATE "C" DESC))[1]]
-- include before
        ) END AS line OFFSET 0) w),
got AS (
    INSERT INTO {table} AS l (name, fence, owner, expires, holder, passed)
    SELECT '{name}'::text, (extract(epoch FROM clock_timestamp()) * 1000000.0)::bigint,
        '{token}'::text,
        clock_timestamp() + '{ttl}'::float8 * interval '1 ms', '{holder}'::text,
        CASE WHEN t.ahead > 0 THEN (SELECT m.ticket FROM m) - 1 END
    FROM t WHERE {grace_left} <= 0 AND NOT EXISTS (
        SELECT 1 FROM h WHERE h.expires > clock_timestamp()
            OR (h.since <= clock_timestamp() AND h.since > clock_timestamp() - t.turn))
    ON CONFLICT (name) DO UPDATE SET fence = greatest(l.fence + 1, excluded.fence),
        owner = excluded.owner,
        expires = clock_timestamp() + '{ttl}'::float8 * interval '1 ms', holder = excluded.holder,
        passed = greatest(l.passed, excluded.passed)
    WHERE l.expires <= clock_timestamp() AND (greatest(l.expires, l.freed) > clock_timestamp()
        OR greatest(l.expires, l.freed) <= clock_timestamp() - (SELECT t.turn FROM t))
    RETURNING l.fence)
SELECT g.fence, pg_backend_pid() AS pid, '{token}'::text AS token, o.holder,
    o.fence AS held_fence,
    (extract(epoch FROM o.expires - clock_timestamp()) * 1000.0)::bigint AS left_ms,
    {grace_left} AS grace_ms, o.owner, (SELECT m.ticket FROM m), t.ahead,
    (extract(epoch FROM CASE WHEN o.expires IS NULL THEN
        least(t.turn, coalesce((SELECT h.since FROM h
            WHERE h.since > clock_timestamp() - interval '3 seconds'),
            clock_timestamp()) + t.turn - clock_timestamp())
        ELSE t.turn END) * 1000.0)::bigint AS turn_ms,
    CASE WHEN g.fence IS NOT NULL AND pg_backend_pid() = {pid_in_line}
        THEN concat(set_config('application_name', '{session}', false),
            pg_advisory_unlock({line_key} # {pid_in_line})) END,
    (SELECT h.fence FROM h) AS fence_before, t.awaited, t.before
FROM t LEFT JOIN got g ON true LEFT JOIN h o ON o.expires > clock_timestamp()

-- statement renew
-- A mark (see mark) is in front of our token: then the answer has our own record, with the mark.
WITH u AS (
    UPDATE {table} l SET expires = clock_timestamp() + '{ttl}'::float8 * interval '1 ms'
    WHERE l.name = '{name}' AND l.owner IN ('{token}', concat('break:', '{token}'::text))
        AND l.fence = {fence} AND l.expires > clock_timestamp()
    RETURNING CASE WHEN l.owner <> '{token}' THEN l.holder END AS mark)
SELECT (SELECT count(*) FROM u) AS renewed, coalesce((SELECT u.mark FROM u), o.holder) AS holder,
    '{token}'::text AS token
FROM (SELECT 1) x
LEFT JOIN {table} o ON o.name = '{name}' AND o.owner <> '{token}' AND o.expires > clock_timestamp()

-- fragment calls
-- The waiters that a release calls. u: at most a single row; passed: as in the name's row; whole:
-- the lock is free for all, else only slots; used: the number of held slots; stays: the ms that the
-- lock stays held; me: a session that is not called. ahead: how many waiters are in the way of a
-- waiter: for a reader only the writers before, for a slot also the slots before, as far as slots
-- are missing. All waiters with a free way are called, and of the rest as many as make four, each
-- with the number of ms until its turn.
--
-- fence: of the hold that ends, or NULL. The first waiter is told the fence, and for its own
-- release (hand_on) the time of this look and the pids of the next waiters: no waiter of the last
-- 0.2 s, as another one may still join before it. The time is the server's in us, without 22 bits.
q AS (
    SELECT a.pid, a.place, a.kind, count(*) OVER b AS before,
        count(*) FILTER (WHERE a.kind = '') OVER b AS writers,
        count(*) FILTER (WHERE a.kind LIKE 'n%') OVER b AS slots
    FROM (
        SELECT a.pid, a.application_name AS place, substr(a.application_name, 40) AS kind
        FROM pg_stat_get_activity(NULL) a
        WHERE a.datid = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
            AND a.application_name COLLATE "C" > concat('{app}:',
                lpad((SELECT u.passed FROM u)::text, 16, '0'), '~')
            AND a.application_name COLLATE "C" < '{app};' AND a.pid <> (SELECT u.me FROM u)
                AND EXISTS (SELECT 1 FROM u)) a
    WINDOW b AS (ORDER BY a.place COLLATE "C" GROUPS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)),
r AS (
    SELECT q.pid, q.place, CASE
        WHEN NOT u.whole AND (q.kind <> '' AND q.kind <> 's' AND q.writers = 0) IS NOT TRUE
            THEN NULL
        WHEN q.kind = '' THEN q.before
        WHEN q.kind = 's' THEN q.writers
        WHEN q.kind ~ '^n[0-9]{1,4}$'
            THEN q.writers + greatest(0, q.slots + 1 + u.used - substr(q.kind, 2)::int) END AS ahead
    FROM q CROSS JOIN u),
w AS (
    SELECT r.pid, r.ahead, row_number() OVER (ORDER BY r.ahead, r.place COLLATE "C") AS nth FROM r
    WHERE r.ahead IS NOT NULL),
c AS (
    SELECT pg_notify(concat('{channel}'::text, w.pid), concat(
        (w.ahead::float8 * float8 '2800'
            / (w.ahead::float8 + float8 '2.5'))::bigint + (SELECT u.stays FROM u),
        CASE WHEN w.ahead = 0 THEN (
            SELECT concat(' ', u.fence, ' ', n.now >> 22, (
                SELECT string_agg(concat(',', q.pid), '' ORDER BY q.place COLLATE "C") FROM q
                WHERE q.kind = '' AND q.before = q.writers AND q.before BETWEEN 1 AND 60
                    AND q.place COLLATE "C" < concat('{app}:',
                        lpad((n.now - 200000)::text, 16, '0'))))
            FROM u CROSS JOIN (
                SELECT (extract(epoch FROM clock_timestamp()) * 1000000.0)::bigint AS now
                OFFSET 0) n
            WHERE u.fence IS NOT NULL AND u.stays = 0) END))
    FROM w WHERE w.ahead = 0 OR w.nth <= 4)

-- fragment give_back
-- --min-hold: the lock stays held for {stays}; 0: not. Until then the owner is "over:" and the
-- token: a late renewal prolongs nothing. A marked hold (see mark) ends at once.
u AS (
    UPDATE {table} l SET
        expires = CASE WHEN {stays} > 0
            THEN least(l.expires, clock_timestamp()
                + CASE l.owner WHEN '{token}' THEN '{stays}'::float8 ELSE 0 END * interval '1 ms')
            ELSE '-infinity' END,
        owner = CASE WHEN {stays} > 0 THEN concat('over:', l.owner) ELSE '' END,
        freed = CASE WHEN {stays} > 0 THEN l.freed ELSE clock_timestamp() END
    WHERE l.name = '{name}' AND l.owner IN ('{token}', concat('break:', '{token}'::text))
        AND l.expires > clock_timestamp()
    RETURNING coalesce(l.passed, 0) AS passed, true AS whole, 0 AS used, l.fence,
        CASE WHEN {stays} > 0
            THEN (extract(epoch FROM l.expires - clock_timestamp()) * 1000.0)::bigint + 1 ELSE 0
        END AS stays, 0 AS me),
-- include calls

-- statement release
WITH
-- include give_back
SELECT (SELECT count(*) FROM u) AS released, o.holder, '{token}'::text AS token,
    (SELECT count(*) FROM c) AS called
FROM (SELECT 1) x
LEFT JOIN {table} o ON o.name = '{name}' AND o.owner <> '{token}' AND o.expires > clock_timestamp()

-- statement leave
-- The release of a client that has not waited: release costs a new server process four times as
-- much. A waiter that joins the line later tries again by itself. With waiters (called: 1), or a
-- foreign session that holds their key, call follows; no row: release tells why. The
-- waiters of the first dlocks have no key, and are not called: they poll, each in its turn.
UPDATE {table} l SET expires = '-infinity', owner = '', freed = clock_timestamp()
WHERE l.name = '{name}' AND l.owner IN ('{token}', concat('break:', '{token}'::text))
    AND l.expires > clock_timestamp()
RETURNING 1 AS released, NULL AS holder, '{token}'::text AS token,
    CASE WHEN pg_try_advisory_lock({line_key})
        THEN (NOT pg_advisory_unlock({line_key}))::int ELSE 1 END AS called

-- statement hand_on
-- The release of a client that a release has told the waiters behind: '{next}', time and pids, at
-- least four (see calls). Without a look at all sessions, so that the cost does not grow with the
-- waiters. w: the first four, as far as they are still in line. If one is not, or if a waiter has
-- joined since then whose ticket may be before theirs (of the same time, or the next), or if too
-- much time has passed, call follows (called: 1). No row: release tells why.
WITH
u AS (
    UPDATE {table} l SET expires = '-infinity', owner = '', freed = clock_timestamp()
    WHERE l.name = '{name}' AND l.owner IN ('{token}', concat('break:', '{token}'::text))
        AND l.expires > clock_timestamp()
    RETURNING l.fence),
n AS MATERIALIZED (
    SELECT string_to_array('{next}', ',')::bigint[] AS list FROM u),
w AS MATERIALIZED (
    SELECT p.pid, p.nth - 1 AS ahead
    FROM n CROSS JOIN unnest(n.list[2:5]) WITH ORDINALITY AS p(pid, nth)
    WHERE NOT pg_try_advisory_xact_lock_shared({line_key} # p.pid)),
k AS MATERIALIZED (
    SELECT {line_key} # (b.b << 32) AS key FROM n CROSS JOIN generate_series(n.list[1],
        (extract(epoch FROM clock_timestamp()) * 1000000.0)::bigint >> 22) AS b(b)),
c AS (
    SELECT pg_notify(concat('{channel}'::text, w.pid), concat(
        (w.ahead::float8 * float8 '2800' / (w.ahead::float8 + float8 '2.5'))::bigint,
        CASE WHEN w.ahead = 0 THEN concat(' ', u.fence, ' ', n.list[1], ',',
            array_to_string(n.list[3:], ',')) END))
    FROM w CROSS JOIN n CROSS JOIN u
    WHERE (SELECT count(*) FROM w) = 4 AND (SELECT count(*) FROM k) BETWEEN 1 AND 2
        AND NOT EXISTS (SELECT 1 FROM k WHERE CASE WHEN pg_try_advisory_lock(k.key)
            THEN NOT pg_advisory_unlock(k.key) ELSE true END))
SELECT 1 AS released, NULL AS holder, '{token}'::text AS token,
    CASE WHEN EXISTS (SELECT 1 FROM c) THEN 0 ELSE 1 END AS called FROM u

-- statement call
WITH u AS (
    SELECT coalesce(l.passed, 0) AS passed, true AS whole, 0 AS used, 0 AS stays, 0 AS me, l.fence
    FROM {table} l WHERE l.name = '{name}'),
-- include calls
SELECT count(*) FROM c

-- statement lock_row
-- Locks the name's row, if there is one.
SELECT 1 FROM {table} l WHERE l.name = '{name}' FOR UPDATE

-- statement mark
-- Break the hold '{token}': the owner becomes "break:" and the token, which only a dlock that knows
-- of marks takes for its own; the expiry stays. Behind lock_row. An earlier mark counts, too.
-- '{breaker}': by whom; values in a record have no spaces.
WITH u AS (
    UPDATE {table} h SET owner = concat('break:', h.owner), holder = concat(h.holder, ' broken=',
        (extract(epoch FROM clock_timestamp()) * 1000.0)::bigint, ' by=',
        replace(replace('{breaker}'::text, '%', '%25'), ' ', '%20'))
    WHERE h.name = '{name}' AND h.owner = '{token}' AND h.expires > clock_timestamp()
    RETURNING 1)
SELECT (SELECT count(*) FROM u) + (
    SELECT count(*) FROM {table} o WHERE o.name = '{name}' AND o.expires > clock_timestamp()
        AND o.owner = concat('break:', '{token}'::text)) AS marked

-- statement sweep
-- Rows without use for a week.
DELETE FROM {table} d WHERE d.name = ANY (
    SELECT t.name FROM {table} t WHERE t.name <> ''
        AND t.expires < clock_timestamp() - interval '7 days'
        AND t.fence < (extract(epoch FROM clock_timestamp()) * 1000000.0)::bigint - 604800000000
    LIMIT 20 FOR UPDATE SKIP LOCKED)

-- fragment waiters
-- Passed waiters come last. In place of a lease, the time since the session's last word (ms), if no
-- statement runs.
(SELECT 1, w.query, 0, (CASE WHEN w.state = 'idle'
            THEN extract(epoch FROM clock_timestamp() - w.state_change) * 1000.0 END)::bigint,
        w.usename::text, w.pid, substr(w.application_name, 40), 0, ''
    FROM pg_stat_activity w
    WHERE w.application_name COLLATE "C" > '{app}:' AND w.application_name COLLATE "C" < '{app};'
        AND w.datname = current_database()
    ORDER BY w.application_name COLLATE "C" <= concat('{app}:',
            lpad(coalesce((SELECT p.passed FROM {table} p WHERE p.name = '{name}'), 0)::text,
                16, '0')),
        w.application_name COLLATE "C", w.pid)

-- statement status
-- Holders (0), waiters (1), and behind them a row (2) where {runs} exists. Of a shared lock this
-- row stands for all holders; see table_more_status().
SELECT 0 AS what, t.holder, t.fence,
    (extract(epoch FROM t.expires - clock_timestamp()) * 1000.0)::bigint AS left_ms,
    ''::text AS usename, 0 AS pid,
    CASE WHEN t.owner LIKE 'shared:%' THEN 's' ELSE '' END AS kind, 0 AS slot, t.owner
FROM {table} t WHERE t.name = '{name}' AND t.expires > clock_timestamp()
UNION ALL
-- include waiters
UNION ALL
SELECT 2, '', 0, 0, '', 0, '', 0, '' WHERE to_regclass('{runs_name}') IS NOT NULL

-- fragment in_line
-- w: the waiters in line, by lock.
w AS MATERIALIZED (
    SELECT substr(a.application_name, 1, 22) AS app, count(*) AS n FROM pg_stat_get_activity(NULL) a
    WHERE a.datid = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
        AND a.application_name ~ '^dlock:[0-9a-f]{16}:[0-9]{16}'
    GROUP BY 1)

-- fragment waited_for
LEFT JOIN w ON w.app = concat('dlock:', substr(encode(sha256(convert_to(
    concat('{table_name}'::text, '#', t.name), 'UTF8')), 'hex'), 1, 16))
WHERE t.name > '{after}' AND (t.expires > clock_timestamp() OR w.n > 0 OR {all} > 0)
ORDER BY t.name LIMIT {page}

-- statement list
-- A page of locks that are held or waited for, behind the name '{after}'; {all} is 1: of all locks.
-- A free lock expired at -infinity, from which no time can be subtracted.
WITH
-- include in_line
SELECT t.name, t.expires > clock_timestamp() AS held, t.holder, t.fence,
    (extract(epoch FROM greatest(t.expires, 'epoch') - clock_timestamp()) * 1000.0)::bigint
        AS left_ms,
    t.owner, CASE WHEN t.owner LIKE 'shared:%' THEN 's' ELSE '' END AS kind, 0 AS slot,
    NULL AS holders, coalesce(w.n, 0) AS waiters
FROM {table} t
-- include waited_for

-- statement list_shared
-- The same, with the holders in the second table. Of several the first stands for all.
WITH
-- include in_line
SELECT t.name, t.expires > clock_timestamp() AS held, coalesce(h.holder, t.holder) AS holder,
    t.fence, (extract(epoch FROM greatest(coalesce(h.expires, t.expires), 'epoch')
        - clock_timestamp()) * 1000.0)::bigint AS left_ms,
    coalesce(h.token, t.owner) AS owner, CASE WHEN h.slots > 0 THEN concat('n', h.slots)
        WHEN t.owner LIKE 'shared:%' THEN 's' ELSE '' END AS kind,
    h.place AS slot, CASE WHEN t.owner LIKE 'shared:%' THEN (
        SELECT count(*) FROM {holders} c WHERE c.name = t.name AND c.epoch = t.owner
            AND c.expires > clock_timestamp()) END AS holders, coalesce(w.n, 0) AS waiters
FROM {table} t
LEFT JOIN LATERAL (
    SELECT c.holder, c.expires, c.token, c.slots, c.place FROM {holders} c
    WHERE c.name = t.name AND c.epoch = t.owner AND c.expires > clock_timestamp()
    ORDER BY c.slots DESC, c.place, c.token LIMIT 1) h ON t.owner LIKE 'shared:%'
-- include waited_for

-- statement schema
CREATE TABLE IF NOT EXISTS {table} (
    name text COLLATE "C" PRIMARY KEY, fence bigint NOT NULL, owner text NOT NULL,
    expires timestamptz NOT NULL, holder text NOT NULL, freed timestamptz, passed bigint)

-- statement grant_schema
-- {mark}: nothing, or what makes a comment of the line; {role}: of the URI, quoted, or ROLE
{mark}GRANT SELECT, INSERT, UPDATE, DELETE ON
{mark}    {table},
{mark}    {holders},
{mark}    {runs}
{mark}    TO {role};
{mark}GRANT USAGE ON SCHEMA {schema} TO {role}

-- statement read_only
-- After a refused write: whose default is it? Of the role: how to change it. Of the server or the
-- database: nothing. As in check, the finding is no number.
SELECT concat('dlock finding: 1read-only', (
    SELECT concat(' ', quote_ident(session_user), CASE s.source WHEN 'database user'
            THEN concat(' IN DATABASE ', quote_ident(current_database())) END)
    FROM pg_settings s
    WHERE s.name = 'default_transaction_read_only' AND s.source IN ('user', 'database user')),
    ';')::int

-- statement glance
-- Before the first request of a connection, instead of check, which costs a new server process
-- three times as much: will check certainly accept {checked}? If not, check is sent.
--
-- {columns}: as in the table, with type, collation and NOT NULL: 25, 20, 1184, 950 are text,
-- bigint, timestamptz and the collation "C". relhastriggers is true for foreign keys, too, in both
-- tables; these flags stay true for a while after the last trigger, rule or child has gone, and
-- are never false too early. A child has attinhcount. r: the roles with power over the table; 6171
-- is pg_database_owner, which stands for the owner of the database. Only to superusers the server
-- grants INSERT on a catalogue; to read pg_roles takes long to plan.
SELECT set_config('dlock finding: {number}unsure;', '', true) WHERE (
    SELECT concat_ws(' ', c.relkind, c.relpersistence, c.reloftype, c.relchecks, c.relhastriggers,
            c.relhasrules, c.relrowsecurity, c.relhassubclass, c.relispartition)
            = 'r p 0 0 f f f f f'
        AND (
            SELECT string_agg(concat(a.attname, ' ', a.atttypid, ' ', a.attcollation, ' ',
                a.attnotnull, CASE WHEN a.atthasdef OR a.attidentity <> '' OR a.attinhcount > 0
                    OR a.attacl IS NOT NULL THEN ' more' END), ',')
            FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
            ) = '{columns}'
        AND NOT EXISTS (
            SELECT 1 FROM pg_index i WHERE i.indrelid = c.oid
                AND (i.indexprs IS NOT NULL OR i.indpred IS NOT NULL OR i.indisexclusion))
        AND NOT EXISTS (SELECT 1 FROM pg_statistic_ext k WHERE k.stxrelid = c.oid)
        AND NOT EXISTS (
            SELECT 1 FROM (
                SELECT c.relowner AS role
                UNION ALL SELECT CASE c.nspowner WHEN '6171' THEN c.datdba ELSE c.nspowner END
                UNION ALL SELECT x.grantee FROM aclexplode(c.relacl) x
                WHERE x.privilege_type = 'TRIGGER' OR x.privilege_type = 'REFERENCES') r
            WHERE NOT (has_table_privilege(r.role, 'pg_authid'::regclass::oid, 'INSERT')
                OR pg_get_userbyid(r.role) = '{owner}'::text
                OR (NOT has_table_privilege(session_user, 'pg_authid'::regclass::oid, 'INSERT')
                    AND NOT has_table_privilege(current_user, 'pg_authid'::regclass::oid, 'INSERT')
                    AND (pg_get_userbyid(r.role) = current_user OR r.role = c.datdba))))
    FROM (
        SELECT c.*,
            (SELECT n.nspowner FROM pg_namespace n WHERE n.oid = c.relnamespace) AS nspowner,
            (SELECT d.datdba FROM pg_database d WHERE d.datname = current_database()) AS datdba
        FROM pg_class c WHERE c.oid = to_regclass('{checked}')::oid OFFSET 0) c) IS NOT TRUE

-- statement check
-- Is the table {checked} the result of a schema statement, and nothing more? Our statements would
-- run any further code of the owner: triggers, rules, policies, and as early as in the planner, the
-- expressions of defaults, constraints and indexes. And the schema's owner could replace the table;
-- a role with the right to create triggers or foreign keys could add code later. So all these roles
-- must be trusted, and then the answer holds for as long as the connection: only a trusted role can
-- change the table.
--
-- A superuser whose session was given a different role (ALTER DATABASE ... SET role, which the
-- database's owner may do) is still a superuser: the role's code could take the rights back.
--
-- {owner}: a role that is trusted, too. {columns}, {number}: of the table; the number is for the
-- finding. t: the table; a: its columns; r: a role with power over the table. For the numbers see
-- glance.
--
-- Only an error keeps the server from running the next statement: the finding is no number.
WITH
t AS (
    SELECT c.oid, c.relowner, c.relkind, c.relpersistence, c.relacl, c.relrowsecurity, c.reloftype,
        n.nspowner, d.datdba,
        current_setting('is_superuser') = 'on'
            OR EXISTS (SELECT 1 FROM pg_roles u WHERE u.rolname = session_user AND u.rolsuper)
            AS super
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        JOIN pg_database d ON d.datname = current_database()
    WHERE c.oid = to_regclass('{checked}')),
a AS (
    SELECT a.attname, a.atttypid, a.attcollation, a.attnotnull, a.attacl, a.atthasdef
        OR a.attidentity <> '' AS made
    FROM t JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped),
r AS NOT MATERIALIZED (
    SELECT r.oid, r.rolname, (r.rolsuper OR r.rolname = '{owner}'::text
        OR (NOT t.super AND (r.rolname = current_user OR r.oid = t.datdba))) IS TRUE AS trusted
    FROM t CROSS JOIN pg_roles r)
SELECT concat('dlock finding: ', {number}, f.text, ';')::int FROM (SELECT coalesce(
    (SELECT 'missing' WHERE NOT EXISTS (SELECT 1 FROM t)),
    (SELECT concat(o.what, ' is owned by ', r.rolname) FROM t
        CROSS JOIN LATERAL (
            SELECT 'it' AS what, t.relowner AS role UNION ALL SELECT 'its schema', t.nspowner) o
        LEFT JOIN r ON r.oid = CASE o.role WHEN 6171 THEN t.datdba ELSE o.role END
        WHERE r.trusted IS NOT TRUE LIMIT 1),
    (SELECT 'it is not a plain table' FROM t WHERE t.relkind <> 'r' OR t.relpersistence <> 'p'
        OR t.reloftype <> 0),
    (SELECT concat('it has the trigger ', g.tgname) FROM t
        JOIN pg_trigger g ON g.tgrelid = t.oid LIMIT 1),
    (SELECT concat('it has the rule ', g.rulename) FROM t
        JOIN pg_rewrite g ON g.ev_class = t.oid LIMIT 1),
    (SELECT 'it has row security' FROM t WHERE t.relrowsecurity),
    (SELECT 'it inherits or is inherited' FROM t
        JOIN pg_inherits i ON i.inhrelid = t.oid OR i.inhparent = t.oid LIMIT 1),
    (SELECT concat('its column ', a.attname, ' has a default') FROM a WHERE a.made LIMIT 1),
    (SELECT 'its columns differ from those of --schema' WHERE (
        SELECT array_agg(concat_ws(' ', a.attname, a.atttypid, a.attcollation, a.attnotnull)
            ORDER BY a.attname) FROM a) IS DISTINCT FROM (
        SELECT array_agg(l.l ORDER BY split_part(l.l, ' ', 1)::name)
        FROM unnest(string_to_array('{columns}', ',')) l)),
    (SELECT concat('it has the constraint ', k.conname) FROM t
        JOIN pg_constraint k ON k.conrelid = t.oid AND k.contype NOT IN ('p', 'n', 'u') LIMIT 1),
    (SELECT 'it has an index on an expression' FROM t
        JOIN pg_index i ON i.indrelid = t.oid
            AND (i.indexprs IS NOT NULL OR i.indpred IS NOT NULL) LIMIT 1),
    (SELECT concat('it has the statistics ', k.stxname) FROM t
        JOIN pg_statistic_ext k ON k.stxrelid = t.oid LIMIT 1),
    (SELECT concat(coalesce(r.rolname, 'PUBLIC'), ' has the privilege ', x.privilege_type) FROM t
        CROSS JOIN LATERAL (SELECT t.relacl AS acl UNION ALL SELECT a.attacl FROM a) l
            CROSS JOIN LATERAL aclexplode(l.acl) x
        LEFT JOIN r ON r.oid = CASE x.grantee WHEN 6171 THEN t.datdba ELSE x.grantee END
        WHERE x.privilege_type IN ('TRIGGER', 'REFERENCES') AND r.trusted IS NOT TRUE LIMIT 1)
    ) AS text OFFSET 0) f
WHERE f.text IS NOT NULL
