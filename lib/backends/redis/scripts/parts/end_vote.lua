-- end_vote.lua - in leave.lua for Redlock: the run record, and the hold that stays.
if more[3] then
  -- A server that is out of memory refuses a script whose first write may need some, and no later one.
  if value == ARGV[3] then redis.call('PEXPIRE', name, math.max(1, redis.call('PTTL', name))) end
  -- include parts/put.lua
end
-- include parts/stay.lua
local lease = more[2] ~= '0' and stay(tonumber(more[2]))
if lease then
  near(function() watch(lease) end)
  return {1, seen, now}
end
