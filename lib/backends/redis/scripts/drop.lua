-- drop.lua - end the hold if the lock is ours, and leave the queue as it is. For a cluster's node to which the slot is
-- being moved: the queue may still be on the old node, and its waiters have subscribed there, so from here they would
-- look dead.
--
-- ARGV: db, prefix, value -> was it ours, seen
-- include parts/lock.lua
-- include parts/holders.lua
-- include parts/plain.lua
if value == ARGV[3] then
  redis.call('DEL', name)
  return {1, seen}
end
if kind_of(ARGV[3]) ~= 'x' and give_up(ARGV[3]) then return {1, seen} end
return {0, shown()}
