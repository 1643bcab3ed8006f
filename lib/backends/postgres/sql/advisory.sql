-- advisory.sql - a session's advisory lock. See advisory_sql.c, which puts these statements together.
--
-- A message is one string of the simple protocol, and one transaction: each statement is analysed when the one before it
-- has run, so the order of the locks is that of the statements. What one finds, the next reads from a setting of this
-- transaction: dlock.may (go on to the main key), .turn, .main, .size (the session has it), .slot (its number, 0: none),
-- .other (the lock is in use with so many slots, which are not ours), .grace (ms left, in which nothing is granted).
--
-- A place in braces stands for a key as a number, or for
--   {key}        arguments of the lock functions: '1'::bigint, or '1'::int, '2'::int
--   {_shared}    "_shared" or nothing: how readers and slots lock
--   {wait_key}, {_wait}   likewise, of what is waited for: the main key, the turnstile or the gate
--   {pid}        of the session that the connection began with
--   times        in ms, or as named
-- To run a statement in psql, put text there. Every message begins with path of session.sql.

-- statement gate
-- In front of all that sets or locks something: behind a pooler the session is not ours alone, and a standby's locks
-- exclude no client of the primary. Only an error keeps the server from running what follows.
SELECT concat('dlock finding: ', f.text, ';')::int
FROM (SELECT CASE WHEN pg_backend_pid() <> {pid} THEN 'pooler' WHEN pg_is_in_recovery() THEN 'standby' END AS text) f
WHERE f.text IS NOT NULL

-- statement settings
-- That the server notices a dead client while it waits. Its time-outs for statements are meant for queries, not for locks.
-- since: the version that has the setting. Servers on other systems refuse client_connection_check_interval.
SELECT count(set_config(s.name, s.value, false)) AS set_config
FROM (VALUES
    ('tcp_keepalives_idle', '{idle}', 0),
    ('tcp_keepalives_interval', '{interval}', 0),
    ('tcp_keepalives_count', '{count}', 0),
    ('tcp_user_timeout', '{user_timeout}', 0),
    ('statement_timeout', '0', 0),
    ('client_connection_check_interval', '1s', CASE WHEN version() LIKE '%linux%' THEN 140000 END),
    ('transaction_timeout', '0', 170000)) s (name, value, since)
WHERE s.since <= current_setting('server_version_num')::int

-- statement settings_slots
SELECT set_config('lock_timeout', '0', false)

-- statement begin
-- What the session has before this try. idle_session_timeout is the lease: the server ends a session that is silent for
-- so long, from version 14 on. The grant is on disk when it is answered, as with durable of session.sql.
SELECT count(set_config(s.name, s.value, s.is_local)) AS set_config
FROM (VALUES
    ('idle_session_timeout', '{ttl}ms', false, 140000),
    ('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'local'
        ELSE current_setting('synchronous_commit') END, true, 0),
    ('dlock.may', 'true', true, 0),
    ('dlock.turn', '{turn}', true, 0),
    ('dlock.main', '{main}', true, 0),
    ('dlock.size', '{size}', true, 0),
    ('dlock.slot', '0', true, 0),
    ('dlock.other', '0', true, 0),
    ('dlock.grace', '0', true, 0)) s (name, value, is_local, since)
WHERE s.since <= current_setting('server_version_num')::int

-- statement grace
-- How long the server still grants nothing after its start or promotion, in ms. A primary has a walwriter, and a standby
-- has none; but only a role with pg_read_all_stats may read when it began. For others a promotion is at least as late as
-- the last transaction that the standby replayed; renewals see to it that there is one.
SELECT set_config('dlock.grace', g.left_ms::text, true), set_config('dlock.may', (g.left_ms <= 0)::text, true)
FROM (
    SELECT {grace} - (extract(epoch FROM clock_timestamp() - greatest(pg_postmaster_start_time(),
        pg_stat_get_bgwriter_stat_reset_time(), pg_last_xact_replay_timestamp(),
        (SELECT max(a.backend_start) FROM pg_stat_get_activity(NULL) a WHERE a.backend_type = 'walwriter')
        )) * 1000)::bigint AS left_ms) g

-- statement take_main
-- A writer.
SELECT set_config('dlock.main', CASE WHEN current_setting('dlock.may')::bool
    THEN pg_try_advisory_lock({key}) ELSE false END::text, true)

-- statement take_turn
-- A writer that has to wait takes the turnstile before any later reader.
SELECT set_config('dlock.turn', CASE
    WHEN current_setting('dlock.may')::bool AND NOT current_setting('dlock.main')::bool
    THEN pg_try_advisory_lock('{turnstile}') ELSE false END::text, true)

