-- advisory.sql - a session's advisory lock. advisory_sql.c puts these statements together.
--
-- A message is one string of the simple protocol, and one transaction. Each statement is analysed
-- when the statement before it has run, so the locks are taken in the order of the statements.
-- SET costs the server next to nothing; each name in another statement is looked up in the
-- catalogue by a new server process, and before version 16 each new setting "dlock.x" sorts all
-- settings. So an exclusive or shared try is one statement. The steps for a slot hand on what they
-- found by settings of the transaction: dlock.may (go on), .turn, .main, .size (the session has
-- it), .slot (its number, 0: none), .other (the lock is in use with so many slots, not with ours).
-- dlock.grace: ms left, in which nothing is granted.
--
-- A place in braces stands for a key as a number, or for
--   {key}        arguments of the lock functions: '1'::bigint, or '1'::int, '2'::int
--   {_shared}    "_shared" or nothing: how readers and slots lock
--   {wait_key}, {_wait}   likewise, of the key that is waited for: main key, turnstile or gate
--   {turn}, {main}, {size}   true or false: the session has it already
--   {wait}, {keep}   true or false: the client waits for the lock; without the main key the
--                turnstile is kept
--   {may}        true, or the setting that says so
--   {pid}        of the session that the connection began with
--   times        in ms, or as named
-- To run a statement in psql, put text there. Every message begins with local_path of session.sql.

-- statement gate
-- In front of all that sets or locks something: behind a pooler the session is not ours alone, and
-- a standby's locks exclude no client of the primary. Only an error keeps the server from running
-- the statements behind, so the finding is the name of a setting that does not exist. libpq
-- refuses a standby when it connects; the server's log has an error only where a proxy has
-- passed the connection on to a standby.
SELECT set_config(CASE WHEN pg_backend_pid() <> {pid} THEN 'dlock finding: pooler;'
    ELSE 'dlock finding: standby;' END, '', true)
WHERE pg_backend_pid() <> {pid} OR pg_is_in_recovery()

-- statement settings
-- With these the server notices a dead client while it waits. Its time-outs for statements are
-- meant for queries, not for locks.
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
-- idle_session_timeout is the lease: the server ends a session that is silent for so long.
SET idle_session_timeout = {ttl}

-- statement grace
-- How long the server still grants nothing after its start or promotion, in ms. A primary has a
-- walwriter, and a standby has none; but only a role with pg_read_all_stats may read when it
-- began. For others a promotion is at least as late as the last transaction that the standby
-- replayed; renewals see to it that there is one.
SELECT set_config('dlock.grace', ({grace} - (extract(epoch FROM clock_timestamp() - greatest(
        pg_postmaster_start_time(), pg_stat_get_bgwriter_stat_reset_time(),
        pg_last_xact_replay_timestamp(), (
            SELECT max(a.backend_start) FROM pg_stat_get_activity(NULL) a
            WHERE a.backend_type = 'walwriter')
    )) * 1000.0)::bigint)::text, true)

-- fragment answer
-- Around a subquery t: lsn is the position of our record in the write-ahead log, the fence, or
-- NULL: not granted. A session that waits may be silent for a shorter time than a holder: a
-- stopped waiter would keep the turnstile or the gate. So the lease is set before the lock, and
-- shortened without it.
SELECT CASE WHEN t.lsn IS NOT NULL THEN pg_walfile_name(t.lsn)
    WHEN {shorten} THEN set_config('idle_session_timeout', '{wait_idle}ms', false) END AS wal, t.*

-- statement try_exclusive
-- A writer that has to wait takes the turnstile before any later reader, and leaves it when it has
-- the main key.
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
-- the main key; without that it is kept where {keep} says so.
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
-- What the session has before this try.
SET LOCAL dlock.size = {size};
SET LOCAL dlock.slot = 0;
SET LOCAL dlock.other = 0;
SELECT set_config('dlock.may', ({grace_left} <= 0)::text, true)

-- statement take_size
-- Take the key that tells N, unless there is one for another N. {sizes} is held while these keys
-- are looked at.
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
-- A newcomer passes the gate, which fails while another client waits for a slot.
SELECT set_config('dlock.may', CASE WHEN current_setting('dlock.may')::bool
    THEN pg_try_advisory_lock_shared('{gate}') ELSE false END::text, true)

