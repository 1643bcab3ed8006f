-- uptime.lua - for how many ms this server has certainly been up: INFO tells whole seconds, a
-- difference of times of day. Negative where the clock was set back since the start: then the
-- server counts as just started.
local function uptime()
  return string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(-?%d+)') * 1000 - 1000
end
