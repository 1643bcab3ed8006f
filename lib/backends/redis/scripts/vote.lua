-- vote.lua - the vote of one server of several: as try.lua, but the first client that finds the lock free gets it. No
-- client is kept waiting for the head of the queue: each server has its own queue, and all of them would have to agree.
-- ARGV and answer: parts/look.lua.
-- include parts/lock.lua

-- A server is asked once for each value, so this one was asked under two names.
if value == ARGV[3] then return {'twice', '0', 0, 0, ''} end
-- include parts/look.lua
grant = not value and status == 'busy'
-- include parts/grant.lua
-- include parts/stand.lua
