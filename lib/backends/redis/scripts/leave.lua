-- leave.lua - delete the lock if it is ours, leave the queue, call the next waiter.
--
-- ARGV: db, prefix, value, id, restart grace ms -> was it ours (2: no, but the server was restarted within the grace
-- and has forgotten it), seen, now ms
-- include parts/lock.lua
-- include parts/near.lua
-- include parts/young.lua
-- include parts/queue.lua
local id, mine = ARGV[4], value == ARGV[3]
if mine then redis.call('DEL', name) end

-- Where the queue is on another node, its waiters retry by themselves.
near(function()
  local first = false
  if id ~= '' then
    first = redis.call('ZRANGE', queue, 0, 0)[1] == id
    drop(id)
  end
  if mine or (not value and first) then
    offer('', true)
  elseif first then
    watch('')
  end
end)
return {mine and 1 or (not seen and young(tonumber(ARGV[5])) and 2) or 0, seen, now}
