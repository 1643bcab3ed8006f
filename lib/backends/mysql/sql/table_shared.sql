-- table_shared.sql - shared locks and slots in the lease table. See table/shared.c; places as in
-- table.sql.
--
-- A row of {holders} is a holder (epoch is the lock's owner; slots is 0 for a reader, or N; place
-- is the slot), a waiter (epoch is empty; place is the ticket; slots is -1 for a writer), or
-- nothing (epoch is "-"). Each change of the holders is a compare-and-set on the version of the
-- lock's row.

-- statement look
-- {slots}: N, 0: shared. '{orphan}': an orphaned token. state: 0 free, 1 exclusive, 2 shared;
-- free_ms: since the lock became free; barred_ms: a writer before us waits for the readers to
-- leave; other: a different number of slots that is held, or waited for.
-- include look_ahead
-- include alive
-- next
SELECT COALESCE(SUM(w.slots < 0), 0), COALESCE(SUM(w.slots > 0), 0),
    MAX(IF(w.slots > 0 AND w.slots <> {slots}, w.slots, NULL))
INTO @writers, @slots, @other
FROM {holders} w FORCE INDEX (line)
WHERE w.name = '{name}' AND w.epoch = '' AND w.place < {before} AND w.token <> '{line}' AND
-- include alive
-- next
SELECT l.version INTO @seen FROM {table} l FORCE INDEX (PRIMARY) WHERE l.name = '{name}'
-- next
SELECT IF(@rw, NULL, 'read-only') AS finding, CONNECTION_ID() AS pid, '{token}' AS token,
    {grace_left} AS grace_ms,
    IF(l.expires <= UTC_TIMESTAMP(6), 0, IF(l.owner LIKE 'shared:%', 2, 1)) AS state, l.owner,
    l.holder, l.fence,
    IF(l.expires > UTC_TIMESTAMP(6),
        TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), l.expires) DIV 1000 + 1, NULL) AS left_ms,
    IF(l.expires > UTC_TIMESTAMP(6), 0, LEAST(3600000000,
        TIMESTAMPDIFF(MICROSECOND, GREATEST(l.freed, l.expires), UTC_TIMESTAMP(6))) DIV 1000)
        AS free_ms,
    0 AS young, (
        SELECT COUNT(*) FROM {holders} c FORCE INDEX (PRIMARY) WHERE c.name = l.name
            AND c.token = '{orphan}' AND c.epoch = l.owner AND c.expires > UTC_TIMESTAMP(6))
        AS orphan,
    IF({ticket} > 0, {ticket}, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))
        AS ticket,
    IF(@writers > 0 AND l.expires > UTC_TIMESTAMP(6), 2800, 0) AS barred_ms, (
        SELECT COUNT(*) FROM {holders} c FORCE INDEX (line) WHERE c.name = l.name
            AND c.epoch = l.owner AND c.slots > 0 AND c.expires > UTC_TIMESTAMP(6)
            AND l.expires > UTC_TIMESTAMP(6)) AS used,
    COALESCE((
        SELECT MAX(c.slots) FROM {holders} c FORCE INDEX (line) WHERE c.name = l.name
            AND c.epoch = l.owner AND c.slots > 0 AND c.slots <> {slots}
            AND c.expires > UTC_TIMESTAMP(6) AND l.expires > UTC_TIMESTAMP(6)), @other) AS other, (
        SELECT TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), MIN(c.expires)) DIV 1000 + 1
        FROM {holders} c FORCE INDEX (line) WHERE c.name = l.name AND c.epoch = l.owner
            AND c.slots > 0 AND c.expires > UTC_TIMESTAMP(6)) AS slot_left_ms,
    LEAST(3600000000, TIMESTAMPDIFF(MICROSECOND, GREATEST(l.freed, COALESCE((
        SELECT MAX(c.expires) FROM {holders} c FORCE INDEX (line) WHERE c.name = l.name
            AND c.epoch = l.owner AND c.slots > 0 AND c.expires <= UTC_TIMESTAMP(6)), l.freed)),
        UTC_TIMESTAMP(6))) DIV 1000 AS slot_free_ms,
    l.version, @ahead AS ahead, @writers AS writers, @slots AS slots, '' AS other_kind
