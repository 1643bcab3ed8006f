-- table.sql - the lease table in MySQL and MariaDB: exclusive locks, the line, and statements for
-- all kinds. See mysql.c and table/table.c.
--
-- A place in braces stands for
--   a value    '{name}' of the lock, '{token}' of the hold, '{holder}' its record, '{line}' of the
--              acquire: as hexadecimal strings, so neither character sets nor quotes matter;
--              {ttl}, {stays}, {grace}: in ms; {changed}: the rows that the last UPDATE changed
--              '{schema_name}', '{table_bare}', '{holders_bare}': as in information_schema
--   SQL        {table}, {holders}: database and table, quoted; {grace_left}: 0, or @grace
--
-- A statement may be a sequence, separated by "-- next"; each commits by itself, and an error ends
-- the sequence. The last rows are the answer; a first column "finding" that is not NULL is an
-- error.
--
-- Every reference to a table has FORCE INDEX: a view has no index, so a view in the table's place
-- runs no code with our rights. UTC_TIMESTAMP is the time of the statement's begin. A variable gets
-- its value by SELECT ... INTO: SET @x = (SELECT ...) locks what it reads.

-- statement session
-- At the log-in: what the server's or the account's defaults must not change. The waits of the
-- server end before ours do.
SET SESSION autocommit = 1, sql_mode = '', lock_wait_timeout = 1, innodb_lock_wait_timeout = 1,
    character_set_results = NULL

-- statement isolation
-- With READ COMMITTED, and a binary log of statements, the server refuses each write (1665).
SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ

-- statement takes_writes
-- Of several servers, the first that does.
SELECT @@global.read_only = 0

-- statement schema
CREATE TABLE IF NOT EXISTS {table} (
    name VARBINARY(255) NOT NULL PRIMARY KEY, version BIGINT NOT NULL, fence BIGINT NOT NULL,
    owner VARBINARY(96) NOT NULL, expires DATETIME(6) NOT NULL, freed DATETIME(6) NOT NULL,
    holder VARBINARY(2048) NOT NULL,
    run_state VARBINARY(10) NOT NULL, run_status SMALLINT NULL, run_fence BIGINT NOT NULL,
    run_owner VARBINARY(40) NOT NULL, run_host VARBINARY(255) NOT NULL, run_pid BIGINT NOT NULL,
    run_user VARBINARY(255) NOT NULL, run_command VARBINARY(255) NOT NULL,
    run_note VARBINARY(255) NOT NULL, run_began DATETIME(6) NOT NULL,
    run_ended DATETIME(6) NOT NULL, run_until DATETIME(6) NOT NULL) ENGINE=InnoDB
-- next
CREATE TABLE IF NOT EXISTS {holders} (
    name VARBINARY(255) NOT NULL, token VARBINARY(64) NOT NULL, epoch VARBINARY(96) NOT NULL,
    slots INT NOT NULL, place BIGINT NOT NULL, expires DATETIME(6) NOT NULL,
    holder VARBINARY(2048) NOT NULL,
    PRIMARY KEY (name, token), KEY line (name, epoch, place)) ENGINE=InnoDB

-- statement grant_schema
-- {mark}: nothing, or what makes a comment of the line; {role}: of the URI, quoted, or ROLE
{mark}GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {role};
{mark}GRANT SELECT, INSERT, UPDATE, DELETE ON {holders} TO {role}

-- statement guard
-- Before the first statement of a connection: is a table of ours none, or one without transactions?
SELECT CONCAT('the table ', t.table_schema, '.', t.table_name, ' is not safe to use: it is no ',
    'InnoDB table') AS finding
FROM information_schema.tables t
WHERE t.table_schema = '{schema_name}' AND t.table_name IN ('{table_bare}', '{holders_bare}')
    AND NOT (t.table_type = 'BASE TABLE' AND t.engine = 'InnoDB') LIMIT 1

-- statement grace
-- Before a try, with a grace: a promoted replica may lack the newest rows. The row of the empty
-- name remembers the server and the time when that was first seen. @grace: the rest of the grace,
-- in ms.
SELECT COUNT(*) INTO @there FROM {table} x FORCE INDEX (PRIMARY) WHERE x.name = ''
-- next
INSERT INTO {table} (name, version, fence, owner, expires, freed, holder, run_state, run_status,
    run_fence, run_owner, run_host, run_pid, run_user, run_command, run_note, run_began, run_ended,
    run_until)
