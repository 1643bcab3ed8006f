-- table_runs.sql - the run records of --once, in the lock's row. See table/runs.c; places as in
-- table.sql.
--
-- '{host}', '{user}', '{command}', '{note}', {client_pid}: our identity. {once}: --once, in ms: how
-- long a success counts, and how long our record is kept. {begins}: 1, or 0 before the run begins.

-- fragment run_record
l.run_state AS state, l.run_status AS status, l.run_fence, l.run_owner AS owner,
l.run_host AS host, l.run_pid, l.run_user AS username, l.run_command AS command,
l.run_note AS note,
TIMESTAMPDIFF(MICROSECOND, '1970-01-01', l.run_began) DIV 1000 AS run_began_ms,
IF(l.run_state = 'running', NULL,
    TIMESTAMPDIFF(MICROSECOND, '1970-01-01', l.run_ended) DIV 1000) AS run_ended_ms,
TIMESTAMPDIFF(MICROSECOND, IF(l.run_state = 'running', l.run_began, l.run_ended),
    UTC_TIMESTAMP(6)) DIV 1000 AS age_ms,
TIMESTAMPDIFF(MICROSECOND, IF(l.run_state = 'running', l.run_began, l.run_ended), l.run_until)
    DIV 1000 AS kept_ms

-- statement begin
-- Behind a try, or a renewal. outcome: 0 we run, 1 we run, since the success lies in the future
-- (run_record.h), 2 done, 3 not written by a dlock. No row: the try was refused for another reason.
-- The try was refused as well where the work is done; then we leave the line.
SELECT COUNT(*) INTO @done FROM {table} l FORCE INDEX (PRIMARY)
WHERE l.name = '{name}' AND l.owner <> '{token}' AND
-- include free_for_us
    AND
-- include done_run
-- next
SELECT CONNECTION_ID() AS pid, '{token}' AS token, l.fence,
    CASE WHEN l.run_state <> '' AND NOT
-- include valid_run
        THEN 3
        WHEN l.owner NOT IN ('{token}', CONCAT('break:', '{token}')) THEN 2
        WHEN l.run_state = 'succeeded' AND l.run_ended > UTC_TIMESTAMP(6) THEN 1
        ELSE 0 END AS outcome,
    TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000 AS began_ms,
-- include run_record
FROM {table} l FORCE INDEX (PRIMARY) WHERE l.name = '{name}' AND (
    (l.owner IN ('{token}', CONCAT('break:', '{token}')) AND l.expires > UTC_TIMESTAMP(6))
    OR (
-- include free_for_us
        AND l.run_state <> '' AND (NOT
-- include valid_run
            OR
-- include done_run
    )))
-- next
UPDATE {table} l FORCE INDEX (PRIMARY) SET l.version = l.version + 1, l.run_state = 'running',
    l.run_status = NULL, l.run_fence = l.fence, l.run_owner = '{token}', l.run_host = '{host}',
    l.run_pid = {client_pid}, l.run_user = '{user}', l.run_command = '{command}',
    l.run_note = '{note}', l.run_began = UTC_TIMESTAMP(6), l.run_ended = '1970-01-01',
    l.run_until = UTC_TIMESTAMP(6) + INTERVAL {once} * 1000 MICROSECOND
WHERE l.name = '{name}' AND l.owner IN ('{token}', CONCAT('break:', '{token}'))
    AND l.expires > UTC_TIMESTAMP(6) AND {begins} = 1
-- next
DELETE w FROM {holders} w FORCE INDEX (PRIMARY)
WHERE w.name = '{name}' AND w.token = '{line}' AND w.epoch = '' AND @done

-- statement end
-- '{state}', {status} (-1: unknown): the end of the run. {began}: its begin, in ms. A record that a
-- person has removed is made anew; the record of another run stays.
UPDATE {table} l FORCE INDEX (PRIMARY) SET
    l.run_status = IF(l.run_owner = '{token}' OR l.run_state = '',
        IF({status} < 0, NULL, {status}), l.run_status),
    l.run_fence = IF(l.run_owner = '{token}' OR l.run_state = '', l.fence, l.run_fence),
    l.run_host = IF(l.run_owner = '{token}' OR l.run_state = '', '{host}', l.run_host),
    l.run_pid = IF(l.run_owner = '{token}' OR l.run_state = '', {client_pid}, l.run_pid),
    l.run_user = IF(l.run_owner = '{token}' OR l.run_state = '', '{user}', l.run_user),
    l.run_command = IF(l.run_owner = '{token}' OR l.run_state = '', '{command}', l.run_command),
    l.run_note = IF(l.run_owner = '{token}' OR l.run_state = '', '{note}', l.run_note),
    l.run_began = IF(l.run_owner = '{token}' OR l.run_state = '',
        '1970-01-01' + INTERVAL {began} * 1000 MICROSECOND, l.run_began),
    l.run_ended = IF(l.run_owner = '{token}' OR l.run_state = '', UTC_TIMESTAMP(6), l.run_ended),
    l.run_until = IF(l.run_owner = '{token}' OR l.run_state = '',
        UTC_TIMESTAMP(6) + INTERVAL {once} * 1000 MICROSECOND, l.run_until),
    l.run_owner = IF(l.run_state = '', '{token}', l.run_owner),
    l.run_state = IF(l.run_owner = '{token}', '{state}', l.run_state),
-- include give_back
-- next
SELECT {changed} INTO @mine
-- next
SELECT @mine AS released, l.holder, '{token}' AS token, 0 AS called, @mine AND (
        SELECT COUNT(*) FROM {table} r FORCE INDEX (PRIMARY) WHERE r.name = '{name}'
            AND r.run_owner = '{token}' AND r.run_state = '{state}') AS written, (
        SELECT COUNT(*) FROM {table} r FORCE INDEX (PRIMARY) WHERE r.name = '{name}'
            AND r.run_owner = '{token}' AND r.run_state <> 'running') AS ended,
-- include wake
-- include after_us

-- statement sweep
-- Expired records, and the rows of their locks, since no run may ever come again under a name with
-- a date.
SELECT MIN(s.name), MAX(s.name) INTO @least, @most FROM (
    SELECT l.name FROM {table} l FORCE INDEX (PRIMARY) WHERE l.run_state <> '' AND
-- include unused
    LIMIT 20) s
-- next
DELETE l FROM {table} l FORCE INDEX (PRIMARY) WHERE l.name BETWEEN @least AND @most
    AND l.run_state <> '' AND
-- include unused
-- next
-- include swept_clients

-- statement status
SELECT
-- include valid_run
    AS valid,
-- include run_record
FROM {table} l FORCE INDEX (PRIMARY) WHERE l.name = '{name}' AND l.run_state <> ''

-- statement forget
-- '{token}': of the record. A run that has begun since the look at its hold stays.
UPDATE {table} l FORCE INDEX (PRIMARY) SET l.version = l.version + 1, l.run_state = ''
WHERE l.name = '{name}' AND l.run_owner = '{token}' AND l.run_state <> ''
    AND NOT (l.run_state = 'running' AND l.expires > UTC_TIMESTAMP(6)
        AND l.owner IN ('{token}', CONCAT('break:', '{token}')))
-- next
SELECT {changed} AS forgotten
