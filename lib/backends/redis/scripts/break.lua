-- break.lua - take the lock away from a holder: mark the hold (parts/mark.lua), or free it.
--
-- ARGV: db, prefix, the token of the holder as shown, who breaks the hold, how: 'mark', 'force'
-- (free the lock at once) or 'undo' (remove our mark) -> 'done' (also by an earlier mark),
-- 'changed' (the hold is over, and nothing was done) or 'foreign' (a mark does not reach another
-- program)
-- include parts/role.lua
-- include parts/lock.lua
-- include parts/clock.lua
if foreign then
  -- include parts/wrong.lua
  return wrong_name(foreign)
end
-- include parts/near.lua
-- include parts/queue.lua
-- include parts/foreign.lua
local token, by, how = ARGV[3], ARGV[4], ARGV[5]

-- The value of this holder, and its score among shared holders and those of slots. nil: not there.
local function holder()
  if value and not epoch then
    local ours = string.sub(value, 1, #token + 1) == token .. ' '
    return (ours or foreign_token(value) == token) and value or nil
  end
  for _, range in ipairs({{now + 1, SLOT}, {SLOT + (now + 1) * 1000, FREE}}) do
    local from, below = digits(range[1]), '(' .. digits(range[2])
    for _, member in ipairs(redis.call('ZRANGEBYSCORE', holders, from, below)) do
      if string.match(member, ':(%x+) ') == token then return member, holds(member) end
    end
  end
end

local found, score
if value then found, score = holder() end
if not found then return {'changed'} end
ARGV[3] = found
local mine, line = value == found
-- include parts/quit.lua
if how == 'force' then
  quit('')
  return {'done'}
end
if foreign_token(found) == token then return {'foreign'} end

-- Write the holder's value anew, with the same expiry. A reader's new value first: in a cluster, an
-- empty zset could not be written any more while the slot is being moved.
local function rename(text)
  if not score then return redis.pcall('SET', name, text, 'KEEPTTL') end
  local done = redis.pcall('ZADD', holders, digits(score), text)
  if type(done) == 'number' then redis.call('ZREM', holders, found) end
  return done
end

if how == 'undo' then
  if string.match(mark_of(found) or '', '^%d+ (.*)$') == by then
    unmark(found)
    rename(string.sub(found, 1, -#BREAK - 1))
  end
  return {'done'}
end
if string.find(found, ' over=1$') then return {'changed'} end
if is_marked(found) then return {'done'} end
-- The holder reads the text within a third of its ttl, or is dead.
local left = score and expiry(score) - now or redis.call('PTTL', name)
local kept = math.max(left, 0) + 1000 + (tonumber(string.match(found, ' ttl=(%d+)')) or 0)
near(function()
  redis.call('SET', mark_key(found), digits(now) .. ' ' .. by, 'PX', digits(kept))
end)
local done = rename(found .. BREAK)
if type(done) == 'table' and done.err then
  unmark(found .. BREAK)
  return done
end
return {'done'}
