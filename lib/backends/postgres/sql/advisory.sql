-- advisory.sql - a session's advisory lock. advisory_sql.c puts these statements together.
--
-- A message is a single string of the simple protocol, and a single transaction. Each statement is
-- analysed when the statement before has run, so the locks are taken in the order of the
-- statements. SET costs the server next to nothing; each name in any further statement is looked up
-- in the catalogue by a new server process, and before version 16 each new setting "dlock.x" sorts
-- all settings. So an exclusive or shared try is a single statement. The steps for a slot pass
-- results on in settings of the transaction: dlock.may (go on), .turn, .main, .size (the session
-- has the key), .slot (the number, 0: none), .other (a number of slots in use that differs from
-- ours). dlock.grace: ms left, in which nothing is granted.
--
-- A place in braces stands for a key as a number, or for
--   {key}        arguments of the lock functions: '1'::bigint, or '1'::int, '2'::int
--   {_shared}    "_shared" or nothing: how readers and slots lock
--   {wait_key}, {_wait}   likewise, of the awaited key: main key, turnstile or gate
--   {turn}, {main}, {size}   true or false: the session has the key already
--   {wait}, {keep}   true or false: the client waits for the lock; without the main key the
--                turnstile is kept
--   {may}        true, or the setting with the answer
--   {pid}        of the session at the connection's begin
--   times        in ms, or as named
-- To run a statement in psql, fill in text. Every message begins with local_path of session.sql.

-- statement gate
-- Before all settings and locks: behind a pooler the session is shared, and a standby's locks
-- exclude no client of the primary. Only an error keeps the server from running the next
-- statements, so the finding is the name of a setting that does not exist. libpq refuses to connect
-- to a standby; the server's log has an error only where a proxy has passed the connection on.
--
-- Else the name is that of a setting that the next statements need: the commit is on disk when it
-- is answered, even where the role has synchronous_commit = off. A crash must not hand out the same
-- log position again.
--
-- All of this works in a read-only transaction, which may be our role's default. A server or a
-- database that is read-only by default takes no writes any more: its clients have moved, perhaps.
SELECT set_config(CASE WHEN pg_backend_pid() <> {pid} THEN 'dlock finding: pooler;'
    WHEN pg_is_in_recovery() THEN 'dlock finding: standby;'
    WHEN current_setting('default_transaction_read_only')::bool AND (
        SELECT s.source NOT IN ('user', 'database user', 'client') FROM pg_settings s
        WHERE s.name = 'default_transaction_read_only')
    THEN 'dlock finding: read-only;' ELSE 'synchronous_commit' END,
    replace(current_setting('synchronous_commit'), 'off', 'local'), true)

-- statement settings
-- With these the server notices a dead client during a wait. Time-outs for statements are meant for
-- queries, not for locks.
SET tcp_keepalives_idle = {idle};
SET tcp_keepalives_interval = {interval};
SET tcp_keepalives_count = {count};
SET tcp_user_timeout = {user_timeout};
SET statement_timeout = 0

-- statement settings_since_14
-- Servers on other systems refuse this setting.
SELECT set_config('client_connection_check_interval', '1s', false) WHERE version() LIKE '%linux%'

-- statement settings_since_17
SET transaction_timeout = 0

-- statement settings_slots
SET lock_timeout = 0

-- statement lease_since_14
-- idle_session_timeout is the lease: the server ends a session after a silence of a ttl.
SET idle_session_timeout = {ttl}

-- statement grace
-- The rest of the time without grants after a start or promotion, in ms. A primary has a walwriter,
-- and a standby has none; but only a role with pg_read_all_stats may read the walwriter's start.
-- For the rest a promotion is at least as late as the last transaction that the standby replayed;
-- renewals write transactions.
SELECT set_config('dlock.grace', ({grace} - (extract(epoch FROM clock_timestamp() - greatest(
        pg_postmaster_start_time(), pg_stat_get_bgwriter_stat_reset_time(),
        pg_last_xact_replay_timestamp(), (
            SELECT max(a.backend_start) FROM pg_stat_get_activity(NULL) a
            WHERE a.backend_type = 'walwriter')
    )) * 1000.0)::bigint)::text, true)

