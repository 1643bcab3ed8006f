-- forget.lua - remove a run record. KEYS: PREFIXonce, so that a cluster's node with this key
-- answers. ARGV: db, the lock's name, the record's token -> 'done' (removed, or no record), 'busy'
-- (the run goes on), 'changed' (a newer run's record), or 'record' and the type of foreign data
-- include parts/role.lua
local name, prefix = ARGV[2], string.match(KEYS[1], '^(.*)once$')
if ARGV[1] ~= '0' then redis.call('SELECT', ARGV[1]) end
local SHOWN = 1200
-- include parts/run_read.lua
local text, state, _, token = last_run()
if text == nil then return {'done'} end
if text == false then return {'record', state} end
if token ~= ARGV[3] then return {'changed'} end
if state == 'running' then
  local value = redis.pcall('GET', name)
  if type(value) == 'table' then return redis.error_reply(value.err) end
  if value and string.sub(value, 1, #token) == token then return {'busy'} end
end
redis.call('DEL', once)
return {'done'}
