-- uptime.lua - for how many ms this server has certainly been up: INFO tells whole seconds. They
-- are a difference of times of day: negative where the clock was set back since the start, and then
-- the server is as young as can be.
local function uptime()
  return string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(-?%d+)') * 1000 - 1000
end