-- fragment answer
-- Around a subquery t: lsn is the position of our record in the write-ahead log, the fence, or
-- NULL: not granted. A waiter's session may be silent for a shorter time than a holder's: a stopped
-- waiter would keep the turnstile or the gate. So the lease is set first, and shortened without the
-- lock.
SELECT CASE WHEN t.lsn IS NOT NULL THEN pg_walfile_name(t.lsn)
    WHEN {shorten} THEN set_config('idle_session_timeout', '{wait_idle}ms', false) END AS wal, t.*

-- statement try_exclusive
-- A writer that has to wait holds the turnstile, before any later reader, until it has the main
-- key.
-- include answer
FROM (
    SELECT {grace_left} AS grace, {lease} AS lease, k.main,
        CASE WHEN {turn} THEN CASE
                WHEN k.main THEN NOT pg_advisory_unlock('{turnstile}') ELSE true END
            WHEN k.main THEN false
            WHEN {wait} THEN CASE WHEN {may} THEN pg_try_advisory_lock('{turnstile}') END
        END IS TRUE AS turn,
        CASE WHEN k.main THEN pg_logical_emit_message(true, 'dlock', ''::text) END AS lsn
    FROM (
        SELECT CASE WHEN {main} THEN true WHEN {may} THEN pg_try_advisory_lock({key}) ELSE false END
            AS main OFFSET 0) k OFFSET 0) t

-- fragment pass
-- Readers and slots go through the turnstile to the main key. The turnstile is left behind with
-- the main key; without the main key {keep} decides.
SELECT k.main, CASE WHEN k.turn AND (k.main OR NOT {keep})
    THEN NOT pg_advisory_unlock_shared('{turnstile}') ELSE k.turn END AS turn
FROM (
    SELECT g.turn, CASE WHEN {main} THEN true
        WHEN g.turn AND {may} THEN pg_try_advisory_lock_shared({key}) ELSE false END AS main
    FROM (
        SELECT CASE WHEN {turn} THEN true WHEN {main} THEN false
            WHEN {may} THEN pg_try_advisory_lock_shared('{turnstile}') ELSE false END AS turn
        OFFSET 0) g OFFSET 0) k

-- statement try_shared
-- include answer
FROM (
    SELECT {grace_left} AS grace, {lease} AS lease, k.main, k.turn,
        CASE WHEN k.main THEN pg_logical_emit_message(true, 'dlock', ''::text) END AS lsn
    FROM (
-- include pass
        OFFSET 0) k OFFSET 0) t

-- statement begin_slots
-- The state before this try.
SET LOCAL dlock.size = {size};
SET LOCAL dlock.slot = 0;
SET LOCAL dlock.other = 0;
SELECT set_config('dlock.may', ({grace_left} <= 0)::text, true)

-- statement take_size
-- Take the key for N, unless a key for a different N is held. {sizes} is held meanwhile.
SELECT CASE WHEN current_setting('dlock.may')::bool THEN pg_advisory_lock('{sizes}') END;
SELECT set_config('dlock.other', CASE WHEN current_setting('dlock.may')::bool THEN (
    SELECT coalesce(max(l.objid::bigint - {low}), 0) FROM pg_locks l
    WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.classid = '{high}'
        AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
        AND l.objid::bigint > {low} AND l.objid::bigint <= {low} + {most}
        AND l.objid::bigint <> {low} + {slots})
    ELSE 0 END::text, true);
SELECT set_config('dlock.size', CASE
    WHEN current_setting('dlock.may')::bool AND current_setting('dlock.other') = '0'
    THEN pg_try_advisory_lock_shared('{size_key}') ELSE false END::text, true);
SELECT CASE WHEN current_setting('dlock.may')::bool THEN pg_advisory_unlock('{sizes}') END;
SELECT set_config('dlock.may', current_setting('dlock.size'), true)

-- statement pass_gate
-- A newcomer passes the gate, which fails while a client waits for a slot.
SELECT set_config('dlock.may', CASE WHEN current_setting('dlock.may')::bool
    THEN pg_try_advisory_lock_shared('{gate}') ELSE false END::text, true)

