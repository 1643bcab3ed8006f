-- renew.lua - extend the lease if the lock is ours. Never creates the key.
--
-- ARGV: db, prefix, value, ttl ms, of an exclusive holder every 8 hours for how long the fence
-- counter stays (ms) -> is the lock ours, seen (ours and marked: the mark's text), now ms
-- include parts/role.lua
-- include parts/lock.lua
-- include parts/clock.lua
if value == ARGV[3] then
  redis.call('PEXPIRE', name, ARGV[4])
  -- It may be on another node of a cluster.
  if ARGV[5] then redis.pcall('PEXPIRE', prefix .. 'fence', ARGV[5]) end
  -- CLIENT TRACKING tells of keys read since their last change.
  redis.call('GET', name)
  return {1, false, now}
end
-- include parts/holders.lua
if marked_ours() then
  redis.call('PEXPIRE', name, ARGV[4])
  redis.call('GET', name)
  return {1, mark_of(value), now}
end
if kind_of(ARGV[3]) == 'x' then return {0, shown(), now} end
local stands = extend(ARGV[3], tonumber(ARGV[4]))
if stands then return {1, mark_of(stands), now} end
-- Other readers take nothing from a reader.
return {0, not epoch and seen, now}