SELECT '', 1, 0, '', '1970-01-01', '1970-01-01', '', '', NULL, 0, '', '', 0, '', '', '',
    '1970-01-01', '1970-01-01', '1970-01-01'
FROM (SELECT 1) o WHERE @there = 0
ON DUPLICATE KEY UPDATE version = {table}.version
-- next
SELECT SHA1(CONCAT_WS(':', @@global.hostname, @@global.port, @@global.server_id)) INTO @server
-- next
UPDATE {table} l FORCE INDEX (PRIMARY) SET l.version = l.version + 1, l.owner = @server,
    l.expires = UTC_TIMESTAMP(6)
WHERE l.name = '' AND l.owner <> @server
-- next
SELECT CEIL(TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6),
    l.expires + INTERVAL {grace} * 1000 MICROSECOND) / 1000) INTO @grace
FROM {table} l FORCE INDEX (PRIMARY) WHERE l.name = ''

-- statement make
-- The row of a lock that was never used. An INSERT that reads by itself would lock the gap between
-- two rows, and deadlock with others.
SELECT COUNT(*) INTO @there FROM {table} x FORCE INDEX (PRIMARY) WHERE x.name = '{name}'
-- next
INSERT INTO {table} (name, version, fence, owner, expires, freed, holder, run_state, run_status,
    run_fence, run_owner, run_host, run_pid, run_user, run_command, run_note, run_began, run_ended,
    run_until)
SELECT '{name}', 1, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), '', '1970-01-01',
    '1970-01-01', '', '', NULL, 0, '', '', 0, '', '', '', '1970-01-01', '1970-01-01', '1970-01-01'
FROM (SELECT 1) o WHERE @there = 0
ON DUPLICATE KEY UPDATE version = {table}.version

-- fragment alive
-- Is the waiter w alive? Its session has a named lock; behind a proxy its row expires.
(IS_USED_LOCK(CONCAT('dlock.w.', CONVERT(w.token USING utf8mb4))) IS NOT NULL
    OR w.expires > UTC_TIMESTAMP(6))

-- fragment free_for_us
-- Is the lock l free, at our turn, on a server that takes writes?
l.expires <= UTC_TIMESTAMP(6) AND GREATEST(l.freed, l.expires)
    <= UTC_TIMESTAMP(6) - INTERVAL ROUND(@ahead * 2800000 / (@ahead + 2.5)) MICROSECOND
AND @rw AND {grace_left} <= 0

-- fragment valid_run
-- A dlock wrote the run record of l. MySQL 8 refuses a binary string here.
(l.run_state IN ('running', 'failed', 'succeeded')
    AND CONVERT(l.run_owner USING latin1) COLLATE latin1_bin REGEXP '^[0-9a-f]{32}$'
    AND COALESCE(l.run_status, 0) BETWEEN 0 AND 255 AND l.run_fence >= 0 AND l.run_pid >= 0)

-- fragment done_run
-- A success that counts. One in the future, as a clock was wrong, does not.
(l.run_state = 'succeeded' AND l.run_ended < UTC_TIMESTAMP(6) + INTERVAL 1000 SECOND
    AND l.run_ended > UTC_TIMESTAMP(6) - INTERVAL {once} * 1000 MICROSECOND)

-- fragment hold
-- The session of a holder has a named lock, on which the first waiter waits. A new session of the
-- same hold gets it, too.
IF(IS_USED_LOCK(CONCAT('dlock.h.', CONVERT('{token}' USING utf8mb4))) IS NULL,
    GET_LOCK(CONCAT('dlock.h.', CONVERT('{token}' USING utf8mb4)), 0), 0)

-- fragment wake
RELEASE_LOCK(CONCAT('dlock.h.', CONVERT('{token}' USING utf8mb4))) AS woken

-- fragment look_ahead
-- {before}: our ticket, or a number above all. @ahead: the waiters before us that are in our way.
SELECT COUNT(*), @@global.read_only = 0 INTO @ahead, @rw
FROM {holders} w FORCE INDEX (line)
WHERE w.name = '{name}' AND w.epoch = '' AND w.place < {before} AND w.token <> '{line}' AND

