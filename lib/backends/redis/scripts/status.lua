-- status.lua - the holder and the waiters. Writes nothing.
--
-- ARGV: db, prefix -> held, seen, now ms, left ms, fence, a waiter's id and entry...
-- include parts/role.lua
-- include parts/lock.lua
-- include parts/near.lua
-- include parts/clock.lua
local out = {value and 1 or 0, seen or '', now, redis.call('PTTL', name), '0'}
near(function() out[5] = redis.call('GET', prefix .. 'fence') or '0' end)
near(function()
  for _, w in ipairs(redis.call('ZRANGE', prefix .. 'queue', 0, 999)) do -- REDIS_SCRIPT_MAX_WAITERS in script.h
    out[#out + 1] = w .. ' ' .. string.sub(redis.call('HGET', prefix .. 'waiters', w) or '', 1, SHOWN)
  end
end)
return out