FROM {table} l FORCE INDEX (PRIMARY) WHERE l.name = '{name}'

-- statement grant
-- {slots}: N, 0: shared. Our row says nothing yet; then it and the lock's row change together, if
-- nobody has changed the lock since look. A session that has not looked has no @seen, and gets
-- nothing. No fence: another client was faster.
SELECT IF({slots} = 0, 0, MIN(p.place)) INTO @place FROM (
    SELECT 1 AS place
    UNION ALL
    SELECT c.place + 1 FROM {holders} c FORCE INDEX (line)
    JOIN {table} l FORCE INDEX (PRIMARY) ON l.name = c.name
    WHERE c.name = '{name}' AND c.epoch = l.owner AND c.slots > 0
        AND c.expires > UTC_TIMESTAMP(6) AND l.expires > UTC_TIMESTAMP(6)) p
WHERE NOT EXISTS (
    SELECT 1 FROM {holders} h FORCE INDEX (line)
    JOIN {table} l FORCE INDEX (PRIMARY) ON l.name = h.name
    WHERE h.name = '{name}' AND h.epoch = l.owner AND h.slots > 0 AND h.place = p.place
        AND h.expires > UTC_TIMESTAMP(6) AND l.expires > UTC_TIMESTAMP(6))
-- next
SELECT IF(l.expires > UTC_TIMESTAMP(6), l.owner, CONCAT('shared:',
    LPAD(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), 16, '0'), ':', '{token}'))
INTO @epoch
FROM {table} l FORCE INDEX (PRIMARY) WHERE l.name = '{name}'
-- next
SELECT COUNT(*) INTO @there FROM {holders} x FORCE INDEX (PRIMARY)
WHERE x.name = '{name}' AND x.token = '{token}'
-- next
INSERT INTO {holders} (name, token, epoch, slots, place, expires, holder)
SELECT '{name}', '{token}', '-', {slots}, @place, UTC_TIMESTAMP(6), '{holder}' FROM (SELECT 1) o
WHERE @there = 0
ON DUPLICATE KEY UPDATE place = {holders}.place
-- next
UPDATE {table} l FORCE INDEX (PRIMARY) JOIN {holders} h FORCE INDEX (PRIMARY) SET
    l.version = l.version + 1, l.owner = @epoch,
    l.expires = GREATEST(l.expires, UTC_TIMESTAMP(6) + INTERVAL {ttl} * 1000 MICROSECOND),
    l.holder = CONCAT('{holder}', IF({slots} > 0,
        CONCAT(' slots=', {slots}, ' slot=', @place), '')),
    h.epoch = @epoch, h.place = @place, h.holder = '{holder}',
    h.expires = UTC_TIMESTAMP(6) + INTERVAL {ttl} * 1000 MICROSECOND
WHERE l.name = '{name}' AND l.version = @seen AND @rw AND {grace_left} <= 0
    AND h.name = '{name}' AND h.token = '{token}' AND h.epoch = '-'
-- next
-- Not {changed}: the UPDATE may have been interrupted behind its commit, and its repeat changes
-- nothing. Only that UPDATE gives our row the lock's epoch.
SELECT IF(h.epoch = l.owner AND h.expires > UTC_TIMESTAMP(6), l.fence, NULL) AS fence,
    h.place AS slot, h.epoch, CONNECTION_ID() AS pid, '{token}' AS token, IF(h.epoch = l.owner,
-- include hold
    , 0) AS hold
FROM (SELECT 1) x LEFT JOIN {table} l FORCE INDEX (PRIMARY) ON l.name = '{name}'
LEFT JOIN {holders} h FORCE INDEX (PRIMARY) ON h.name = '{name}' AND h.token = '{token}'