-- statement try
-- One UPDATE of one row by its key decides: InnoDB tests the WHERE on the newest committed row,
-- under the row's lock, at every isolation level.
-- include look_ahead
-- include alive
-- next
UPDATE {table} l FORCE INDEX (PRIMARY) SET l.version = l.version + 1,
    l.fence = GREATEST(l.fence + 1, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))),
    l.owner = '{token}', l.expires = UTC_TIMESTAMP(6) + INTERVAL {ttl} * 1000 MICROSECOND,
    l.holder = '{holder}'
WHERE l.name = '{name}' AND
-- include free_for_us
    AND ({once} = 0 OR l.run_state = '' OR (
-- include valid_run
        AND NOT
-- include done_run
    ))
-- next
SELECT IF(@rw, NULL, 'read-only') AS finding, IF(l.owner = '{token}', l.fence, NULL) AS fence,
    CONNECTION_ID() AS pid, '{token}' AS token, l.holder, l.fence AS held_fence,
    IF(l.expires > UTC_TIMESTAMP(6),
        TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), l.expires) DIV 1000 + 1, NULL) AS left_ms,
    {grace_left} AS grace_ms, l.owner, IF(l.owner = '{token}',
-- include hold
    , 0) AS hold,
    IF({ticket} > 0, {ticket}, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))
        AS ticket, @ahead AS ahead, l.version,
    ROUND(@ahead * 2800 / (@ahead + 2.5)) - IF(l.expires > UTC_TIMESTAMP(6), 0, LEAST(3000000,
        TIMESTAMPDIFF(MICROSECOND, GREATEST(l.freed, l.expires), UTC_TIMESTAMP(6))) DIV 1000)
        AS turn_ms
FROM {table} l FORCE INDEX (PRIMARY) WHERE l.name = '{name}'

-- statement renew
-- A mark (see mark) is in front of our token: then the answer has our own record, with the mark.
UPDATE {table} l FORCE INDEX (PRIMARY) SET l.version = l.version + 1,
    l.expires = UTC_TIMESTAMP(6) + INTERVAL {ttl} * 1000 MICROSECOND
WHERE l.name = '{name}' AND l.owner IN ('{token}', CONCAT('break:', '{token}'))
    AND l.fence = {fence} AND l.expires > UTC_TIMESTAMP(6)
-- next
SELECT {changed} AS renewed, l.holder, '{token}' AS token, IF({changed},
-- include hold
    , 0) AS hold
FROM (SELECT 1) x LEFT JOIN {table} l FORCE INDEX (PRIMARY)
    ON l.name = '{name}' AND l.owner <> '{token}' AND l.expires > UTC_TIMESTAMP(6)

-- fragment give_back
-- --min-hold: the lock stays held for {stays}; 0: not. Until then the owner is "over:" and the
-- token: a late renewal prolongs nothing. A marked hold (see mark) ends at once. The order matters:
-- an assignment sees those before it.
l.version = l.version + 1,
l.expires = IF({stays} > 0, LEAST(l.expires, UTC_TIMESTAMP(6)
    + INTERVAL IF(l.owner = '{token}', {stays}, 0) * 1000 MICROSECOND), '1970-01-01'),
l.freed = IF({stays} > 0, l.freed, UTC_TIMESTAMP(6)),
l.holder = IF({stays} > 0, l.holder, ''),
l.owner = IF({stays} > 0, CONCAT('over:', l.owner), '')
WHERE l.name = '{name}' AND l.owner IN ('{token}', CONCAT('break:', '{token}'))
    AND l.expires > UTC_TIMESTAMP(6)

-- fragment after_us
-- Who holds the lock, where it is not ours.
FROM (SELECT 1) x LEFT JOIN {table} l FORCE INDEX (PRIMARY)
    ON l.name = '{name}' AND l.owner NOT IN ('{token}', '') AND l.expires > UTC_TIMESTAMP(6)

-- fragment leave_line
-- We wait no longer.
DELETE w FROM {holders} w FORCE INDEX (PRIMARY)
WHERE w.name = '{name}' AND w.token = '{line}' AND w.epoch = ''

-- statement release
-- include leave_line
-- next
UPDATE {table} l FORCE INDEX (PRIMARY) SET
-- include give_back
-- next
SELECT {changed} AS released, l.holder, '{token}' AS token, 0 AS called,
-- include wake
-- include after_us

