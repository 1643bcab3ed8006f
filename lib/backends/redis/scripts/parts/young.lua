-- young.lua - was this server started less than grace ms ago, so that it does not vote? Leases that
-- it has forgotten are over after the grace. Where the user may not ask, the server counts as old.
-- include parts/uptime.lua
local function young(grace)
  if grace == 0 then return false end
  local ok, up = pcall(uptime)
  return ok and up < grace
end
