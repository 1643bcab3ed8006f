-- status.lua - the holders and the waiters. Writes nothing.
--
-- ARGV: db, prefix -> held, seen, now ms, left ms, fence, shared holders and holders of slots, each
-- '<left ms> <slot from 1, 0: shared> <value>', the run record or '', the marks of holders, each
-- '<token> <text of the mark>' (of a lock without a mark: the digest of its value, which names a
-- holder that is not dlock), a waiter's id and entry...
-- include parts/role.lua
-- include parts/lock.lua
-- include parts/clock.lua
-- include parts/near.lua
-- include parts/holders.lua
-- include parts/run_read.lua
-- include parts/fence.lua
-- include parts/foreign.lua
if foreign then
  -- include parts/wrong.lua
  return wrong_name(foreign)
end
local together, marks, last, refused = {}, {}
local out = {value and 1 or 0, seen or '', now, redis.call('PTTL', name), '0', together, '', marks}

local function add_mark(text)
  if is_marked(text) then
    marks[#marks + 1] = string.match(text, '(%x+) ') .. ' ' .. mark_of(text)
  end
end

-- The holders with over <= score < below.
local function list(over, below)
  local all = redis.call('ZRANGEBYSCORE', holders, digits(over), '(' .. digits(below), 'WITHSCORES',
    'LIMIT', 0, 1000)
  for i = 1, #all, 2 do
    local score = tonumber(all[i + 1])
    local slot = score >= SLOT and digits(score % 1000 + 1) or '0'
    local left = digits(expiry(score) - now)
    add_mark(all[i])
    together[#together + 1] = left .. ' ' .. slot .. ' ' .. string.sub(all[i], 1, SHOWN)
  end
end
near(function()
  if value and not epoch then
    add_mark(value)
    if not marks[1] then marks[1] = foreign_token(value) end
  elseif epoch then
    list(now + 1, SLOT)
    list(SLOT + (now + 1) * 1000, FREE)
  end
  last, refused = last_fence()
  out[5] = digits(last or 0)
end)
if refused then return refused end
-- The type of foreign data stands in place of the record: no record looks like a type.
near(function()
  local text, kind = last_run()
  out[7] = text or kind or ''
end)
near(function()
  local MOST = 1000 -- REDIS_SCRIPT_MAX_WAITERS in script.h
  for _, w in ipairs(redis.call('ZRANGE', prefix .. 'queue', 0, MOST - 1)) do
    local entry = redis.call('HGET', prefix .. 'waiters', w) or ''
    out[#out + 1] = w .. ' ' .. string.sub(entry, 1, SHOWN)
  end
end)
return out
