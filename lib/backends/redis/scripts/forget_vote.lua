-- forget_vote.lua - remove the run record from a Redlock server: the record of this run, an older
-- record, which would count again, or 'running' without a holder. ARGV: db, prefix, token, fence ->
-- 'done', 'changed' (the record of a newer run, or the run goes on) or 'record' (foreign data)
-- include parts/role.lua
-- include parts/lock.lua
-- include parts/run_read.lua
local text, state, fence, token = last_run()
if text == false then return {'record'} end
local newer = text and token ~= ARGV[3] and tonumber(fence) >= tonumber(ARGV[4])
local goes_on = state == 'running' and value and string.sub(value, 1, #token) == token
if goes_on or (newer and state ~= 'running') then return {'changed'} end
redis.call('DEL', once)
return {'done'}