-- statement leave
-- The release of most clients.
UPDATE {table} l FORCE INDEX (PRIMARY) SET
-- include give_back
-- next
SELECT {changed} AS released, l.holder, '{token}' AS token, 0 AS called,
-- include wake
-- include after_us

-- statement mark
-- Break the hold '{token}': the owner becomes "break:" and the token, which only a dlock that knows
-- of marks takes for its own; the expiry stays. '{breaker}': by whom; values in a record have no
-- spaces. An earlier mark counts, too.
UPDATE {table} l FORCE INDEX (PRIMARY) SET l.version = l.version + 1,
    l.holder = CONCAT(l.holder, ' broken=',
        TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000, ' by=',
        REPLACE(REPLACE('{breaker}', '%', '%25'), ' ', '%20')),
    l.owner = CONCAT('break:', l.owner)
WHERE l.name = '{name}' AND l.owner = '{token}' AND l.expires > UTC_TIMESTAMP(6)
-- next
SELECT COUNT(*) AS marked FROM {table} l FORCE INDEX (PRIMARY)
WHERE l.name = '{name}' AND l.owner = CONCAT('break:', '{token}') AND l.expires > UTC_TIMESTAMP(6)

-- fragment unused
-- A row without use for a week.
l.name <> '' AND l.expires <= UTC_TIMESTAMP(6) AND l.freed < UTC_TIMESTAMP(6) - INTERVAL 7 DAY
AND l.fence < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - 604800000000
AND (l.run_state = '' OR l.run_until < UTC_TIMESTAMP(6))

-- fragment swept_clients
-- What holders and waiters left behind a week ago, of the same names.
DELETE w FROM {holders} w FORCE INDEX (PRIMARY) WHERE w.name BETWEEN @least AND @most
    AND w.expires < UTC_TIMESTAMP(6) - INTERVAL 7 DAY AND (w.epoch <> '' OR w.place
        < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - 604800000000)

-- statement sweep
SELECT MIN(s.name), MAX(s.name) INTO @least, @most FROM (
    SELECT l.name FROM {table} l FORCE INDEX (PRIMARY) WHERE
-- include unused
    LIMIT 20) s
-- next
DELETE l FROM {table} l FORCE INDEX (PRIMARY) WHERE l.name BETWEEN @least AND @most AND
-- include unused
-- next
-- include swept_clients

-- ------------------------------------------------------------------ the line

-- fragment galera
-- Is the server a node of Galera? Only MariaDB reads the comment, and has the view.
(0 /*M! + (SELECT COUNT(*) FROM information_schema.global_variables
    WHERE variable_name = 'wsrep_on' AND variable_value = 'ON') */)

-- fragment look_for_us
SELECT COUNT(*) INTO @there FROM {holders} x FORCE INDEX (PRIMARY)
WHERE x.name = '{name}' AND x.token = '{line}'

-- statement join
-- {kind}: -1 a writer, 0 a reader, N a slot. The session lives for as long as it says something
-- each second; its named lock tells the others so, and which session to call.
SET SESSION wait_timeout = 1
-- next
DO GET_LOCK(CONCAT('dlock.w.', CONVERT('{line}' USING utf8mb4)), 0)
-- next
-- include look_for_us
-- next
INSERT INTO {holders} (name, token, epoch, slots, place, expires, holder)
SELECT '{name}', '{line}', '', {kind}, {ticket}, '1970-01-01', '{waiter}' FROM (SELECT 1) o
WHERE @there = 0
-- next
SELECT
-- include galera
    AS galera

-- statement join_polling
-- Behind a proxy no session is ours, and a node of Galera does not know the sessions of another
-- one: the row lives for five seconds, and is written at each poll.
-- include look_for_us
-- next
INSERT INTO {holders} (name, token, epoch, slots, place, expires, holder)
SELECT '{name}', '{line}', '', {kind}, {ticket}, UTC_TIMESTAMP(6) + INTERVAL 5 SECOND, '{waiter}'
FROM (SELECT 1) o WHERE @there = 0
-- next
UPDATE {holders} w FORCE INDEX (PRIMARY) SET w.expires = UTC_TIMESTAMP(6) + INTERVAL 5 SECOND
WHERE w.name = '{name}' AND w.token = '{line}' AND w.epoch = ''

