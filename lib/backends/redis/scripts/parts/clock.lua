-- clock.lua - the server's clock: time (seconds, microseconds), now (ms). A TIME before a write
-- needs effect replication, the default since Redis 5.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