-- statement leave_turn
-- A writer has the main key.
SELECT set_config('dlock.turn', CASE WHEN current_setting('dlock.main')::bool
    THEN NOT pg_advisory_unlock('{turnstile}') ELSE true END::text, true)

-- statement pass_turn
-- Readers and slots go through the turnstile to the main key.
SELECT set_config('dlock.turn', CASE WHEN current_setting('dlock.may')::bool
    THEN pg_try_advisory_lock_shared('{turnstile}') ELSE false END::text, true)

-- statement pass_main
SELECT set_config('dlock.main', CASE
    WHEN current_setting('dlock.may')::bool AND current_setting('dlock.turn')::bool
    THEN pg_try_advisory_lock_shared({key}) ELSE false END::text, true)

-- statement pass_on
-- The turnstile is left behind with the main key; without that it is kept where {keep} says so.
SELECT set_config('dlock.turn', CASE
    WHEN current_setting('dlock.turn')::bool AND (current_setting('dlock.main')::bool OR NOT {keep})
    THEN NOT pg_advisory_unlock_shared('{turnstile}') ELSE current_setting('dlock.turn')::bool END::text, true)

-- statement take_size
-- Take the key that tells N, unless there is one for another N. {sizes} is held while these keys are looked at.
SELECT CASE WHEN current_setting('dlock.may')::bool THEN pg_advisory_lock('{sizes}') END;
SELECT set_config('dlock.other', CASE WHEN current_setting('dlock.may')::bool THEN (
    SELECT coalesce(max(l.objid::bigint - {low}), 0) FROM pg_locks l
    WHERE l.locktype = 'advisory' AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
        AND l.classid = '{high}' AND l.objsubid = 1 AND l.objid::bigint > {low} AND l.objid::bigint <= {low} + {most}
        AND l.objid::bigint <> {low} + {slots})
    ELSE 0 END::text, true);
SELECT set_config('dlock.size', CASE
    WHEN current_setting('dlock.may')::bool AND current_setting('dlock.other') = '0'
    THEN pg_try_advisory_lock_shared('{size_key}') ELSE false END::text, true);
SELECT CASE WHEN current_setting('dlock.may')::bool THEN pg_advisory_unlock('{sizes}') END;
SELECT set_config('dlock.may', current_setting('dlock.size'), true)

-- statement pass_gate
-- A newcomer passes the gate, which fails while another client waits for a slot.
SELECT set_config('dlock.may', CASE WHEN current_setting('dlock.may')::bool
    THEN pg_try_advisory_lock_shared('{gate}') ELSE false END::text, true)

-- statement take_slot
-- The first slot that is free, counted from 1. '{slot_keys}': {1,2,3}
SELECT set_config('dlock.slot', CASE
    WHEN current_setting('dlock.may')::bool AND current_setting('dlock.main')::bool
    THEN coalesce((
        SELECT k.ordinality FROM unnest('{slot_keys}'::bigint[]) WITH ORDINALITY k
        WHERE pg_try_advisory_lock(k.k) LIMIT 1), 0)
    ELSE 0 END::text, true)

-- statement leave_gate_first
-- The first one in line for a slot has it.
SELECT CASE WHEN current_setting('dlock.slot') <> '0' THEN pg_advisory_unlock('{gate}') END

-- statement leave_main
-- A newcomer found no slot: what it has taken on its way goes back.
SELECT set_config('dlock.main', CASE
    WHEN current_setting('dlock.main')::bool AND current_setting('dlock.slot') = '0'
    THEN NOT pg_advisory_unlock_shared({key}) ELSE current_setting('dlock.main')::bool END::text, true)

-- statement leave_gate
SELECT CASE WHEN current_setting('dlock.may')::bool THEN pg_advisory_unlock_shared('{gate}') END

-- statement leave_size
SELECT CASE WHEN current_setting('dlock.size')::bool AND current_setting('dlock.slot') = '0'
    THEN pg_advisory_unlock_shared('{size_key}') END

-- statement answer
-- The fence is the position of this record in the write-ahead log. {locked}: a setting, dlock.main, or of a slot.
SELECT current_setting('dlock.grace') AS grace, {lease} AS lease, (f.lsn IS NOT NULL)::int AS locked, f.lsn,
    CASE WHEN f.lsn IS NOT NULL THEN pg_walfile_name(f.lsn) END AS wal,
    current_setting('dlock.turn')::bool::int AS turn, current_setting('dlock.main')::bool::int AS main,
    current_setting('dlock.size')::bool::int AS size, current_setting('dlock.other') AS other,
    current_setting('dlock.slot') AS slot
FROM (SELECT CASE WHEN {locked} THEN pg_logical_emit_message(true, 'dlock', ''::text) END AS lsn) f

