-- renew.lua - extend the lease if the lock is ours. Never creates the key.
--
-- ARGV: db, prefix, value, ttl ms -> is it ours, seen, now ms
-- include parts/role.lua
-- include parts/lock.lua
-- include parts/clock.lua
if value == ARGV[3] then
  redis.call('PEXPIRE', name, ARGV[4])
  return {1, false, now}
end
return {0, seen, now}