-- statement renew
-- Both the lock's row and our own must still be ours. A mark (see mark) is in front of our token.
UPDATE {table} l FORCE INDEX (PRIMARY) JOIN {holders} h FORCE INDEX (PRIMARY) SET
    l.version = l.version + 1,
    l.expires = GREATEST(l.expires, UTC_TIMESTAMP(6) + INTERVAL {ttl} * 1000 MICROSECOND),
    h.expires = UTC_TIMESTAMP(6) + INTERVAL {ttl} * 1000 MICROSECOND
WHERE l.name = '{name}' AND l.owner = '{epoch}' AND l.expires > UTC_TIMESTAMP(6)
    AND h.name = '{name}' AND h.token IN ('{token}', CONCAT('break:', '{token}'))
    AND h.epoch = '{epoch}' AND h.expires > UTC_TIMESTAMP(6)
-- next
SELECT {changed} > 1 AS renewed, COALESCE((
    SELECT h.holder FROM {holders} h FORCE INDEX (PRIMARY) WHERE h.name = '{name}'
        AND h.token = CONCAT('break:', '{token}') AND h.expires > UTC_TIMESTAMP(6)), l.holder)
    AS holder, '{token}' AS token, IF({changed} > 1,
-- include hold
    , 0) AS hold
FROM (SELECT 1) x LEFT JOIN {table} l FORCE INDEX (PRIMARY)
    ON l.name = '{name}' AND l.owner <> '{epoch}' AND l.expires > UTC_TIMESTAMP(6)

-- fragment row_freed
-- The lock's row says what the holders that are left say. @again: another client was faster.
SELECT MAX(l.version), COUNT(h.token), MAX(h.expires) INTO @version, @left, @until
FROM {table} l FORCE INDEX (PRIMARY)
LEFT JOIN {holders} h FORCE INDEX (line)
    ON h.name = l.name AND h.epoch = l.owner AND h.expires > UTC_TIMESTAMP(6)
WHERE l.name = '{name}' AND l.owner LIKE 'shared:%'
-- next
UPDATE {table} l FORCE INDEX (PRIMARY) SET l.version = l.version + 1,
    l.owner = IF(@left, l.owner, ''), l.expires = IF(@left, @until, '1970-01-01'),
    l.freed = IF(@left, l.freed, UTC_TIMESTAMP(6))
WHERE l.name = '{name}' AND l.version = @version AND l.owner LIKE 'shared:%'
-- next
SELECT @version IS NOT NULL AND {changed} = 0 INTO @again

-- fragment given_back
-- released: 0 not ours; 1; 2 again, since our row is free and the lock's row is not.
SELECT IF(@mine OR EXISTS (
        SELECT 1 FROM {holders} h FORCE INDEX (PRIMARY) WHERE h.name = '{name}'
            AND h.token = '{token}' AND h.epoch = '-'), IF(@again, 2, 1), 0) AS released, l.holder,
    '{token}' AS token, 0 AS called,
-- include wake
FROM (SELECT 1) x LEFT JOIN {table} l FORCE INDEX (PRIMARY)
    ON l.name = '{name}' AND l.owner NOT LIKE 'shared:%' AND l.expires > UTC_TIMESTAMP(6)
-- next
DELETE h FROM {holders} h FORCE INDEX (PRIMARY)
WHERE h.name = '{name}' AND h.token = '{token}' AND h.epoch = '-' AND NOT @again

-- statement release
-- include leave_line
-- next
UPDATE {table} l FORCE INDEX (PRIMARY) JOIN {holders} h FORCE INDEX (PRIMARY) SET
    l.version = l.version + 1, l.freed = IF(h.slots > 0, UTC_TIMESTAMP(6), l.freed),
    h.epoch = '-', h.expires = UTC_TIMESTAMP(6), h.token = '{token}'
WHERE l.name = '{name}' AND h.name = '{name}'
    AND h.token IN ('{token}', CONCAT('break:', '{token}')) AND h.epoch = l.owner
    AND h.expires > UTC_TIMESTAMP(6)