-- statement pass_slots
SELECT set_config('dlock.main', k.main::text, true), set_config('dlock.turn', k.turn::text, true)
FROM (
-- include pass
    OFFSET 0) k

-- statement take_slot
-- The first slot that is free, counted from 1. '{slot_keys}': {1,2,3}
SELECT set_config('dlock.slot', CASE
    WHEN current_setting('dlock.may')::bool AND current_setting('dlock.main')::bool
    THEN coalesce((
        SELECT k.ordinality FROM unnest('{slot_keys}'::bigint[]) WITH ORDINALITY k
        WHERE pg_try_advisory_lock(k.k) LIMIT 1), 0)
    ELSE 0 END::text, true)

-- statement leave_gate_first
-- The first client in line for a slot has it.
SELECT CASE WHEN current_setting('dlock.slot') <> '0' THEN pg_advisory_unlock('{gate}') END

-- statement leave_main
-- A newcomer found no slot: what it has taken on its way goes back.
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
-- more: the time-out can fire although the lock was taken, and what belongs to the session stays
-- behind then. '{token}' shows that it was.
--
-- For one request to cancel the postmaster sends two signals, to the session and to its process
-- group [PostgreSQL, signal_child()]. The second may come when the first has been dealt with: it
-- is awaited, since outside the block it would be an error in the server's log. A cancel that meets
-- the session between two chunks, as on a busy machine, is one all the same: only a block catches
-- errors, and to wait longer would slow down each cancel.
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
SELECT pg_is_in_recovery()

-- statement emit
-- A commit. Where nothing waits for it: a standby has replayed it when it is promoted, see grace.
SELECT pg_logical_emit_message(true, 'dlock', ''::text)

-- statement deaf
UNLISTEN *

-- statement unlock
SELECT pg_advisory_unlock{_shared}({key})

-- statement unlock_slot
-- A slot goes back before the gate shows whether another client waits: one that comes later finds
-- the slot.
SELECT set_config('dlock.slot', pg_advisory_unlock('{slot_key}')::text, true);
SELECT set_config('dlock.size', pg_advisory_unlock_shared('{size_key}')::text, true);
SELECT set_config('dlock.main', pg_advisory_unlock_shared({key})::text, true);
SET LOCAL synchronous_commit = off;
SELECT CASE WHEN pg_try_advisory_lock_shared('{gate}')
    THEN pg_advisory_unlock_shared('{gate}')::text
    ELSE pg_notify('{channel}', '')::text END;
SELECT current_setting('dlock.slot')::bool AND current_setting('dlock.size')::bool
    AND current_setting('dlock.main')::bool

-- fragment sessions
-- l: the locks of this name, with what each is on; s: a row for each session. It holds the lock if
-- it has the main key and waits for nothing more: the first one in line for a slot has the main
-- key, and the gate.
l AS MATERIALIZED (
    SELECT l.pid, l.granted, l.mode, CASE
        WHEN (l.classid, l.objid, l.objsubid) = ('{main_high}', '{main_low}', {main_sub})
            THEN 'main'
        WHEN (l.classid, l.objid, l.objsubid) = ('{turn_high}', '{turn_low}', 1) THEN 'turn'
        WHEN (l.classid, l.objid, l.objsubid) = ('{gate_high}', '{gate_low}', 1) THEN 'gate'
        WHEN l.classid = '{high}' AND l.objsubid = 1
            AND l.objid::bigint > {low} AND l.objid::bigint <= {low} + {most} THEN 'size'
        END AS what,
        l.objid::bigint - {low} AS size
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
s.pid, s.granted::int, s.shared::int, s.slots, a.usename, a.query,
coalesce(a.client_hostname, host(a.client_addr), ''),
(extract(epoch FROM a.backend_start) * 1000.0)::bigint,
CASE a.state WHEN 'idle'
    THEN (extract(epoch FROM clock_timestamp() - a.state_change) * 1000.0)::bigint ELSE 0 END,
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
-- All holders and waiters. A waiter tries anew about once a second, and for a moment in between it
-- may not be in pg_locks: its last query says that it waits for this lock.
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
