-- forget.lua - remove a run record, if it is the record that was read.
--
-- KEYS: NAME, PREFIXonce, as for status.lua. ARGV: db, prefix, the record's token -> 'done' (removed,
-- or there is no record) or 'changed'
-- include parts/role.lua
-- include parts/lock.lua
-- include parts/run_read.lua
local text, _, _, token = last_run()
if text ~= nil and token ~= ARGV[3] then return {'changed'} end
redis.call('DEL', once)
return {'done'}