-- statement shorter
-- A session that waits may be silent for a shorter time than a holder: a stopped waiter would keep the turnstile or the
-- gate. So the lease is set before the lock, and shortened without it.
SELECT set_config('idle_session_timeout', '{wait_idle}ms', false)
WHERE NOT {locked} AND current_setting('dlock.grace')::bigint <= 0

-- statement wait
-- The lock is taken for the transaction first, and for the session when nothing can interrupt any more: the time-out can
-- fire although the lock was taken, and what belongs to the session stays behind then. '{token}' shows that it was.
--
-- For one request to cancel the postmaster sends two signals, to the session and to its process group [PostgreSQL,
-- signal_child()]. The second may come when the first one has been dealt with: so that it is no error in the server's
-- log, it is awaited.
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
SELECT current_setting('dlock.got', true)

-- statement listen
-- Hear of each slot that is given back.
LISTEN {channel};
SELECT '{token}'

-- statement renew
-- Any statement restarts the idle time of the session.
SELECT pg_is_in_recovery()::int

-- statement emit
-- A commit. Where nothing waits for it: a standby has replayed it when it is promoted, see grace.
SELECT pg_logical_emit_message(true, 'dlock', ''::text)

-- statement deaf
UNLISTEN *

-- statement unlock
SELECT pg_advisory_unlock{_shared}({key})::int

-- statement unlock_slot
-- A slot goes back before the gate shows whether another client waits: one that comes later finds the slot.
SELECT set_config('dlock.slot', pg_advisory_unlock('{slot_key}')::text, true);
SELECT set_config('dlock.size', pg_advisory_unlock_shared('{size_key}')::text, true);
SELECT set_config('dlock.main', pg_advisory_unlock_shared({key})::text, true);
SELECT set_config('synchronous_commit', 'off', true);
SELECT CASE WHEN pg_try_advisory_lock_shared('{gate}') THEN pg_advisory_unlock_shared('{gate}')::text
    ELSE pg_notify('{channel}', '')::text END;
SELECT (current_setting('dlock.slot')::bool AND current_setting('dlock.size')::bool
    AND current_setting('dlock.main')::bool)::int

-- fragment sessions
-- l: the locks of this name, with what each is on; s: a row for each session. It holds the lock if it has the main key and
-- waits for nothing more: the first one in line for a slot has the main key, and the gate.
l AS MATERIALIZED (
    SELECT l.pid, l.granted, l.mode, CASE
        WHEN (l.classid, l.objid, l.objsubid) = ('{main_high}', '{main_low}', {main_sub}) THEN 'main'
        WHEN (l.classid, l.objid, l.objsubid) = ('{turn_high}', '{turn_low}', 1) THEN 'turn'
        WHEN (l.classid, l.objid, l.objsubid) = ('{gate_high}', '{gate_low}', 1) THEN 'gate'
        WHEN l.classid = '{high}' AND l.objsubid = 1
            AND l.objid::bigint > {low} AND l.objid::bigint <= {low} + {most} THEN 'size' END AS what,
        l.objid::bigint - {low} AS size
    FROM pg_locks l
    WHERE l.locktype = 'advisory' AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())),
s AS MATERIALIZED (
    SELECT l.pid, bool_or(l.what = 'main' AND l.granted)
            AND NOT bool_or(NOT l.granted OR (l.what = 'gate' AND l.mode = 'ExclusiveLock')) AS granted,
        coalesce(max(CASE WHEN l.granted AND l.what <> 'size' THEN CASE l.what WHEN 'gate' THEN 1 ELSE 2 END END), 0) AS ahead,
        bool_or(l.mode = 'ShareLock') AS shared,
        coalesce(max(CASE l.what WHEN 'size' THEN l.size END), 0) AS slots
    FROM l WHERE l.what IS NOT NULL GROUP BY l.pid)

-- fragment columns
s.pid, s.granted::int, s.shared::int, s.slots, a.usename, a.query,
coalesce(a.client_hostname, host(a.client_addr), ''), (extract(epoch FROM a.backend_start) * 1000)::bigint,
CASE a.state WHEN 'idle' THEN (extract(epoch FROM clock_timestamp() - a.state_change) * 1000)::bigint ELSE 0 END,
a.application_name

-- statement holder
-- Of several holders one of a slot: it may be in the way where a shared one is not.
WITH
-- include sessions
SELECT
-- include columns
FROM s LEFT JOIN pg_stat_activity a ON a.pid = s.pid WHERE s.granted
ORDER BY s.slots DESC, a.query_start, s.pid LIMIT 1

-- statement status
-- All holders and waiters. A waiter tries anew about once a second, and for a moment in between it may not be in
-- pg_locks: its last query says that it waits for this lock.
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
ORDER BY s.granted DESC, s.ahead DESC, a.query_start, s.pid
