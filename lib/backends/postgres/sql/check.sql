-- check.sql - the questions of --check. See check.c; places as in table.sql and advisory.sql.
--
-- A finding is a row: its order; 0 ok, 1 a warning, 2 a missing right, 3 an unusable server; and
-- the text for people.

-- fragment server
-- f: settings of the server. The first columns of each row: our session, and the time.
SELECT pg_backend_pid() AS pid,
    (extract(epoch FROM clock_timestamp()) * 1000.0)::bigint AS clock_ms,
    f.level, f.text
FROM (
    SELECT 1 AS nth, CASE o.on WHEN true THEN 0 ELSE 1 END AS level, concat(o.name, CASE o.on
        WHEN true THEN ': on'
        ELSE ': off, so a crash may lose what a lock needs; set it on in postgresql.conf' END)
        AS text
    FROM (
        SELECT n.name, current_setting(n.name)::bool AS on
        FROM (VALUES ('fsync'), ('full_page_writes')) n(name)) o
    UNION ALL
    SELECT 2, CASE WHEN c.used * 10 > c.most * 9 THEN 1 ELSE 0 END, concat('connections: ', c.used,
        ' of ', c.most, ' in use', CASE WHEN c.used * 10 > c.most * 9
            THEN '; raise max_connections, or a holder may not come back' END)
    FROM (
        SELECT (SELECT count(*) FROM pg_stat_get_activity(NULL) a WHERE a.usesysid IS NOT NULL
                AND a.datid IS NOT NULL) AS used,
            current_setting('max_connections')::int
                - current_setting('superuser_reserved_connections')::int AS most) c
    UNION ALL
    SELECT 3, CASE WHEN s.n > 0 AND s.names = '' THEN 1 ELSE 0 END, concat('standbys: ', s.n,
        CASE WHEN s.n > 0 AND s.names = ''
        THEN concat(', none of them synchronous, so a failover may lose a lock; ',
            'set synchronous_standby_names') END)
    FROM (
        SELECT (SELECT count(*) FROM pg_stat_replication) AS n,
            current_setting('synchronous_standby_names') AS names) s
    UNION ALL
    SELECT 4, CASE WHEN s.waits THEN 0 ELSE 1 END, concat('synchronous_commit: ', s.now,
        CASE WHEN NOT s.waits THEN concat(', so a commit waits for no standby and a failover may ',
            'lose a lock; ALTER ROLE ', quote_ident(current_user), ' SET synchronous_commit = on')
        END)
    FROM (
        -- The message has set its own: reset_val is the role's.
        SELECT g.reset_val AS now, g.reset_val NOT IN ('off', 'local') AS waits FROM pg_settings g
        WHERE g.name = 'synchronous_commit' AND current_setting('synchronous_standby_names') <> ''
        ) s

-- statement advisory
-- include server
    UNION ALL
    SELECT 5, CASE WHEN p.oid IS NULL THEN 3 ELSE 2 END, CASE WHEN p.oid IS NULL
        THEN concat('function: ', c.name, '(', c.types, ') does not exist on this server')
        ELSE concat('right: EXECUTE on ', p.oid::regprocedure,
            ' is missing; GRANT EXECUTE ON FUNCTION ', p.oid::regprocedure, ' TO ',
            quote_ident(current_user)) END
    FROM (VALUES
            ('pg_try_advisory_lock', 'bigint'), ('pg_try_advisory_lock_shared', 'bigint'),
            ('pg_advisory_lock', 'bigint'), ('pg_advisory_lock_shared', 'bigint'),
            ('pg_advisory_xact_lock', 'bigint'), ('pg_advisory_xact_lock_shared', 'bigint'),
            ('pg_try_advisory_xact_lock_shared', 'bigint'),
            ('pg_advisory_unlock', 'bigint'), ('pg_advisory_unlock_shared', 'bigint'),
            ('pg_logical_emit_message', 'boolean, text, text'), ('pg_walfile_name', 'pg_lsn'),
            ('pg_notify', 'text, text'), ('set_config', 'text, text, boolean')) c(name, types)
        -- A later release may add arguments with a default, as 17 did to pg_logical_emit_message.
        LEFT JOIN pg_proc p ON p.proname = c.name AND p.pronamespace = 'pg_catalog'::regnamespace
            AND starts_with(concat(oidvectortypes(p.proargtypes), ', '), concat(c.types, ', '))
            AND p.pronargs - p.pronargdefaults <= cardinality(string_to_array(c.types, ', '))
    WHERE p.oid IS NULL OR NOT has_function_privilege(p.oid, 'EXECUTE')
    UNION ALL
    SELECT 6, CASE WHEN w.may THEN 0 ELSE 1 END, CASE WHEN w.may THEN 'language: PL/pgSQL'
        ELSE concat('language: no PL/pgSQL, so waiters only poll; ',
            'GRANT USAGE ON LANGUAGE plpgsql TO ', quote_ident(current_user)) END
    FROM (
        SELECT coalesce((SELECT has_language_privilege(g.oid, 'USAGE') FROM pg_language g
            WHERE g.lanname = 'plpgsql'), false) AS may) w
    ORDER BY 1) f

-- statement table
-- {renewal}: the ms between two renewals. '{table_name}', '{holders_name}', '{runs_name}': quoted,
-- or empty: not needed.
-- include server
    UNION ALL
    SELECT 5, CASE WHEN t.ms > 0 AND t.ms < t.least THEN 1 ELSE 0 END, concat(t.name, ': ',
        current_setting(t.name), CASE WHEN t.ms > 0 AND t.ms < t.least
            THEN concat(t.harm, '; ALTER ROLE ', quote_ident(current_user), ' SET ', t.name, ' = 0')
            END)
    FROM (
        SELECT n.name, n.least, n.harm, (
            SELECT g.setting::bigint FROM pg_settings g WHERE g.name = n.name) AS ms
        FROM (VALUES ('statement_timeout', 1000, ' may end a renewal'),
            ('lock_timeout', 1000, ' may end a renewal'),
            ('transaction_timeout', 1000, ' may end a renewal'),
            ('idle_session_timeout', {renewal} + 1000, ' ends the session between two renewals'))
            n(name, least, harm)) t
    WHERE t.ms IS NOT NULL
    UNION ALL
    SELECT 6, 2, concat('right: ', p.name, ' on ', t.name, ' is missing; GRANT ', p.name, ' ON ',
        t.name, ' TO ', quote_ident(current_user))
    FROM (VALUES ('{table_name}'::text), ('{holders_name}'::text), ('{runs_name}'::text)) t(name)
        CROSS JOIN (VALUES ('SELECT'), ('INSERT'), ('UPDATE'), ('DELETE')) p(name)
    WHERE NOT has_table_privilege(to_regclass(nullif(t.name, ''))::oid, p.name)
    UNION ALL
    SELECT 7, CASE WHEN m.may THEN 1 ELSE 2 END, concat('table: ', m.name, ' does not exist',
        CASE WHEN m.may THEN ' yet, and the first run makes it' END,
        '; run what dlock --schema prints')
    FROM (
        SELECT t.name, has_schema_privilege((parse_ident(t.name))[1], 'CREATE') AS may
        FROM (
            VALUES ('{table_name}'::text), ('{holders_name}'::text), ('{runs_name}'::text)) t(name)
        WHERE t.name <> '' AND to_regclass(nullif(t.name, '')) IS NULL) m
    ORDER BY 1) f

-- statement end
SELECT 1