-- statement wait
-- For the session of the waiter before us, else of a holder: until that gives up its named lock,
-- {ms} at most. A mark is in front of a token ("break:"). No wait in the server where the lock has
-- changed since the try, or where that session is not there. To wait for a named lock wakes nobody
-- else; KILL QUERY would, but may stop all of a MariaDB for two seconds.
SELECT COALESCE((
        SELECT CONCAT('dlock.w.', CONVERT(w.token USING utf8mb4))
        FROM {holders} w FORCE INDEX (line)
        WHERE w.name = '{name}' AND w.epoch = '' AND w.place < {before} AND w.token <> '{line}'
            AND IS_USED_LOCK(CONCAT('dlock.w.', CONVERT(w.token USING utf8mb4))) IS NOT NULL
        ORDER BY w.place DESC LIMIT 1), (
        SELECT CONCAT('dlock.h.', CONVERT(SUBSTRING_INDEX(h.token, ':', -1) USING utf8mb4))
        FROM {holders} h FORCE INDEX (line)
        WHERE h.name = '{name}' AND h.epoch = l.owner AND l.owner <> ''
            AND h.expires > UTC_TIMESTAMP(6)
            AND IS_USED_LOCK(CONCAT('dlock.h.',
                CONVERT(SUBSTRING_INDEX(h.token, ':', -1) USING utf8mb4))) IS NOT NULL
        LIMIT 1), CONCAT('dlock.h.', CONVERT(SUBSTRING_INDEX(l.owner, ':', -1) USING utf8mb4))),
    l.version
INTO @held, @now
FROM {table} l FORCE INDEX (PRIMARY) WHERE l.name = '{name}'
-- next
SELECT IF(@now <> {version} OR IS_USED_LOCK(@held) IS NULL, 0, GET_LOCK(@held, {ms} / 1000))
INTO @got
-- next
SELECT @got = 1 AS woken, l.version <> {version} AS changed, IF(@got = 1, RELEASE_LOCK(@held), 0)
FROM {table} l FORCE INDEX (PRIMARY) WHERE l.name = '{name}'

-- statement left
-- Granted: our row goes, and the row of one dead waiter before us. Each by its key: a range would
-- lock the gaps into which others insert.
SELECT MIN(w.token) INTO @dead FROM {holders} w FORCE INDEX (line)
WHERE w.name = '{name}' AND w.epoch = '' AND w.place < {ticket} AND NOT
-- include alive
-- next
DELETE w FROM {holders} w FORCE INDEX (PRIMARY)
WHERE w.name = '{name}' AND w.token = '{line}'
-- next
DELETE w FROM {holders} w FORCE INDEX (PRIMARY)
WHERE w.name = '{name}' AND w.token = @dead AND w.epoch = ''
-- next
DO RELEASE_LOCK(CONCAT('dlock.w.', CONVERT('{line}' USING utf8mb4)))
-- next
SET SESSION wait_timeout = {idle}

-- ------------------------------------------------------------------- queries

-- fragment waiters
SELECT 1 AS what, CONCAT('/* ', w.holder, ' */') AS holder, 0 AS fence, NULL AS left_ms,
    '' AS usename, IS_USED_LOCK(CONCAT('dlock.w.', CONVERT(w.token USING utf8mb4))) AS pid,
    IF(w.slots < 0, '', IF(w.slots = 0, 's', CONCAT('n', w.slots))) AS kind, 0 AS slot,
    '' AS owner, w.place
FROM {holders} w FORCE INDEX (line) WHERE w.name = '{name}' AND w.epoch = '' AND
-- include alive
UNION ALL
SELECT 2, '', 0, NULL, '', 0, '', 0, '', 0 FROM {table} l FORCE INDEX (PRIMARY)
WHERE l.name = '{name}' AND l.run_state <> ''
ORDER BY what, place

-- statement status
-- Holders (0), waiters (1), and behind them a row (2) where there is a run record. Of a shared lock
-- this row stands for all holders; see table_more_status().
SELECT 0 AS what, l.holder, l.fence,
    TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), l.expires) DIV 1000 AS left_ms, '' AS usename,
    0 AS pid, IF(l.owner LIKE 'shared:%', 's', '') AS kind, 0 AS slot, l.owner, 0 AS place
FROM {table} l FORCE INDEX (PRIMARY) WHERE l.name = '{name}' AND l.expires > UTC_TIMESTAMP(6)
UNION ALL
-- include waiters

