-- forget.lua - remove a run record, if it is the record that was read.
--
-- KEYS: NAME, PREFIXonce, as for status.lua. ARGV: db, prefix, the record's token -> 'done'
-- (removed, or there is no record) or 'changed'
-- include parts/role.lua
local prefix, SHOWN = ARGV[2], 1200
if ARGV[1] ~= '0' then redis.call('SELECT', ARGV[1]) end
-- include parts/run_read.lua
local text, _, _, token = last_run()
if text ~= nil and token ~= ARGV[3] then return {'changed'} end
redis.call('DEL', once)
return {'done'}
