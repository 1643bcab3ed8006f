-- leave.lua - end the hold if the lock is ours, leave the queue, call the next waiter.
--
-- ARGV: db, prefix, value, id, restart grace ms -> was it ours (2: no, but the server was restarted within the grace
-- and has forgotten it), seen, now ms
-- include parts/lock.lua
-- include parts/near.lua
-- include parts/young.lua
-- include parts/queue.lua
local id, mine = ARGV[4], value == ARGV[3]
-- include parts/plain.lua
if mine then
  redis.call('DEL', name)
  value = false
elseif kind_of(ARGV[3]) ~= 'x' then
  mine = give_up(ARGV[3])
end

-- Where the queue is on another node, its waiters retry by themselves.
near(function()
  local first = false
  if id ~= '' then
    first = redis.call('ZRANGE', queue, 0, 0)[1] == id
    drop(id)
  end
  if not value and (mine or first) then
    offer('', true)
  elseif epoch and (mine or first) then
    advance(first)
  elseif first then
    watch('')
  end
end)
if mine then return {1, seen, now} end
if kind_of(ARGV[3]) ~= 'x' then seen = not epoch and seen -- other shared holders have not taken it
else seen = shown() end
return {not seen and young(tonumber(ARGV[5])) and 2 or 0, seen, now}
