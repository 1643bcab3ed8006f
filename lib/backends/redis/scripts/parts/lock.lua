-- lock.lua - the lock: its name, the prefix of its other keys, and its value.
--
-- KEYS: NAME. ARGV: the database, the prefix, then what the script itself needs. Only NAME is in
-- KEYS: Redis 7.0 tracks all of an EVAL's KEYS for CLIENT TRACKING, and the head of the queue wants
-- to hear of NAME alone. The other keys share its slot.
--
-- The database is selected here: a SELECT that failed in front of the EVAL could not keep it from
-- running in database 0, and the EVAL is the only command sent [redis 7.0.15: SELECT in a script
-- holds for the script only].
local name, prefix = KEYS[1], ARGV[2]
if ARGV[1] ~= '0' then redis.call('SELECT', ARGV[1]) end

-- value: false if there is none. foreign: the name of NAME's type where it is no string; pcall, so
-- that we can tell.
local value, foreign = redis.pcall('GET', name)
if type(value) == 'table' then
  foreign = redis.call('TYPE', name).ok
  if foreign == 'string' or foreign == 'none' then return value end
end

-- What the client is shown of it: the value of another program may be huge.
local SHOWN = 1200
local seen = foreign or (value and string.sub(value, 1, SHOWN))
