-- drop.lua - end our hold, and leave the queue alone. For a cluster's node
-- to which the slot is being moved: queue and waiters may still be at the old node.
--
-- ARGV: db, prefix, value, the end of the hold (parts/finish.lua) -> as leave.lua, without the time
-- include parts/lock.lua
-- include parts/clock.lua
-- include parts/holders.lua
-- include parts/stay.lua
-- include parts/finish.lua
marked_ours()
local done = finish(ARGV[4], true)
if done then return done end
if least ~= '0' and stay(tonumber(least)) then return {1, seen} end
if value == ARGV[3] then
  redis.call('DEL', name)
  unmark(value)
  return {1, seen}
end
if kind_of(ARGV[3]) ~= 'x' and give_up(ARGV[3]) then return {1, seen} end
return {0, shown()}
