-- end_vote.lua - in leave.lua for Redlock: the run record, and the hold that stays.
if more[3] then
  -- include parts/put.lua
end
-- include parts/stay.lua
local lease = more[2] ~= '0' and stay(tonumber(more[2]))
if lease then
  near(function() watch(lease) end)
  return {1, seen, now}
end
