-- drop.lua - delete the lock if it is ours, and leave the queue as it is. For a cluster's node to which the slot is
-- being moved: the queue may still be on the old node, and its waiters have subscribed there, so from here they would
-- look dead.
--
-- ARGV: db, prefix, value -> was it ours, seen
-- include parts/lock.lua
if value == ARGV[3] then
  redis.call('DEL', name)
  return {1, seen}
end
return {0, seen}
