-- lock.lua - the lock: the name, the prefix of the other keys, and the value.
--
-- KEYS: NAME. ARGV: the database, the prefix, then the script's own arguments. The other keys share
-- NAME's slot, but are not in KEYS: Redis 7.0 tracks all of an EVAL's KEYS for CLIENT TRACKING, and
-- the head of the queue wants to hear of NAME alone.
--
-- The database is selected here: the EVAL is the only command sent, and a SELECT that failed in
-- front of it would leave it to run in database 0 [redis 7.0.15: SELECT in a script holds for the
-- script only].
--
-- Constant arguments are strings: to print a number takes the server two thirds of a short command.
local name, prefix = KEYS[1], ARGV[2]
if ARGV[1] ~= '0' then redis.call('SELECT', ARGV[1]) end

-- value: false if NAME does not exist; the type of NAME if no string, so GET is a pcall.
local value, foreign = redis.pcall('GET', name)
if type(value) == 'table' then
  foreign = redis.call('TYPE', name).ok
  if foreign == 'string' or foreign == 'none' then return value end
  value = foreign
end

-- For the client's messages, and cut: the value of another program may be huge.
local SHOWN = 1200
local seen = value
if value and #value > SHOWN then seen = string.sub(value, 1, SHOWN) end
