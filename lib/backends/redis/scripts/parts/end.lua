-- end.lua - in leave.lua, for clients with --once or --min-hold: the record, and the hold that stays. The first waiter is
-- told to watch the expiry.
-- include parts/finish.lua
-- include parts/stay.lua
local done = more[3] and finish(function() end)
if done then return done end
local lease = more[2] ~= '0' and stay(tonumber(more[2]))
if lease then
  near(function() watch(lease) end)
  return {1, seen, now}
end
