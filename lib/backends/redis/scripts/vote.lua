-- vote.lua - the vote of one server of several: as try.lua, but the first client that finds the lock free gets it. No
-- client is kept waiting for the head of the queue: each server has its own queue, and all of them would have to agree.
-- ARGV and answer: parts/look.lua.
-- include parts/role.lua
-- include parts/lock.lua

-- A server is asked once for each value, so this one was asked under two names.
if value == ARGV[3] then return {'twice', '0', 0, 0, ''} end
-- include parts/look.lua
grant = not value and status == 'busy'

-- A waiter here may have got its lock from other servers, which have forgotten it since. The queue expires five ttl
-- after the last word of a waiter, and a waiter that is alive has spoken within one: so this is its ttl, or up to a
-- quarter more, in one step however many wait.
if grace > 0 and redis.call('ZCARD', queue) > (redis.call('ZSCORE', queue, id) and 1 or 0) then
  longest = math.ceil(redis.call('PTTL', queue) / 4)
end
-- include parts/grant.lua
-- include parts/stand.lua
