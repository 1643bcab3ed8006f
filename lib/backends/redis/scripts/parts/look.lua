-- look.lua - is the lock free? The first step of try.lua and vote.lua, which share ARGV and answer:
--
-- ARGV: db, prefix, value, id ("": do not join the queue; "id@ticket": a waiter comes back after
-- its connection was cut), ttl ms, restart grace ms and the script's own words -> status, fence,
-- left ms, place (granted: the slot, counted from 1; slots: the number of slots in use), seen, and
-- unless the queue is elsewhere the server's clock (ms), its uptime (ms; 0: not asked), from
-- vote.lua the largest ttl of other waiters (ms), and the ticket of a waiter that is in the queue
-- now
--
-- The last argument is several words with blanks between them, because Redis 7 ends the connection
-- of a client that sends more than 10 arguments before AUTH, and "NOAUTH" is the better message.
if foreign then
  -- include parts/wrong.lua
  return wrong_name(foreign)
end
-- include parts/near.lua
-- include parts/queue.lua
-- include parts/uptime.lua
local id, back = string.match(ARGV[4], '^([^@]*)@?(%d*)$')
local kind, ttl = kind_of(ARGV[3]), tonumber(ARGV[5])
local grace, rest = string.match(ARGV[6], '^(%d+) ?(.*)$')
grace = tonumber(grace)
local status, left, up, longest = 'busy', 0, 0, 0
back = tonumber(back)

-- To a server that was started just now all waiters come back, each after a pause of a second at
-- most. No waiter gets the lock before, so that they are served in their order.
local GATHER = 1500

-- Ours already: the answer to an earlier try with this token was lost.
local had = kind ~= 'x' and holds(ARGV[3])
local grant = value == ARGV[3] or had
local open, expires, other = room(kind)
if other and not grant then return {'slots', '0', 0, other, shown()} end
if value then left = expires and expires - now or redis.call('PTTL', name) end
if open and not grant and grace > 0 then
  up = uptime()
  if up < grace then
    status = 'grace'
    left = grace - up
  end
elseif open and not grant and back then
  local ok, seconds = pcall(uptime)
  -- INFO counts whole seconds of the clock, and negative seconds after the clock was set back.
  left = ok and seconds >= -1000 and math.max(0, GATHER - seconds - now % 1000) or 0
  if left > 0 then status = 'grace' end
end

-- The head of the queue, unless the queue is on another node of a cluster.
local w, behind
local all, e = near(function()
  if back and id ~= '' then rejoin(id, back) end
  w, behind = head(id)
end)
if not all then
  if id == '' and not open and not grant then return {'busy', '0', left, 0, shown()} end
  return redis.error_reply(e)
end
-- The first waiter wants another number of slots: neither number may win.
while w and w ~= id and type(kind) == 'number' and not grant do
  if kind_of(w) == kind or type(kind_of(w)) ~= 'number' then break end
  if listening({w}) then return {'slots', '0', 0, kind_of(w), ''} end
  w = head(id)
end
local first = w
