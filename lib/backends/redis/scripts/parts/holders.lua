-- holders.lua - shared holders, and the holders of slots.
--
-- While they hold the lock, NAME is 'dlock:shared:EPOCH'. The first of them begins the epoch; its
-- token, always a new one, is the EPOCH. All are members of the zset PREFIXholders:EPOCH. So when
-- NAME is gone, or has another epoch, each has lost the lock. NAME and the zset expire with the
-- latest expiry of a holder.
--
--   a shared holder  member: its value, 's:TOKEN RECORD ttl=MS'; score: its expiry (ms)
--   a slot's holder  member: its value, 'nN:TOKEN RECORD ttl=MS'; score: SLOT + its expiry (ms)
--                    * 1000 + its number (no expiry is after LAST, in 2112: so these scores stay
--                    below FREE, and the numbers are exact)
--   a free number    member: 'free:NUMBER'; score: FREE + NUMBER. The numbers that are free or in
--                    use are 0 to some number.
--
-- One zset, because a cluster moves a slot key by key: without the zset beside NAME, the holders
-- are on the other node. The server's work does not grow with the number of holders; each expired
-- holder is removed once.
-- include parts/mark.lua
local SLOT, FREE, LAST = 4e15, 8.5e15, 4.49e12
local epoch = value and string.match(value, '^dlock:shared:(%x+)$')
local holders = epoch and prefix .. 'holders:' .. epoch

-- The kind of a value or a waiter's id: 'x' exclusive, 's' shared, or the number of slots.
local function kind_of(text)
  local letter, n = string.match(text, '^([sn])(%d*):')
  return letter == 's' and 's' or tonumber(n) or 'x'
end

local function digits(n) return string.format('%.0f', n) end

local function expiry(score) return score < SLOT and score or math.floor((score - SLOT) / 1000) end

-- The score of a holder; nil: not a holder (any more).
local function holds(member)
  local score = epoch and tonumber(redis.call('ZSCORE', holders, member) or nil)
  if score then return expiry(score) > now and score or nil end
  if epoch and redis.call('ZCARD', holders) == 0 then
    error('TRYAGAIN the holders of this lock are on another node, or were deleted', 0)
  end
end

-- As holds(), to renew or end the hold. A server that is out of memory refuses a first write that
-- may need some: begin with a ZREM that does nothing.
local function ours(member)
  local score = holds(member)
  if score then redis.call('ZREM', holders, '') end
  return score
end

-- As ours(), also of a marked hold (parts/mark.lua), and the member as it stands.
local function held(member)
  local score = ours(member)
  if score or not epoch then return score, member end
  score = ours(member .. BREAK)
  return score, score and member .. BREAK or member
end

-- The number first: in a cluster, an empty zset could not be written any more while the slot is
-- being moved.
local function remove(member, score)
  if score >= SLOT then
    local number = digits(score % 1000)
    redis.call('ZADD', holders, digits(FREE + score % 1000), 'free:' .. number)
  end
  redis.call('ZREM', holders, member)
end

-- How many slots there are and how many are in use, and the first expiry of a holder. nil: no slot
-- is in use.
local function slots()
  local all, free = digits(SLOT), '(' .. digits(FREE)
  local past = digits(SLOT + now * 1000 + 999)
  local dead = redis.call('ZRANGEBYSCORE', holders, all, past, 'WITHSCORES')
  for i = 1, #dead, 2 do remove(dead[i], tonumber(dead[i + 1])) end
  local first = redis.call('ZRANGEBYSCORE', holders, all, free, 'WITHSCORES', 'LIMIT', '0', '1')
  if not first[1] then return end
  return kind_of(first[1]), redis.call('ZCOUNT', holders, all, free), expiry(tonumber(first[2]))
end

-- May a client of this kind have the lock, waiters aside? For slots also the first expiry where all
-- are in use, and another number of slots that is in use.
local function room(kind)
  if not value then return true end
  if not epoch or kind == 'x' then return false end
  if kind == 's' then return true end
  local n, used, first = slots()
  if n and n ~= kind then return true, nil, n end
  return not n or used < kind, first
end

-- member holds the lock for ttl from now, in slot number (nil: shared). NAME comes last.
local function hold(member, number, ttl)
  local score = number and SLOT + math.min(now + ttl, LAST) * 1000 + number or now + ttl
  local left = value and redis.call('PTTL', name) or 0
  redis.call('ZADD', holders, digits(score), member)
  redis.call('PEXPIRE', holders, digits(math.max(ttl, left)))
  if not value then
    value = 'dlock:shared:' .. epoch
    redis.call('SET', name, value, 'PX', digits(ttl))
  elseif ttl > left then
    redis.call('PEXPIRE', name, digits(ttl))
  end
end

-- Let a client in for which there is room. had: the score of a holder. Returns the
-- number of the slot, the lowest free number; nil for a shared holder.
local function admit(member, kind, ttl, had)
  if not epoch then
    epoch = string.match(member, ':(%x+)')
    holders = prefix .. 'holders:' .. epoch
    redis.call('DEL', holders, prefix .. 'longest')
  end
  redis.call('ZREMRANGEBYSCORE', holders, '-inf', digits(now))
  local number
  if kind ~= 's' then
    local free = redis.call('ZRANGEBYSCORE', holders, digits(FREE), '+inf', 'LIMIT', '0', '1')[1]
    if had then
      number = had % 1000
    elseif free then
      number = tonumber(string.sub(free, 6))
    else
      number = redis.call('ZCOUNT', holders, digits(SLOT), '(' .. digits(FREE))
    end
  end
  hold(member, number, ttl)
  if number and not had then redis.call('ZREM', holders, 'free:' .. digits(number)) end
  return number
end

-- Renew a lease. The member as it stands; false: lost. Creates neither NAME nor a member.
local function extend(member, ttl)
  local score, stands = held(member)
  if not score then return false end
  hold(stands, score >= SLOT and score % 1000 or nil, ttl)
  return stands
end

-- The latest expiry of a holder; 0: no holder.
local function latest()
  local last = 0
  for _, range in ipairs({{SLOT, 0}, {FREE, SLOT}}) do
    local w = redis.call('ZREVRANGEBYSCORE', holders, '(' .. digits(range[1]), digits(range[2]),
      'WITHSCORES', 'LIMIT', '0', '1')
    if w[1] then last = math.max(last, expiry(tonumber(w[2]))) end
  end
  return last
end

-- End a hold, and with the last hold the epoch. False: member was no holder.
local function give_up(member)
  local score, stands = held(member)
  if not score then return false end
  local last = 0
  unmark(stands)
  if redis.call('ZCARD', holders) > 1 then
    remove(stands, score)
    last = latest()
  end
  if last <= now then
    redis.call('DEL', name)
    redis.call('DEL', holders)
    value, epoch = false, nil
  elseif last < expiry(score) then
    redis.call('PEXPIRE', holders, digits(last - now))
    redis.call('PEXPIRE', name, digits(last - now))
  end
  return true
end

-- The holder for the client's messages: the value of a shared holder, else NAME's.
local function shown()
  if not epoch then return seen end
  local all = redis.pcall('ZREVRANGEBYSCORE', holders, '(' .. digits(FREE), '-inf', 'LIMIT', 0, 1)
  return all[1] and string.sub(all[1], 1, SHOWN) or seen
end