-- next
SELECT {changed} > 0 INTO @mine
-- next
-- include row_freed
-- next
-- include given_back

-- statement stay
-- --min-hold: our row stays for {stays}, under a new token, like the row of a crashed holder. A
-- marked hold (see mark) ends at once.
UPDATE {table} l FORCE INDEX (PRIMARY) JOIN {holders} h FORCE INDEX (PRIMARY) SET
    l.version = l.version + 1, h.expires = LEAST(h.expires, UTC_TIMESTAMP(6)
        + INTERVAL IF(h.token = '{token}', {stays}, 0) * 1000 MICROSECOND)
WHERE l.name = '{name}' AND h.name = '{name}'
    AND h.token IN ('{token}', CONCAT('break:', '{token}')) AND h.epoch = l.owner
    AND h.expires > UTC_TIMESTAMP(6)
-- next
SELECT {changed} > 0 INTO @mine
-- next
UPDATE {holders} h FORCE INDEX (PRIMARY) SET h.token = CONCAT('over:', h.token)
WHERE h.name = '{name}' AND h.token IN ('{token}', CONCAT('break:', '{token}')) AND @mine
-- next
-- include row_freed
-- next
-- include given_back

-- statement mark
-- Break the hold '{token}' of a reader or a slot; as mark in table.sql.
UPDATE {holders} h FORCE INDEX (PRIMARY) JOIN {table} l FORCE INDEX (PRIMARY) SET
    h.holder = CONCAT(h.holder, ' broken=',
        TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000, ' by=',
        REPLACE(REPLACE('{breaker}', '%', '%25'), ' ', '%20')),
    h.token = CONCAT('break:', h.token)
WHERE h.name = '{name}' AND h.token = '{token}' AND h.expires > UTC_TIMESTAMP(6)
    AND l.name = h.name AND l.owner = h.epoch AND l.expires > UTC_TIMESTAMP(6)
-- next
SELECT COUNT(*) AS marked FROM {holders} h FORCE INDEX (PRIMARY)
JOIN {table} l FORCE INDEX (PRIMARY) ON l.name = h.name AND l.owner = h.epoch
WHERE h.name = '{name}' AND h.token = CONCAT('break:', '{token}')
    AND h.expires > UTC_TIMESTAMP(6) AND l.expires > UTC_TIMESTAMP(6)

-- statement sweep
-- A row that says nothing is that of a holder between two statements of its release, or was left by
-- a client that lost a race.
DELETE h FROM {holders} h FORCE INDEX (PRIMARY)
WHERE h.name = '{name}' AND h.epoch <> ''
    AND h.expires < UTC_TIMESTAMP(6) - INTERVAL IF(h.epoch = '-', 10, 10080) MINUTE

-- statement status
SELECT 0 AS what, c.holder, l.fence,
    TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), c.expires) DIV 1000 AS left_ms, '' AS usename,
    0 AS pid, IF(c.slots > 0, CONCAT('n', c.slots), 's') AS kind, c.place AS slot,
    c.token AS owner, c.place
FROM {table} l FORCE INDEX (PRIMARY) JOIN {holders} c FORCE INDEX (line)
    ON c.name = l.name AND c.epoch = l.owner
WHERE l.name = '{name}' AND l.expires > UTC_TIMESTAMP(6) AND c.expires > UTC_TIMESTAMP(6)
UNION ALL
-- The lock's row alone: an exclusive holder has come since the look at that row, or the rows of the
-- readers were removed.
SELECT 0, l.holder, l.fence,
    TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), l.expires) DIV 1000, '', 0,
    IF(l.owner LIKE 'shared:%', 's', ''), 0, l.owner, 0
FROM {table} l FORCE INDEX (PRIMARY)
WHERE l.name = '{name}' AND l.expires > UTC_TIMESTAMP(6) AND NOT EXISTS (
    SELECT 1 FROM {holders} c FORCE INDEX (line)
    WHERE c.name = l.name AND c.epoch = l.owner AND c.expires > UTC_TIMESTAMP(6))
UNION ALL
-- include waiters
