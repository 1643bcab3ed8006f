-- young.lua - was this server started less than grace ms ago, so that it does not vote? What it has
-- forgotten, it has given to no client since. Where the user may not ask, it counts as old.
-- include parts/uptime.lua
local function young(grace)
  if grace == 0 then return false end
  local ok, up = pcall(uptime)
  return ok and up < grace
end