-- statement pass_slots
SELECT set_config('dlock.main', k.main::text, true), set_config('dlock.turn', k.turn::text, true)
FROM (
-- include pass
    OFFSET 0) k

-- statement take_slot
-- The first free slot, counted from 1. '{slot_keys}': {1,2,3}
SELECT set_config('dlock.slot', CASE
    WHEN current_setting('dlock.may')::bool AND current_setting('dlock.main')::bool
    THEN coalesce((
        SELECT k.ordinality FROM unnest('{slot_keys}'::bigint[]) WITH ORDINALITY k
        WHERE pg_try_advisory_lock(k.k) LIMIT 1), 0)
    ELSE 0 END::text, true)

-- statement leave_gate_first
-- The first client in line has got a slot.
SELECT CASE WHEN current_setting('dlock.slot') <> '0' THEN pg_advisory_unlock('{gate}') END

-- statement leave_main
-- A newcomer that found no slot gives the main key back.
SELECT set_config('dlock.main', CASE
    WHEN current_setting('dlock.main')::bool AND current_setting('dlock.slot') = '0'
    THEN NOT pg_advisory_unlock_shared({key})
    ELSE current_setting('dlock.main')::bool END::text, true)

-- statement leave_gate
SELECT CASE WHEN current_setting('dlock.may')::bool THEN pg_advisory_unlock_shared('{gate}') END

-- statement leave_size
SELECT CASE WHEN current_setting('dlock.size')::bool AND current_setting('dlock.slot') = '0'
    THEN pg_advisory_unlock_shared('{size_key}') END

-- statement answer_slot
-- include answer
FROM (
    SELECT {grace_left} AS grace, {lease} AS lease, current_setting('dlock.main')::bool AS main,
        current_setting('dlock.turn')::bool AS turn,
        CASE WHEN current_setting('dlock.slot') <> '0'
            THEN pg_logical_emit_message(true, 'dlock', ''::text) END AS lsn,
        current_setting('dlock.size')::bool AS size, current_setting('dlock.other') AS other,
        current_setting('dlock.slot') AS slot OFFSET 0) t

-- statement wait
-- The lock is taken for the transaction first, and for the session when nothing can interrupt any
-- more: the time-out can fire although the lock was taken, and the locks of the session stay behind
-- then. '{token}' shows the success.
--
-- For a request to cancel the postmaster sends two signals, to the session and to the process group
-- [PostgreSQL, signal_child()]. The second may come late: the block awaits the second, which would
-- be an error in the server's log outside. A cancel between two chunks, as on a busy machine, is
-- logged all the same: only a block catches errors, and a longer wait would slow down each cancel.
DO $dlock$BEGIN
    PERFORM set_config('lock_timeout', '{chunk}', true);
    PERFORM pg_advisory_xact_lock{_wait}({wait_key});
    PERFORM pg_advisory_lock{_wait}({wait_key});
    PERFORM set_config('dlock.got', '{token}', true);
EXCEPTION
    WHEN lock_not_available THEN NULL;
    WHEN query_canceled THEN
        BEGIN PERFORM pg_sleep(0.01); EXCEPTION WHEN query_canceled THEN NULL; END;
END$dlock$;
SELECT current_setting('dlock.got', true) AS got

-- statement listen
-- Hear of each slot that is given back.
LISTEN {channel};
SELECT '{token}' AS got

-- statement renew
-- Any statement restarts the idle time of the session. A primary becomes a standby only by a
-- restart, which ends the session: a renewal need not ask. This one fails to get the key of a mark
-- while a session that breaks this hold has the key. Comes last in its message, since it answers.
SELECT pg_try_advisory_xact_lock_shared('{mark_key}') AS unmarked

-- statement breaker
-- Who has the key of our mark: a session that breaks a hold has this name. Every role may read it.
SELECT coalesce((
    SELECT a.application_name FROM pg_locks l, LATERAL pg_stat_get_activity(l.pid) a
    WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.classid = '{mark_high}'
        AND l.objid = '{mark_low}' AND l.mode = 'ExclusiveLock' AND l.granted
        AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
    LIMIT 1), '') AS breaker

