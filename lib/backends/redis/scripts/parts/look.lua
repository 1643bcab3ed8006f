-- look.lua - is the lock free? The first step of try.lua and vote.lua, which share their ARGV and answer:
--
-- ARGV: db, prefix, value, id ("": do not join the queue), ttl ms, restart grace ms
-- -> status, fence, left ms, place, seen, and unless the lock was not looked at (type, or its queue is elsewhere) the
-- server's clock (ms), its uptime (ms; 0: not asked), and from vote.lua the largest ttl of other waiters (ms)
--
-- No more arguments: Redis 7 ends the connection of a client that sends more than 10 words before AUTH, and "NOAUTH"
-- is the better message.
if foreign then return {'type', '0', 0, 0, foreign} end
-- include parts/near.lua
-- include parts/queue.lua
-- include parts/uptime.lua
local id, ttl, grace = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local status, left, up, longest = 'busy', 0, 0, 0

-- Ours already: an earlier try with this token was served, its answer lost.
local grant = value == ARGV[3]
if value then
  left = redis.call('PTTL', name)
elseif grace > 0 then
  up = uptime()
  if up < grace then
    status = 'grace'
    left = grace - up
  end
end

-- The head of the queue, unless the queue is on another node of a cluster.
local w
local all, e = near(function() w = head(id) end)
if not all then
  if id == '' and value and not grant then return {'busy', '0', left, 0, seen} end
  return redis.error_reply(e)
end
local first = w
