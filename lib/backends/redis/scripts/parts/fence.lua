-- fence.lua - the fencing tokens: whole numbers, kept in PREFIXfence. The limit, 2^52 us, is the
-- year 2112 for a clock; from 2^53 on Lua does not count, and all holders would get one token.

-- The last token; false: none. nil, and the answer: the counter is foreign.
local function last_fence()
  local text = redis.call('GET', prefix .. 'fence')
  if not text then return false end
  local last = string.find(text, '^%d+$') and tonumber(text)
  if last and last < 2^52 then return last end
  -- include parts/wrong.lua
  return nil, wrong_key(prefix .. 'fence', 'holds ' .. string.sub(text, 1, 32)
    .. ', no fencing token: find out who wrote it, then delete it')
end

-- The token of a grant, as text: tostring(1.79e15) would lose digits. The clock keeps the tokens
-- growing if the counter is lost. Shared holders and slots (step 0) get the last exclusive holder's
-- token; the next exclusive token (step 1) is greater. nil, and the answer, as above.
local function next_fence(step)
  local last, refused = last_fence()
  if refused then return nil, refused end
  local clock = time[1] * 1000000 + time[2]
  local fence = step == 0 and last or math.max((last or 0) + step, clock)
  return string.format('%.0f', fence)
end

local function keep_fence(fence, ttl)
  local kept_ms = ttl > 8640000 and string.format('%.0f', 10 * ttl) or '86400000'
  redis.call('SET', prefix .. 'fence', fence, 'PX', kept_ms)
end