-- statement emit
-- A commit. Without synchronous_commit: a promoted standby has replayed the commit, see grace.
SELECT pg_logical_emit_message(true, 'dlock', ''::text)

-- statement unlisten
UNLISTEN *

-- statement unlock
SELECT pg_advisory_unlock{_shared}({key}) AS done

-- statement unlock_slot
-- Give the slot back before the look at the gate for waiters: a later client finds the slot.
SELECT set_config('dlock.slot', pg_advisory_unlock('{slot_key}')::text, true);
SELECT set_config('dlock.size', pg_advisory_unlock_shared('{size_key}')::text, true);
SELECT set_config('dlock.main', pg_advisory_unlock_shared({key})::text, true);
SET LOCAL synchronous_commit = off;
SELECT CASE WHEN pg_try_advisory_lock_shared('{gate}')
    THEN pg_advisory_unlock_shared('{gate}')::text
    ELSE pg_notify('{channel}', '')::text END;
SELECT current_setting('dlock.slot')::bool AND current_setting('dlock.size')::bool
    AND current_setting('dlock.main')::bool AS done

-- fragment sessions
-- l: the advisory locks, with the kind of each key of this name; s: a row for each session. A
-- session holds the lock with the main key and without a further wait: the first client in line for
-- a slot has the main key, and the gate.
l AS MATERIALIZED (
    SELECT l.pid, l.granted, l.mode, l.objsubid, CASE
        WHEN (l.classid, l.objid, l.objsubid) = ('{main_high}', '{main_low}', {main_sub})
            THEN 'main'
        WHEN (l.classid, l.objid, l.objsubid) = ('{turn_high}', '{turn_low}', 1) THEN 'turn'
        WHEN (l.classid, l.objid, l.objsubid) = ('{gate_high}', '{gate_low}', 1) THEN 'gate'
        WHEN l.classid = '{high}' AND l.objsubid = 1
            AND l.objid::bigint > {low} AND l.objid::bigint <= {low} + {most} THEN 'size'
        END AS what,
        l.objid::bigint - {low} AS size,
        concat(lpad(to_hex(l.classid::bigint), 8, '0'), lpad(to_hex(l.objid::bigint), 8, '0'))
            AS key
    FROM pg_locks l
    WHERE l.locktype = 'advisory'
        AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())),
s AS MATERIALIZED (
    SELECT l.pid, bool_or(l.what = 'main' AND l.granted)
            AND NOT bool_or(NOT l.granted OR (l.what = 'gate' AND l.mode = 'ExclusiveLock'))
            AS granted,
        coalesce(max(CASE WHEN l.granted AND l.what <> 'size'
            THEN CASE l.what WHEN 'gate' THEN 1 ELSE 2 END END), 0) AS ahead,
        bool_or(l.mode = 'ShareLock') AS shared,
        coalesce(max(CASE l.what WHEN 'size' THEN l.size END), 0) AS slots
    FROM l WHERE l.what IS NOT NULL GROUP BY l.pid)

-- fragment columns
-- A session that holds the lock or waits for it, and its last query. session: pid and begin, the
-- begin only as far as our role may read it; breaker: NULL: not marked; broken_ms: since when.
s.pid, s.granted, s.shared, s.slots, a.usename, a.query,
coalesce(a.client_hostname, host(a.client_addr), '') AS client,
(extract(epoch FROM a.backend_start) * 1000.0)::bigint AS begin_ms,
CASE a.state WHEN 'idle'
    THEN (extract(epoch FROM clock_timestamp() - a.state_change) * 1000.0)::bigint ELSE 0 END
    AS idle_ms,
a.application_name,
concat(s.pid, '.', (extract(epoch FROM a.backend_start) * 1000000.0)::bigint) AS session,
m.application_name AS breaker, (extract(epoch FROM m.backend_start) * 1000.0)::bigint AS broken_ms

-- fragment marks
-- m: the session that breaks the hold of session s has the key of the mark; see renew.
LEFT JOIN LATERAL (
    SELECT substr(encode(sha256(decode(concat('{mark_begin}',
        encode(convert_to(s.pid::text, 'UTF8'), 'hex')), 'hex')), 'hex'), 1, 16) AS key OFFSET 0) y
    ON s.granted
