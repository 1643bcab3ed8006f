-- young.lua - was this server started less than grace ms ago, so that it does not vote? What it has forgotten, it has
-- given to no client since. Where the user may not ask, it counts as old.
local function young(grace)
  if grace == 0 then return false end
  local ok, up = pcall(function()
    return string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(%d+)') * 1000
  end)
  return ok and up < grace + 1000
end