-- statement list
-- A page of locks that are held or waited for, behind the name '{after}'; {all} is 1: of all locks.
SELECT s.* FROM (
    SELECT l.name, l.expires > UTC_TIMESTAMP(6) AS held, l.holder, l.fence,
        TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), l.expires) DIV 1000 AS left_ms, l.owner,
        IF(l.owner LIKE 'shared:%', 's', '') AS kind, 0 AS slot, NULL AS holders, (
            SELECT COUNT(*) FROM {holders} w FORCE INDEX (line)
            WHERE w.name = l.name AND w.epoch = '' AND
-- include alive
        ) AS waiters
    FROM {table} l FORCE INDEX (PRIMARY) WHERE l.name > '{after}') s
WHERE s.held OR s.waiters > 0 OR {all} > 0 ORDER BY s.name LIMIT {page}

-- statement list_shared
-- The same, with the holders. Of several the first stands for all.
SELECT s.* FROM (
    SELECT l.name, l.expires > UTC_TIMESTAMP(6) AS held, COALESCE(h.holder, l.holder) AS holder,
        l.fence, TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), COALESCE(h.expires, l.expires))
            DIV 1000 AS left_ms,
        COALESCE(h.token, l.owner) AS owner,
        IF(h.slots > 0, CONCAT('n', h.slots), IF(l.owner LIKE 'shared:%', 's', '')) AS kind,
        h.place AS slot, IF(l.owner LIKE 'shared:%', (
            SELECT COUNT(*) FROM {holders} c FORCE INDEX (line) WHERE c.name = l.name
                AND c.epoch = l.owner AND c.expires > UTC_TIMESTAMP(6)), NULL) AS holders, (
            SELECT COUNT(*) FROM {holders} w FORCE INDEX (line)
            WHERE w.name = l.name AND w.epoch = '' AND
-- include alive
        ) AS waiters
    FROM {table} l FORCE INDEX (PRIMARY)
    LEFT JOIN {holders} h FORCE INDEX (PRIMARY) ON l.owner LIKE 'shared:%' AND h.name = l.name
        AND h.token = (
            SELECT c.token FROM {holders} c FORCE INDEX (line) WHERE c.name = l.name
                AND c.epoch = l.owner AND c.expires > UTC_TIMESTAMP(6)
            ORDER BY c.slots DESC, c.place, c.token LIMIT 1)
    WHERE l.name > '{after}') s
WHERE s.held OR s.waiters > 0 OR {all} > 0 ORDER BY s.name LIMIT {page}

-- statement check
-- A finding is a row: 0 ok, 1 a warning, 2 a missing right, 3 an unusable server; and the text for
-- people. In each row: our session, and the time.
SELECT CONNECTION_ID() AS pid,
    TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000 AS clock_ms, f.level, f.text
FROM (
    SELECT 1 AS nth, IF(@@global.innodb_flush_log_at_trx_commit = 1, 0, 1) AS level,
        CONCAT('innodb_flush_log_at_trx_commit: ', @@global.innodb_flush_log_at_trx_commit,
            IF(@@global.innodb_flush_log_at_trx_commit = 1, '',
                ', so a crash may lose a lock; set it to 1')) AS text
    UNION ALL
    SELECT 2, IF(@@global.read_only, 3, 0), CONCAT('read_only: ', IF(@@global.read_only,
        'on, so no lock can be taken here; name the primary', 'off'))
    UNION ALL
    SELECT 3, 1, CONCAT('table: ', n.name, ' does not exist yet, and the first run makes it; ',
        'run what dlock --schema prints')
    FROM (SELECT '{table_bare}' AS name UNION ALL SELECT '{holders_bare}') n
    WHERE NOT EXISTS (SELECT 1 FROM information_schema.tables t
        WHERE t.table_schema = '{schema_name}' AND t.table_name = n.name)
    UNION ALL
    SELECT 4, 1, CONCAT('Galera: the clock of each node decides when a lease is over, so they may ',
        'not differ; waiters poll') FROM (SELECT
-- include galera
        AS nodes) g WHERE g.nodes > 0
    ) f ORDER BY f.nth

-- statement check_end
SELECT 1 AS one FROM {table} l FORCE INDEX (PRIMARY), {holders} w FORCE INDEX (line) LIMIT 1