LEFT JOIN LATERAL (
    SELECT b.application_name, b.backend_start FROM l k, LATERAL pg_stat_get_activity(k.pid) b
    WHERE k.granted AND k.mode = 'ExclusiveLock' AND k.objsubid = 1
        AND k.key = y.key
    LIMIT 1) m ON true

-- statement holder
-- A slot's holder comes first: a slot may be in the way of a client that a reader is not.
WITH
-- include sessions
SELECT
-- include columns
FROM s LEFT JOIN pg_stat_activity a ON a.pid = s.pid
-- include marks
WHERE s.granted
ORDER BY s.slots DESC, a.query_start, s.pid LIMIT 1

-- statement status
-- All holders and waiters. A waiter tries about once a second, and may be missing in pg_locks for a
-- moment in between: the last query tells the awaited lock.
WITH
-- include sessions
SELECT
-- include columns
FROM (
    SELECT s.pid, s.granted, s.ahead, s.shared, s.slots FROM s
    UNION ALL
    SELECT w.pid, false, 0, false, 0 FROM pg_stat_activity w
    WHERE w.datname = current_database() AND w.query LIKE '/* dlock1 % wait={key_id} %'
        AND w.pid NOT IN (SELECT s.pid FROM s)) s
LEFT JOIN pg_stat_activity a ON a.pid = s.pid
-- include marks
ORDER BY s.granted DESC, s.ahead DESC, a.query_start, s.pid

-- fragment shown
-- h: the session '{session_id}' (see columns), if it still holds the lock. old: its dlock does not
-- try the key of a mark, as far as our role may read this.
-- include sessions
, h AS MATERIALIZED (
    SELECT s.pid, a.query LIKE '/* dlock1 %' AND a.query NOT LIKE '/* dlock1 % holds=%' AS old
    FROM s JOIN pg_stat_activity a ON a.pid = s.pid
    WHERE s.granted AND '{session_id}'
        = concat(s.pid, '.', (extract(epoch FROM a.backend_start) * 1000000.0)::bigint))

-- statement name_breaker
-- '{breaker}': who breaks a hold, for the holder and for --status.
SELECT set_config('application_name', '{breaker}', false)

-- statement mark
-- Break a hold: get the key of the mark, for as long as our session lasts. The holder gets the key
-- for a moment with each renewal, so this may have to come again; unless another session breaks the
-- hold.
WITH
-- include shown
SELECT EXISTS (SELECT 1 FROM h) AS shown, (SELECT h.old FROM h) AS old, (
        SELECT CASE WHEN h.old THEN false ELSE pg_try_advisory_lock('{mark_key}') END FROM h)
    OR EXISTS (
        SELECT 1 FROM l WHERE l.key = '{mark_hex}' AND l.objsubid = 1
            AND l.mode = 'ExclusiveLock' AND l.granted) AS marked

-- statement terminate
-- By force: the end of its session ends the hold, as soon as the server's process has ended.
WITH
-- include shown
SELECT EXISTS (SELECT 1 FROM h) AS shown, (SELECT pg_terminate_backend(h.pid) FROM h)

-- statement list
-- All locks of which a session of dlock tells the name, or at least the key, with a holder of each.
-- a: these sessions; n: the locks, by main key; l: the advisory locks; p: the sessions with keys of
-- a lock, as in the fragment sessions; s: with the waiters that have no key just now. A different
-- number (?key=) stands in the query, which also tells the key of a session that the user has
-- named.
WITH
a AS MATERIALIZED (
    SELECT a.pid, a.name, coalesce(a.told, a.hashed) AS id,
        CASE WHEN coalesce(a.told, a.hashed) = a.hashed THEN a.name END AS word, a.waits
    FROM (
        SELECT a.pid, a.query LIKE '/* dlock1 % wait=%' AS waits,
            CASE WHEN a.application_name LIKE 'dlock: %' THEN substr(a.application_name, 8) END
                AS name,
            concat(CASE WHEN a.application_name LIKE 'dlock: %'
                THEN substr(encode(sha256(convert_to(substr(a.application_name, 8), 'UTF8')),
                    'hex'), 1, 16)
                ELSE substr(a.application_name, 7) END, '.1') AS hashed,
            substring(a.query FROM '^/[*] dlock1 .* (?:holds|wait)=([0-9a-f]{16}[.][12]) ') AS told
        FROM pg_stat_activity a
        WHERE a.datname = current_database() AND a.pid <> pg_backend_pid()
            AND (a.application_name ~ '^dlock:( |[0-9a-f]{16}$)'
                OR a.query LIKE '/* dlock1 % holds=%' OR a.query LIKE '/* dlock1 % wait=%')) a),
n AS MATERIALIZED (
    SELECT k.id, k.name, k.word, o.turn, o.gate, o.size
    FROM (SELECT a.id, max(a.name) AS name, max(a.word) AS word FROM a GROUP BY a.id) k
        CROSS JOIN LATERAL (
            SELECT substr(encode(sha256(convert_to(k.word, 'UTF8') || decode('00', 'hex')
                    || convert_to('turnstile', 'UTF8')), 'hex'), 1, 16) AS turn,
                substr(encode(sha256(convert_to(k.word, 'UTF8') || decode('00', 'hex')
                    || convert_to('gate', 'UTF8')), 'hex'), 1, 16) AS gate,
                substr(encode(sha256(convert_to(k.word, 'UTF8') || decode('00', 'hex')
                    || convert_to('slots', 'UTF8')), 'hex'), 1, 12) AS size OFFSET 0) o),
l AS MATERIALIZED (
    SELECT l.pid, l.granted, l.mode, l.objsubid,
        concat(lpad(to_hex(l.classid::bigint), 8, '0'), lpad(to_hex(l.objid::bigint), 8, '0'))
            AS key
    FROM pg_locks l
    WHERE l.locktype = 'advisory'
        AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())),
p AS MATERIALIZED (
    SELECT n.id, l.pid,
        bool_or(l.granted AND concat(l.key, '.', l.objsubid) = n.id) AND NOT bool_or(
            NOT l.granted OR (l.mode = 'ExclusiveLock' AND (l.key = n.gate) IS TRUE)) AS granted,
        bool_or(l.mode = 'ShareLock') AS shared,
        coalesce(max(CASE WHEN substr(l.key, 1, 12) = n.size
            THEN concat('x', substr(l.key, 13))::bit(16)::int END), 0) AS slots
    FROM n JOIN l ON concat(l.key, '.', l.objsubid) = n.id
        OR (l.objsubid = 1 AND (l.key = n.turn OR l.key = n.gate OR substr(l.key, 1, 12) = n.size))
    GROUP BY n.id, l.pid),
s AS MATERIALIZED (
    SELECT p.id, p.pid, p.granted, p.shared, p.slots FROM p
    UNION ALL
    SELECT a.id, a.pid, false, false, 0 FROM a
    WHERE a.waits AND a.pid NOT IN (SELECT p.pid FROM p)),
c AS MATERIALIZED (
    SELECT s.id, count(*) FILTER (WHERE s.granted) AS holders,
        count(*) FILTER (WHERE NOT s.granted) AS waiters, min(s.pid) FILTER (WHERE s.granted) AS pid
    FROM s GROUP BY s.id)
SELECT
-- include columns
, coalesce(n.name, concat('key:', substr(n.id, 1, 16))) AS name, c.holders, c.waiters
FROM c JOIN n ON n.id = c.id LEFT JOIN s ON s.id = c.id AND s.pid = c.pid
LEFT JOIN pg_stat_activity a ON a.pid = s.pid
LEFT JOIN LATERAL (
    SELECT substr(encode(sha256(convert_to(n.word, 'UTF8') || decode('00', 'hex')
        || convert_to('break', 'UTF8') || decode('00', 'hex') || convert_to(s.pid::text, 'UTF8')),
        'hex'), 1, 16) AS key OFFSET 0) y ON true
LEFT JOIN LATERAL (
    SELECT b.application_name, b.backend_start FROM l k, LATERAL pg_stat_get_activity(k.pid) b
    WHERE k.granted AND k.mode = 'ExclusiveLock' AND k.objsubid = 1 AND k.key = y.key
    LIMIT 1) m ON true
